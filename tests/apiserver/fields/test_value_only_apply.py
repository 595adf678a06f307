"""Applies that only renew values: the short way must end where the long one does."""

import copy
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kindmaking import custom_kind
from llmkube.apiserver.fields import ownership
from llmkube.apiserver.fields.ownership import ApplyConflictError, Written, server_side_apply
from llmkube.apiserver.fields.value_only_apply import apply_values_only
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.schema.defaults import is_complete
from llmkube.apiserver.writes import strategy

CONDITIONS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {"type": "object", "properties": {name: {"type": "string"} for name in ("type", "status", "message")}},
}
SPEC = {
    "size": {"type": "integer", "default": 1},
    "colour": {"type": "string"},
    "ratio": {"type": "number"},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
    "names": {"type": "array", "items": {"type": "string"}},
    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "parts": CONDITIONS,
}
GADGET = custom_kind("Gadget", spec=SPEC, status={"parts": CONDITIONS})
LEASE = next(kind for kind in BUILTIN_KINDS if kind.resource.kind == "Lease")

WORDS = st.sampled_from(["", "a", "b"])
MAPS = st.dictionaries(st.sampled_from("xy"), WORDS, max_size=2)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from("PQR")}, optional={"status": WORDS, "message": WORDS}),
    max_size=3,
    unique_by=lambda part: part["type"],
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "size": st.sampled_from([0, 1, 2]),
        "colour": st.none() | WORDS,
        "ratio": st.sampled_from([1, 1.0, 1.5]),
        "tags": MAPS,
        "whole": MAPS,
        "names": st.lists(WORDS, max_size=2),
        "set": st.lists(WORDS, max_size=2, unique=True),
        "open": st.dictionaries(st.sampled_from("xy"), st.none() | WORDS | MAPS | st.lists(MAPS), max_size=2),
        "parts": PARTS,
    },
)
TAGS = st.fixed_dictionaries({"name": st.just("one")}, optional={"labels": MAPS, "annotations": MAPS})
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alice", "bob"]),
        st.sampled_from(["", "", "status"]),
        TAGS,
        SPECS,
        PARTS,
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def manifest(metadata: Any, spec: Any, parts: Any) -> dict[str, Any]:
    """A configuration; without the parts that are empty."""
    body = {"apiVersion": "test.dev/v1", "kind": "Gadget", "metadata": metadata}
    return body | ({"spec": spec} if spec else {}) | ({"status": {"parts": parts}} if parts else {})


def applied(live: Any, wanted: Any, manager: str, now: str, sub: str = "", *, force: bool = True) -> Written | str:
    """The outcome of an apply, or the words of its refusal."""
    try:
        mine = copy.deepcopy(wanted)
        options = strategy.ownership(GADGET, sub)
        return server_side_apply(live, mine, manager, schema=GADGET.schema, now=now, force=force, **options)
    except ApplyConflictError as error:
        return str(error)


def the_long_way(*args: Any, **options: Any) -> Written | str:
    """The same without renewals."""
    with mock.patch.object(ownership, "apply_values_only", return_value=None):
        return applied(*args, **options)


def spelled(outcome: Written | str) -> str:
    """All of an outcome: 1 and 1.0 and the order of fields are told apart."""
    return repr(outcome)


@given(STEPS)
def test_a_value_only_apply_gives_what_the_long_way_gives(steps: list[Any]):
    """Object, managedFields, conflicts and the order of fields are the same, and the live object is left alone."""
    live = None
    for number, (manager, sub, tag, spec, parts, force, again) in enumerate(steps):
        for turn in range(2 if again else 1):  # the second one is the same again with other words
            now = f"2026-01-01T00:00:{2 * number + turn:02}Z"
            wanted = manifest(tag, {**spec, "colour": "new"} if turn else spec, parts)
            before = copy.deepcopy(live)
            short = applied(live, wanted, manager, now, sub, force=force)
            long = the_long_way(live, wanted, manager, now, sub, force=force)
            assert spelled(short) == spelled(long)
            assert live == before
            live = live if isinstance(short, str) else short.object


@given(TAGS, SPECS, PARTS)
def test_what_is_complete_is_completed_already(tag: dict[str, Any], spec: dict[str, Any], parts: list[Any]):
    """An object that `is_complete` takes is what all the steps of completing make of it."""
    obj = manifest(tag, spec, parts)
    at_once, unknown = strategy.complete(GADGET, obj)
    with mock.patch.object(strategy.defaults, "is_complete", return_value=False):
        assert (repr(at_once), unknown) == (repr(strategy.complete(GADGET, obj)[0]), unknown)
    if is_complete(at_once, GADGET.schema):
        assert is_complete(strategy.complete(GADGET, at_once)[0], GADGET.schema)


FIRST = {"name": "one", "annotations": {"free": "10"}}


def renewed(live: Any, wanted: Any) -> Any:
    """What `apply_values_only` says of an apply by the manager that has made all of the live object."""
    made = applied(None, live, "alice", "2026-01-01T00:00:00Z")
    assert isinstance(made, Written)
    owned = ownership.managed_fields.parse(made.object["metadata"]["managedFields"])
    (entry,) = owned.values()
    return apply_values_only(ownership.managed_fields.left_out(made.object), wanted, entry.fields, GADGET.schema)


@pytest.mark.parametrize(
    ("spec", "later", "changed"),
    [
        ({"size": 1}, {"size": 1}, 0),
        ({"size": 1}, {"size": 2}, 1),
        ({"tags": {"x": "a", "y": "b"}}, {"tags": {"x": "b", "y": "c"}}, 2),
        ({"parts": [{"type": "P", "status": "a"}]}, {"parts": [{"type": "P", "status": "b"}]}, 1),
        ({"open": {"x": {"y": "a"}}}, {"open": {"x": {"y": "b"}}}, 1),
        ({"names": ["a"]}, {"names": ["a"]}, 0),
        ({"names": ["a"]}, {"names": ["b"]}, None),
        ({"size": 1}, {"size": 1.0}, None),
        ({"size": 1}, {"size": "1"}, None),
        ({"size": 1}, {"size": 1, "colour": "a"}, None),
        ({"size": 1, "colour": "a"}, {"size": 1}, None),
        ({"size": 1, "colour": "a", "parts": []}, {"size": 1, "parts": []}, None),
        ({"colour": "a"}, {"colour": None}, None),
        ({"whole": {"x": "a"}}, {"whole": {"x": "b"}}, None),
        ({"set": ["a"]}, {"set": ["b"]}, None),
        ({"parts": [{"type": "P"}]}, {"parts": [{"type": "Q"}]}, None),
        ({"parts": [{"type": "P"}, {"type": "Q"}]}, {"parts": [{"type": "Q"}, {"type": "P"}]}, None),
    ],
)
def test_new_values_in_old_places_are_a_renewal_and_nothing_else_is(spec: Any, later: Any, changed: int | None):
    """So many values are found to be new, or the short way is not taken."""
    found = renewed(manifest(FIRST, spec, []), manifest(FIRST, later, []))
    assert (None if found is None else len(found.changed)) == changed


def test_a_renewal_shares_what_it_does_not_change():
    """Beside the new value everything is the very same, which spares whoever judges it the trouble."""
    live = manifest(FIRST, {"tags": {"x": "a"}, "names": ["a"]}, [])
    made = applied(None, live, "alice", "2026-01-01T00:00:00Z")
    assert isinstance(made, Written)
    wanted = manifest({**FIRST, "annotations": {"free": "11"}}, {"tags": {"x": "a"}, "names": ["a"]}, [])
    found = applied(made.object, wanted, "alice", "2026-01-01T00:00:01Z")
    assert isinstance(found, Written)
    assert found.object["spec"] is made.object["spec"]
    assert found.object["metadata"]["annotations"] == {"free": "11"}


def test_a_value_that_is_somebody_elses_too_is_no_renewal():
    """Two who agree on a value conflict as soon as one renews it."""
    live = None
    for manager in ("alice", "bob"):
        done = applied(live, manifest(FIRST, {"size": 2}, []), manager, "2026-01-01T00:00:00Z")
        assert isinstance(done, Written)
        live = done.object
    told = applied(live, manifest(FIRST, {"size": 3}, []), "alice", "2026-01-01T00:00:01Z", force=False)
    assert told == 'Apply failed with 1 conflict: conflict with "bob": .spec.size'


def test_a_heartbeat_is_a_renewal_from_end_to_end():
    """A Lease's next renewal is prepared without a copy of what has not changed."""
    stored = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "one", "namespace": "default", "labels": {"a": "b"}, "resourceVersion": "1"},
        "spec": {"holderIdentity": "one", "renewTime": "2026-01-01T00:00:00.000000Z"},
    }
    completed, _ = strategy.complete(LEASE, stored)
    prepared = strategy.prepare(LEASE, completed, stored)
    assert prepared["spec"] is stored["spec"]
    assert prepared["metadata"]["labels"] is stored["metadata"]["labels"]
