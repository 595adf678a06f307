"""The bundled engine gets the pods that it serves as llama.cpp's own image does, and no others."""

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.bundled_engine import llama_params
from llmkube.runtimes.container.images import Images
from llmkube.runtimes.container.llamacpp import BUNDLED_FLAGS as FLAGS
from llmkube.runtimes.registry import IMAGES as PINNED
from llmkube.runtimes.registry import container_plan_for

BUNDLED = "registry.example.com/llmkube-llama:1"
CLAIM = {"name": "g", "resourceClaimName": "g"}
IMAGES = Images({"llamacpp-cpu": BUNDLED})


def plan(model=None, images=IMAGES, **spec):
    body = {"source": "https://example.com/m.gguf", **(model or {})}
    the_model = decode(Model, {"metadata": {"name": "m"}, "spec": body})
    wanted = {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", **spec}}
    return container_plan_for(decode(InferenceService, wanted), the_model, images=images)


def test_the_flags_are_supported_by_the_engine():
    """The table of supported flags is the engine's own."""
    honoured = {name for flags in llama_params.FLAGS.values() for flag in flags for name in flag.names.split()}
    assert honoured == FLAGS


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"extraArgs": ["--threads=1", "--temp", "-0.5"]},
        {"extraArgs": ["-ngl", "0"]},
        {"mode": "embedding", "parallelSlots": 2, "contextSize": 1024},
        {"runtime": "llama-server", "env": [{"name": "LC_ALL", "value": "C"}]},
        {"apiKeySecretRef": {"name": "keys", "key": "k"}},
    ],
)
def test_a_service_on_cpus_gets_the_image_that_is_named_for_them(spec):
    """Every flag written for it is one that the engine supports; the image runs as any user."""
    made = plan(**spec)
    assert (made.image, made.image_before, made.command) == (BUNDLED, PINNED["llamacpp"], ())
    assert made.any_user


@pytest.mark.parametrize(
    ("model", "spec", "image"),
    [
        ({"hardware": {"accelerator": "cuda"}}, {"resources": {"gpu": 1}}, PINNED["llamacpp-cuda"]),
        ({"hardware": {"accelerator": "rocm"}}, {"resources": {"gpu": 1}}, PINNED["llamacpp-rocm"]),
        ({"hardware": {"accelerator": "vulkan"}}, {"resources": {"gpu": 1}}, PINNED["llamacpp-vulkan"]),
        ({"hardware": {"accelerator": "intel"}}, {"resources": {"gpu": 1}}, PINNED["llamacpp-intel"]),
        ({}, {"resources": {"gpu": 1}}, PINNED["llamacpp-cuda"]),  # a GPU, and the schema's accelerator cpu
        ({"hardware": {"gpu": {"count": 1}}}, {}, PINNED["llamacpp-cuda"]),
        ({"hardware": {"gpu": {"resourceClaims": [CLAIM]}}}, {}, PINNED["llamacpp-cuda"]),
        ({"hardware": {"gpu": {"enabled": True}}}, {}, PINNED["llamacpp"]),
        ({"hardware": {"accelerator": "cuda"}}, {}, PINNED["llamacpp"]),  # a GPU by other means
        ({}, {"extraArgs": ["--n-gpu-layers", "99"]}, PINNED["llamacpp"]),
        ({}, {"extraArgs": ["-ngl", "all"]}, PINNED["llamacpp"]),
        ({}, {"runtimeClassName": "nvidia"}, PINNED["llamacpp"]),
        ({}, {"runtimeClassName": "nvidia", "extraArgs": ["--n-gpu-layers", "99"]}, PINNED["llamacpp"]),
    ],
)  # fmt: skip
def test_a_service_that_may_have_a_gpu_never_gets_it(model, spec, image):
    """An engine without GPU code would leave the GPU idle without a report."""
    assert (plan(model, **spec).image, plan(model, **spec).image_before) == (image, "")


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ({}, {"extraArgs": ["--lora", "/models/a.gguf"]}),
        ({}, {"extraArgs": ["--ctx_checkpoints=3"]}),  # llama.cpp reads the underscore, the engine does not
        ({"source": "hf://org/repo/m.gguf"}, {"skipModelInit": True}),
        ({}, {"env": [{"name": "LLAMA_ARG_NO_WEBUI", "value": "1"}]}),
        ({}, {"command": ["/app/llama-server"]}),
        ({}, {"probeOverrides": {"liveness": {"exec": {"command": ["curl", "localhost:8080/health"]}}}}),
        ({}, {"runtime": "llamacpp-router"}),
    ],
)
def test_unsupported_fields_are_served_by_llama_cpps_own_image(model, spec):
    """It would exit at an unknown flag, or lack a feature of the other image."""
    assert plan(model, **spec).image == PINNED["llamacpp"]


def test_a_services_own_image_wins():
    """It is used unchanged, and no older image is kept in its place."""
    made = plan(image="mine")
    assert (made.image, made.image_before) == ("mine", "")


@pytest.mark.parametrize(
    ("overrides", "image", "before"),
    [
        ({}, PINNED["llamacpp"], ""),
        ({"llamacpp": "mine"}, "mine", ""),
        ({"llamacpp": "mine", "llamacpp-cpu": BUNDLED}, BUNDLED, "mine"),
        ({"llamacpp-cuda": "mine"}, PINNED["llamacpp"], ""),
    ],
)
def test_the_most_specific_image_of_an_operator_applies(overrides, image, before):
    """The image for CPUs has priority over the engine's own; pods may keep their older one."""
    made = plan(images=Images(overrides))
    assert (made.image, made.image_before) == (image, before)
