"""Field sets: the tree, its algebra and its wire form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.fields import fieldset
from llmkube.apiserver.fields.fieldset import NOTHING, FieldSet, FieldSetError, Path

ELEMENTS = ["f:a", "f:b", 'k:{"port":80}', 'v:"x"', "i:0"]
PATHS = st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=3).map(tuple)
SETS = st.frozensets(PATHS, max_size=8)

WIRE = [
    ([("f:a",)], {"f:a": {}}),
    ([("f:a", "f:b")], {"f:a": {"f:b": {}}}),
    ([("f:a",), ("f:a", "f:b")], {"f:a": {".": {}, "f:b": {}}}),
    (
        [("f:l", fieldset.key({"protocol": "TCP", "port": 80})), ("f:l", fieldset.value("x"))],
        {"f:l": {'k:{"port":80,"protocol":"TCP"}': {}, 'v:"x"': {}}},
    ),
]


@pytest.mark.parametrize(("paths", "wire"), WIRE)
def test_a_set_is_written_as_kubernetes_writes_it(paths: list[Path], wire: dict[str, object]):
    """The JSON form marks an owned node that has owned children with a dot, and reads back to the same set."""
    fields = FieldSet.of(paths)
    assert fields.json == wire
    assert FieldSet.parse(wire) == fields


def test_elements_are_ordered_fields_keys_values_indexes():
    """The JSON form lists fields first, then keyed items, values and indexes, each sorted."""
    fields = FieldSet.of([("i:0",), ('v:"x"',), ('k:{"a":1}',), ("f:b",), ("f:a",)])
    assert list(fields.json) == ["f:a", "f:b", 'k:{"a":1}', 'v:"x"', "i:0"]


def test_spelling_of_keys_does_not_matter():
    """A key written with spaces or in another order is the same element."""
    assert FieldSet.parse({'k:{"b": 1, "a": 2}': {}}) == FieldSet.parse({'k:{"a":2,"b":1}': {}})


@pytest.mark.parametrize("wire", [{"x:a": {}}, {"k:{": {}}, {"k:[]": {}}, {'i:"a"': {}}, {"f:a": 1}, [], None])
def test_what_is_no_field_set_is_refused(wire: object):
    """An unknown prefix, broken JSON or a value that is no object raises."""
    with pytest.raises(FieldSetError):
        FieldSet.parse(wire)


@given(SETS, SETS)
def test_the_algebra_is_that_of_plain_sets_of_paths(left: frozenset[Path], right: frozenset[Path]):
    """Union, intersection and difference agree with Python's sets, and no result has an empty branch."""
    one, two = FieldSet.of(left), FieldSet.of(right)
    assert set(one.union(two)) == left | right
    assert set(one.intersection(two)) == left & right
    assert set(one.difference(two)) == left - right
    assert one.difference(one) == NOTHING
    assert one.difference(two) == FieldSet.of(left - right)


@given(SETS, SETS)
def test_without_below_drops_whole_subtrees(left: frozenset[Path], right: frozenset[Path]):
    """A path goes away when it or any path above it is in the other set."""
    kept = {path for path in left if not any(path[: len(other)] == other for other in right)}
    assert set(FieldSet.of(left).without_below(FieldSet.of(right))) == kept


@given(SETS)
def test_every_set_survives_the_wire(paths: frozenset[Path]):
    """Reading what was written gives the same set."""
    fields = FieldSet.of(paths)
    assert FieldSet.parse(fields.json) == fields
    assert all(path in fields for path in paths)


def test_paths_read_as_in_conflicts():
    """A path is shown with dots, keys and quoted values."""
    path = ("f:spec", "f:ports", fieldset.key({"port": 80, "protocol": "TCP"}), "f:name")
    assert fieldset.dotted(path) == '.spec.ports[port=80,protocol="TCP"].name'
    assert fieldset.dotted(("f:metadata", "f:finalizers", fieldset.value("a/b"))) == '.metadata.finalizers[="a/b"]'
