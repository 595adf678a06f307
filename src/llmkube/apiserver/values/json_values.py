"""JSON values are compared by type and content: true is not 1, 1 equals 1.0, and an object has no order.

Some refusals quote a value as Go prints it, in one of the three formats that a kube-apiserver uses.
Facts: package `fmt` of Go: the verbs `%v`, `%#v` and `%T` on decoded JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

import attrs
import orjson


@attrs.frozen
class _Absent:
    """The type of `ABSENT`."""

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()
"""No value at all, whereas None is JSON's null."""

_INTEGERS_BELOW: Final = 2**63  # a larger number is not an integer to the JSON readers here
SCALARS: Final = frozenset({str, int, float, bool, type(None)})
"""Types of JSON values that contain no others."""

_NON_OBJECTS: Final = SCALARS | {list, tuple, _Absent}


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal."""
    if left is right:
        return True
    kind = type(left)
    if kind is type(right) and kind in SCALARS:
        return bool(left == right)
    if kind is bool or type(right) is bool or kind is str:
        return False
    if is_object(left) and is_object(right):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether the value is a JSON object."""
    kind = type(value)  # `isinstance` with an abstract class costs ten times as much as these two
    return kind is dict or (kind not in _NON_OBJECTS and isinstance(value, Mapping))


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether the value is a JSON array."""
    return isinstance(value, (list, tuple))


def is_number(value: Any) -> bool:
    """Whether the value is a JSON number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """Whether the value is a JSON number without a fraction, as an OpenAPI integer is."""
    return is_number(value) and value == value // 1


def compact(value: Any) -> str:
    """Return the canonical JSON of a value: no spaces, keys sorted; equal values have equal texts."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _INTEGERS_BELOW:
        value = int(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def json_type(value: Any) -> str:
    """Return the JSON name of a value's type, as in validation messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if is_object(value):
        return "object"
    if isinstance(value, str):
        return "string"
    if is_list(value):
        return "array"
    return "integer" if isinstance(value, int) else "number"


def has_type(value: Any, wanted: str) -> bool:
    """Whether a value has the type of a JSON schema; every value has the empty one, and 1.0 is an integer too."""
    if wanted in {"integer", "number"}:
        return is_integer(value) if wanted == "integer" else is_number(value)
    return not wanted or json_type(value) == wanted


def copy(value: Any) -> Any:
    """Return a deep copy; the copy's containers are plain dicts and lists."""
    if is_object(value):
        return {name: item if type(item) in SCALARS else copy(item) for name, item in value.items()}
    if is_list(value):
        return [item if type(item) in SCALARS else copy(item) for item in value]
    return value


def set_or_drop(obj: dict[str, Any], name: str, value: Any) -> None:
    """Set a field, or remove it if its value is empty."""
    if value:
        obj[name] = value
    else:
        obj.pop(name, None)


_LARGE: Final = 1e21  # from here on, and below _SMALL, Go prints a float with an exponent
_SMALL: Final = 1e-4


def go_plain(value: Any) -> str:
    """Return the output of `%v`: `map[a:1 b:[x y]]`."""
    if is_object(value):
        return f"map[{' '.join(f'{name}:{go_plain(item)}' for name, item in sorted(value.items()))}]"
    if is_list(value):
        return f"[{' '.join(map(go_plain, value))}]"
    return "<nil>" if value is None else value if isinstance(value, str) else _scalar(value)


def go_literal(value: Any) -> str:
    """Return the output of `%#v`: `map[string]interface {}{"a":1}`."""
    if is_object(value):
        items = ", ".join(f"{_quoted(name)}:{go_literal(value[name])}" for name in sorted(value))
        return f"{go_type_name(value)}{{{items}}}"
    if is_list(value):
        return f"{go_type_name(value)}{{{', '.join(map(go_literal, value))}}}"
    return "interface {}(nil)" if value is None else _quoted(value) if isinstance(value, str) else _scalar(value)


def go_type_name(value: Any) -> str:
    """Return the output of `%T`: `map[string]interface {}`."""
    kinds: Sequence[tuple[type, str]] = (
        (bool, "bool"),
        (str, "string"),
        (Mapping, "map[string]interface {}"),
        (list, "[]interface {}"),
        (int, "int64"),
        (float, "float64"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "<nil>")


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value and not _SMALL <= abs(value) < _LARGE:
        return repr(value) if "e" in repr(value) else f"{value:e}"
    return str(int(value)) if is_integer(value) else repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
