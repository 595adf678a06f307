import pytest

from llmkube.supervisor.values.api_keys import MAX_CHARS, MAX_KEYS, digest_of, parse_keys


def test_one_key_per_line_each_once():
    """Empty lines are ignored, and the order stays."""
    assert parse_keys(b"\nnew\n\nold\nnew") == ("new", "old")
    assert parse_keys(b"k" * MAX_CHARS + b"\n") == ("k" * MAX_CHARS,)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"good\nCanary\r\n", "in line 2"),
        (b"Canary key", "in line 1"),
        (b"#Canary", "in line 1"),
        (b"Canary\0", "in line 1"),
        (b"Canary\xff", "ASCII"),
        (b"k" * (MAX_CHARS + 1), "in line 1"),
        (b"\n".join(b"%d" % number for number in range(MAX_KEYS + 1)), "65 keys; at most 64"),
    ],
)
def test_an_invalid_key_is_refused_and_not_repeated(value, says):
    """The message names the error and its line, and never the value."""
    with pytest.raises(ValueError, match=says) as caught:
        parse_keys(value)
    assert "Canary" not in str(caught.value)


def test_a_digest_distinguishes_sets_of_keys():
    """Another order is the same set; no keys have no digest."""
    assert digest_of(("a", "b")) == digest_of(("b", "a")) != digest_of(("a",))
    assert digest_of(()) == ""
