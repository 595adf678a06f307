"""Functions that Kubernetes adds to CEL: for strings, lists, regular expressions and URLs.

Facts: kubernetes.io, "Common Expression Language in Kubernetes", the tables of its string, list, regex and URL
libraries.
"""

import itertools
import operator
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

import celpy.celtypes as ct

from llmkube.apiserver.schema import patterns


def _text(function: Callable[..., str]) -> Callable[..., Any]:
    return lambda *given: ct.StringType(function(*given))


def _boolean(function: Callable[..., bool]) -> Callable[..., Any]:
    return lambda *given: ct.BoolType(function(*given))


MAX_TEXT: Final = 10_000_000
"""Longest text, in characters, that a function returns; `"".replace` could multiply two texts of a megabyte."""


MAX_TIME_CHARACTERS: Final = 64
"""Longest duration or timestamp, in characters; celpy parses one in quadratic time."""


def duration(given: Any) -> Any:
    """Parse a duration; raises ValueError if it is malformed."""
    return ct.DurationType(_check_time_length(given))


def timestamp(given: Any) -> Any:
    """Parse a timestamp; raises ValueError if it is malformed."""
    return ct.TimestampType(_check_time_length(given))


def _check_time_length(given: Any) -> Any:
    if isinstance(given, str) and len(given) > MAX_TIME_CHARACTERS:
        raise ValueError(f"duration or timestamp too long: {len(given)} characters; {MAX_TIME_CHARACTERS} are allowed")
    return given


def _matches(text: str, pattern: str) -> Any:
    try:
        return ct.BoolType(patterns.found(pattern, text))
    except patterns.PatternError as error:
        raise ValueError(str(error)) from error


def _find(text: str, pattern: str) -> str:
    found = patterns.compile_for(pattern, text).search(text)
    return found.group() if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> Any:
    matches = itertools.islice(patterns.compile_for(pattern, text).finditer(text), None if limit < 0 else limit)
    return ct.ListType([ct.StringType(match.group()) for match in matches])


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    times = text.count(old) if limit < 0 else min(text.count(old), limit)
    _check_length(len(text) + times * len(new))
    return text.replace(old, new, limit)


def _check_length(characters: int) -> None:
    if characters > MAX_TEXT:
        raise ValueError(f"result too long: {characters} characters; {MAX_TEXT} are allowed")


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, str | list) or isinstance(right, str | list):
        raise TypeError("found no matching overload for '_*_'")  # Python would repeat the text
    return operator.mul(left, right)


def _split(text: str, separator: str, limit: int = -1) -> Any:
    if limit == 0:
        return ct.ListType([])
    parts = list(text) if not separator else text.split(separator, limit - 1 if limit > 0 else -1)
    return ct.ListType([ct.StringType(part) for part in parts])


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise ValueError(f"index out of range: {start} to {stop}")
    return text[start:stop]


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise ValueError(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(container: Any, wanted: Any, start: int = 0) -> Any:
    if isinstance(container, str):
        return ct.IntType(container.find(wanted, start))
    return ct.IntType(next((index for index, item in enumerate(container) if item == wanted), -1))


def _last_index_of(container: Any, wanted: Any) -> Any:
    if isinstance(container, str):
        return ct.IntType(container.rfind(wanted))
    return ct.IntType(next((index for index in reversed(range(len(container))) if container[index] == wanted), -1))


def _join(items: Any, separator: str = "") -> str:
    _check_length(sum(map(len, items)) + len(separator) * len(items))
    return separator.join(items)


def _sum(items: Any) -> Any:
    total = ct.IntType(0)
    for index, item in enumerate(items):
        total = item if index == 0 else total + item
    return total


def _is_url(text: str) -> bool:
    try:
        parsed = urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return bool(parsed.scheme) or text.startswith("/")


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_*_": _multiply,
    "charAt": _text(_char_at),
    "duration": duration,
    "find": _text(_find),
    "findAll": _find_all,
    "indexOf": _index_of,
    "isSorted": _boolean(lambda items: all(left <= right for left, right in itertools.pairwise(items))),
    "isURL": _boolean(_is_url),
    "join": _text(_join),
    "lastIndexOf": _last_index_of,
    "lowerAscii": _text(str.lower),
    "matches": _matches,
    "max": max,
    "min": min,
    "replace": _text(_replace),
    "split": _split,
    "substring": _text(_substring),
    "sum": _sum,
    "timestamp": timestamp,
    "trim": _text(str.strip),
    "upperAscii": _text(str.upper),
}
"""By CEL name; a method's receiver is its first argument."""
