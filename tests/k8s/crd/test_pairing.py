"""Formats and runtimes are paired as the reference says."""

import pytest

from llmkube.k8s.crd.inferenceservice import HOST_RUNTIMES, POD_RUNTIMES
from llmkube.k8s.crd.model import FORMATS
from llmkube.k8s.crd.pairing import READS, host_engines_for, mismatch, mlx_runtime_of, resolve_runtime


@pytest.mark.parametrize(
    ("runtime", "model_format", "accelerator", "engine"),
    [
        ("llamacpp", "gguf", "metal", "llamacpp"),
        ("llamacpp", "mlx", "metal", "mlx-lm"),
        ("llamacpp", "mlx", "cuda", "llamacpp"),
        ("llama-server", "mlx", "metal", "llama-server"),
        ("omlx", "mlx", "metal", "omlx"),
        ("vllm", "mlx", "metal", "vllm"),
    ],
)
def test_only_the_default_runtime_gives_way(runtime: str, model_format: str, accelerator: str, engine: str) -> None:
    """The engine mlx-lm takes the place of the default runtime for mlx weights on metal, and of no other anywhere."""
    assert resolve_runtime(runtime, model_format, accelerator) == engine


@pytest.mark.parametrize(
    ("has_omlx", "runtime", "model_format", "accelerator", "engine"),
    [
        (True, "llamacpp", "mlx", "metal", "omlx"),
        (False, "llamacpp", "mlx", "metal", "mlx-lm"),
        (True, "mlx-lm", "mlx", "metal", "mlx-lm"),
        (False, "omlx", "mlx", "metal", "omlx"),
        (True, "llamacpp", "gguf", "metal", "llamacpp"),
        (True, "llamacpp", "mlx", "cpu", "llamacpp"),
        (True, "llamacpp", "safetensors", "metal", "llamacpp"),
    ],
)
def test_mlx_on_metal_is_omlx_where_the_host_has_it(has_omlx, runtime, model_format, accelerator, engine) -> None:
    """Else mlx-lm; and who names an engine gets that one."""
    taken = mlx_runtime_of(has_omlx=has_omlx)
    assert resolve_runtime(runtime, model_format, accelerator, mlx_runtime=taken) == engine


PAIRS = {
    "llamacpp": "gguf",
    "llamacpp-router": "gguf",
    "llama-server": "gguf",
    "omlx": "mlx",
    "mlx-lm": "mlx safetensors",
    "vllm-metal": "mlx safetensors",
    "ollama": "gguf safetensors custom",
    "vllm": "safetensors pytorch custom",
    "tgi": "safetensors pytorch custom",
    "sglang": "safetensors pytorch custom",
    "triton": "safetensors pytorch custom",
    "personaplex": "safetensors pytorch custom",
    "generic": "gguf safetensors pytorch custom",
    "a-plug-in": "gguf mlx safetensors pytorch custom",
}


@pytest.mark.parametrize("runtime", PAIRS)
@pytest.mark.parametrize("model_format", FORMATS)
def test_pairs(runtime: str, model_format: str) -> None:
    """A format that is not the runtime's own is refused, and the sentence names both and a way out."""
    said = mismatch(runtime, model_format, "cuda")
    assert bool(said) == (model_format not in PAIRS[runtime].split())
    if said:
        assert said.startswith(f"{runtime} reads ")
        assert f"not {model_format}: set that format, or spec.runtime to " in said


@pytest.mark.parametrize("model_format", ["pytorch", "custom"])
def test_on_metal_no_engine_is_named_that_no_host_runs(model_format: str) -> None:
    """D12: the way out on a Mac is another format, and not a runtime that its agent refuses in the next sentence."""
    said = mismatch("llama-server", model_format, "metal")
    assert said.endswith("an agent on a Mac serves gguf, mlx and safetensors: name weights of one of them")


@pytest.mark.parametrize("model_format", ["mlx", "safetensors"])
def test_on_metal_the_engines_built_on_mlx_are_the_way_out(model_format: str) -> None:
    """What an agent on a Mac runs is named for the formats that it reads."""
    assert mismatch("llama-server", model_format, "metal").endswith(" or vllm-metal")
    assert "mlx-lm" in mismatch("llama-server", model_format, "metal")
    assert ("omlx" in mismatch("llama-server", model_format, "metal")) is (model_format == "mlx")


@pytest.mark.parametrize("runtime", ["llamacpp", "vllm", "generic"])
@pytest.mark.parametrize("model_format", FORMATS)
def test_no_hint_names_what_neither_pods_nor_hosts_run(runtime: str, model_format: str) -> None:
    """Nothing leads away from a Mac to what computes on its GPU alone."""
    for accelerator in ("cpu", "cuda"):
        said = mismatch(runtime, model_format, accelerator) + " ".join(host_engines_for(model_format, accelerator))
        assert "omlx" not in said
        assert "vllm-metal" not in said


def test_the_default_format_binds_nobody_who_fetches_alone() -> None:
    """An engine that brings its weights is not held to gguf, which nobody may have said, but to every other format."""
    assert mismatch("vllm", "gguf", "cuda")
    assert not mismatch("vllm", "gguf", "cuda", brings_weights=True)
    assert mismatch("vllm", "mlx", "cuda", brings_weights=True)


def test_every_runtime_of_the_schema_is_paired() -> None:
    """No runtime that the schema admits is forgotten."""
    assert set(READS) == {*POD_RUNTIMES, *HOST_RUNTIMES}
