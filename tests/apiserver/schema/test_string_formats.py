"""The formats of strings that are enforced."""

import pytest

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import validate

FORMATS: list[tuple[str, list[str], list[str]]] = [
    ("date-time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789+01:00"], ["2026-13-01T00:00:00Z", "now"]),
    ("date", ["2026-02-28"], ["2026-02-30"]),
    ("duration", ["5m", "1h30m", "0", "1.5s"], ["5", "m"]),
    ("byte", ["aGk=", ""], ["a"]),
    ("ipv4", ["10.0.0.1"], ["::1", "10.0.0.256"]),
    ("ipv6", ["::1"], ["10.0.0.1"]),
    ("cidr", ["10.0.0.0/8", "::/0"], ["10.0.0.0"]),
    ("uuid", ["12345678-1234-1234-1234-123456789abc"], ["x"]),
    ("uri", ["https://a/b", "/a"], ["a b"]),
    ("hostname", ["a.b-c"], ["-a", "a..b"]),
    ("email", ["a@b"], ["a"]),
    ("made-up", ["anything"], []),
]


@pytest.mark.parametrize(("name", "good", "bad"), FORMATS)
def test_known_formats_are_enforced(name: str, good: list[str], bad: list[str]):
    """Known formats refuse what is malformed; unknown ones are notes."""
    schema = Schema.parse({"type": "string", "format": name})
    assert [text for text in good if validate(text, None, schema, "x")] == []
    assert [text for text in bad if not validate(text, None, schema, "x")] == []
