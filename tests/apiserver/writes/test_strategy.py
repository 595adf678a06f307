"""The stations of a write, where the recorded script does not pass."""

from typing import Any

from apiserver.stored_objects import KINDS, TAG
from llmkube.apiserver.kinds.kind_info import KindInfo, kinds_from_crd
from llmkube.apiserver.writes import strategy


def custom() -> KindInfo:
    body = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    called = {"plural": "widgets", "kind": "Widget"}
    return kinds_from_crd({"spec": {"group": "g.dev", "scope": "Namespaced", "names": called, "versions": [version]}})[
        0
    ]


def test_without_a_status_subresource_status_is_a_field_like_any_other():
    """A kind that has no status endpoint takes its status with the object, and counts it in the generation."""
    kind = custom()
    old = {"metadata": {**TAG, "generation": 3}, "status": {"n": 1}}
    new = strategy.prepare(kind, {"metadata": TAG, "status": {"n": 2}}, old)
    assert new["status"] == {"n": 2}
    assert strategy.next_generation(kind, new, old) == 4


def test_server_kept_metadata_survives_a_client_that_omits_it():
    """An update without uid and creation time keeps the stored ones; only some kinds may omit the resourceVersion."""
    old = {"metadata": {**TAG, "uid": "u", "creationTimestamp": "t", "resourceVersion": "7"}}
    config = strategy.prepare(KINDS["ConfigMap"], {"metadata": dict(TAG)}, old)
    assert config["metadata"] == old["metadata"]
    widget = strategy.prepare(custom(), {"metadata": dict(TAG)}, old)
    assert [str(error) for error in strategy.check(custom(), widget, old)] == 2 * [
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ]


def test_a_prefix_of_names_is_judged_as_a_name():
    """What no name may begin with is refused as `generateName`; the recorded script tries everything else."""
    errors = strategy.check(custom(), {"metadata": {**TAG, "generateName": "A-"}}, None)
    assert any("metadata.generateName: Invalid value" in str(error) for error in errors)


def test_a_cluster_scoped_object_has_no_namespace():
    """A namespace on a cluster-scoped kind is forbidden."""
    errors = strategy.check(KINDS["Namespace"], {"metadata": TAG}, None)
    assert [str(error) for error in errors] == ["metadata.namespace: Forbidden: not allowed on this type"]
