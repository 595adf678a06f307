"""Patterns are matched by RE2, as kube-apiserver's are: in time that grows with the text, never exponentially.

It grows with the pattern's program too: `(a|b)*a(a|b){900}` takes 25 µs for each character. So the product of the two
is bounded. While it matches, RE2 lets other threads run.
"""

from functools import lru_cache
from typing import Any, Final

import re2

from llmkube.base.errors import UserError

MAX_WORK: Final = 1_000_000_000
"""The most characters of a text times instructions of a pattern's program in one match: 10 s at the very worst."""

_GO_WORDS: Final = {
    "missing )": "missing closing )",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "no argument for repetition operator": "missing argument to repetition operator",
}


class PatternError(UserError):
    """The pattern is none, or too large, or too much work for this text."""


def found(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises:
        PatternError: The pattern is none, or the match would be more than `MAX_WORK`.
    """
    return searching(pattern, text).search(text) is not None


def searching(pattern: str, text: str) -> Any:
    """Return RE2's compiled pattern, to be used on that text.

    Raises:
        PatternError: As for `found`.
    """
    program = compiled(pattern)
    if program.programsize * len(text) > MAX_WORK:
        raise PatternError(f"the text of {len(text)} characters is too long for the pattern '{pattern}'")
    return program


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Return RE2's compiled pattern, compiled once.

    Raises:
        PatternError: It is none; in the words of Go's parser, which kube-apiserver uses.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        said, _, where = (error.args[0].decode(errors="replace") if error.args else "").partition(": ")
        words = _GO_WORDS.get(said, said)
        raise PatternError(f"error parsing regexp: {words}: `{where}`") from error


def size(pattern: str) -> int:
    """Return how many instructions the pattern's program has; 0 when it is no pattern."""
    try:
        return int(compiled(pattern).programsize)
    except PatternError:
        return 0
