"""Plan llama.cpp's server: turn the fields of a service and its Model into one command line.

Flags differ between llama.cpp versions, so a field's flag is written only if the engine's `--help` lists it. A field
that is set but has no flag is reported in `LaunchPlan.not_honoured`, like every field without effect on a host.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.runtimes import llama_fields as fields
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.runtimes.arguments import EXTRA_ARGS, CommandLine, flag_of, flag_words
from llmkube.runtimes.llama_flags import (
    UserFlag,
    expand_spellings,
    parse_help,
    parse_switches,
    parse_version,
    read_as_fields,
    read_extra_args,
    render_extra_args,
)
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder, PlanError
from llmkube.runtimes.process.environment import plan_environment
from llmkube.runtimes.process.exits import LLAMA_RULES, given_up, loading_phase, metal_error
from llmkube.runtimes.process.host_runtime import LLAMA_QUERIES, HostRuntime, LogReader, Program, ProgramError
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs
from llmkube.weights.estimate.demand import Component, Location
from llmkube.weights.estimate.sizing import default_cache_ram_bytes
from llmkube.weights.formats.shape import Shape
from llmkube.weights.source import NO_PROJECTOR
from llmkube.weights.store.blobs import WeightsFile

_LINE: Final = re.compile(
    r"\b(?P<buffer>[A-Za-z][\w.-]*)\s+(?P<kind>model|KV|RS|LoRA|compute|output|DSV4 \w+ state) buffer size\s*=\s*"
    r"(?P<size>\d{1,12}(?:\.\d{1,6})?) MiB",
    re.ASCII,
)
_NAMES: Final[Mapping[str, str]] = {
    "model": "weights",
    "KV": "KV cache",
    "RS": "recurrent state",
    "LoRA": "adapters",
    "compute": "compute buffer",
    "output": "output buffer",
}
_OF_PROJECTOR: Final = "_compute_meta: "  # a function of clip.cpp, which reserves the buffer for a picture
_DEVICE_LIMIT: Final = re.compile(r"recommendedMaxWorkingSetSize\s*=\s*(?P<size>\d{1,9}(?:\.\d{1,6})?) MB", re.ASCII)
_ON_HOST: Final = re.compile(r"CPU(_\w+)?|BLAS|\w+_Host")


def parse_buffer(line: str) -> Component | None:
    """Return the buffer that a line of the log reports, if any.

    `CPU`, `CPU_Mapped`, `CPU_REPACK` and pinned memory (`CUDA_Host`) are host memory; all others are device memory,
    including mapped ones on a Mac (`MTL0_Mapped`).
    """
    found = _LINE.search(line)
    if found is None:
        return None
    buffer, kind = found["buffer"], found["kind"]
    name = "repacked weights" if buffer.endswith("_REPACK") else _NAMES.get(kind, "recurrent state")
    name = "mmproj" if _OF_PROJECTOR in line else name
    place = Location.HOST if _ON_HOST.fullmatch(buffer) else Location.DEVICE
    return Component(name, place, round(float(found["size"]) * (1 << 20)))


def device_limit(lines: Iterable[str]) -> int | None:
    """Return the memory limit of the GPU that Metal reports to the engine, in bytes; ggml logs it in MB."""
    found = [size for line in lines if (match := _DEVICE_LIMIT.search(line)) and (size := float(match["size"]))]
    return round(max(found) * 1_000_000) if found else None


def reported_buffers(lines: Iterable[str]) -> tuple[Component, ...]:
    """Return the total sizes of the buffers in these lines, by name and location, in order of first mention."""
    sizes: dict[tuple[str, Location], int] = {}
    for line in lines:
        if (buffer := parse_buffer(line)) is not None:
            key = buffer.name, buffer.place
            sizes[key] = sizes.get(key, 0) + buffer.size_bytes
    return tuple(Component(name, place, size) for (name, place), size in sizes.items())


RUNTIME: Final = "llamacpp"
VERBOSITY: Final = 4
"""Level 4 of llama.cpp prints buffer sizes at start; level 5 would print prompts."""

_LOAD_FLAGS: Final = frozenset({"-lm", "--load-mode", "--mmap", "--no-mmap", "--mlock", "--direct-io", "-dio"})
"""Flags for loading the file into memory; with one of these the user's choice applies."""

_KEYS: Final = "spec.apiKeySecretRef"
_WRITTEN: Final = fields.WRITTEN_FLAGS | fields.DRAFT_FLAGS
_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.aliases", "spec.mode", "spec.extraArgs"}


def check(isvc: InferenceService, model: Model, allowances: Allowances = NO_ALLOWANCES) -> None:
    """Reject objects that cannot be served, before anything is downloaded.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    _read(isvc, model, allowances)


def _read(
    isvc: InferenceService, model: Model, allowances: Allowances
) -> tuple[InferenceService, Model, tuple[UserFlag, ...], tuple[tuple[str, str], ...]]:
    """Check both objects; return them with some extraArgs moved to fields, the rest of extraArgs, and the variables."""
    isvc, model = read_as_fields(isvc, model)
    spec = isvc.spec
    fields.check_fields(spec)
    fields.draft_of(spec)
    return isvc, model, read_extra_args(spec.extra_args, allowances), plan_environment(spec.env, allowances)


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service on this engine.

    Raises:
        PlanError: As `check`, and when extraArgs contain a flag that the engine does not have.
    """
    isvc, model, explicit, env = _read(inputs.isvc, inputs.model, inputs.allowances)
    inputs = attrs.evolve(inputs, isvc=isvc, model=model)
    spec, header, engine = isvc.spec, inputs.header, inputs.engine
    context = fields.context_of(spec, header.context_length)
    given, texts = expand_spellings(each for each in explicit if each.flag not in fields.DRAFT_FLAGS)
    line = CommandLine(given, engine, explicit=texts)
    names, ignored = _names(inputs.alias, spec, engine)
    fixed = {"--model": Placeholder.MODEL, "--host": Placeholder.HOST, "--port": Placeholder.PORT, "--alias": names}
    line.argv += [Placeholder.PROGRAM, *flag_words(fixed)]
    if inputs.keys_digest:  # a client with a key must not see the requests of others
        if not line.knows("--no-slots"):
            raise PlanError("this llama-server cannot hide /slots from clients; install a newer one", field=_KEYS)
        line.argv.append("--no-slots")
    if inputs.takes_keys:  # every user and every web page on the machine can reach its port
        line.argv += ["--api-key-file", Placeholder.KEYS]
    if line.knows("--cors-origins"):
        line.argv += ["--cors-origins", "localhost"]  # without it, web pages of any origin can read its responses
    fields.add_size(line, spec, context)
    _add_placement(line, isvc, model)
    fields.add_memory(line, spec)
    fields.add_rope(line, spec)
    fields.add_chat_options(line, spec)
    if inputs.projector is not None:
        line.add("Model.spec.mmproj", "--mmproj", inputs.projector.path)
    elif model.spec.mmproj == NO_PROJECTOR:
        line.honoured.add("Model.spec.mmproj")
    _add_speculation(line, spec, inputs.draft)
    adapters = _add_adapters(line, inputs)
    fields.add_mode(
        line, spec, context, pools=bool(header.pooling_type), splits=header.pooling_type == fields.POOLING_LAST
    )
    _add_defaults(line, engine)
    _limit_prompt_cache(line, engine, header.shape)
    line.argv += render_extra_args([each for each in explicit if each.flag not in _WRITTEN], engine)
    return inputs.launch_plan(
        line.argv,
        runtime=RUNTIME,
        env=env,
        demand=demand_of(line.argv, engine),
        honoured=line.honoured | _HONOURED,
        ignored=(*ignored, *fields.unused_context(spec, header.context_length)),
        adapters=adapters,
    )


def _add_speculation(line: CommandLine, spec: InferenceServiceSpec, draft: WeightsFile | None) -> None:
    path = str(draft.path) if draft else ""
    if spec.speculative_decoding is not None:
        fields.add_speculation(line, spec.speculative_decoding, path)
    elif path:
        line.add("spec.extraArgs", "-md", path)
        line.default("--spec-type", value="draft-simple")  # without it the engine loads the draft model in vain


def _add_adapters(line: CommandLine, inputs: PlanInputs) -> tuple[tuple[str, float], ...]:
    """Add the LoRA adapters, those with a name at scale 0; return name and scale of each.

    llama.cpp keeps a slot's cache for a request without `lora`, and its prompt cache in memory does not know adapters:
    both would restore what another adapter has computed (issue 26207, and experiments with xllamacpp 2026.10). So with
    adapters that requests choose, that cache is off, and only requests with an explicit `lora`, which our gateway and
    routers send, use a slot's cache.
    """
    spec = inputs.spec
    if not inputs.adapters:
        return ()
    if not line.knows("--lora-scaled"):
        message = "this llama-server has no --lora-scaled FNAME:SCALE,...; install a newer one"
        raise PlanError(message, field="spec.adapters")
    found = tuple((each.name or "", float(each.scale)) for each in spec.adapters)
    files = []
    for at, ((name, scale), weights) in enumerate(zip(found, inputs.adapters, strict=True)):
        if not {",", ":"}.isdisjoint(path := str(weights.path)):
            message = f"{path} has a comma or a colon, which llama-server cannot read in this place; rename the file"
            raise PlanError(message, field=f"spec.adapters[{at}].modelRef")
        files.append(f"{path}:{0 if name else scale:g}")
    line.add("spec.adapters", "--lora-scaled", ",".join(files))
    if fields.adapter_names(spec) or spec.api_key_secret_ref is not None:
        if explicit := line.given & {"--cache-ram", "-cram", "--cache-prompt"}:
            message = f"{min(explicit)} would mix the prompts of several adapters; remove it, or the adapters' names"
            raise PlanError(message, field=EXTRA_ARGS)
        line.argv += ["--cache-ram", "0", "--no-cache-prompt"]
    return found


def _names(alias: str, spec: InferenceServiceSpec, engine: EngineInfo) -> tuple[str, tuple[str, ...]]:
    """Return the model names for the engine to accept, ours first, and the settings of further names that it ignores.

    Builds that accept several names also have --load-mode, which is as old. The gateway always knows all names.
    """
    further = fields.engine_ids(alias, spec)
    if further and "--load-mode" not in engine.flags:
        explicit = any(flag_of(word) in fields.ALIAS_FLAGS for word in spec.extra_args)
        return alias, (*(("spec.aliases",) if spec.aliases else ()), *(("spec.extraArgs --alias",) if explicit else ()))
    return ",".join((alias, *further)), ()


def _add_placement(line: CommandLine, isvc: InferenceService, model: Model) -> None:
    hardware = model.spec.hardware
    on_gpu = hardware.accelerator != "cpu"
    if on_gpu:
        line.honoured.add("Model.spec.hardware.gpu.layers")
    line.argv += ["--n-gpu-layers", str(fields.layers_of(hardware.gpu) if on_gpu else 0)]
    if hardware.gpu and hardware.gpu.count == 1 and on_gpu:
        line.honoured.add("Model.spec.hardware.gpu.count")  # a Mac has one
    flash = {True: "on", False: "off", None: "on" if hardware.accelerator == "metal" else "auto"}
    fields.add_flash_attention(line, flash[isvc.spec.flash_attention])
    if hardware.accelerator == "metal" and not line.given & _LOAD_FLAGS:
        _copy_weights(line)


def _copy_weights(line: CommandLine) -> None:
    """Load the weights into the engine's own memory: on macOS no process's footprint includes a mapped file.

    The GPU wires its pages while it works, and they are page cache when it is idle (llama.cpp issue 8678). So neither
    the memory that an engine uses nor the memory that it would release could be measured.
    """
    if line.knows("--load-mode"):
        line.default("--load-mode", value="none")
    else:
        line.default("--no-mmap")


def _add_defaults(line: CommandLine, engine: EngineInfo) -> None:
    line.default("--metrics")
    line.default("--fit", value="off")  # the host places models; the engine must not silently shrink them
    line.default("--no-ui", "--no-webui")
    # older builds, without --fit, print buffer sizes by default, and prompts at level 4
    if "--fit" in engine.flags and not line.given & {"-v", "--verbose", "--log-verbose"}:
        line.default("--verbosity", "-lv", "--log-verbosity", value=VERBOSITY)


def _limit_prompt_cache(line: CommandLine, engine: EngineInfo, shape: Shape | None) -> None:
    """Limit the prompt cache, so that it can be reserved: the default of 8 GiB may exceed the memory of the model."""
    if shape is not None and "--cache-ram" not in line.argv:
        size_bytes = default_cache_ram_bytes(shape, demand_of(line.argv, engine))
        line.default("--cache-ram", "-cram", value=size_bytes >> 20)


def describe(program: str, outputs: Sequence[str]) -> EngineInfo:
    """Return the description of a llama-server, from its `--help` and its `--version`.

    Raises:
        ProgramError: It cannot require a key.
    """
    text, version = outputs
    flags = parse_help(text)
    if "FNAME:SCALE" not in text:
        flags -= {"--lora-scaled"}  # in older builds, it takes two values
    if "--api-key-file" not in flags:
        raise ProgramError(
            "it has no --api-key-file, without which every user and every web page on this machine could "
            "use an engine; install a newer llama-server"
        )
    return EngineInfo(program, parse_version(version), flags, parse_switches(text))


SERVER: Final = HostRuntime(
    name=RUNTIME,
    other_names=("llama-server",),
    program=Program(
        "llama-server",
        "--llama-server",
        "install one (brew install llama.cpp), or name it with --llama-server",
        describe,
    ),
    check=check,
    plan=plan,
    queries=LLAMA_QUERIES,
    log=LogReader(LLAMA_RULES, loading_phase, reported_buffers, device_limit, metal_error, given_up),
)
