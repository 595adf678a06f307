"""A manifest of the first API says the same in today's words, or what it cannot say is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.first_api import ConversionError, convert, is_old
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model

BLOG = [
    doc
    for doc in yaml.safe_load_all(
        (Path(__file__).parents[1] / "data" / "blog-manifests.yaml").read_text(encoding="utf-8")
    )
    if doc
]


def old(**spec: Any) -> dict[str, Any]:
    model = {"source": "huggingface", "name": "a/b-GGUF"}
    return {
        "apiVersion": "llmkube.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {"model": model, **spec},
    }


def test_the_cuda_manifest() -> None:
    """GPUs become the service's request, the repository the Model's source, the accelerator the Model's."""
    found = convert(BLOG[0])
    metadata = {"name": "qwen3-32b", "namespace": "llmkube-system"}
    assert found.model == {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": metadata,
        "spec": {
            "source": "hf://Qwen/Qwen3-32B-GGUF",
            "format": "gguf",
            "hardware": {"accelerator": "cuda", "gpu": {"enabled": True}},
        },
    }
    assert found.service == {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"modelRef": "qwen3-32b", "resources": {"gpu": 2}},
    }
    assert [remark.partition(" may have")[0] for remark in found.remarks] == ["spec.model.name: Qwen/Qwen3-32B-GGUF"]


def test_the_metal_manifest() -> None:
    """Layers go to the Model, and the service asks for nothing but it."""
    found = convert(BLOG[1])
    assert found.model["spec"]["hardware"] == {"accelerator": "metal", "gpu": {"layers": 99}}
    assert found.service["spec"] == {"modelRef": "qwen3-30b"}


@pytest.mark.parametrize("body", BLOG, ids=lambda body: body["metadata"]["name"])
def test_both_are_todays_objects(body: dict[str, Any]) -> None:
    """What comes out decodes as today's kinds, and is not old any more."""
    found = convert(body)
    decode(Model, found.model)
    assert decode(InferenceService, found.service).spec.model_ref == found.model["metadata"]["name"]
    assert is_old(body)
    assert not is_old(found.model)


@pytest.mark.parametrize(
    ("spec", "service", "remarks"),
    [
        ({"replicas": 2, "contextSize": 4096}, {"replicas": 2, "contextSize": 4096}, []),
        ({"resources": {"memory": "8Gi", "gpuCount": 1}}, {"resources": {"memory": "8Gi", "gpu": 1}}, []),
        ({"resources": {"vram": 3}}, {}, ["spec.resources.vram: 3 dropped"]),
        ({"resources": {"gpu": 1, "gpuCount": 2}}, {"resources": {"gpu": 2}}, ["spec.resources.gpu: 1 dropped"]),
        ({"endpoint": {"port": 80, "host": "x"}}, {"endpoint": {"port": 80}}, ["spec.endpoint.host: 'x' dropped"]),
        ({"x": {"y": {}}}, {}, ["spec.x.y: {} dropped"]),
        ({"x": None}, {}, ["spec.x: None dropped"]),
        ({"modelRef": "m"}, {}, ["spec.modelRef: 'm' dropped"]),
        ({"endpoint": {}}, {"endpoint": {}}, []),
        ({"accelerator": "metal"}, {}, []),
    ],
)
def test_nothing_is_lost_silently(spec: dict[str, Any], service: dict[str, Any], remarks: list[str]) -> None:
    """A field is taken over under its name, or a remark begins with its path."""
    found = convert(old(**spec))
    assert found.service["spec"] == {"modelRef": "chat", **service}
    said = [remark for remark in found.remarks if "may have several files" not in remark]
    assert [remark[: len(want)] for remark, want in zip(said, remarks, strict=True)] == remarks


def test_what_a_server_wrote_is_named() -> None:
    """Of an object that was read from a cluster, the status and the server's own metadata are left out, with a word."""
    body = old()
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a"}
    body["metadata"] |= {"uid": "u", "managedFields": [{}], "annotations": annotations, "finalizers": ["x"]}
    found = convert({**body, "status": {"phase": "Ready"}})
    assert found.model["metadata"] == {"name": "chat", "annotations": {"team": "a"}}
    paths = [remark.partition(":")[0] for remark in found.remarks]
    assert paths == ["spec.model.name", "metadata.uid", "metadata.managedFields", "metadata.finalizers", "status"]


@pytest.mark.parametrize(
    ("model", "source", "remarks"),
    [
        ({"source": "https://host/m.gguf"}, "https://host/m.gguf", []),
        ({"source": "/models/m.gguf", "name": "m"}, "/models/m.gguf", ["spec.model.name: 'm' dropped"]),
        ({"name": "a/b"}, "hf://a/b", ["spec.model.name: a/b may", "spec.model.name: a/b does not look like gguf"]),
    ],
)
def test_sources(model: dict[str, Any], source: str, remarks: list[str]) -> None:
    """An address is the source as it is; a name is a repository, whose file nobody named."""
    found = convert(old(model=model))
    assert found.model["spec"]["source"] == source
    assert [remark[: len(want)] for remark, want in zip(found.remarks, remarks, strict=True)] == remarks


def test_two_accelerators() -> None:
    """Of two accelerators the outer one holds, and the other is named."""
    found = convert(old(model={"source": "/m", "accelerator": "cuda"}, accelerator="metal"))
    assert found.model["spec"]["hardware"] == {"accelerator": "metal"}
    assert found.remarks == ("spec.model.accelerator: cuda dropped, because spec.accelerator is metal",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**old(), "kind": "Model"}, "kind: Model is not a known kind of llmkube.io"),
        (old(model={"source": "ollama", "name": "phi3"}), "spec.model.source: 'ollama' is neither huggingface nor"),
        (old(model={"source": "huggingface"}), "spec.model.name: missing"),
        (old(model="phi"), "spec.model.name: missing"),
        ({**old(), "spec": None}, "spec.model.name: missing"),
    ],
)
def test_what_names_no_model_is_refused(body: dict[str, Any], message: str) -> None:
    """A manifest that does not say which model is refused with the path that should."""
    with pytest.raises(ConversionError, match=message):
        convert(body)
