"""The algebra of typed values: ownership paths, differences, merging and trimming."""

from typing import Any

import pytest

from llmkube.apiserver.fields.fieldset import FieldSet
from llmkube.apiserver.fields.merge import MergeError, check, compare, merge, paths_of, remove
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.json_values import ABSENT

SCHEMA = Schema.parse(
    {
        "type": "object",
        "properties": {
            "scalar": {"type": "string"},
            "tree": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "selector": {
                "type": "object",
                "x-kubernetes-map-type": "atomic",
                "additionalProperties": {"type": "string"},
            },
            "list": {"type": "array", "items": {"type": "string"}},
            "names": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ports": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "integer"},
                        "protocol": {"type": "string", "default": "TCP"},
                        "name": {"type": "string"},
                    },
                },
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
)

OWNED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"scalar": "x"}, {"f:scalar": {}}),
    ({"scalar": None}, {"f:scalar": {}}),
    ({"tree": {"a": 1}}, {"f:tree": {"f:a": {}}}),
    ({"tree": {}}, {"f:tree": {}}),
    ({"tree": None}, {"f:tree": {}}),
    ({"labels": {"a": "b"}}, {"f:labels": {"f:a": {}}}),
    ({"selector": {"a": "b"}}, {"f:selector": {}}),
    ({"list": ["a"]}, {"f:list": {}}),
    ({"names": ["a"]}, {"f:names": {'v:"a"': {}}}),
    ({"names": []}, {}),
    (
        {"ports": [{"port": 80, "name": "h"}]},
        {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}}}},
    ),
    ({"scalar": {"a": 1}}, {"f:scalar": {}}),
    ({"names": {"a": 1}}, {"f:names": {}}),
    ({"free": {"x": {"y": [1]}}}, {"f:free": {"f:x": {".": {}, "f:y": {}}}}),
]


@pytest.mark.parametrize(("applied", "wire"), OWNED)
def test_an_applied_object_owns_its_leaves(applied: dict[str, Any], wire: dict[str, Any]):
    """Scalars, atomic values, items, empty maps and undeclared keys are owned; declared structures are not."""
    assert paths_of(applied, SCHEMA).json == wire


DIFFERENCES: list[tuple[Any, Any, Any, Any, Any]] = [
    ({"scalar": "x"}, {"scalar": "x"}, {}, {}, {}),
    ({"scalar": "x"}, {"scalar": "y"}, {}, {"f:scalar": {}}, {}),
    ({}, {"tree": {"a": 1}}, {"f:tree": {".": {}, "f:a": {}}}, {}, {}),
    ({"tree": {}}, {"tree": {"a": 1}}, {"f:tree": {"f:a": {}}}, {}, {}),
    ({"tree": {"a": 1}}, {}, {}, {}, {"f:tree": {".": {}, "f:a": {}}}),
    ({"list": ["a"]}, {"list": ["b"]}, {}, {"f:list": {}}, {}),
    ({"names": ["a"]}, {"names": ["b"]}, {"f:names": {'v:"b"': {}}}, {}, {"f:names": {'v:"a"': {}}}),
    ({"names": ["a", "b"]}, {"names": ["b", "a"]}, {}, {}, {}),
    (
        {"ports": [{"port": 80, "name": "a"}]},
        {"ports": [{"port": 80, "name": "b", "protocol": "TCP"}]},
        {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:protocol": {}}}},
        {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:name": {}}}},
        {},
    ),
    ({"tree": None}, {"tree": {}}, {}, {"f:tree": {}}, {}),
    ({"scalar": 1}, {"scalar": 1.0}, {}, {}, {}),
    ({"scalar": 1}, {"scalar": True}, {}, {"f:scalar": {}}, {}),
]


@pytest.mark.parametrize(("old", "new", "added", "modified", "removed"), DIFFERENCES)
def test_a_difference_names_every_changed_path(old: Any, new: Any, added: Any, modified: Any, removed: Any):
    """Whole structures that come or go are named together with what is in them; order alone is no change."""
    change = compare(old, new, SCHEMA)
    assert change.added.json == added
    assert change.modified.json == modified
    assert change.removed.json == removed


def _ports(*numbers: int) -> dict[str, Any]:
    return {"ports": [{"port": number} for number in numbers]}


MERGES: list[tuple[Any, Any, Any]] = [
    ({"tree": {"a": 1}}, {"tree": {"b": 2}}, {"tree": {"a": 1, "b": 2}}),
    ({"labels": {"a": "b"}}, {"labels": {}}, {"labels": {"a": "b"}}),
    ({"labels": {"a": "b"}}, {"labels": None}, {"labels": {"a": "b"}}),
    ({"selector": {"a": "b"}}, {"selector": {"c": "d"}}, {"selector": {"c": "d"}}),
    ({"list": ["a", "b"]}, {"list": ["c"]}, {"list": ["c"]}),
    ({"names": ["a", "b"]}, {"names": ["c", "a"]}, {"names": ["c", "a", "b"]}),
    ({"scalar": "x"}, {"scalar": None}, {"scalar": None}),
    (_ports(1, 9, 2), _ports(2, 1), _ports(9, 2, 1)),
    (_ports(1, 9, 2), _ports(3, 1, 2), _ports(3, 1, 9, 2)),
    (_ports(1, 2, 9), _ports(1, 2, 3), _ports(1, 2, 9, 3)),
    (_ports(9), _ports(1, 2), _ports(9, 1, 2)),
    ({"ports": [{"port": 1, "name": "a"}]}, _ports(1), {"ports": [{"port": 1, "name": "a"}]}),
    ({"free": {"a": [1]}}, {"free": {"a": [2], "b": {"c": 1}}}, {"free": {"a": [2], "b": {"c": 1}}}),
    ({"free": {"a": [1]}}, {"free": {"a": "text"}}, {"free": {"a": "text"}}),
    (ABSENT, {"names": ["a"]}, {"names": ["a"]}),
]


@pytest.mark.parametrize(("live", "applied", "merged"), MERGES)
def test_merging_follows_the_schema(live: Any, applied: Any, merged: Any):
    """Maps merge key by key, keyed lists and sets item by item in the applied order, atomic values as one."""
    assert merge(live, applied, SCHEMA) == merged


REFUSED: list[tuple[Any, str]] = [
    ({"ports": [{"port": 1}, {"port": 1}]}, r'\.ports: duplicate entries for key \[port=1,protocol="TCP"\]'),
    ({"names": ["a", "a"]}, r'\.names: duplicate entries for key \[="a"\]'),
    ({"ports": ["x"]}, "may not have non-map elements"),
    ({"names": [None]}, "explicit null"),
]


@pytest.mark.parametrize(("applied", "message"), REFUSED)
def test_items_that_cannot_be_distinguished_are_refused(applied: Any, message: str):
    """A repeated item, or one without its key, raises with the path of the list."""
    with pytest.raises(MergeError, match=message):
        raise next(check(applied, SCHEMA))


def test_a_repeated_live_item_is_tolerated():
    """A stored list with a repeated item, can still be merged, and loses the repeat when touched."""
    live = {"names": ["a", "a", "b"]}
    assert merge(live, {"names": ["a"]}, SCHEMA) == {"names": ["a", "b"]}
    assert merge(live, {"names": ["c"]}, SCHEMA) == {"names": ["a", "a", "b", "c"]}


def test_removing_takes_items_and_fields_by_path():
    """Removal reaches into maps and keyed lists and leaves atomic values alone."""
    value = {"tree": {"a": 1, "b": 2}, "ports": [{"port": 1}, {"port": 2, "name": "x"}], "list": ["a"]}
    unwanted = FieldSet.parse(
        {
            "f:tree": {"f:a": {}},
            "f:ports": {'k:{"port":1,"protocol":"TCP"}': {}, 'k:{"port":2,"protocol":"TCP"}': {"f:name": {}}},
            "f:list": {"i:0": {}},
        }
    )
    assert remove(value, unwanted, SCHEMA) == {"tree": {"b": 2}, "ports": [{"port": 2}], "list": ["a"]}


def test_an_undeclared_field_is_named():
    """A field that a closed schema does not know is refused with its path; an open one takes it."""
    assert list(map(str, check({"tree": {"colour": 1}}, SCHEMA))) == [".tree.colour: field not declared in schema"]
    assert not list(check({"free": {"anything": {"goes": 1}}}, SCHEMA))
