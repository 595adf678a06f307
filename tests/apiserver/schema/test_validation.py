"""Validation against a schema, in kube-apiserver's words."""

from typing import Any

import pytest

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import validate, well_typed

KEYED = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {"type": "object", "properties": {"type": {"type": "string"}}},
}


def in_body(value: str, words: str) -> str:
    return f"x: Invalid value: {value}: x in body {words}"


def mistyped(found: str, wanted: str, path: str = "x") -> str:
    return f'{path}: Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'


def no_integer(form: str) -> str:
    return f'<nil>: Invalid value: "": Checked value must be of type integer {form} in x'


def as_a_whole(words: str) -> str:
    return f'<nil>: Invalid value: "": "x" must {words}'


CASES: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({"type": "integer"}, 1, []),
    ({"type": "integer"}, 1.0, []),
    ({"type": "integer"}, 1.5, [mistyped("number", "integer"), no_integer("(default format)")]),
    ({"type": "integer"}, True, [mistyped("boolean", "integer")]),
    ({"type": "string"}, None, [mistyped("null", "string")]),
    ({"type": "string", "nullable": True}, None, []),
    ({"type": "object"}, [], [mistyped("array", "object")]),
    ({"type": "integer", "maximum": 10}, 11, [in_body("11", "should be less than or equal to 10")]),
    ({"type": "number", "maximum": 1.5, "exclusiveMaximum": True}, 1.5, [in_body("1.5", "should be less than 1.5")]),
    ({"type": "integer", "minimum": 1}, 0, [in_body("0", "should be greater than or equal to 1")]),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 0, [in_body("0", "should be greater than 0")]),
    ({"type": "integer", "multipleOf": 3}, 4, [in_body("4", "should be a multiple of 3")]),
    ({"type": "integer", "format": "int32"}, 2**31, [no_integer("with format int32")]),
    ({"type": "string", "maxLength": 2}, "abc", ["x: Too long: may not be more than 2 bytes"]),
    ({"type": "string", "minLength": 1}, "", [in_body('""', "should be at least 1 chars long")]),
    ({"type": "string", "pattern": "^a+$"}, "b", [in_body('"b"', "should match '^a+$'")]),
    ({"type": "string", "pattern": "^a+$"}, "a\n", [in_body('"a\\n"', "should match '^a+$'")]),
    ({"type": "string", "pattern": "^a$|^b$"}, "b\n", [in_body('"b\\n"', "should match '^a$|^b$'")]),
    ({"type": "string", "pattern": r"^[$]\$$"}, "$$", []),
    ({"type": "string", "pattern": r"^\w$"}, "\u00e4", [in_body('"\u00e4"', r"should match '^\w$'")]),
    ({"type": "number", "minimum": 0.5}, 0, []),  # Go compares an integer with the bound's whole part
    ({"type": "number", "minimum": 0.5}, 0.0, [in_body("0", "should be greater than or equal to 0.5")]),
    ({"type": "number", "maximum": 0.5}, 1, [in_body("1", "should be less than or equal to 0")]),
    (
        {"type": "integer", "format": "int32", "minimum": 2},
        1.5,
        [
            mistyped("float64", "int32"),
            no_integer("with format int32"),
            in_body("1.5", "should be greater than or equal to 2"),
        ],
    ),
    ({"type": "integer", "format": "int32"}, True, [mistyped("", "int32")]),
    ({"type": "integer", "format": "int32"}, "1", [mistyped("string", "integer")]),
    ({"type": "integer", "enum": [3, 6]}, 4, ['x: Unsupported value: 4: supported values: "3", "6"']),
    (
        {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        True,
        [
            mistyped("boolean", "integer,string"),
            mistyped("boolean", "integer"),
            as_a_whole("validate at least one schema (anyOf)"),
        ],
    ),
    ({"type": "string", "enum": ["a", "b"]}, "x", ['x: Unsupported value: "x": supported values: "a", "b"']),
    ({"type": "array", "minItems": 1}, [], [in_body("0", "should have at least 1 items")]),
    ({"type": "array", "maxItems": 1}, [1, 2], ["x: Too many: 2: must have at most 1 items"]),
    ({"type": "object", "minProperties": 1}, {}, [in_body("0", "should have at least 1 properties")]),
    ({"type": "object", "required": ["a", "b"]}, {"a": 1}, ["x.b: Required value"]),
    (
        {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
        [{"n": "a"}, {"n": 1}],
        [mistyped("integer", "string", "x[1].n")],
    ),
    ({"x-kubernetes-int-or-string": True}, "80", []),
    ({"x-kubernetes-int-or-string": True}, 80, []),
    ({"x-kubernetes-int-or-string": True}, 1.5, [mistyped("number", "integer,string")]),
    (
        {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        ["a", "b", "a", "a"],
        ['x[2]: Duplicate value: "a"'],
    ),
    (KEYED, [{"type": "A"}, {"type": "A"}], ['x[1]: Duplicate value: {"type":"A"}']),
    (
        KEYED,
        [None, None, None],
        [*(mistyped("null", "object", f"x[{index}]") for index in range(3)), "x[1]: Duplicate value: {}"],
    ),
    (
        KEYED,
        [None, {"type": "A"}, {"type": "A"}, 5, True],
        [
            mistyped("null", "object", "x[0]"),
            mistyped("integer", "object", "x[3]"),
            mistyped("boolean", "object", "x[4]"),
            "x[3]: Invalid value: 5: must be an object for an array of list-type map",
        ],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"a": 1, "b": 1},
        [as_a_whole("validate one and only one schema (oneOf). Found 2 valid alternatives")],
    ),
    (
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {},
        ["x.a: Required value", as_a_whole("validate at least one schema (anyOf)")],
    ),
    (
        {"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 3}]},
        5,
        [in_body("5", "should be less than or equal to 3"), as_a_whole("validate all the schemas (allOf)")],
    ),
    ({"type": "string", "not": {"enum": ["a"]}}, "a", [as_a_whole("not validate the schema (not)")]),
]


@pytest.mark.parametrize(("schema", "value", "errors"), CASES)
def test_each_keyword_has_its_message(schema: dict[str, Any], value: Any, errors: list[str]):
    """A value that breaks a bound is reported with path, value and sentence, and one that keeps it is not."""
    assert [str(error) for error in validate(value, None, Schema.parse(schema), "x")] == errors


def test_what_was_wrong_before_may_stay():
    """An update of one field is not refused for another one that a newer schema forbids."""
    schema = Schema.parse(
        {"type": "object", "properties": {"a": {"type": "integer", "maximum": 1}, "b": {"type": "integer"}}}
    )
    assert validate({"a": 5, "b": 2}, {"a": 5, "b": 1}, schema) == []
    assert validate({"a": 6, "b": 1}, {"a": 5, "b": 1}, schema) != []


def test_well_typed_looks_at_types_alone():
    """A value out of bounds is well typed; a value of another type is not, at any depth."""
    schema = Schema.parse(
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "maximum": 1}}}}
    )
    assert well_typed({"a": [5]}, schema)
    assert not well_typed({"a": ["5"]}, schema)
