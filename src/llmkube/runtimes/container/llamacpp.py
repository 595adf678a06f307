"""llama.cpp's server in a pod: with one model, or as a router for a folder of models."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.base.package_data import read_text
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec
from llmkube.runtimes import llama_fields as fields
from llmkube.runtimes.arguments import CommandLine, flag_of, flags_in
from llmkube.runtimes.container.builder import SOURCE, ContainerBuilder, Runtime, fetches_always, is_mounted
from llmkube.runtimes.container.container_plan import (
    ContainerPlan,
    ModelFile,
    Probes,
    Resources,
    ScalingMetric,
    Variable,
    literal,
)
from llmkube.runtimes.container.gpu import split_mode, stack_of, tensor_split
from llmkube.runtimes.container.images import CPU
from llmkube.runtimes.llama_flags import check_pod_args, expand_spellings, known_flags, pop_flags, read_as_fields
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.plan import Placeholder, PlanError
from llmkube.weights.source import DEFAULT_REVISION, NO_PROJECTOR, HubFile, HubRepository, WebFile

BUNDLED_FLAGS: Final = frozenset(read_text(__package__, "bundled_flags.txt").split())
"""All flags that the bundled engine honours (`programs.bundled_engine.llama_params`)."""

_LAYERS_FLAG: Final = "--n-gpu-layers"
_ARGUMENT_VARIABLE: Final = "LLAMA_ARG_"
"""Prefix of variables from which llama.cpp's own server reads flags; the bundled engine does not."""


def bundled_can_serve(spec: InferenceServiceSpec, model: ModelSpec, resources: Resources, argv: Sequence[str]) -> bool:
    """Return whether the bundled engine can serve a service: on CPUs, with its own flags, and nothing of another image.

    A pod may have a GPU that is not in its resources: one with a RuntimeClass, or with layers for a GPU.
    """
    gpu = model.hardware.gpu
    on_gpu = resources.on_gpu or model.hardware.accelerator != CPU or bool(gpu and gpu.enabled)
    layers = {value for flag, value in itertools.pairwise(argv) if flag == _LAYERS_FLAG}
    if on_gpu or layers != {"0"} or spec.runtime_class_name or spec.command:
        return False
    if any(variable.name.startswith(_ARGUMENT_VARIABLE) for variable in spec.env):
        return False
    probes = spec.probe_overrides
    given = (probes.startup, probes.liveness, probes.readiness) if probes else ()
    if any("exec" in probe for probe in given if probe):
        return False
    return all(word.partition("=")[0] in BUNDLED_FLAGS for word in argv if flag_of(word))


PORT: Final = 8080
MODELS_FOLDER: Final = "/models"
"""Folder in which the router looks for models; the service mounts them there (`spec.extraVolumeMounts`)."""

_OWNED: Final = {"--host": "spec.bindAddress", "--port": "spec.containerPort"}
"""Flags that fields control in a pod, which has its own address."""

_LAYERS: Final = frozenset(spellings_of("--n-gpu-layers"))
_BUSY: Final = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
_GPU: Final = "Model.spec.hardware.gpu"
_POOLING_IN_HEADER: Final = ("bert", "embedding", "encoder")


def plan_server(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves one model."""
    explicit_layers = _read_extra_args(builder, _OWNED)
    _add_model(builder)
    builder.line.argv += ["--alias", ",".join((builder.name, *fields.engine_ids(builder.name, builder.spec)))]
    builder.honour("spec.aliases")
    _, rest = pop_flags(builder.spec.extra_args, fields.WRITTEN_FLAGS)
    builder.service = attrs.evolve(builder.service, spec=attrs.evolve(builder.spec, mode=builder.mode, extra_args=rest))
    return _finish(builder, model_id=builder.name, explicit_layers=explicit_layers)


def plan_router(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves every model of a folder, each loaded when it is requested.

    The folder is the user's; the Model that the service refers to provides hardware and resources, but no weights.
    """
    folder = f"LLMKube, which serves the models mounted at {MODELS_FOLDER}"
    explicit_layers = _read_extra_args(builder, {**_OWNED, "--models-dir": folder})
    builder.line.argv += ["--models-dir", MODELS_FOLDER]
    builder.honour(SOURCE)  # required in a Model, so not reported
    return _finish(builder, model_id="", explicit_layers=explicit_layers)


def _read_extra_args(builder: ContainerBuilder, owned: Mapping[str, str]) -> bool:
    """Check and parse the service's own arguments; return whether they set the number of layers on the GPU."""
    explicit_layers = bool(flags_in(builder.spec.extra_args) & _LAYERS)
    builder.service, builder.model = read_as_fields(builder.service, builder.model)
    builder.refuse({})
    check_pod_args(builder.spec.extra_args, owned)
    builder.line.given, builder.line.explicit = expand_spellings(known_flags(builder.spec.extra_args))
    return explicit_layers


def _add_model(builder: ContainerBuilder) -> None:
    source, line = builder.source, builder.line
    if builder.fetches and isinstance(source, HubFile | HubRepository | WebFile):
        line.argv += _own_download(source)
        builder.honour(SOURCE)
        builder.env.append(Variable("LLAMA_CACHE", Placeholder.CACHE))
        builder.add_token(None, "")
        return
    line.argv += ["--model", Placeholder.MODEL]
    builder.weights()
    projector = builder.model.spec.mmproj or NO_PROJECTOR
    if projector == NO_PROJECTOR:
        line.honoured.add("Model.spec.mmproj")
    elif projector.startswith("/"):
        raise PlanError("a pod cannot read a file of a host; name a file of the source", field="Model.spec.mmproj")
    elif not builder.fetches:
        line.add("Model.spec.mmproj", "--mmproj", ModelFile(projector))


def _own_download(source: HubFile | HubRepository | WebFile) -> list[str]:
    """Return the flags with which the server fetches the model itself (`spec.skipModelInit`)."""
    if isinstance(source, WebFile):
        if source.user_info is not None or "?" in source.url.target:
            raise PlanError(
                "this URL may contain a secret, and a command line is public; remove spec.skipModelInit",
                field="spec.skipModelInit",
            )
        return ["--model-url", literal(str(source.url))]
    if source.revision != DEFAULT_REVISION:
        raise PlanError(
            f"llama.cpp fetches only revision {DEFAULT_REVISION}; remove this to let LLMKube fetch {source.revision}",
            field="spec.skipModelInit",
        )
    if isinstance(source, HubFile):
        return ["--hf-repo", source.repository, "--hf-file", literal(source.path)]
    quantization = f":{source.quantization}" if source.quantization else ""
    return ["--hf-repo", literal(source.name + quantization)]


def _finish(builder: ContainerBuilder, model_id: str, *, explicit_layers: bool) -> ContainerPlan:
    spec, line = builder.spec, builder.line
    fields.check_fields(spec)
    port = builder.port(PORT)
    builder.add_listener("--host", "--port", port)
    context = fields.context_of(spec, _trained_context(builder))
    fields.add_size(line, spec, context)
    _add_placement(builder, explicit_layers=explicit_layers)
    if spec.flash_attention is not None:  # else the engine decides, since it knows its GPU
        fields.add_flash_attention(line, "on" if spec.flash_attention else "off")
    fields.add_memory(line, spec)
    fields.add_rope(line, spec)
    fields.add_chat_options(line, spec)
    draft_model = _add_speculation(builder)
    fields.add_mode(line, spec, context, pools=_has_pooling(builder))
    line.default("--metrics")
    # three quarters of all slots: with one slot, there is never more than one request in progress
    metric = ScalingMetric(_BUSY[0], target=f"{750 * spec.parallel_slots}m")
    return builder.finish(
        container_name="llama-server",
        port=port,
        probes=Probes.http("/health"),
        on_cpu=bundled_can_serve(spec, builder.model.spec, builder.resources, (*line.argv, *spec.extra_args)),
        hpa_metric=metric,
        busy_metrics=_BUSY,
        draft_model=draft_model,
        not_honoured=fields.unused_context(spec, _trained_context(builder)),
        model_id=model_id,
        any_user=_runs_as_any_user(builder),
    )


def _runs_as_any_user(builder: ContainerBuilder) -> bool:
    """Return whether the image is llama.cpp's own, with its entrypoint, on a device that every user may open.

    NVIDIA's device files are open to all (0666); those of AMD and Intel belong to the group `render`, whose number
    depends on the distribution.
    """
    ours = not builder.spec.image and not builder.spec.command
    return ours and (not builder.resources.on_gpu or stack_of(builder.model.spec) == "cuda")


def _add_placement(builder: ContainerBuilder, *, explicit_layers: bool) -> None:
    gpu, count, line = builder.model.spec.hardware.gpu, builder.resources.gpu_count, builder.line
    if not builder.resources.on_gpu:
        # a cluster may assign GPUs by other means, such as runtimeClassName: then only the service knows about them
        line.argv += ["--n-gpu-layers", str(fields.layers_of(gpu) if explicit_layers else 0)]
        return
    line.argv += ["--n-gpu-layers", str(fields.layers_of(gpu))]
    builder.honour(f"{_GPU}.layers")
    if count > 1:
        sharding = gpu.sharding if gpu else None
        mode = line.explicit.get("--split-mode") or split_mode(sharding)
        _add_split(line, f"{_GPU}.sharding.strategy", "--split-mode", mode, explicit=sharding is not None)
        if mode != "none":
            wanted = tensor_split(sharding, count)
            explicit = bool(sharding and sharding.layer_split)
            _add_split(line, f"{_GPU}.sharding.layerSplit", "--tensor-split", wanted, explicit=explicit)


def _add_split(line: CommandLine, path: str, flag: str, value: str, *, explicit: bool) -> None:
    """Write a setting for the split among GPUs: the Model's, or else the default unless the user has given the flag."""
    if explicit:
        line.add(path, flag, value)
    else:
        line.default(flag, value=value)
        line.honoured.add(path)


def _add_speculation(builder: ContainerBuilder) -> str:
    """Add the flags for speculative decoding; return the name of the draft Model, or "" without one."""
    speculation = builder.spec.speculative_decoding
    if speculation is None:
        return ""
    word: str = Placeholder.DRAFT if speculation.draft_model_ref else ""
    if speculation.draft_model:
        _check_among_files(builder, speculation.draft_model)
        word = ModelFile(speculation.draft_model)
    fields.add_speculation(builder.line, speculation, word)
    return speculation.draft_model_ref or ""


def _check_among_files(builder: ContainerBuilder, name: str) -> None:
    field, mounted = "spec.speculativeDecoding.draftModel", is_mounted(builder.source)
    if builder.fetches and not mounted:
        raise PlanError(
            "the engine fetches only the model itself; name the draft's Model in draftModelRef", field=field
        )
    if not mounted and name not in builder.model.spec.files:
        raise PlanError(f'"{name}" is not among the Model\'s files; add it to its spec.files', field=field)


def _trained_context(builder: ContainerBuilder) -> int | None:
    gguf = builder.model.status.gguf
    return gguf.context_length if gguf else None


def _has_pooling(builder: ContainerBuilder) -> bool:
    """Return whether the model's header sets the pooling type: the status does not tell, but encoders always do."""
    gguf = builder.model.status.gguf
    return gguf is not None and any(word in gguf.architecture for word in _POOLING_IN_HEADER)


_IMAGE: Final = "ghcr.io/ggml-org/llama.cpp:server"
_BUILD: Final = "b9445"
_IMAGES: Final = {
    "": f"{_IMAGE}-{_BUILD}",
    CPU: f"{_IMAGE}-{_BUILD}",  # the chart sets our own image here (`bundled_engine`)
    "cuda": f"{_IMAGE}-cuda13-{_BUILD}",
    **{stack: f"{_IMAGE}-{stack}-{_BUILD}" for stack in ("rocm", "vulkan", "intel")},
}
SERVER: Final = Runtime(name="llamacpp", plan=plan_server, images=_IMAGES)
ROUTER: Final = Runtime(
    name="llamacpp-router", plan=plan_router, fetches=fetches_always, images=_IMAGES, image_key=SERVER.name
)
