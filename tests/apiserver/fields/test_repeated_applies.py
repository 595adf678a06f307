"""Repeated applies: what does not change is shared, and the live object is not modified."""

import copy
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from kindmaking import custom_kind
from llmkube.apiserver.fields.ownership import ApplyConflictError, server_side_apply
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
    ),
    min_size=1,
    max_size=5,
)


def manifest(metadata: Any, spec: Any, parts: Any) -> dict[str, Any]:
    """A configuration; without the parts that are empty."""
    body = {"apiVersion": "test.dev/v1", "kind": "Gadget", "metadata": metadata}
    return body | ({"spec": spec} if spec else {}) | ({"status": {"parts": parts}} if parts else {})


def applied(live: Any, wanted: Any, manager: str, now: str, sub: str = "", *, force: bool = True) -> Any:
    """The outcome of an apply, or the words of its refusal."""
    try:
        mine = copy.deepcopy(wanted)
        return server_side_apply(live, mine, manager, strategy.endpoint(GADGET, sub), now=now, force=force)
    except ApplyConflictError as error:
        return str(error)


@given(STEPS)
def test_an_apply_leaves_the_live_object_alone(steps: list[Any]):
    """No part of the stored object is edited, whatever is shared with it."""
    live = None
    for number, (manager, sub, tag, spec, parts, force) in enumerate(steps):
        now = f"2026-01-01T00:00:{number:02}Z"
        wanted = manifest(tag, spec, parts)
        before = copy.deepcopy(live)
        written = applied(live, wanted, manager, now, sub, force=force)
        assert live == before
        live = live if isinstance(written, str) else written


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


def test_a_renewal_shares_what_it_does_not_change():
    """Everything but the new value is the identical object, which saves comparing it."""
    live = manifest(FIRST, {"tags": {"x": "a"}, "names": ["a"]}, [])
    made = applied(None, live, "alice", "2026-01-01T00:00:00Z")
    wanted = manifest({**FIRST, "annotations": {"free": "11"}}, {"tags": {"x": "a"}, "names": ["a"]}, [])
    found = applied(made, wanted, "alice", "2026-01-01T00:00:01Z")
    assert found["spec"] is made["spec"]
    assert found["metadata"]["annotations"] == {"free": "11"}


def test_a_value_with_another_owner_is_no_renewal():
    """Two who agree on a value conflict as soon as one renews it."""
    live = None
    for manager in ("alice", "bob"):
        done = applied(live, manifest(FIRST, {"size": 2}, []), manager, "2026-01-01T00:00:00Z")
        live = done
    conflict = applied(live, manifest(FIRST, {"size": 3}, []), "alice", "2026-01-01T00:00:01Z", force=False)
    assert conflict == 'Apply failed with 1 conflict: conflict with "bob": .spec.size'


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
