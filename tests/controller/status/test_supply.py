"""Who brings the weights of a Model decides which of its fields have an effect."""

import pytest

from controller.podobjects import SHA, cluster_model
from llmkube.controller.render.model_sources import cache_key
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.supply import Supply, User, choose_supply, without_effect
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import Job


def job(kind: str = "Complete", at: str = "2025-06-01T11:00:00Z") -> Job:
    held = [{"type": kind, "status": "True", "lastTransitionTime": at}] if kind else []
    return decode(Job, {"metadata": {"name": "phi-0", "namespace": "ml"}, "status": {"conditions": held}})


def followed(**status):
    key = cache_key(cluster_model(refreshPolicy="OnChange").spec)
    there = {"cacheKey": key, "path": f"/models/{key}/v1/model.gguf", "size": "4.5 GiB", "sha256": SHA}
    return cluster_model(refreshPolicy="OnChange", status={**there, **status})


@pytest.mark.parametrize("users", [[], [User()], [User(brings_weights=True)], [User(fetches_itself=True)]])
def test_a_model_of_ollamas_library_is_nothing_for_pods(users):
    """Whoever would bring it, the Model says what to name instead."""
    supply = choose_supply(cluster_model("ollama://llama3.2"), users, WorkloadSettings(image="x"))
    assert (supply.by, supply.reason) == ("nothing", "SourceUnsupported")
    assert supply.message.startswith("ollama://llama3.2:latest is pulled by the Ollama of a host")
    assert supply.message.endswith("such as ORG/REPO:Q4_K_M")


@pytest.mark.parametrize(("by", "ignored"), [("job", False), ("pods", False), ("claim", True), ("runtime", True)])
def test_the_policy_takes_effect_where_somebody_fetches(by, ignored):
    """What is mounted, or fetched by the engine itself, is not followed, and the service says so."""
    path = "Model.spec.refreshPolicy"
    model = cluster_model("pvc://c/m.gguf" if by == "claim" else "org/repo", refreshPolicy="OnChange")
    assert (path in without_effect(model, Supply(by), [path])) is ignored
