"""JSON values compare by kind and content: true is not 1, 1 is 1.0, and an object has no order."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs


@attrs.frozen
class _Absent:
    """The type of `ABSENT`."""

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()
"""No value at all, where None is JSON's null."""


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal."""
    if left is right:
        return True
    if isinstance(left, (str, bool)) or isinstance(right, bool):
        return type(left) is type(right) and bool(left == right)
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(same, left, right))
    if (type(left) is dict or isinstance(left, Mapping)) and (type(right) is dict or isinstance(right, Mapping)):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    return bool(left == right)


def is_list(value: Any) -> bool:
    """Whether the value is a JSON array."""
    return isinstance(value, (list, tuple))


def is_number(value: Any) -> bool:
    """Whether the value is a JSON number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """Whether the value is a JSON number without a fraction, as an OpenAPI integer is."""
    return is_number(value) and value == value // 1


def compact(value: Any) -> str:
    """Return the one spelling of a value: no spaces, keys sorted; equal values spell the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def json_type(value: Any) -> str:
    """Return the JSON name of a value's type, as validation messages say it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, str):
        return "string"
    if is_list(value):
        return "array"
    return "integer" if isinstance(value, int) else "number"


def copy(value: Any) -> Any:
    """Return a deep copy; the copy's containers are plain dicts and lists."""
    kind = type(value)  # most values are of JSON's own kinds: ask for the costly ones last
    if kind is str or kind is int:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {name: copy(item) for name, item in value.items()}
    if kind is list or is_list(value):
        return [copy(item) for item in value]
    return value
