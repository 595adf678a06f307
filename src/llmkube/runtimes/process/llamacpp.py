"""llama.cpp's server, planned: the fields of a service and its model become one command line.

Flags move between llama.cpp versions, so a field's flag is written only if the engine's `--help` lists it. A field that
was given but found no flag is reported in `LaunchPlan.not_honoured`, as is every field that means nothing on a host.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.runtimes import llama_fields as fields
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.runtimes.arguments import CommandLine, flag_of, flag_words
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
from llmkube.runtimes.process.exits import LLAMA_RULES, loading_phase, metal_error
from llmkube.runtimes.process.host_runtime import LLAMA_QUERIES, HostRuntime, LogReader, Program, ProgramError
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs
from llmkube.weights.estimate.demand import Component, Location
from llmkube.weights.estimate.sizing import default_cache_ram_bytes
from llmkube.weights.formats.shape import Shape
from llmkube.weights.store.blobs import WeightsFile

_LINE: Final = re.compile(
    r"\b(?P<buffer>[A-Za-z][\w.-]*)\s+(?P<kind>model|KV|RS|compute|output|DSV4 \w+ state) buffer size\s*=\s*"
    r"(?P<size>\d{1,12}(?:\.\d{1,6})?) MiB",
    re.ASCII,
)
_NAMES: Final[Mapping[str, str]] = {
    "model": "weights",
    "KV": "KV cache",
    "RS": "recurrent state",
    "compute": "compute buffer",
    "output": "output buffer",
}
_DEVICE_LIMIT: Final = re.compile(r"recommendedMaxWorkingSetSize\s*=\s*(?P<size>\d{1,9}(?:\.\d{1,6})?) MB", re.ASCII)
_ON_HOST: Final = re.compile(r"CPU(_\w+)?|BLAS|\w+_Host")


def parse_buffer(line: str) -> Component | None:
    """Return the buffer that a line of the log reports, if it reports one.

    `CPU`, `CPU_Mapped`, `CPU_REPACK` and pinned memory (`CUDA_Host`) are the host's; all others are a device's, mapped
    ones on a Mac (`MTL0_Mapped`) included.
    """
    found = _LINE.search(line)
    if found is None:
        return None
    buffer, kind = found["buffer"], found["kind"]
    name = "repacked weights" if buffer.endswith("_REPACK") else _NAMES.get(kind, "recurrent state")
    place = Location.HOST if _ON_HOST.fullmatch(buffer) else Location.DEVICE
    return Component(name, place, round(float(found["size"]) * (1 << 20)))


def device_limit(lines: Iterable[str]) -> int | None:
    """Return what Metal has told an engine that its GPU may hold, in bytes: ggml writes it with millions of them."""
    found = [size for line in lines if (explicit := _DEVICE_LIMIT.search(line)) and (size := float(explicit["size"]))]
    return round(max(found) * 1_000_000) if found else None


def reported_buffers(lines: Iterable[str]) -> tuple[Component, ...]:
    """Add up the buffers that these lines report, by name and place, in the order of their first mention."""
    sizes: dict[tuple[str, Location], int] = {}
    for line in lines:
        if (buffer := parse_buffer(line)) is not None:
            key = buffer.name, buffer.place
            sizes[key] = sizes.get(key, 0) + buffer.size_bytes
    return tuple(Component(name, place, size) for (name, place), size in sizes.items())


RUNTIME: Final = "llamacpp"
VERBOSITY: Final = 4
"""llama.cpp's level 4 prints buffer sizes at start; 5 would print what users ask."""

_LOAD_FLAGS: Final = frozenset({"-lm", "--load-mode", "--mmap", "--no-mmap", "--mlock", "--direct-io", "-dio"})
"""Who sets one of these decides how the file gets into memory."""

_WRITTEN: Final = fields.WRITTEN_FLAGS | fields.DRAFT_FLAGS
_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.aliases", "spec.mode", "spec.extraArgs"}


def check(isvc: InferenceService, model: Model, allowances: Allowances = NO_ALLOWANCES) -> None:
    """Refuse what the objects alone show to be impossible, before anything is downloaded.

    Raises:
        PlanError: The field that stands in the way, and what to do about it.
    """
    _read(isvc, model, allowances)


def _read(
    isvc: InferenceService, model: Model, allowances: Allowances
) -> tuple[InferenceService, Model, tuple[UserFlag, ...], tuple[tuple[str, str], ...]]:
    """Return what the objects say, read as fields, with the extra arguments and the environment; or refuse it."""
    isvc, model = read_as_fields(isvc, model)
    spec = isvc.spec
    fields.check_fields(spec)
    fields.draft_of(spec)
    return isvc, model, read_extra_args(spec.extra_args, allowances), plan_environment(spec.env, allowances)


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service on this engine.

    Raises:
        PlanError: As `check`, and when extraArgs has a flag that the engine does not know.
    """
    isvc, model, explicit, env = _read(inputs.isvc, inputs.model, inputs.allowances)
    inputs = attrs.evolve(inputs, isvc=isvc, model=model)
    spec, header, engine = isvc.spec, inputs.header, inputs.engine
    context = fields.context_of(spec, header.context_length)
    given, texts = expand_spellings(each for each in explicit if each.flag not in fields.DRAFT_FLAGS)
    line = CommandLine(given, engine, explicit=texts)
    names, ignored = _names(inputs.alias, spec, engine)
    decided = {"--model": Placeholder.MODEL, "--host": Placeholder.HOST, "--port": Placeholder.PORT, "--alias": names}
    line.argv += [Placeholder.PROGRAM, *flag_words(decided)]
    if inputs.keys_digest:  # who has a key of the service may not see what others ask
        if not line.knows("--no-slots"):
            raise PlanError("this llama-server cannot keep /slots from clients with a key: install a newer one",
                            field="spec.apiKeySecretRef")  # fmt: skip
        line.argv.append("--no-slots")
    if inputs.takes_keys:  # every user and every web page of the machine reaches its port
        line.argv += ["--api-key-file", Placeholder.KEYS]
    if line.knows("--cors-origins"):
        line.argv += ["--cors-origins", "localhost"]  # without it, a page of any origin may read what it answers
    fields.add_size(line, spec, context)
    _add_placement(line, isvc, model)
    fields.add_memory(line, spec)
    fields.add_rope(line, spec)
    fields.add_chat_options(line, spec)
    _add_speculation(line, spec, inputs.draft)
    fields.add_mode(line, spec, context, pools=bool(header.pooling_type))
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
    )


def _add_speculation(line: CommandLine, spec: InferenceServiceSpec, draft: WeightsFile | None) -> None:
    path = str(draft.path) if draft else ""
    if spec.speculative_decoding is not None:
        fields.add_speculation(line, spec.speculative_decoding, path)
    elif path:
        line.add("spec.extraArgs", "-md", path)


def _names(alias: str, spec: InferenceServiceSpec, engine: EngineInfo) -> tuple[str, tuple[str, ...]]:
    """Return the names that the engine shall answer to, ours first, and what of the service finds no place there.

    Builds that read several names have a flag for how the file is loaded, which is as old. The gateway knows all names
    in any case.
    """
    further = fields.additional_ids(alias, spec)
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
    """Have the weights read into the engine's own memory: on macOS a mapped file counts in no process's footprint.

    The GPU wires its pages while it works, and they are page cache when it rests (llama.cpp issue 8678): no reader
    could tell what an engine takes, or what comes back when it goes.
    """
    if line.knows("--load-mode"):
        line.default("--load-mode", value="none")
    else:
        line.default("--no-mmap")


def _add_defaults(line: CommandLine, engine: EngineInfo) -> None:
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


def describe(program: str, answers: Sequence[str]) -> EngineInfo:
    """Return what a llama-server is, from what `--help` and `--version` answer.

    Raises:
        ProgramError: It cannot ask for a key.
    """
    text, version = answers
    flags = parse_help(text)
    if "--api-key-file" not in flags:
        raise ProgramError(
            "it has no --api-key-file, without which every user and every web page of this machine could "
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
    log=LogReader(LLAMA_RULES, loading_phase, reported_buffers, device_limit, metal_error),
)
