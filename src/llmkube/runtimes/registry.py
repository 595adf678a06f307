"""Look up the runtime that plans a service, as a process on a host or as a container in a pod.

Unknown runtimes are rejected by name. In pods there are the built-in runtimes and those of installed plug-ins.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.codec import DecodeError, decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.crd.pairing import METAL, MLX_RUNTIME, RUNTIMES, pod_mismatch
from llmkube.k8s.fields import changed_paths
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.runtimes.arguments import CommandLine, flag_values, flags_in
from llmkube.runtimes.container import generic, ollama, personaplex, plugins, sglang, tgi, triton, vllm
from llmkube.runtimes.container import llamacpp as llama_pod
from llmkube.runtimes.container.builder import KEYS_FIELD, ContainerBuilder, Runtime
from llmkube.runtimes.container.container_plan import ContainerPlan, literal
from llmkube.runtimes.container.gpu import resources_of
from llmkube.runtimes.container.images import Images
from llmkube.runtimes.plan import LaunchPlan, PlanError
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES, host_runtime_of
from llmkube.runtimes.process.plan_inputs import PlanInputs

_LLAMACPP: Final = HOST_RUNTIMES["llamacpp"]
LLAMACPP_NAMES: Final = (_LLAMACPP.name, *_LLAMACPP.other_names)
"""Values of spec.runtime for llama.cpp's server; only the first is a default."""

BUILT_IN: Final[Mapping[str, Runtime]] = {
    runtime.name: runtime
    for runtime in (
        llama_pod.SERVER,
        llama_pod.ROUTER,
        vllm.RUNTIME,
        tgi.RUNTIME,
        sglang.RUNTIME,
        triton.RUNTIME,
        ollama.RUNTIME,
        personaplex.RUNTIME,
        generic.RUNTIME,
    )
}
"""The runtimes that run in pods."""

_RUNTIME_FIELD: Final = "spec.runtime"
_FORMAT_FIELD: Final = "Model.spec.format"

# Fields that are always honoured, before planning
_ALWAYS: Final = ("spec.modelRef", _RUNTIME_FIELD, _FORMAT_FIELD, "Model.spec.quantization")

IMAGES: Final[Mapping[str, str]] = {
    f"{runtime.name}-{stack}" if stack else runtime.name: image
    for runtime in BUILT_IN.values()
    for stack, image in runtime.images.items()
    if not runtime.image_key
}
"""Our images by runtime and compute stack; an operator overrides them by the same keys."""

_NO_IMAGES: Final = Images()
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


# -- on a host --------------------------------------------------------------------------------------------------------


def check(
    isvc: InferenceService, model: Model, allowances: Allowances = NO_ALLOWANCES, mlx_runtime: str = MLX_RUNTIME
) -> None:
    """Reject objects that a host cannot serve, before anything is downloaded.

    Args:
        isvc: The service.
        model: The Model that it refers to.
        allowances: Flags and variables that the owner of the host allows.
        mlx_runtime: The MLX engine that the host uses by default.

    Raises:
        PlanError: Its `field` is the path of the invalid field.
    """
    host_runtime_of(isvc, model, mlx_runtime).check(isvc, model, allowances)


def plan_for(inputs: PlanInputs) -> LaunchPlan:
    """Return the plan for this service on a host.

    Raises:
        PlanError: As `check`, and when the engine lacks a flag of spec.extraArgs.
    """
    runtime = host_runtime_of(inputs.isvc, inputs.model, inputs.mlx_runtime)
    runtime.check(inputs.isvc, inputs.model, inputs.allowances)
    return runtime.plan(inputs)


# -- in a pod ---------------------------------------------------------------------------------------------------------


def runtime_named(name: str) -> Runtime:
    """Return the pod runtime with this name: a built-in one, or a plug-in's.

    Raises:
        PlanError: There is none, or it cannot be used.
    """
    runtime = llama_pod.SERVER if name in LLAMACPP_NAMES else BUILT_IN.get(name)
    if runtime is not None:
        return runtime
    try:
        runtime = plugins.load(name)
    except plugins.PluginError as exc:
        raise PlanError(str(exc), field=_RUNTIME_FIELD) from exc
    if runtime is None:
        names = ", ".join(sorted({*BUILT_IN, *plugins.installed()}))
        raise PlanError(f'"{name[:64]}" does not run in pods; use one of {names}', field=_RUNTIME_FIELD)
    return runtime


def parse_image_overrides(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return an operator's images, by the keys of `IMAGES` or by a runtime's name for all of its stacks.

    Raises:
        UserError: A key is neither.
    """
    known = {*IMAGES, *(runtime.name for runtime in BUILT_IN.values() if not runtime.images)}
    for key in given:
        if key not in known:
            raise UserError(f"{key!r} is not an engine; use one of {', '.join(sorted(known))}", field="--engine-image")
    return dict(given)


def container_plan_for(
    isvc: InferenceService,
    model: Model,
    *,
    images: Images = _NO_IMAGES,
    gpu_resources: Mapping[str, str] = _NO_NAMES,
    rendered: Collection[str] = (),
) -> ContainerPlan:
    """Return the container that serves this service in a cluster.

    Args:
        isvc: The service.
        model: The Model that it refers to. Of its status only `gguf` is used.
        images: The operator's settings for images.
        gpu_resources: The operator's resource names for GPUs (`gpu.parse_gpu_resources`).
        rendered: Paths of the fields that the caller handles, with everything below them (`spec.nodeSelector`,
            `spec.autoscaling`): the plan does not report them as not honoured.

    Raises:
        PlanError: Its `field` is the path of the invalid field.
    """
    hardware = model.spec.hardware.accelerator
    if hardware == METAL:
        raise PlanError("metal is served by hosts, not by pods", field="Model.spec.hardware.accelerator")
    runtime = runtime_named(isvc.spec.runtime)
    _refuse_group(isvc, runtime)
    _check_format(runtime, isvc, model.spec)
    resources, honoured = resources_of(isvc.spec, model.spec, gpu_resources)
    config, given = _config(runtime, isvc)
    args = isvc.spec.extra_args
    line = CommandLine(flags_in(args), explicit=flag_values(args), escape=literal, honoured={*_ALWAYS, *honoured})
    if resources.on_gpu or hardware == "cpu":
        line.honoured.add("Model.spec.hardware.accelerator")
    builder = ContainerBuilder(
        runtime=runtime, service=isvc, model=model, images=images, resources=resources, config=config, line=line
    )
    plan = runtime.plan(builder)
    autoscaling = isvc.spec.autoscaling
    if autoscaling is not None and not autoscaling.metrics and plan.hpa_metric is None:
        raise PlanError(f"{runtime.name} exports no metric to scale on; name one", field="spec.autoscaling.metrics")
    checks_keys_everywhere = plan.key_check is not None and not plan.extra_ports and plan.scheme == "http"
    if isvc.spec.api_key_secret_ref is not None and not checks_keys_everywhere:
        with_keys = ", ".join(each.name for each in BUILT_IN.values() if each.asks_keys)
        raise PlanError(
            f"clients can bypass the key check of {runtime.name}; remove this and restrict access to its pods "
            f"(NetworkPolicy), or use {with_keys}",
            field=KEYS_FIELD,
        )
    paths = (*changed_paths(isvc.spec, "spec"), *given, *changed_paths(model.spec, "Model.spec"))
    ignored = (path for path in paths if path not in line.honoured and not _is_below(path, rendered))
    return attrs.evolve(plan, not_honoured=(*ignored, *plan.not_honoured))


def _refuse_group(isvc: InferenceService, runtime: Runtime) -> None:
    """Reject several nodes, except for vLLM: llama.cpp's rpc-server has no authentication, others have no such part."""
    if isvc.spec.multi_node is not None and runtime.name != vllm.RUNTIME.name:
        raise PlanError(
            f"{runtime.name} does not serve one model over several nodes here; remove it and use a node with enough "
            f"memory, or set spec.runtime to {vllm.RUNTIME.name} with weights in its format",
            field="spec.multiNode",
        )


def _check_format(runtime: Runtime, isvc: InferenceService, model: ModelSpec) -> None:
    engine_fetches = runtime.fetches(isvc.spec, model)
    if runtime.name in RUNTIMES:
        name = isvc.spec.runtime if isvc.spec.runtime in RUNTIMES else runtime.name
        problem = pod_mismatch(name, model.format, model.hardware.accelerator, engine_fetches=engine_fetches)
    else:
        readable = model.format in runtime.reads or engine_fetches
        problem = "" if readable else f"{runtime.name} reads {' or '.join(runtime.reads)}, not {model.format}"
    if problem:
        raise PlanError(problem, field=_FORMAT_FIELD)


def _config(runtime: Runtime, isvc: InferenceService) -> tuple[Any, tuple[str, ...]]:
    """Return a plug-in's own options, decoded, and the paths of those that are set."""
    data = isvc.spec.wire.unknown.get(runtime.config_key)
    if runtime.config is None or data is None:
        return None, ()
    try:
        config = decode(runtime.config, data)
    except DecodeError as exc:
        raise PlanError(str(exc), field=f"spec.{runtime.config_key}") from exc
    return config, tuple(changed_paths(config, f"spec.{runtime.config_key}"))


def _is_below(path: str, roots: Collection[str]) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in roots)
