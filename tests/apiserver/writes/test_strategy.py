"""The stations of a write, for built-in kinds and custom ones."""

from typing import Any

import pytest

from apiserver.stored_objects import KINDS, TAG
from llmkube.apiserver.kinds.kind_info import KindInfo, kinds_from_crd
from llmkube.apiserver.values import name_rules
from llmkube.apiserver.writes import strategy


def custom(*, status: bool = True) -> KindInfo:
    body = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    if status:
        version["subresources"] = {"status": {}}
    called = {"plural": "widgets", "kind": "Widget"}
    return kinds_from_crd({"spec": {"group": "g.dev", "scope": "Namespaced", "names": called, "versions": [version]}})[
        0
    ]


def test_a_write_to_the_object_leaves_status_alone():
    """A status in a create is dropped, and in an update replaced by the stored one."""
    kind = custom()
    assert "status" not in strategy.prepare(kind, {"metadata": TAG, "status": {"n": 1}}, None)
    old = {"metadata": TAG, "spec": {"n": 1}, "status": {"n": 1}}
    new = strategy.prepare(kind, {"metadata": TAG, "spec": {"n": 2}, "status": {"n": 9}}, old)
    assert (new["spec"], new["status"]) == ({"n": 2}, {"n": 1})


def test_a_write_to_status_leaves_everything_else_alone():
    """Through the status endpoint spec and labels stay as stored; only status and managedFields move."""
    old = {"metadata": {**TAG, "labels": {"a": "b"}}, "spec": {"n": 1}}
    sent = {"metadata": {**TAG, "managedFields": [{"manager": "m"}]}, "spec": {"n": 2}, "status": {"n": 9}}
    new = strategy.prepare(custom(), sent, old, "status")
    assert new["spec"] == {"n": 1}
    assert new["status"] == {"n": 9}
    assert new["metadata"] == {**TAG, "labels": {"a": "b"}, "managedFields": [{"manager": "m"}]}


def test_without_a_status_subresource_status_is_a_field_like_any_other():
    """A kind that has no status endpoint takes its status with the object, and counts it in the generation."""
    kind = custom(status=False)
    old = {"metadata": {**TAG, "generation": 3}, "status": {"n": 1}}
    new = strategy.prepare(kind, {"metadata": TAG, "status": {"n": 2}}, old)
    assert new["status"] == {"n": 2}
    assert strategy.next_generation(kind, new, old) == 4


def test_generation_counts_changes_of_the_desired_state():
    """Generation starts at 1, grows with spec, and stays for labels and status; built-in kinds mostly have none."""
    kind = custom()
    old = {"metadata": {**TAG, "generation": 3}, "spec": {"n": 1}, "status": {"n": 1}}
    assert strategy.next_generation(kind, old, None) == 1
    assert strategy.next_generation(kind, {**old, "spec": {"n": 2}}, old) == 4
    assert strategy.next_generation(kind, {**old, "status": {"n": 2}}, old) == 3
    assert strategy.next_generation(kind, {**old, "metadata": {**TAG, "labels": {"a": "b"}}}, old) == 3
    assert strategy.next_generation(KINDS["ConfigMap"], {}, None) is None


def test_server_kept_metadata_survives_a_client_that_omits_it():
    """An update without uid and creation time keeps the stored ones; only some kinds may omit the resourceVersion."""
    old = {"metadata": {**TAG, "uid": "u", "creationTimestamp": "t", "resourceVersion": "7"}}
    config = strategy.prepare(KINDS["ConfigMap"], {"metadata": dict(TAG)}, old)
    assert config["metadata"] == old["metadata"]
    widget = strategy.prepare(custom(), {"metadata": dict(TAG)}, old)
    assert [str(error) for error in strategy.check(custom(), widget, old)] == 2 * [
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ]


METADATA: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "metadata.name: Required value: name or generateName is required"),
    ({"name": "Foo"}, 'metadata.name: Invalid value: "Foo": a lowercase RFC 1123 subdomain must consist of'),
    ({"name": "a" * 254}, "must be no more than 253 characters"),
    ({"labels": {"a b": "x"}}, 'metadata.labels: Invalid value: "a b": name part must consist of'),
    ({"labels": {"a": "x y"}}, 'metadata.labels: Invalid value: "x y": a valid label must be an empty string or'),
    ({"labels": {"/a": "x"}}, "prefix part must be non-empty"),
    ({"labels": {"a/b/c": "x"}}, "a valid label key must consist of"),
    (
        {"labels": {"a": 1}},
        'metadata.labels.a: Invalid value: "integer": metadata.labels.a in body must be of type string',
    ),
    ({"labels": "x"}, 'must be of type object: "string"'),
    ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations: Too long: may not be more than 262144 bytes"),
    ({"finalizers": ["x y"]}, 'metadata.finalizers: Invalid value: "x y"'),
    ({"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": ""}]}, "metadata.ownerReferences.uid"),
    (
        {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "K", "name": name, "uid": name, "controller": True} for name in ("x", "y")
            ]
        },
        'Only one reference can have Controller set to true. Found "true" in references for K/x and K/y',
    ),
    ({"generateName": "A-"}, "metadata.generateName: Invalid value"),
]


@pytest.mark.parametrize(("tag", "message"), METADATA)
def test_bad_metadata_is_refused(tag: dict[str, Any], message: str):
    """Names, labels, annotations, owners and finalizers are judged in kube-apiserver's words."""
    errors = strategy.check(custom(), {"metadata": {**TAG, **tag}}, None)
    assert message in "\n".join(map(str, errors))


def test_identity_cannot_change():
    """Name, uid and creation time are immutable, and no finalizer joins an object that is going."""
    old = {"metadata": {**TAG, "uid": "u", "resourceVersion": "1", "deletionTimestamp": "t", "finalizers": ["a/b"]}}
    new = {"metadata": {**old["metadata"], "uid": "v", "finalizers": ["a/b", "c/d"]}}
    assert [str(error) for error in strategy.check(custom(), new, old)] == 2 * [
        (
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted,"
            ' found new finalizers []string{"c/d"}'
        ),
        'metadata.uid: Invalid value: "v": field is immutable',
    ]


def test_a_cluster_scoped_object_has_no_namespace():
    """A namespace on a cluster-scoped kind is forbidden."""
    errors = strategy.check(KINDS["Namespace"], {"metadata": TAG}, None)
    assert [str(error) for error in errors] == ["metadata.namespace: Forbidden: not allowed on this type"]


def test_names_are_judged_by_the_kind():
    """A dot is fine in a config map's name and wrong in a service's or namespace's."""
    assert name_rules.subdomain("a.b") == ""
    assert "DNS-1035 label" in name_rules.label_1035("a.b")
    assert "DNS-1035 label" in name_rules.label_1035("1a")
    assert "RFC 1123 label" in name_rules.label("a_b")
    assert name_rules.label("a.b") == "must not contain dots"
