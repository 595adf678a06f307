"""JSON as bytes, by orjson: it reads twice as fast as `json` and writes fifteen times as fast.

`json` handles what orjson rejects: when writing, integers of more than 64 bits and keys that are numbers; when reading,
half a surrogate pair. One difference from `json` remains: an integer of more than 64 bits is read as a float.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

_EXACT: Final = {
    sort_keys: json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, sort_keys=sort_keys)
    for sort_keys in (False, True)
}

_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape; the group is half a surrogate pair."""


def well_formed(text: bytes) -> bytes:
    """Return a JSON text with U+FFFD for each half of a surrogate pair."""
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], text)


def loads_well_formed(text: bytes | str, repair: Callable[[bytes], bytes] = well_formed) -> Any:
    """Return the value of a JSON text; one that is not valid is repaired first.

    Programs in JavaScript write half a surrogate pair if they have cut a string within a character.

    Raises:
        orjson.JSONDecodeError: The text is not valid JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        repaired = repair(raw)
        if repaired == raw:
            raise
        return orjson.loads(repaired)


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not valid JSON.
        RecursionError: The value is nested too deeply.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return a value as compact JSON.

    Raises:
        TypeError: JSON cannot represent a value in it.
        ValueError: A number in it is infinite or NaN, or a string has half a surrogate pair.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return _EXACT[sort_keys].encode(value).encode()
    # orjson writes `null` for NaN and infinity; if there is a null, `json` decides whether it is a legitimate one.
    return _EXACT[sort_keys].encode(value).encode() if b"null" in text else text
