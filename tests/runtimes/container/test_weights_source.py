"""Sources that are repositories of the Hub."""

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.builder import hub_repository
from llmkube.runtimes.plan import PlanError
from llmkube.weights.source import HubRepository


def model(status=None, **spec):
    body = {"metadata": {"name": "m"}, "spec": {"source": "https://example.com/m.gguf", **spec}}
    return decode(Model, {**body, "status": status or {}})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("org/repo", HubRepository("org/repo")),
        ("org/repo@v1", HubRepository("org/repo", "v1")),
        ("hf://org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/tree/main", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/tree/v1", HubRepository("org/repo", "v1")),
        ("https://HuggingFace.co/Org/Repo?library=x", HubRepository("Org/Repo")),
        ("https://huggingface.co/org/repo/resolve/main/m.gguf", None),
        ("https://huggingface.co/datasets/data", None),
        ("https://example.com/org/repo", None),
        ("hf://org/repo/m.gguf", None),
        ("pvc://claim/m", None),
    ],
)
def test_a_repository_is_known_by_its_page_as_well(source, found):
    """The URL of a model's page in a browser is that model, and a file or a data set is not."""
    assert hub_repository(source) == found


def test_an_engine_that_takes_whole_repositories_refuses_a_quantization():
    """VLLM and similar engines would serve other weights than the source names."""
    with pytest.raises(PlanError, match=r"remove :Q4_K_M, or serve it with llama\.cpp"):
        hub_repository("org/repo:Q4_K_M")
