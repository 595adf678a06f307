"""JSON text is measured before it is parsed: a text of a few megabytes can become a tree that stalls the program.

orjson reads and writes it: four times as fast as `json` with small objects, twenty times when it writes large ones.
Like `json`, it holds the interpreter until it is done, so the limits below bound that time: 100,000 values take 20 ms.
Measuring is done by scans of bytes in C, 2 ms per megabyte.
"""

import itertools
from typing import Any, Final

import attrs
import orjson

from llmkube.base.json_text import loads_well_formed, well_formed

MAX_VALUES: Final = 100_000
"""Values (objects, lists, texts, numbers) in one text; the largest definitions of kinds in use have 60,000."""

MAX_DEPTH: Final = 200
"""Levels of nested lists and objects; kube-apiserver allows 10,000, the deepest definitions in use have 70."""

_QUOTES_PER_VALUE: Final = 4  # two of its own, and two of its name
_BRACKETS: Final = b"[]{}"
_NON_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKETS))
_STEP: Final = {code: 1 if code in b"[{" else -1 for code in _BRACKETS}


class JsonBoundError(ValueError):
    """The text exceeds a limit, which the message names."""


class TooDeepError(JsonBoundError):
    """Lists and objects are nested beyond `MAX_DEPTH`."""


class TooManyValuesError(JsonBoundError):
    """There are more than `MAX_VALUES` values."""


@attrs.frozen
class Outline:
    """The size of a JSON text, counted without parsing; meaningless for a text that is not JSON."""

    values: int
    fields: int


def measure(text: bytes) -> Outline:
    """Return the number of values and fields in a text.

    Raises:
        TooDeepError: It is nested beyond `MAX_DEPTH`.
        TooManyValuesError: It has more than `MAX_VALUES` values.
    """
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in text else text
    if plain.count(b'"') > _QUOTES_PER_VALUE * MAX_VALUES:
        raise TooManyValuesError(f"limit is {MAX_VALUES} values, and there are more")
    structure = b'"'.join(plain.split(b'"')[::2])  # each string leaves a quote: ["a"] must not look like []
    openers = structure.count(b"[") + structure.count(b"{")
    values = 1 + structure.count(b",") + openers - structure.count(b"[]") - structure.count(b"{}")
    if values > MAX_VALUES:
        raise TooManyValuesError(f"limit is {MAX_VALUES} values, and there are {values}")
    if openers > MAX_DEPTH and _depth(structure) > MAX_DEPTH:
        raise TooDeepError(f"exceeded max depth: limit is {MAX_DEPTH} levels")
    return Outline(values, structure.count(b":"))


def _depth(structure: bytes) -> int:
    return max(itertools.accumulate(map(_STEP.__getitem__, structure.translate(None, _NON_BRACKETS))), default=0)


def read(text: bytes | str) -> Any:
    """Parse a text within the limits, as Go does: what is not a character becomes U+FFFD.

    Raises:
        ValueError: It is not JSON, or it exceeds a limit (`JsonBoundError`).
    """
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    measure(raw)
    return loads_well_formed(raw, repair)


def repair(text: bytes) -> bytes:
    """Return a text with U+FFFD for bytes that are not UTF-8, and for escapes of half a character."""
    return well_formed(text.decode(errors="replace").encode())


def write(value: Any) -> bytes:
    """Return JSON as bytes, compact, in UTF-8."""
    return orjson.dumps(value)
