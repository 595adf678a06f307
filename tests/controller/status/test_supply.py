"""Who brings the weights of a Model decides which of its fields have an effect."""

import pytest

from controller.podobjects import cluster_model
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.supply import Supply, User, choose_supply, without_effect


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
