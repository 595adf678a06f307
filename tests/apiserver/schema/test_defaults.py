"""Defaulting and pruning."""

from typing import Any

import pytest

from llmkube.apiserver.schema.defaults import MAX_COMPLAINTS, apply_defaults, prune, zero
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.api_errors import RequestRefusedError
from llmkube.apiserver.values.json_text import MAX_VALUES

SCHEMA = Schema.parse(
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 1},
            "nested": {"type": "object", "properties": {"b": {"type": "string", "default": "x"}}},
            "made": {"type": "object", "default": {}, "properties": {"c": {"type": "integer", "default": 2}}},
            "nullable": {"type": "string", "nullable": True, "default": "d"},
            "plain": {"type": "string"},
            "items": {
                "type": "array",
                "items": {"type": "object", "properties": {"d": {"type": "boolean", "default": True}}},
            },
            "map": {"type": "object", "additionalProperties": {"type": "string", "default": "v"}},
            "port": {"x-kubernetes-int-or-string": True},
            "open": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"closed": {"type": "object", "properties": {"e": {"type": "string"}}}},
            },
            "any": {"type": "object", "additionalProperties": True},
            "object": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {"spec": {"type": "object"}},
            },
        },
    }
)

DEFAULTS: list[tuple[Any, Any]] = [
    ({}, {"a": 1, "made": {"c": 2}, "nullable": "d"}),
    ({"nested": {}}, {"nested": {"b": "x"}}),
    ({"a": None}, {"a": 1}),
    ({"nullable": None}, {"nullable": None}),
    ({"plain": None}, {"plain": None}),
    ({"made": {"c": 5}}, {"made": {"c": 5}}),
    ({"items": [{}, {"d": False}]}, {"items": [{"d": True}, {"d": False}]}),
    ({"map": {"k": None, "l": "w"}}, {"map": {"k": "v", "l": "w"}}),
]


@pytest.mark.parametrize(("sent", "filled"), DEFAULTS)
def test_defaults_fill_what_is_left_out_below_what_is_there(sent: Any, filled: Any):
    """A default applies to an absent field, or a null where none is allowed, and only if its parent is present."""
    result = apply_defaults(sent, SCHEMA)
    assert filled.items() <= result.items()
    assert ("nested" in result) == ("nested" in sent)


def test_a_default_is_copied():
    """Two objects never share the schema's default."""
    one, two = apply_defaults({}, SCHEMA), apply_defaults({}, SCHEMA)
    one["made"]["c"] = 9
    assert two["made"] == {"c": 2}


PRUNED: list[tuple[Any, Any, tuple[str, ...]]] = [
    ({"a": 1, "z": 2}, {"a": 1}, ("z",)),
    ({"nested": {"b": "", "z": {"y": 1}}}, {"nested": {"b": ""}}, ("nested.z",)),
    ({"items": [{"d": True}, {"z": 1}]}, {"items": [{"d": True}, {}]}, ("items[1].z",)),
    ({"map": {"anything": "x"}}, {"map": {"anything": "x"}}, ()),
    (
        {"open": {"z": {"y": 1}, "closed": {"e": "", "z": 1}}},
        {"open": {"z": {"y": 1}, "closed": {"e": ""}}},
        ("open.closed.z",),
    ),
    ({"any": {"z": {"y": 1}}}, {"any": {"z": {"y": 1}}}, ()),
    ({"port": "http"}, {"port": "http"}, ()),
    (
        {"object": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "z": 1}, "z": 1}},
        {"object": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}}},
        ("object.metadata.z", "object.z"),
    ),
    ({"nested": "not an object"}, {"nested": "not an object"}, ()),
]


@pytest.mark.parametrize(("sent", "kept", "dropped"), PRUNED)
def test_unknown_fields_are_dropped_and_named(sent: Any, kept: Any, dropped: tuple[str, ...]):
    """Only closed objects lose fields; islands keep theirs, and are closed again where they declare properties."""
    result, paths = prune(sent, SCHEMA)
    assert result == kept
    assert paths == dropped


def test_zero_has_the_structures_only():
    """The zero object has defaults that say nothing, not those that mean something."""
    assert zero(SCHEMA) == {"made": {}}


def test_defaults_that_multiply_are_refused():
    """A default of 101 values for each of a thousand items is more than a body may have; for ten it is filled in."""
    item = {"type": "object", "properties": {"d": {"type": "array", "default": [0] * 100}}}
    schema = Schema.parse({"type": "object", "properties": {"list": {"type": "array", "items": item}}})
    assert apply_defaults({"list": [{}] * 10}, schema) == {"list": [{"d": [0] * 100}] * 10}
    with pytest.raises(RequestRefusedError, match=f"limit is {MAX_VALUES} values"):
        apply_defaults({"list": [{}] * 1000}, schema)


def test_of_very_many_unknown_fields_some_are_named_and_all_dropped():
    """The complaints have a bound; what is dropped has none."""
    pruned, named = prune({"a": 1, **{f"x{number}": 1 for number in range(5_000)}}, SCHEMA)
    assert (pruned, named) == ({"a": 1}, tuple(f"x{number}" for number in range(MAX_COMPLAINTS)))
