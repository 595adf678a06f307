"""JSON as bytes, by orjson: it reads twice as fast as `json` and writes fifteen times as fast.

What orjson does not take, `json` does: an integer of more than 64 bits, a name that is a number, half a surrogate pair
in a text that is read. One thing is not as in `json`: an integer of more than 64 bits is read as a float.
"""

import json
from typing import Any, Final

import orjson

_EXACT: Final = {
    sort_keys: json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, sort_keys=sort_keys)
    for sort_keys in (False, True)
}


def loads(text: bytes | str) -> Any:
    """Return the value that a text spells.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deep.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return a value as compact JSON, with its names as they come or in their order.

    Raises:
        TypeError: Something in it is no JSON value.
        ValueError: A number in it is infinite or none, or a text has half a surrogate pair.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return _EXACT[sort_keys].encode(value).encode()
    # orjson writes `null` for what is no number; so look once more where there is a null.
    return _EXACT[sort_keys].encode(value).encode() if b"null" in text else text
