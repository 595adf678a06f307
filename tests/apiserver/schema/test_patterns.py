"""Patterns have RE2's verdicts, in time that no text can blow up."""

import pytest

from llmkube.apiserver.schema import patterns


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^([a-z]*)*b$", "^(a|a)*$", "(x+x+)+y"])
def test_a_pattern_that_an_engine_with_backtracking_never_finishes_is_answered(pattern: str):
    """100,000 characters that nearly match are refused at once; with backtracking, thirty would take minutes."""
    assert not patterns.found(pattern, "a" * 100_000 + "!")


@pytest.mark.parametrize(
    ("pattern", "text", "verdict"),
    [
        ("^a$", "a\n", False),  # the very end, not before a last line break
        (r"^\d$", "\u0663", False),  # a digit is an ASCII digit
        (r"^\w$", "é", False),
        ("^.$", "é", True),  # a character is a code point, not a byte
        ("b", "abc", True),  # somewhere
        (r"^\pL+\z", "é", True),
        ("(?i)^ABC$", "abc", True),
    ],
)
def test_patterns_read_as_in_go(pattern: str, text: str, verdict: bool):
    """Anchors, classes and flags mean what Go's package regexp gives them."""
    assert patterns.found(pattern, text) is verdict


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "error parsing regexp: missing closing ): `(`"),
        ("(?=a)", "error parsing regexp: invalid or unsupported Perl syntax: `(?=`"),
        (r"\1", r"error parsing regexp: invalid escape sequence: `\\1`"),
        ("a{1001}", "error parsing regexp: invalid repeat count: `{1001}`"),
        ("a**", "error parsing regexp: invalid nested repetition operator: `**`"),
    ],
)
def test_patterns_that_re2_refuses_get_go_s_message(pattern: str, message: str):
    """Lookaheads and back references are no patterns, though Python has them."""
    with pytest.raises(patterns.PatternError) as raised:
        patterns.compiled(pattern)
    assert str(raised.value) == message.replace("\\\\", "\\")


def test_a_match_that_would_take_minutes_is_refused():
    """A large program over a long text is refused before it runs; over a short one it is answered."""
    costly = "|".join(f"(a|b)*a(a|b){{900}}{end}" for end in "cdefghijkl")
    assert not patterns.found(costly, "ab" * 100)
    with pytest.raises(patterns.PatternError, match="too long for the pattern"):
        patterns.found(costly, "ab" * 100_000)
