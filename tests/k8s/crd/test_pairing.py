"""Formats and runtimes are paired as the reference says."""

import pytest

from llmkube.k8s.crd.model import FORMATS
from llmkube.k8s.crd.pairing import (
    HOST_ENGINES,
    RUNTIME_NAMES,
    RUNTIMES,
    hardware_mismatch,
    host_engines_for,
    host_mismatch,
    mlx_runtime_of,
    pod_mismatch,
    resolve_runtime,
)
from llmkube.k8s.crd.placement import ACCELERATORS


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
    message = pod_mismatch(runtime, model_format, "cpu")
    assert bool(message) == (model_format not in PAIRS[runtime].split())
    if message:
        assert message.startswith(f"{runtime} reads ")
        assert f"not {model_format}; use weights in that format, or set spec.runtime to " in message


def fits_host(engine: str, model_format: str, accelerator: str) -> bool:
    return not (
        host_mismatch(engine, model_format, accelerator) or hardware_mismatch(engine, model_format, accelerator)
    )


def named_runtimes(message: str) -> list[str]:
    _, _, named = message.partition("spec.runtime to ")
    return named.split(" or ") if named else []


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("model_format", FORMATS)
def test_who_follows_a_hint_of_a_host_is_served(model_format: str, accelerator: str) -> None:
    """A runtime that a refusal names is one that this host does not refuse in the next sentence."""
    for engine in HOST_ENGINES:
        for refusal in (host_mismatch, hardware_mismatch):
            message = refusal(engine, model_format, accelerator)
            for other in named_runtimes(message):
                assert fits_host(other, model_format, accelerator), message
    assert all(fits_host(each, model_format, accelerator) for each in host_engines_for(model_format, accelerator))


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("model_format", ["pytorch", "custom"])
def test_where_no_engine_of_hosts_fits_another_format_is_named(model_format: str, accelerator: str) -> None:
    """Each format that is named has an engine on this hardware, and all that have one are named."""
    message = host_mismatch("llama-server", model_format, accelerator)
    start = f"llama-server reads gguf, not {model_format}; use weights in "
    assert message.startswith(start)
    named = message.removeprefix(start).partition(",")[0].split(" or ")
    assert named == [name for name in FORMATS if host_engines_for(name, accelerator)]
    assert ("mlx" in named) is (accelerator in ("cpu", "metal"))


def test_engines_built_on_mlx_compute_where_mlx_is_run() -> None:
    """They run on a Mac, on a CPU only as mlx-lm, and on no other GPU."""
    built_on_mlx = ["mlx-lm", "omlx", "vllm-metal"]

    def engines(*wanted: str) -> list[str]:
        return [name for name in host_engines_for(*wanted) if name in built_on_mlx]

    assert engines("mlx", "metal") == built_on_mlx
    assert engines("safetensors", "metal") == ["mlx-lm", "vllm-metal"]
    assert engines("mlx", "cpu") == ["mlx-lm"]
    assert engines("mlx", "cuda") == []


@pytest.mark.parametrize("runtime", ["llamacpp", "vllm", "generic"])
@pytest.mark.parametrize("model_format", FORMATS)
def test_no_hint_of_pods_names_what_no_pod_runs(runtime: str, model_format: str) -> None:
    """But mlx on a processor, which a host serves."""
    for accelerator in ("cpu", "cuda"):
        named = named_runtimes(pod_mismatch(runtime, model_format, accelerator))
        if model_format == "mlx":
            assert named == (["mlx-lm"] if accelerator == "cpu" else [])
        else:
            assert not {*named} & {"omlx", "vllm-metal", "mlx-lm"}


def test_the_default_format_does_not_bind_engines_that_fetch_their_weights() -> None:
    """An engine that fetches its own weights is checked against every format but gguf, which may be the default."""
    assert pod_mismatch("vllm", "gguf", "cuda")
    assert not pod_mismatch("vllm", "gguf", "cuda", engine_fetches=True)
    assert pod_mismatch("vllm", "mlx", "cuda", engine_fetches=True)


def test_each_runtime_has_a_place_of_its_own_in_the_schema() -> None:
    """A new one is the last: the schema of the others stays the same bytes."""
    assert [RUNTIMES[name].enum for name in RUNTIME_NAMES] == list(range(len(RUNTIMES)))
