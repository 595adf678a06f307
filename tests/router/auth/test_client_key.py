"""Client keys in requests, and the errors for requests without a valid key."""

import json

import pytest

from http_lab import head_of
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presents_key

DIGESTS = frozenset(map(digest_of_key, ("first-key", "second-key")))


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("Authorization: Bearer first-key\r\n", True),
        ("Authorization: Bearer second-key\r\n", True),
        ("authorization: bearer  first-key \r\n", True),
        ("X-Api-Key: second-key\r\n", True),
        ("", False),
        ("Authorization: Bearer first-ke\r\n", False),
        ("Authorization: Bearer first-keysecond-key\r\n", False),
        ("Authorization: Bearer\r\n", False),
        ("X-Api-Key:\r\n", False),
        ("Authorization: Basic first-key\r\n", False),
        ("Authorization: Bearer wrong\r\nAuthorization: Bearer first-key\r\n", False),
        ("Authorization: Bearer \u00e9\r\n", False),
        ("Cookie: key=first-key\r\n", False),
    ],
)
def test_each_key_works_in_each_of_two_headers(lines, shown):
    """A partial key, another scheme and the second of two header lines are not accepted."""
    assert presents_key(head_of("/v1/chat/completions?api_key=first-key", lines), DIGESTS) == shown


def test_no_key_is_never_a_key():
    """A request without a key is rejected by every key set, including one read from an empty line."""
    assert not presents_key(head_of("/"), frozenset({digest_of_key("")}))


@pytest.mark.parametrize(
    ("lines", "method", "only"),
    [
        ("", "GET", True),
        ("", "HEAD", True),
        ("Content-Length: 0\r\n", "GET", True),
        ("Content-Length: 5\r\n", "GET", False),
        ("Transfer-Encoding: chunked\r\n", "GET", False),
        ("", "POST", False),
        ("", "OPTIONS", False),
    ],
)
def test_what_brings_a_body_does_not_only_read(lines, method, only):
    """An unauthenticated probe uses no capacity for bodies."""
    assert is_read_only(head_of("/health", lines, method)) == only


def test_a_refusal_is_one_that_openais_clients_understand():
    """OpenAI's clients read the code in the body and the scheme in the header."""
    refusal = key_refusal("why")
    assert (refusal.status, refusal.headers.get("www-authenticate")) == (401, "Bearer")
    assert json.loads(refusal.body)["error"] == {
        "message": "why",
        "type": "authentication_error",
        "code": "invalid_api_key",
    }
