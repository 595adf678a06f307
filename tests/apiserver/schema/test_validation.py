"""Validation against a schema, in kube-apiserver's words."""

from typing import Any

import pytest

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import validate, well_typed

CASES: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({"type": "integer"}, 1, []),
    ({"type": "integer"}, 1.0, []),
    (
        {"type": "integer"},
        1.5,
        [
            'x: Invalid value: "number": x in body must be of type integer: "number"',
            '<nil>: Invalid value: "": Checked value must be of type integer (default format) in x',
        ],
    ),
    ({"type": "integer"}, True, ['x: Invalid value: "boolean": x in body must be of type integer: "boolean"']),
    ({"type": "string"}, None, ['x: Invalid value: "null": x in body must be of type string: "null"']),
    ({"type": "string", "nullable": True}, None, []),
    ({"type": "object"}, [], ['x: Invalid value: "array": x in body must be of type object: "array"']),
    ({"type": "integer", "maximum": 10}, 11, ["x: Invalid value: 11: x in body should be less than or equal to 10"]),
    (
        {"type": "number", "maximum": 1.5, "exclusiveMaximum": True},
        1.5,
        ["x: Invalid value: 1.5: x in body should be less than 1.5"],
    ),
    ({"type": "integer", "minimum": 1}, 0, ["x: Invalid value: 0: x in body should be greater than or equal to 1"]),
    (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        0,
        ["x: Invalid value: 0: x in body should be greater than 0"],
    ),
    ({"type": "integer", "multipleOf": 3}, 4, ["x: Invalid value: 4: x in body should be a multiple of 3"]),
    (
        {"type": "integer", "format": "int32"},
        2**31,
        ['<nil>: Invalid value: "": Checked value must be of type integer with format int32 in x'],
    ),
    ({"type": "string", "maxLength": 2}, "abc", ["x: Too long: may not be more than 2 bytes"]),
    ({"type": "string", "minLength": 1}, "", ['x: Invalid value: "": x in body should be at least 1 chars long']),
    ({"type": "string", "pattern": "^a+$"}, "b", ["x: Invalid value: \"b\": x in body should match '^a+$'"]),
    ({"type": "string", "pattern": "^a+$"}, "a\n", ["x: Invalid value: \"a\\n\": x in body should match '^a+$'"]),
    ({"type": "string", "pattern": "^a$|^b$"}, "b\n", ["x: Invalid value: \"b\\n\": x in body should match '^a$|^b$'"]),
    ({"type": "string", "pattern": r"^[$]\$$"}, "$$", []),
    (
        {"type": "string", "pattern": r"^\w$"},
        "\u00e4",
        ["x: Invalid value: \"\u00e4\": x in body should match '^\\w$'"],
    ),
    ({"type": "number", "minimum": 0.5}, 0, []),  # Go compares an integer with the bound's whole part
    (
        {"type": "number", "minimum": 0.5},
        0.0,
        ["x: Invalid value: 0: x in body should be greater than or equal to 0.5"],
    ),
    ({"type": "number", "maximum": 0.5}, 1, ["x: Invalid value: 1: x in body should be less than or equal to 0"]),
    (
        {"type": "integer", "format": "int32", "minimum": 2},
        1.5,
        [
            'x: Invalid value: "float64": x in body must be of type int32: "float64"',
            '<nil>: Invalid value: "": Checked value must be of type integer with format int32 in x',
            "x: Invalid value: 1.5: x in body should be greater than or equal to 2",
        ],
    ),
    ({"type": "integer", "format": "int32"}, True, ['x: Invalid value: "": x in body must be of type int32: ""']),
    (
        {"type": "integer", "format": "int32"},
        "1",
        ['x: Invalid value: "string": x in body must be of type integer: "string"'],
    ),
    (
        {"type": "integer", "enum": [3, 6]},
        4,
        ['x: Unsupported value: 4: supported values: "3", "6"'],
    ),
    (
        {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        True,
        [
            'x: Invalid value: "boolean": x in body must be of type integer,string: "boolean"',
            'x: Invalid value: "boolean": x in body must be of type integer: "boolean"',
            '<nil>: Invalid value: "": "x" must validate at least one schema (anyOf)',
        ],
    ),
    ({"type": "string", "enum": ["a", "b"]}, "x", ['x: Unsupported value: "x": supported values: "a", "b"']),
    ({"type": "array", "minItems": 1}, [], ["x: Invalid value: 0: x in body should have at least 1 items"]),
    ({"type": "array", "maxItems": 1}, [1, 2], ["x: Too many: 2: must have at most 1 items"]),
    ({"type": "object", "minProperties": 1}, {}, ["x: Invalid value: 0: x in body should have at least 1 properties"]),
    ({"type": "object", "required": ["a", "b"]}, {"a": 1}, ["x.b: Required value"]),
    (
        {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
        [{"n": "a"}, {"n": 1}],
        ['x[1].n: Invalid value: "integer": x[1].n in body must be of type string: "integer"'],
    ),
    ({"x-kubernetes-int-or-string": True}, "80", []),
    ({"x-kubernetes-int-or-string": True}, 80, []),
    (
        {"x-kubernetes-int-or-string": True},
        1.5,
        ['x: Invalid value: "number": x in body must be of type integer,string: "number"'],
    ),
    (
        {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        ["a", "b", "a", "a"],
        ['x[2]: Duplicate value: "a"'],
    ),
    (
        {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "properties": {"type": {"type": "string"}}},
        },
        [{"type": "A"}, {"type": "A"}],
        ['x[1]: Duplicate value: {"type":"A"}'],
    ),
    (
        {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "properties": {"type": {"type": "string"}}},
        },
        [None, {"type": "A"}, {"type": "A"}, 5, True],
        [
            'x[0]: Invalid value: "null": x[0] in body must be of type object: "null"',
            'x[3]: Invalid value: "integer": x[3] in body must be of type object: "integer"',
            'x[4]: Invalid value: "boolean": x[4] in body must be of type object: "boolean"',
            "x[3]: Invalid value: 5: must be an object for an array of list-type map",
        ],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"a": 1, "b": 1},
        ['<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found 2 valid alternatives'],
    ),
    (
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {},
        ["x.a: Required value", '<nil>: Invalid value: "": "x" must validate at least one schema (anyOf)'],
    ),
    (
        {"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 3}]},
        5,
        [
            "x: Invalid value: 5: x in body should be less than or equal to 3",
            '<nil>: Invalid value: "": "x" must validate all the schemas (allOf)',
        ],
    ),
    (
        {"type": "string", "not": {"enum": ["a"]}},
        "a",
        ['<nil>: Invalid value: "": "x" must not validate the schema (not)'],
    ),
]


@pytest.mark.parametrize(("schema", "value", "errors"), CASES)
def test_each_keyword_has_its_words(schema: dict[str, Any], value: Any, errors: list[str]):
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
    """A value out of bounds is well typed, a value of another type is not, however deep."""
    schema = Schema.parse(
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "maximum": 1}}}}
    )
    assert well_typed({"a": [5]}, schema)
    assert not well_typed({"a": ["5"]}, schema)
