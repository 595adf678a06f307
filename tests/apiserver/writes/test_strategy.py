"""The stations of a write, where the recorded script does not pass."""

from apiserver.stored_objects import KINDS, TAG
from kindmaking import custom_kind
from llmkube.apiserver.writes import strategy

WIDGET = custom_kind("Widget")


def test_server_kept_metadata_survives_a_client_that_omits_it():
    """An update without uid and creation time keeps the stored ones; only some kinds may omit the resourceVersion."""
    old = {"metadata": {**TAG, "uid": "u", "creationTimestamp": "t", "resourceVersion": "7"}}
    config = strategy.prepare(KINDS["ConfigMap"], {"metadata": dict(TAG)}, old)
    assert config["metadata"] == old["metadata"]
    widget = strategy.prepare(WIDGET, {"metadata": dict(TAG)}, old)
    assert [str(error) for error in strategy.check(WIDGET, widget, old)] == 2 * [
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ]


def test_a_prefix_of_names_is_judged_as_a_name():
    """A prefix that no name may have is refused as `generateName`; the recorded script covers everything else."""
    errors = strategy.check(WIDGET, {"metadata": {**TAG, "generateName": "A-"}}, None)
    assert any("metadata.generateName: Invalid value" in str(error) for error in errors)


def test_a_cluster_scoped_object_has_no_namespace():
    """A namespace on a cluster-scoped kind is forbidden."""
    errors = strategy.check(KINDS["Namespace"], {"metadata": TAG}, None)
    assert [str(error) for error in errors] == ["metadata.namespace: Forbidden: not allowed on this type"]
