"""Validation of an object against its schema, in kube-apiserver's words: every keyword, all errors at once.

Facts: `k8s.io/apiextensions-apiserver/pkg/apiserver/validation` and the OpenAPI validator below it: the message of each
keyword, and that the offending value of a type error is the name of the type that was found.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.schema import cel, patterns
from llmkube.apiserver.schema.patterns import FORMATS
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.field_errors import (
    ErrorType,
    FieldError,
    Verbatim,
    at,
    at_item,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
    type_invalid,
)
from llmkube.apiserver.values.json_values import (
    compact,
    has_type,
    is_integer,
    is_list,
    is_number,
    is_object,
    json_type,
    same,
)

_BITS: Final = {"int32": 32, "int64": 64}
_GO_FORMATS: Final = {int: "int64", float: "float64"}
_EXACT_BELOW: Final = 2**53  # a larger float is not an integer in Go
_OR_EQUAL: Final = "or equal to "
_BLOCKING: Final = frozenset(
    {ErrorType.NOT_SUPPORTED, ErrorType.REQUIRED, ErrorType.TOO_LONG, ErrorType.TOO_MANY, ErrorType.TYPE_INVALID}
)
_NOT_CHECKED: Final = (
    "some validation rules were not checked because the object was invalid;"
    " correct the existing errors to complete validation"
)


def validate(obj: Any, old: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Return the errors of an object; `old` is the stored one on an update, else None.

    Bounds come first, then uniqueness in sets and keyed lists, then the CEL rules, which do not run on a malformed
    object. A value that was invalid before and has not changed is accepted (ratcheting), as in Kubernetes.
    """
    return with_rule_errors(schema_errors(obj, old, schema, path), obj, old, schema, path)


def schema_errors(obj: Any, old: Any, schema: Schema, path: str = "", *, duplicates: bool = True) -> list[FieldError]:
    """Return the errors of an object, without those of its schema's CEL rules.

    `duplicates` is off for a built-in kind, which has its own rules for repeated items.
    """
    return [*_validate(obj, old, schema, path), *(_duplicate_errors(obj, old, schema, path) if duplicates else ())]


def with_rule_errors(errors: list[FieldError], obj: Any, old: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Return the errors and those of the schema's CEL rules, or a notice that errors prevented their evaluation."""
    if not schema.has_rules:
        return errors
    if any(error.type in _BLOCKING for error in errors):
        return [*errors, invalid("", Verbatim("null"), _NOT_CHECKED)]
    return [*errors, *cel.check(obj, old, schema, path)]


def well_typed(value: Any, schema: Schema) -> bool:
    """Whether every value has the JSON type that its schema requires, regardless of bounds and rules."""
    if not _has_type(value, schema):
        return False
    if is_object(value):
        return all(well_typed(item, inner) for name, item in value.items() if (inner := schema.child(name)) is not None)
    if is_list(value) and schema.items is not None:
        return all(well_typed(item, schema.items) for item in value)
    return True


def _validate(value: Any, old: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if old is not None and same(value, old):
        return
    if not _has_type(value, schema):
        yield from _type_errors(value, schema, path)
        return
    if value is None:
        return
    yield from _bound_errors(value, schema.raw, path)
    yield from _combination_errors(value, schema, path)
    if is_object(value):
        yield from _field_errors(value, old if is_object(old) else {}, schema, path)
    elif is_list(value) and schema.items is not None:
        for index, (item, before) in enumerate(zip(value, schema.counterparts(value, old), strict=True)):
            yield from _validate(item, before, schema.items, at_item(path, index))


def _type_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the type error, and the errors of the checks that apply to a value of any type."""
    found, wanted, raw = json_type(value), "integer,string" if schema.int_or_string else schema.type, schema.raw
    if "format" in raw and not isinstance(value, str | list | None):
        found, wanted = _GO_FORMATS.get(type(value), ""), raw["format"]
    yield type_invalid(path, found, _body(path, f'must be of type {wanted}: "{found}"'))
    if schema.type == "integer" and is_number(value):
        yield from _number_bounds(value, raw, path)
    if "enum" in raw:
        yield not_supported(path, value, raw["enum"])
    yield from _combination_errors(value, schema, path)


def _field_errors(value: Mapping[str, Any], old: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    for name in schema.raw.get("required") or ():
        if name not in value:
            yield required(at(path, name))
    for name in ("apiVersion", "kind") if schema.embedded else ():
        if not value.get(name):
            yield required(at(path, name))
    for name, item in value.items():
        inner, before = schema.child(name), old.get(name)
        if inner is not None and (item is None or item is not before):
            yield from _validate(item, before, inner, at(path, name))


def _has_type(value: Any, schema: Schema) -> bool:
    if value is None:
        return schema.nullable or not (schema.type or schema.int_or_string)
    if schema.int_or_string:
        return isinstance(value, str) or is_integer(value)
    if schema.type == "integer" and isinstance(value, float) and abs(value) >= _EXACT_BELOW:
        return False
    return has_type(value, schema.type)


def _body(path: str, text: str) -> str:
    return f"{path} in body {text}"


def _bound_errors(value: Any, raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if "enum" in raw and not any(same(value, allowed) for allowed in raw["enum"]):
        yield not_supported(path, value, raw["enum"])
    if is_number(value):
        yield from _number_bounds(value, raw, path)
    elif isinstance(value, str):
        yield from _text_bounds(value, raw, path)
    elif is_object(value):
        yield from _size_bounds(len(value), raw.get("minProperties"), raw.get("maxProperties"), "properties", path)
    elif is_list(value):
        yield from _size_bounds(len(value), raw.get("minItems"), raw.get("maxItems"), "items", path)
        if raw.get("uniqueItems") and len({compact(item) for item in value}) < len(value):
            yield invalid(path, value, _body(path, "shouldn't contain duplicates"))


def _number_bounds(value: float, raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    lowest, highest, step = raw.get("minimum"), raw.get("maximum"), raw.get("multipleOf")
    above, below = raw.get("exclusiveMinimum"), raw.get("exclusiveMaximum")
    if isinstance(value, int):  # Go compares integers, with truncated bounds: 0 is not below 0.1
        lowest, highest = (None if bound is None else int(bound) for bound in (lowest, highest))
    bits = _BITS.get(raw.get("format", ""), 64)
    if raw.get("type") == "integer" and not (is_integer(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)):
        format_text = f"with format {raw['format']}" if "format" in raw else "(default format)"
        yield invalid("", "", f"Checked value must be of type integer {format_text} in {path}")
    if lowest is not None and (value < lowest or (above and value == lowest)):
        yield invalid(path, value, _body(path, f"should be greater than {'' if above else _OR_EQUAL}{_plain(lowest)}"))
    if highest is not None and (value > highest or (below and value == highest)):
        yield invalid(path, value, _body(path, f"should be less than {'' if below else _OR_EQUAL}{_plain(highest)}"))
    if step and not is_integer(value / step):
        yield invalid(path, value, _body(path, f"should be a multiple of {_plain(step)}"))


def _text_bounds(value: str, raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    longest, shortest, pattern = raw.get("maxLength"), raw.get("minLength"), raw.get("pattern")
    if longest is not None and len(value) > longest:
        yield too_long(path, longest)
    elif shortest is not None and len(value) < shortest:
        yield invalid(path, value, _body(path, f"should be at least {shortest} chars long"))
    elif pattern:
        yield from _pattern_errors(value, pattern, path)
    wanted = raw.get("format", "")
    if wanted in FORMATS and not FORMATS[wanted](value):
        yield type_invalid(path, value, _body(path, f'must be of type {wanted}: "{value}"'))


def _pattern_errors(value: str, pattern: str, path: str) -> Iterator[FieldError]:
    try:
        if not patterns.found(pattern, value):
            yield invalid(path, value, _body(path, f"should match '{pattern}'"))
    except patterns.PatternError as error:
        yield invalid(path, Verbatim("a text"), str(error))


def _size_bounds(size: int, minimum: int | None, maximum: int | None, unit: str, path: str) -> Iterator[FieldError]:
    if maximum is not None and size > maximum:
        yield too_many(path, size, maximum)
    if minimum is not None and size < minimum:
        yield invalid(path, size, _body(path, f"should have at least {minimum} {unit}"))


def _combination_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of allOf, anyOf, oneOf and not; as in kube-apiserver, they have no path of their own."""
    for branch in schema.all_of:
        failed = list(_validate(value, None, branch, path))
        if failed:
            yield from failed
            yield invalid("", "", f'"{path}" must validate all the schemas (allOf)')
    if schema.any_of:
        failures = [list(_validate(value, None, branch, path)) for branch in schema.any_of]
        if all(failures):
            yield from _closest_branch(failures)
            yield invalid("", "", f'"{path}" must validate at least one schema (anyOf)')
    if schema.one_of:
        failures = [list(_validate(value, None, branch, path)) for branch in schema.one_of]
        count = failures.count([])
        if count != 1:
            found = "none valid" if not count else f"{count} valid alternatives"
            if not count:
                yield from _closest_branch(failures)
            yield invalid("", "", f'"{path}" must validate one and only one schema (oneOf). Found {found}')
    if schema.not_ is not None and _fits(value, schema.not_, path):
        yield invalid("", "", f'"{path}" must not validate the schema (not)')


def _closest_branch(failures: Sequence[Sequence[FieldError]]) -> Iterator[FieldError]:
    """Yield the errors of the branch that fits best, so that the user has something to fix."""
    yield from min(failures, key=lambda errors: sum(bool(error.path) for error in errors))


def _fits(value: Any, schema: Schema, path: str) -> bool:
    return next(_validate(value, None, schema, path), None) is None


def _duplicate_errors(value: Any, old: Any, schema: Schema, path: str) -> list[FieldError]:
    found = list(_find_duplicates(value, schema, path))
    return [] if found and old is not None and any(_find_duplicates(old, schema, path)) else found


def _find_duplicates(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if is_object(value):
        for name, item in value.items():
            inner = schema.child(name)
            if inner is not None:
                below = at(path, name) if name in schema.properties else at_item(path, name)
                yield from _find_duplicates(item, inner, below)
    elif is_list(value):
        if schema.list_type != "atomic":
            yield from _duplicate_items(value, schema, path)
        if schema.items is not None:
            for index, item in enumerate(value):
                yield from _find_duplicates(item, schema.items, at_item(path, index))


def _duplicate_items(items: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    """Report the second of equal items, not the third.

    For a keyed list, the first item that cannot have keys is all that is reported, and null is an item without keys
    (kube-apiserver 1.36).
    """
    by_keys, seen = schema.list_type == "map", Counter[str]()
    for index, item in enumerate(items) if by_keys else ():
        if item is not None and not is_object(item):
            yield invalid(at_item(path, index), item, "must be an object for an array of list-type map")
            return
    for index, item in enumerate(items):
        key = item
        if by_keys:
            key = {name: item[name] for name in schema.list_map_keys if name in (item or {})}
        canonical = compact(key)
        seen[canonical] += 1
        if seen[canonical] == 2:
            yield duplicate(at_item(path, index), key)


def _plain(number: float) -> str:
    return str(int(number)) if is_integer(number) else str(number)
