"""Field errors, formatted exactly as kube-apiserver prints them, because clients and people parse them.

Facts: `k8s.io/apimachinery/pkg/util/validation/field` (wording of 1.32): the kinds of error, which of them show the
offending value, and how a value is written.
"""

import enum
from collections.abc import Iterable
from typing import Any, Final

import attrs

from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.json_values import ABSENT


class ErrorType(enum.StrEnum):
    """The machine-readable reason of a field error, as in the causes of a Status."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    TYPE_INVALID = "FieldValueTypeInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    FORBIDDEN = "FieldValueForbidden"
    DUPLICATE = "FieldValueDuplicate"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    INTERNAL = "InternalError"


_MESSAGES: Final = {
    ErrorType.REQUIRED: "Required value",
    ErrorType.INVALID: "Invalid value",
    ErrorType.TYPE_INVALID: "Invalid value",
    ErrorType.NOT_SUPPORTED: "Unsupported value",
    ErrorType.FORBIDDEN: "Forbidden",
    ErrorType.DUPLICATE: "Duplicate value",
    ErrorType.TOO_LONG: "Too long",
    ErrorType.TOO_MANY: "Too many",
    ErrorType.INTERNAL: "Internal error",
}
_EXPONENT_FROM: Final = 1e6  # Go writes larger floats with an exponent
_WITHOUT_VALUE: Final = frozenset({ErrorType.REQUIRED, ErrorType.FORBIDDEN, ErrorType.TOO_LONG, ErrorType.INTERNAL})


@attrs.frozen
class Verbatim:
    """A bad value that is printed as it is, where kube-apiserver prints something that is not JSON."""

    text: str


@attrs.frozen
class FieldError:
    """One error in one field."""

    path: str  # "spec.ports[0].port"; empty for the object as a whole
    type: ErrorType
    detail: str = ""
    bad_value: Any = ABSENT  # ABSENT prints no value; None would print as `null`

    @property
    def reason(self) -> str:
        """The cause's reason, such as `FieldValueInvalid`."""
        return self.type.value

    @property
    def message(self) -> str:
        """The error without its path: `Invalid value: 11: must be less than or equal to 10`."""
        text = _MESSAGES[self.type]
        if self.type not in _WITHOUT_VALUE and self.bad_value is not ABSENT:
            text += f": {render(self.bad_value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.path or '<nil>'}: {self.message}"


def render(value: Any) -> str:
    """Return a value as in field errors: strings quoted, null as `"null"`, the rest as JSON."""
    if isinstance(value, Verbatim):
        return value.text
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXPONENT_FROM:
        value = int(value)
    return json_text.write("null" if value is None else value).decode()


def at(path: str, name: str) -> str:
    """Return the path of a field inside `path`."""
    return f"{path}.{name}" if path else name


def at_item(path: str, key: int | str) -> str:
    """Return the path of a list's item, or of a map's value: `metadata.labels[app]`."""
    return f"{path}[{key}]"


def required(path: str, detail: str = "") -> FieldError:
    """Return the error: the field must be set."""
    return FieldError(path, ErrorType.REQUIRED, detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """Return the error: the value is malformed or out of bounds."""
    return FieldError(path, ErrorType.INVALID, detail, value)


def type_invalid(path: str, value: Any, detail: str) -> FieldError:
    """Return the error: the value has the wrong JSON type; `value` is the name of the type that it has."""
    return FieldError(path, ErrorType.TYPE_INVALID, detail, value)


def not_supported(path: str, value: Any, supported: Iterable[Any]) -> FieldError:
    """Return the error: the value is not one of the supported values."""
    listed = ", ".join(render(each if isinstance(each, str) else render(each)) for each in supported)  # 3 becomes "3"
    return FieldError(path, ErrorType.NOT_SUPPORTED, f"supported values: {listed}" if listed else "", value)


def forbidden(path: str, detail: str) -> FieldError:
    """Return the error: the value would be valid elsewhere, but not here or not now."""
    return FieldError(path, ErrorType.FORBIDDEN, detail)


def duplicate(path: str, value: Any) -> FieldError:
    """Return the error: the value must be unique among its siblings and is not."""
    return FieldError(path, ErrorType.DUPLICATE, "", value)


def too_long(path: str, limit_bytes: int) -> FieldError:
    """Return the error: the text is too long."""
    return FieldError(path, ErrorType.TOO_LONG, f"may not be more than {limit_bytes} bytes")


def too_many(path: str, actual: int, limit: int) -> FieldError:
    """Return the error: the list or map has too many items."""
    return FieldError(path, ErrorType.TOO_MANY, f"must have at most {limit} items", actual)


def immutable(path: str, value: Any) -> FieldError:
    """Return the error: the field cannot change once it is set."""
    return invalid(path, value, "field is immutable")
