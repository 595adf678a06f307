"""Patterns of model names: `*` is any text, also over slashes, `?` one character, all else itself."""

import functools
import re
from collections.abc import Callable
from typing import Final

_FOREIGN: Final = re.compile(r"[\[\]{}\\\s]")


def fits_any(patterns: tuple[str, ...], model: str) -> bool:
    """Return whether a model's name fits one of the patterns."""
    return _matcher(patterns)(model)


def problem_of(pattern: str) -> str:
    """Return why a text is no pattern, or "" if it is one."""
    if not pattern:
        return "it is empty and fits no model; write * for every model"
    found = _FOREIGN.search(pattern)
    if found:
        return f"{found[0]!r} is no wildcard here; * stands for any text and ? for one character"
    return ""


def covers(pattern: str, other: str) -> bool:
    """Return whether each name that fits `other` fits `pattern` for certain; False says nothing."""
    return pattern in {"*", other} or ("*" not in other and "?" not in other and fits_any((pattern,), other))


@functools.lru_cache(maxsize=1024)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    compiled = re.compile("|".join(f"(?:{_expression(pattern)})" for pattern in patterns) or r"(?!)", re.DOTALL)
    return lambda model: compiled.fullmatch(model) is not None


def _expression(pattern: str) -> str:
    """A text between two `*` is looked for once, from the left, and never again: no name makes the search long."""
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last
