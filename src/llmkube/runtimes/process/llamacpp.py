"""llama.cpp's server, planned: the fields of a service and its model become one command line.

Flags move between llama.cpp versions, so a field's flag is written only if the engine's `--help` lists it. A field that
was given but found no flag is reported in `LaunchPlan.not_honoured`, as is every field that means nothing on a host.
"""

from collections.abc import Iterator
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import changed_paths
from llmkube.runtimes.arguments import CommandLine
from llmkube.runtimes.llama_fields import (
    DEFAULT_CONTEXT,
    add_answers,
    add_flash_attention,
    add_memory,
    add_mode,
    add_rope,
    add_size,
    add_speculation,
    check_fields,
    context_of,
    layers_of,
    mode_of,
)
from llmkube.runtimes.llama_flags import (
    check_extra_args,
    flags_in,
    parse_help,
    parse_switches,
    parse_version,
    render_extra_args,
)
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder
from llmkube.runtimes.process.environment import plan_environment
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.weights.estimate.sizing import default_cache_ram_bytes
from llmkube.weights.formats.gguf import GGUFFacts
from llmkube.weights.formats.shape import Shape
from llmkube.weights.store.blobs import WeightsFile

__all__ = ["DEFAULT_CONTEXT", "check", "mode_of", "parse_help", "parse_switches", "parse_version", "plan"]

RUNTIME: Final = "llamacpp"
VERBOSITY: Final = 4
"""llama.cpp's level 4 prints buffer sizes at start; 5 would print what users ask."""

_LOADS: Final = frozenset({"-lm", "--load-mode", "--mmap", "--no-mmap", "--mlock", "--direct-io", "-dio"})
"""Who sets one of these decides how the file gets into memory."""

# Fields that take effect on a host without reaching the command line
_HONOURED_ELSEWHERE: Final = frozenset(
    {
        "spec.modelRef",
        "spec.runtime",
        "spec.replicas",
        "spec.suspend",
        "spec.priority",
        "spec.evictionProtection",
        "spec.mode",
        "spec.endpoint.path",
        "spec.env",
        "spec.extraArgs",
        "Model.spec.source",
        "Model.spec.sha256",
        "Model.spec.sourceSecretRef.name",
        "Model.spec.files",
        "Model.spec.format",
        "Model.spec.quantization",
        "Model.spec.hardware.accelerator",
        "Model.spec.hardware.memoryBudget",
        "Model.spec.hardware.memoryFraction",
        "Model.spec.hardware.gpu.enabled",
    }
)


def check(isvc: InferenceService, model: Model) -> None:
    """Refuse what the objects alone show to be impossible, before anything is downloaded.

    Raises:
        PlanError: The field that stands in the way, and what to do about it.
    """
    spec = isvc.spec
    check_fields(spec)
    check_extra_args(spec.extra_args)
    plan_environment(spec.env)


def plan(
    isvc: InferenceService, model: Model, weights: WeightsFile, gguf: GGUFFacts, engine: EngineInfo, *, alias: str
) -> LaunchPlan:
    """Return the command line for this service on this engine.

    Raises:
        PlanError: As `check`, and when extraArgs has a flag that the engine does not know.
    """
    check(isvc, model)
    spec = isvc.spec
    context = context_of(spec, gguf.context_length)
    line = CommandLine(flags_in(spec.extra_args), engine)
    line.argv += [
        Placeholder.PROGRAM,
        "--model",
        Placeholder.MODEL,
        "--host",
        Placeholder.HOST,
        "--port",
        Placeholder.PORT,
        "--alias",
        alias,
    ]
    add_size(line, spec, context)
    _add_placement(line, isvc, model)
    add_memory(line, spec)
    add_rope(line, spec)
    add_answers(line, spec)
    add_speculation(line, spec.speculative_decoding)  # a draft model would be a second file, which no host fetches yet
    add_mode(line, spec, context, pools=bool(gguf.pooling_type))
    _add_ours(line, engine)
    _limit_prompt_cache(line, engine, gguf.shape)
    line.argv += render_extra_args(spec.extra_args, engine)
    return LaunchPlan(
        argv=tuple(line.argv),
        env=plan_environment(spec.env),
        runtime=RUNTIME,
        alias=alias,
        weights_identity=weights.identity,
        not_honoured=tuple(path for path in _given(isvc, model) if path not in line.honoured | _HONOURED_ELSEWHERE),
        demand=demand_of(line.argv, engine),
    )


def _given(isvc: InferenceService, model: Model) -> Iterator[str]:
    yield from changed_paths(isvc.spec, "spec")
    yield from changed_paths(model.spec, "Model.spec")


def _add_placement(line: CommandLine, isvc: InferenceService, model: Model) -> None:
    hardware = model.spec.hardware
    on_gpu = hardware.accelerator != "cpu"
    if on_gpu:
        line.honoured.add("Model.spec.hardware.gpu.layers")
    line.argv += ["--n-gpu-layers", str(layers_of(hardware.gpu) if on_gpu else 0)]
    if hardware.gpu and hardware.gpu.count == 1 and on_gpu:
        line.honoured.add("Model.spec.hardware.gpu.count")  # a Mac has one
    flash = {True: "on", False: "off", None: "on" if hardware.accelerator == "metal" else "auto"}
    add_flash_attention(line, flash[isvc.spec.flash_attention])
    if hardware.accelerator == "metal" and not line.given & _LOADS:
        _copy_weights(line)


def _copy_weights(line: CommandLine) -> None:
    """Have the weights read into the engine's own memory: on macOS a mapped file counts in no process's footprint.

    The GPU wires its pages while it works, and they are page cache when it rests (llama.cpp issue 8678): no reader
    could tell what an engine takes, or what comes back when it goes.
    """
    if line.knows("--load-mode"):
        line.default("--load-mode", value="none")
    else:
        line.default("--no-mmap")


def _add_ours(line: CommandLine, engine: EngineInfo) -> None:
    line.default("--metrics")
    line.default("--fit", value="off")  # the host places models; the engine must not shrink them in silence
    line.default("--no-ui", "--no-webui")
    # builds from before --fit print buffer sizes anyway, and prompts at level 4
    if "--fit" in engine.flags and not line.given & {"-v", "--verbose", "--log-verbose"}:
        line.default("--verbosity", "-lv", "--log-verbosity", value=VERBOSITY)


def _limit_prompt_cache(line: CommandLine, engine: EngineInfo, shape: Shape | None) -> None:
    """Give the prompt cache a limit that can be reserved: the engine's own, 8 GiB, may be more than the model needs."""
    if shape is not None and "--cache-ram" not in line.argv:
        size_bytes = default_cache_ram_bytes(shape, demand_of(line.argv, engine))
        line.default("--cache-ram", "-cram", value=size_bytes >> 20)
