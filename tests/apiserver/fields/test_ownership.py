"""Server-side apply and the ownership of fields, as KEP-555 tells it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kindmaking import custom_kind
from llmkube.apiserver.fields.fieldset import FieldSet
from llmkube.apiserver.fields.managed_fields import MAX_UPDATERS
from llmkube.apiserver.fields.merge import MergeError
from llmkube.apiserver.fields.ownership import (
    ApplyConflictError,
    ApplyRefusedError,
    equal_except_times,
    record_write,
    server_side_apply,
)
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, KindInfo
from llmkube.apiserver.writes import strategy

T0, T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def builtin(kind: str) -> KindInfo:
    return next(info for info in BUILTIN_KINDS if info.resource.kind == kind)


SERVICE, CONFIG_MAP = builtin("Service"), builtin("ConfigMap")

CONDITIONS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
    },
}
WIDGET = custom_kind(
    "Widget",
    spec={
        "size": {"type": "integer", "default": 1},
        "colour": {"type": "string"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    status={"phase": {"type": "string"}, "conditions": CONDITIONS},
)


def widget(**parts: Any) -> dict[str, Any]:
    return {"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, **parts}


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def apply(
    live: Any, applied: Any, manager: str, kind: KindInfo = WIDGET, *, now: str = T0, force: bool = False, sub: str = ""
) -> Any:
    return server_side_apply(live, applied, manager, strategy.endpoint(kind, sub), now=now, force=force)


def update(live: Any, new: Any, manager: str, kind: KindInfo = WIDGET, *, now: str = T1, sub: str = "") -> Any:
    return record_write(live, new, manager, strategy.endpoint(kind, sub), now=now)


def owned(obj: Any, manager: str) -> Any:
    """Return the fields that a manager owns through all of its operations."""
    fields = FieldSet()
    for entry in obj["metadata"].get("managedFields", ()):
        if entry["manager"] == manager:
            fields = fields.union(FieldSet.parse(entry["fieldsV1"]))
    return fields.json


def test_the_first_apply_writes_an_entry_in_kubernetes_form():
    """An applied object carries one Apply entry with the version, the time and the owned leaves, and no identity."""
    written = apply(None, widget(spec={"colour": "red"}), "me")
    assert written["metadata"]["managedFields"] == [
        {
            "manager": "me",
            "operation": "Apply",
            "apiVersion": "test.dev/v1",
            "time": T0,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:colour": {}}},
        }
    ]


def test_applying_the_same_again_changes_nothing():
    """A repeated apply returns the live object itself, entry times included, and reports no change."""
    live = apply(None, widget(spec={"colour": "red"}), "me")
    again = apply(live, widget(spec={"colour": "red"}), "me", now=T1)
    assert again == live


def test_a_field_that_its_only_owner_drops_is_removed():
    """A field that the manager's next apply omits is removed."""
    live = apply(None, widget(spec={"colour": "red", "tags": {"a": "1", "b": "2"}}), "me")
    after = apply(live, widget(spec={"tags": {"b": "2"}}), "me", now=T1)
    assert after["spec"] == {"tags": {"b": "2"}}


def test_a_field_that_two_apply_stays_until_both_drop_it():
    """Co-owned values survive the first owner's withdrawal and not the second's."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    live = apply(live, widget(spec={"colour": "red"}), "two", now=T1)
    live = apply(live, widget(), "one", now=T1)
    assert live["spec"] == {"colour": "red"}
    live = apply(live, widget(), "two", now=T2)
    assert "spec" not in live


def test_a_field_that_an_updater_owns_stays_when_the_applier_drops_it():
    """An updater's claim protects a field from the applier's withdrawal."""
    live = apply(None, widget(spec={"colour": "red", "size": 2}), "me")
    live = update(live, {**live, "spec": {"colour": "blue", "size": 2}}, "editor")
    after = apply(live, widget(spec={"size": 2}), "me", now=T2)
    assert after["spec"] == {"colour": "blue", "size": 2}


def test_taking_another_value_for_an_applied_field_conflicts():
    """The error names the applier and the path, in the words that kubectl prints."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    with pytest.raises(ApplyConflictError) as caught:
        apply(live, widget(spec={"colour": "blue"}), "two")
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "one": .spec.colour'
    assert [(each.message, each.path) for each in caught.value.conflicts] == [('conflict with "one"', ".spec.colour")]


def test_conflicts_with_updaters_name_their_version_and_subresource():
    """Several conflicts are listed by manager, and updaters are named with version and subresource."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    live = update(live, {**live, "spec": {"colour": "red", "size": 3}}, "kubectl-edit")
    live = update(live, {**live, "status": {"phase": "Ready"}}, "ctl", sub="status")
    with pytest.raises(ApplyConflictError) as caught:
        apply(live, widget(spec={"colour": "blue", "size": 4}), "two")
    assert str(caught.value) == (
        "Apply failed with 2 conflicts: "
        'conflicts with "kubectl-edit" using test.dev/v1:\n- .spec.size\nconflicts with "one":\n- .spec.colour'
    )
    with pytest.raises(ApplyConflictError, match=r'"ctl" with subresource "status" using test\.dev/v1'):
        apply(live, widget(status={"phase": "Bad"}), "two", sub="status")


def test_force_takes_ownership():
    """A forced apply sets the value and leaves the former owner without the field."""
    live = apply(None, widget(spec={"colour": "red", "size": 2}), "one")
    after = apply(live, widget(spec={"colour": "blue"}), "two", force=True, now=T1)
    assert after["spec"] == {"colour": "blue", "size": 2}
    assert owned(after, "one") == {"f:spec": {"f:size": {}}}
    assert owned(after, "two") == {"f:spec": {"f:colour": {}}}


def test_agreeing_on_a_value_shares_it_without_a_time():
    """A second applier of the same value becomes co-owner; nothing changed, so its entry has no time yet."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    after = apply(live, widget(spec={"colour": "red"}), "two", now=T1)
    assert owned(after, "two") == {"f:spec": {"f:colour": {}}}
    times = {entry["manager"]: entry.get("time") for entry in after["metadata"]["managedFields"]}
    assert times == {"one": T0, "two": None}


def test_an_update_takes_what_it_changes():
    """An update moves changed fields to its own entry and leaves the rest with the applier."""
    live = apply(None, widget(spec={"colour": "red", "size": 2}), "one")
    after = update(live, {**live, "spec": {"colour": "blue", "size": 2}}, "editor")
    assert owned(after, "one") == {"f:spec": {"f:size": {}}}
    assert owned(after, "editor") == {"f:spec": {"f:colour": {}}}
    entry = after["metadata"]["managedFields"][-1]
    assert (entry["operation"], entry["time"], entry["apiVersion"]) == ("Update", T1, "test.dev/v1")


def test_an_update_that_removes_a_field_ends_every_claim_to_it():
    """A removed field has no owner, so a later apply of it meets no conflict."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    after = update(live, {**live, "spec": {}}, "editor")
    assert owned(after, "one") == {}
    apply(after, widget(spec={"colour": "blue"}), "two")


def test_an_update_of_nothing_changes_no_entry():
    """Writing the same content back is no change, even without managedFields in the body."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    bare = {**live, "metadata": {"name": "w"}}
    again = update(live, bare, "editor")
    assert again == live


def test_creating_a_custom_object_owns_its_structures_too():
    """Entries of a create mark the structures that appear with the object, as kubectl shows them."""
    created = update(None, widget(spec={"tags": {"a": "b"}}), "kubectl-create")
    assert owned(created, "kubectl-create") == {"f:spec": {".": {}, "f:tags": {".": {}, "f:a": {}}}}


def test_creating_a_service_owns_no_structure_that_is_always_there():
    """A built-in kind's spec exists before anything is set, so it is not owned; its ports list and items are."""
    sent = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]},
    }
    completed, _ = strategy.complete(SERVICE, sent)
    created = update(None, completed, "kubectl-create", SERVICE)
    assert owned(created, "kubectl-create") == {
        "f:spec": {
            "f:internalTrafficPolicy": {},
            "f:ports": {
                ".": {},
                'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}},
            },
            "f:sessionAffinity": {},
            "f:type": {},
        }
    }


def test_defaults_have_no_owner():
    """A default that is filled in after the apply can be set by another applier without a conflict."""
    live, _ = strategy.complete(WIDGET, apply(None, widget(spec={"colour": "red"}), "one"))
    assert live["spec"]["size"] == 1
    after = apply(live, widget(spec={"size": 5}), "two", now=T1)
    assert after["spec"] == {"colour": "red", "size": 5}


def test_owner_references_are_owned_as_one_item_each():
    """An owner reference is keyed by its uid and atomic."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    applied = widget(metadata={"name": "w", "ownerReferences": [owner], "finalizers": ["a/b"]})
    assert owned(apply(None, applied, "me"), "me") == {
        "f:metadata": {"f:finalizers": {'v:"a/b"': {}}, "f:ownerReferences": {'k:{"uid":"u"}': {}}}
    }


def test_status_is_applied_and_owned_through_its_own_endpoint():
    """Two managers own a condition each on the status endpoint, and neither owns spec there."""
    live = update(None, widget(spec={"colour": "red"}), "user")
    for manager, kind in (("one", "Ready"), ("two", "Loaded")):
        body = widget(spec={"colour": "x"}, status={"conditions": [{"type": kind, "status": "True"}]})
        written = apply(live, body, manager, sub="status", now=T1)
        live = strategy.prepare(WIDGET, written, live, "status")
    assert live["spec"] == {"colour": "red"}
    assert [condition["type"] for condition in live["status"]["conditions"]] == ["Ready", "Loaded"]
    entry = next(entry for entry in live["metadata"]["managedFields"] if entry["manager"] == "two")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {
        "f:status": {"f:conditions": {'k:{"type":"Loaded"}': {".": {}, "f:status": {}, "f:type": {}}}}
    }


def test_a_manager_withdraws_its_own_condition_only():
    """Dropping a condition from the applied status leaves the other manager's condition."""
    live = update(None, widget(), "user")
    for manager, kind in (("one", "Ready"), ("two", "Loaded")):
        body = widget(status={"conditions": [{"type": kind, "status": "True"}]})
        live = apply(live, body, manager, sub="status", now=T1)
    after = apply(live, widget(status={"phase": "x"}), "one", sub="status", now=T2)
    assert after["status"] == {"conditions": [{"type": "Loaded", "status": "True"}], "phase": "x"}


def test_status_in_a_write_to_the_object_is_not_owned():
    """A write to the object itself owns nothing of a status that it cannot write."""
    created = update(None, widget(status={"phase": "x"}), "me")
    assert owned(created, "me") == {}


def test_an_object_from_before_tracking_conflicts_with_a_made_up_manager():
    """The first apply to an object without managedFields meets `before-first-apply`."""
    live = widget(spec={"colour": "red"})
    with pytest.raises(
        ApplyConflictError, match=r'conflict with "before-first-apply" using test\.dev/v1: \.spec\.colour'
    ):
        apply(live, widget(spec={"colour": "blue"}), "me")


def test_managed_fields_cannot_be_applied():
    """A configuration that contains managedFields, even an empty list, is refused."""
    with pytest.raises(ApplyRefusedError, match=r"metadata\.managedFields must be nil"):
        apply(None, widget(metadata={"name": "w", "managedFields": []}), "me")


def test_another_version_cannot_be_applied():
    """A configuration in another version than the object's is refused."""
    live = apply(None, widget(), "me")
    with pytest.raises(ApplyRefusedError, match="Incorrect version specified in apply patch"):
        apply(live, {**widget(), "apiVersion": "test.dev/v2"}, "me")


def test_an_unknown_field_cannot_be_applied():
    """A field outside the schema is refused by its path."""
    with pytest.raises(MergeError, match=r"\.spec\.colur: field not declared in schema"):
        apply(None, widget(spec={"colur": "red"}), "me")


def test_a_client_may_rewrite_managed_fields_and_cannot_lose_them():
    """Valid entries in an update replace the stored ones, `[{}]` clears them, and nonsense is ignored."""
    live = apply(None, widget(spec={"colour": "red"}), "one")
    entries = live["metadata"]["managedFields"]

    def sent(managed: Any) -> Any:
        return {**live, "metadata": {"name": "w", "managedFields": managed}}

    renamed = update(live, sent([{**entries[0], "manager": "two"}]), "x")
    assert owned(renamed, "two") == {"f:spec": {"f:colour": {}}}
    assert owned(renamed, "one") == {}
    assert "managedFields" not in update(live, sent([{}]), "x")["metadata"]
    assert update(live, sent([{"manager": "broken"}]), "x")["metadata"]["managedFields"] == entries
    assert update(live, sent([]), "x")["metadata"]["managedFields"] == entries


def test_the_oldest_updaters_share_an_entry():
    """More than ten updaters fold the oldest into `ancient-changes`, and no field loses its owner."""
    live = update(None, config_map(k0="v"), "m00", CONFIG_MAP, now="2026-01-01T00:00:00Z")
    for number in range(1, MAX_UPDATERS + 3):
        data = {**live["data"], f"k{number}": "v"}
        now = f"2026-01-01T00:00:{number:02}Z"
        live = update(live, {**live, "data": data}, f"m{number:02}", CONFIG_MAP, now=now)
    managers = [entry["manager"] for entry in live["metadata"]["managedFields"]]
    assert len(managers) == MAX_UPDATERS
    assert managers[0] == "ancient-changes"
    assert set(owned(live, "ancient-changes")["f:data"]) == {".", "f:k0", "f:k1", "f:k2", "f:k3"}


def test_times_alone_are_no_change():
    """Two objects that differ in entry times only count as the same."""
    one = apply(None, widget(spec={"colour": "red"}), "me", now=T0)
    two = apply(None, widget(spec={"colour": "red"}), "me", now=T1)
    assert one != two
    assert equal_except_times(one, two)


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "colour": st.sampled_from(["red", "blue"]),
        "size": st.integers(1, 2),
        "tags": st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3),
    },
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["apply", "update"]), st.sampled_from(["one", "two", "three"]), SPECS), max_size=8
)


@given(STEPS)
def test_a_forced_apply_always_gets_what_it_asked_for(steps: list[tuple[str, str, dict[str, Any]]]):
    """After any history a forced apply has its values in place, owns exactly them, and repeating it changes nothing."""
    live: Any = None
    for how, manager, spec in steps:
        if how == "apply" or live is None:
            live = apply(live, widget(spec=spec), manager, force=True, now=T1)
            if live["spec"] is None or any(value is None for value in live["spec"].values()):
                return  # all that was in it was withdrawn: the server refuses a null where an object is asked for
            for name, value in spec.items():
                if isinstance(value, dict):
                    assert value.items() <= live["spec"][name].items()
                else:
                    assert live["spec"][name] == value
            again = apply(live, widget(spec=spec), manager, now=T2)
            assert equal_except_times(live, again)
        else:
            live = update(live, {**live, "spec": spec}, manager)
            assert live["spec"] == spec
        for entry in live["metadata"].get("managedFields", ()):
            for path in FieldSet.parse(entry["fieldsV1"]):
                _assert_exists(live, path)


def _assert_exists(obj: Any, path: tuple[str, ...]) -> None:
    """No manager owns what is not there."""
    for element in path:
        assert element[2:] in obj
        obj = obj[element[2:]]


@given(SPECS, SPECS)
def test_dropping_everything_undoes_an_apply(mine: dict[str, Any], theirs: dict[str, Any]):
    """When a manager withdraws all it applied, exactly the other's configuration remains."""
    alone = apply(None, widget(spec=theirs), "other")
    both = apply(alone, widget(spec=mine), "me", force=True, now=T1)
    after = apply(both, widget(), "me", now=T2)
    kept = after.get("spec", {})
    for name, value in theirs.items():
        if mine.get(name, value) == value or isinstance(value, dict):
            for key, text in value.items() if isinstance(value, dict) else ():
                if mine.get(name, {}).get(key, text) == text:
                    assert kept[name][key] == text
            if not isinstance(value, dict):
                assert kept[name] == value
