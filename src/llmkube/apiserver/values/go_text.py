"""Some refusals quote a value as Go prints it; these are the three ways that a kube-apiserver uses.

Facts: package `fmt` of Go: the verbs `%v`, `%#v` and `%T` on decoded JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.values.json_values import is_integer, is_list, is_object

_LARGE: Final = 1e21  # from here on, and below the next, Go prints a float with an exponent
_SMALL: Final = 1e-4


def plain(value: Any) -> str:
    """Return what `%v` prints: `map[a:1 b:[x y]]`."""
    if is_object(value):
        return f"map[{' '.join(f'{name}:{plain(item)}' for name, item in sorted(value.items()))}]"
    if is_list(value):
        return f"[{' '.join(map(plain, value))}]"
    return "<nil>" if value is None else value if isinstance(value, str) else _scalar(value)


def literal(value: Any) -> str:
    """Return what `%#v` prints: `map[string]interface {}{"a":1}`."""
    if is_object(value):
        return f"{type_name(value)}{{{', '.join(f'{_quoted(name)}:{literal(value[name])}' for name in sorted(value))}}}"
    if is_list(value):
        return f"{type_name(value)}{{{', '.join(map(literal, value))}}}"
    return "interface {}(nil)" if value is None else _quoted(value) if isinstance(value, str) else _scalar(value)


def type_name(value: Any) -> str:
    """Return what `%T` prints: `map[string]interface {}`."""
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
