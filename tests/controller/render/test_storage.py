"""Pods find the weights of a Model and of its draft, wherever each of them is."""

import pytest

from controller.podobjects import HUB_FILE, SETTINGS, cluster_model, plan, pod_service
from llmkube.controller.render.manifests import deployment
from llmkube.controller.render.model_sources import (
    claim_path,
    source_of,
)
from llmkube.controller.render.storage import serving_storage
from llmkube.runtimes.plan import Placeholder

PATH = "/models/0123/model.gguf"


def with_draft(source, draft):
    """Return a Deployment whose engine is handed two files, each from where its Model has it."""
    weights, beside = (
        serving_storage(pod_service(), cluster_model(one), PATH if one == HUB_FILE else mounted(one), SETTINGS)
        for one in (source, draft)
    )
    engine = plan(args=("--model", Placeholder.MODEL, "--model-draft", Placeholder.DRAFT))
    return deployment(pod_service(), engine, SETTINGS, replicas=1, storage=weights, draft=beside)


def mounted(source):
    return f"/model-source/{claim_path(source_of(cluster_model(source).spec)).path}"


@pytest.mark.parametrize(
    ("source", "draft", "volumes", "paths"),
    [
        ("pvc://w/a.gguf", "pvc://w/b.gguf", 1, ["/model-source/a.gguf", "/model-source/b.gguf"]),
        ("pvc://w/a.gguf", "pvc://d/a.gguf", 2, ["/model-source/a.gguf", "/draft-source/a.gguf"]),
        (HUB_FILE, "pvc://d/a.gguf", 2, [PATH, "/model-source/a.gguf"]),
    ],
)
def test_a_draft_is_where_its_own_volume_is(source, draft, volumes, paths):
    """No two volumes have one name or one place, and the engine is told where each file is."""
    pod = with_draft(source, draft)["spec"]["template"]["spec"]
    [container, _] = pod["containers"]
    assert len({one["name"] for one in pod["volumes"]}) == len(pod["volumes"]) == volumes
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert len(mounts) == len(container["volumeMounts"]) == volumes
    assert [container["args"][1], container["args"][3]] == paths
