from pathlib import Path

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import HOST_ENGINES, RUNTIMES
from llmkube.runtimes.plan import EngineInfo, PlanError
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import LLAMACPP_NAMES, check, plan_for
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile


def model(accelerator="cpu", weights="gguf"):
    spec = {"source": "builtin://demo", "format": weights, "hardware": {"accelerator": accelerator}}
    return decode(Model, {"metadata": {"name": "m"}, "spec": spec})


MODEL = model()


def service(runtime):
    return decode(InferenceService, {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", "runtime": runtime}})


def plan(runtime):
    facts = GGUFFacts(architecture="llama", file_version=3, tensor_count=1, size_bytes=1)
    engine = EngineInfo("llama-server", "1", frozenset())
    return plan_for(
        PlanInputs(service(runtime), MODEL, WeightsFile(Path("/m"), 1, None, "i"), facts, engine, alias="chat")
    )


@pytest.mark.parametrize("runtime", LLAMACPP_NAMES)
def test_llamacpp_runs_on_a_host_under_both_names(runtime):
    """The two names of llama.cpp make the same plan, so renaming restarts nothing."""
    check(service(runtime), MODEL)
    assert plan(runtime).digest == plan("llamacpp").digest


@pytest.mark.parametrize("runtime", sorted({*RUNTIMES} - {*HOST_ENGINES}))
def test_every_other_runtime_is_refused_by_name(runtime):
    """A runtime that the schema admits and no host can run is refused with its field, before and after the download."""
    for refuse in (lambda: check(service(runtime), MODEL), lambda: plan(runtime)):
        with pytest.raises(PlanError, match=f"{runtime} is not supported as a local process yet") as caught:
            refuse()
        assert caught.value.field == "spec.runtime"


@pytest.mark.parametrize(
    ("runtime", "of", "field", "message"),
    [
        ("llama-server", model("metal", "mlx"), "Model.spec.format", "llama-server reads gguf, not mlx"),
        (
            "vllm",
            model("metal", "mlx"),
            "spec.runtime",
            "vllm is not supported as a local process yet; use mlx-lm or omlx or vllm-metal",
        ),
        ("vllm", model("cpu", "mlx"), "spec.runtime", "vllm is not supported as a local process yet; use mlx-lm$"),
        (
            "omlx",
            model("cpu", "mlx"),
            "Model.spec.hardware.accelerator",
            "not cpu; change the accelerator, or set spec.runtime to mlx-lm$",
        ),
        ("omlx", model("metal"), "Model.spec.format", "omlx reads mlx, not gguf"),
        ("llamacpp", model("cpu", "mlx"), "Model.spec.format", "llamacpp reads gguf, not mlx"),
        ("llamacpp", model("metal", "safetensors"), "Model.spec.format", "spec.runtime to mlx-lm or vllm-metal"),
        (
            "vllm-metal",
            model("cpu", "mlx"),
            "Model.spec.hardware.accelerator",
            "change the accelerator, or set spec.runtime to mlx-lm$",
        ),
        ("mlx-lm", model("cuda", "mlx"), "Model.spec.hardware.accelerator", "runs on metal or cpu, not cuda"),
        ("mlx-lm", model("cpu"), "Model.spec.format", "mlx-lm reads mlx or safetensors, not gguf"),
        ("vllm", model(), "spec.runtime", "use llamacpp or llama-server or ollama"),
        ("ollama", model("metal", "safetensors"), "Model.spec.format", "ollama reads gguf, not safetensors"),
    ],
)
def test_engine_and_format_have_to_agree_on_a_host(runtime, of, field, message):
    """A wrong pair is refused as such, and a right one without its engine as that."""
    with pytest.raises(PlanError, match=message) as caught:
        check(service(runtime), of)
    assert caught.value.field == field
