"""Resources of a replica: the number and resource name of its GPUs, and the split of a model among them. Pure.

Facts: the device plugins' resource names (NVIDIA k8s-device-plugin and its MIG strategies, AMD k8s-device-plugin, Intel
device plugins), and llama.cpp's `--split-mode` and `--tensor-split`, which takes proportions and not layers.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import parse_bytes
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec
from llmkube.k8s.crd.placement import GPU, GPUSharing, Sharding
from llmkube.runtimes.container.container_plan import Resources
from llmkube.runtimes.plan import PlanError

_NAMES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
_RESOURCE: Final = re.compile(r"[a-z0-9.-]+/[a-z0-9._-]+")
_PARTITION: Final = "nvidia.com/mig-"
_VENDORS: Final = {"cuda": "nvidia", "rocm": "amd", "intel": "intel"}
_STACKS: Final = {"nvidia": "cuda", "amd": "rocm", "intel": "intel"}
_SPLIT_MODES: Final = {"layer": "layer", "pipeline": "layer", "tensor": "row", "row": "row", "none": "none"}
_RANGE: Final = re.compile(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", re.ASCII)
_NO_GPU: Final = GPU()
_HARDWARE: Final = "Model.spec.hardware"
_SHARING: Final = "spec.resources.gpuSharing"


def vendor_of(model: ModelSpec) -> str:
    """Return the vendor of the GPU: the one that the accelerator implies, or else the Model's.

    Raises:
        PlanError: The two contradict each other.
    """
    vendor = (model.hardware.gpu or _NO_GPU).vendor
    implied = _VENDORS.get(model.hardware.accelerator, vendor)
    if vendor not in _NAMES:
        raise PlanError(f'"{vendor[:64]}" is not one of {", ".join(_NAMES)}', field=f"{_HARDWARE}.gpu.vendor")
    if vendor not in ("nvidia", implied):  # nvidia is the schema's default, perhaps not the user's choice
        raise PlanError(
            f"{vendor} does not match accelerator {model.hardware.accelerator}; write {implied}, or remove it",
            field=f"{_HARDWARE}.gpu.vendor",
        )
    return implied


def stack_of(model: ModelSpec) -> str:
    """Return the compute stack of the engine's build: `cuda`, `rocm`, `vulkan` or `intel`."""
    vendor, gpu = vendor_of(model), model.hardware.gpu or _NO_GPU
    if model.hardware.accelerator == "vulkan" or (vendor == "amd" and gpu.runtime == "vulkan"):
        return "vulkan"
    return _STACKS[vendor]


def parse_gpu_resources(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return an operator's names of extended resources, by vendor, or by vendor and compute stack (`amd-vulkan`).

    Raises:
        UserError: A key is neither, or a name is not that of an extended resource.
    """
    keys = {*_NAMES, *(f"{vendor}-{stack}" for vendor in _NAMES for stack in ("vulkan", _STACKS[vendor]))}
    for key, name in given.items():
        if key not in keys:
            raise UserError(f"{key!r} is not a vendor; use one of {', '.join(sorted(keys))}", field="--gpu-resource")
        if not _RESOURCE.fullmatch(name):
            raise UserError(f"{name!r} is not an extended resource, such as amd.com/gpu", field="--gpu-resource")
    return dict(given)


def resources_of(
    spec: InferenceServiceSpec, model: ModelSpec, names: Mapping[str, str] = _NO_NAMES
) -> tuple[Resources, frozenset[str]]:
    """Return the resources of a replica, and the paths of the fields that set them.

    Args:
        spec: The service.
        model: Its Model.
        names: Resource names of GPUs in this cluster (`parse_gpu_resources`).

    Raises:
        PlanError: The fields contradict each other.
    """
    base, honoured = _cpu_and_memory(spec, model)
    gpu, sharing = model.hardware.gpu or _NO_GPU, spec.resources.gpu_sharing
    count, source = (gpu.count, f"{_HARDWARE}.gpu.count") if gpu.count else (spec.resources.gpu, "spec.resources.gpu")
    honoured.add(source)
    if gpu.count:
        honoured.add("spec.resources.gpu")  # the Model's value has precedence, as the field documents
    if gpu.resource_claims:
        return _with_resource_claims(gpu, sharing, base, honoured)
    if sharing is not None and sharing.mode != "exclusive":
        if count > 1:
            raise PlanError(f"is {count}, but a shared or partitioned GPU counts as one; set 1", field=source)
        count = 1
        honoured |= {f"{_SHARING}.mode", f"{_SHARING}.profile"}
    if count <= 0:
        return base, frozenset(honoured)
    name = _resource_name(model, gpu, sharing, names)
    honoured |= {f"{_HARDWARE}.gpu.{field}" for field in ("vendor", "resourceName", "tolerationKey", "enabled")}
    if vendor_of(model) == "amd":
        honoured.add(f"{_HARDWARE}.gpu.runtime")
    resources = attrs.evolve(
        base,
        gpu_count=count,
        gpu_resource=name,
        toleration_keys=_taints(gpu, name, _NAMES[vendor_of(model)]),
        shared=sharing is not None and sharing.mode == "shared",
        limits=(*base.limits, (name, str(count))),
    )
    return resources, frozenset(honoured)


def split_mode(sharding: Sharding | None) -> str:
    """Return llama.cpp's `--split-mode`: by layers, unless the Model requests rows of each tensor or no split."""
    return _SPLIT_MODES.get(sharding.strategy, "layer") if sharding else "layer"


def tensor_split(sharding: Sharding | None, count: int) -> str:
    """Return llama.cpp's `--tensor-split`: `5,3` for the layers 0-24 and 25-39, `1,1` by default.

    Raises:
        PlanError: There is not one range for each GPU, or the ranges are not consecutive from layer 0.
    """
    ranges = sharding.layer_split if sharding else ()
    if not ranges:
        return ",".join(["1"] * count)
    field = f"{_HARDWARE}.gpu.sharding.layerSplit"
    if len(ranges) != count:
        raise PlanError(f"{len(ranges)} ranges for {count} GPUs; write one range for each", field=field)
    sizes, first = [], 0
    for text in ranges:
        found = _RANGE.fullmatch(text)
        if found is None or int(found[1]) != first or int(found[2]) < first:
            example = f"{first}-{first + 9}"
            raise PlanError(f'"{text[:64]}" is not a range from layer {first}, such as {example}', field=field)
        sizes.append(int(found[2]) - first + 1)
        first = int(found[2]) + 1
    unit = math.gcd(*sizes)
    return ",".join(str(size // unit) for size in sizes)


def check_parallel(wanted: int, resources: Resources, field: str) -> None:
    """Reject an engine that needs more GPUs than its replica has; the number in device claims is not known.

    Raises:
        PlanError: `field` needs too many GPUs.
    """
    if 0 < resources.gpu_count < wanted:
        have = f"{resources.gpu_count} GPU{'s' if resources.gpu_count > 1 else ''}"
        raise PlanError(f"needs {wanted} GPUs, but a replica has {have}; request more, or reduce this", field=field)


def _cpu_and_memory(spec: InferenceServiceSpec, model: ModelSpec) -> tuple[Resources, set[str]]:
    """Return requests and limits, and the fields that set them; the service's take precedence over the Model's."""
    requested, default = spec.resources, model.resources
    honoured = {"Model.spec.resources.cpu", "Model.spec.resources.memory", "spec.resources.cpu"}
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    memory_field = "spec.resources.hostMemory" if requested.host_memory else "spec.resources.memory"
    memory = requested.host_memory or requested.memory or default.memory
    honoured |= {memory_field, "spec.resources.ephemeralStorage", f"{_HARDWARE}.memoryBudget"}
    if cpu := requested.cpu or default.cpu:
        requests["cpu"] = cpu
    if memory:
        requests["memory"] = memory
    if requested.ephemeral_storage:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = requested.ephemeral_storage
    if limit := model.hardware.memory_budget:
        limits["memory"] = limit
        if memory and _bytes(memory, memory_field) > _bytes(limit, f"{_HARDWARE}.memoryBudget"):
            raise PlanError(f"{memory} is more than the Model's memoryBudget of {limit}", field=memory_field)
    return Resources(requests=tuple(requests.items()), limits=tuple(limits.items())), honoured


def _bytes(text: str, field: str) -> int:
    try:
        return parse_bytes(text)
    except UserError as exc:
        raise PlanError(str(exc), field=field) from exc


def _with_resource_claims(
    gpu: GPU, sharing: GPUSharing | None, base: Resources, honoured: set[str]
) -> tuple[Resources, frozenset[str]]:
    if sharing is not None and sharing.mode != "exclusive":
        raise PlanError("only exclusive can be combined with the Model's resourceClaims", field=f"{_SHARING}.mode")
    claims = tuple(
        {"name": claim.name, "resourceClaimName": claim.resource_claim_name}
        if claim.resource_claim_name
        else {"name": claim.name, "resourceClaimTemplateName": claim.resource_claim_template_name or ""}
        for claim in gpu.resource_claims
    )
    honoured |= {f"{_HARDWARE}.gpu.resourceClaims", f"{_HARDWARE}.gpu.vendor", f"{_HARDWARE}.gpu.enabled"}
    resources = attrs.evolve(
        base,
        gpu_count=gpu.count or 0,
        toleration_keys=(gpu.toleration_key,) if gpu.toleration_key else (),
        claims=claims,
    )
    return resources, frozenset(honoured | {f"{_HARDWARE}.gpu.tolerationKey"})


def _taints(gpu: GPU, resource: str, full_gpu_taint: str) -> tuple[str, ...]:
    """Return the taints of the nodes: the name of the resource, and for a partition also that of a whole GPU."""
    if gpu.toleration_key:
        return (gpu.toleration_key,)
    return (resource, full_gpu_taint) if resource.startswith(_PARTITION) else (resource,)


def _resource_name(model: ModelSpec, gpu: GPU, sharing: GPUSharing | None, names: Mapping[str, str]) -> str:
    vendor = vendor_of(model)
    if sharing is None or sharing.mode != "partitioned":
        ours = names.get(f"{vendor}-{stack_of(model)}") or names.get(vendor) or _NAMES[vendor]
        return gpu.resource_name or ours
    if vendor != "nvidia":
        raise PlanError(f"only NVIDIA GPUs can be partitioned here, not those of {vendor}", field=f"{_SHARING}.mode")
    if gpu.resource_name:
        raise PlanError("a partition has its own resource name; remove it", field=f"{_HARDWARE}.gpu.resourceName")
    if not re.fullmatch(r"[0-9]g\.[0-9]{1,4}gb(\.[a-z]+)?", sharing.profile or ""):
        raise PlanError(f'"{sharing.profile}" is not a MIG profile, such as 1g.24gb', field=f"{_SHARING}.profile")
    return f"{_PARTITION}{sharing.profile}"
