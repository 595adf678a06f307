"""Decide which services may use GPUs under the GPUQuotas of their namespaces. Pure.

Every service that has GPUs keeps them, even if a quota shrinks. Those that ask for more get them in the order of their
priority, then of their age: all that they ask for, or nothing yet.

| observed | decision |
|---|---|
| its priority is below `minPriority`, its GPUs or their memory are unknown | QuotaRefused |
| it asks for more than the whole quota | QuotaRefused |
| it asks for more than is free | QuotaExceeded: it waits, and so do all behind it in this quota |
| a service before it waits in this quota | QuotaExceeded |
| otherwise, in all quotas of its namespace | it may use them |

So a large service is not overtaken forever by small ones, and one that a quota refuses delays no other.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes, parse_bytes
from llmkube.controller.status.service_status import PRIORITY_WEIGHTS
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import GPUQuota
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason


@attrs.frozen
class Demand:
    """GPUs of a service.

    Attributes:
        weight: Weight of its priority; higher is more important.
        since: Creation time of the service, as RFC 3339.
        asked: GPUs that it asks for, of all replicas that it may have.
        held: GPUs that it has.
        gpu_bytes: Declared memory of one GPU; None if it is unknown.
        is_counted: Whether the number of its GPUs is known.
        pool: ModelPool in which it takes turns.
        pool_gpus: GPUs that all members of this pool may have at the same time.
    """

    key: Key
    weight: int
    since: str
    asked: int
    held: int
    gpu_bytes: int | None = None
    is_counted: bool = True
    pool: Key | None = None
    pool_gpus: int = 0


@attrs.frozen
class Denial:
    """Why a service may not use the GPUs that it asks for, and the quota that denies them."""

    quota: Key
    reason: Reason
    message: str


@attrs.frozen
class Usage:
    """Usage of a quota: GPUs, their declared bytes, and the services that wait, in their order."""

    gpus: int = 0
    bytes: int = 0
    waiting: tuple[Key, ...] = ()


@attrs.frozen
class Decision:
    """Denials by service, and usages by quota."""

    denials: Mapping[Key, Denial] = {}
    usages: Mapping[Key, Usage] = {}


def decide(
    quotas: Iterable[GPUQuota], demands: Collection[Demand], labels: Callable[[str], Mapping[str, str] | None]
) -> Decision:
    """Decide on all services at once; the result does not depend on the order of the arguments.

    Args:
        quotas: All quotas.
        demands: The services in pods that no other quota system admits.
        labels: Returns the labels of a namespace; None if they are unknown.
    """
    ordered = sorted(quotas, key=lambda one: one.key)
    namespaces = {one.key.namespace for one in demands}
    scopes = {name: [quota for quota in ordered if applies(quota, name, labels(name))] for name in namespaces}
    usages = {quota.key: Usage() for quota in ordered}

    def use(one: Demand, gpus: int) -> None:
        for quota in scopes[one.key.namespace]:
            before, size = usages[quota.key], gpus * (one.gpu_bytes or 0)
            usages[quota.key] = attrs.evolve(before, gpus=before.gpus + gpus, bytes=before.bytes + size)

    pools: defaultdict[Key, list[Demand]] = defaultdict(list)
    for one in demands:
        use(one, one.held)
        if one.pool is not None:
            pools[one.pool].append(one)
    denials: dict[Key, Denial] = {}
    for one in sorted(demands, key=lambda each: (-each.weight, each.since, each.key)):
        mine = scopes[one.key.namespace]
        wants_more = one.asked > one.held or not one.is_counted
        others = [each for each in pools[one.pool] if each is not one] if one.pool is not None else ()
        found = [
            denial
            for quota in mine
            if wants_more and (denial := _denial(quota, one, _after_turn(usages[quota.key], one, others)))
        ]
        if found:
            denials[one.key] = first = min(found, key=lambda each: each.reason != Reason.QUOTA_REFUSED)
            for each in found if first.reason == Reason.QUOTA_EXCEEDED else ():
                usage = usages[each.quota]
                usages[each.quota] = attrs.evolve(usage, waiting=(*usage.waiting, one.key))
        elif wants_more:
            use(one, one.asked - one.held)
    return Decision(denials, usages)


def _after_turn(usage: Usage, one: Demand, others: Collection[Demand]) -> Usage:
    """Return a usage without the GPUs that the other members of a pool return before this one starts."""
    held = [each for each in others if each.held]
    if not held:
        return usage
    returned = min(sum(each.held for each in held), max(0, sum(each.held for each in held) + one.asked - one.pool_gpus))
    size = returned * min(each.gpu_bytes or 0 for each in held)  # which of them returns is not decided yet
    return attrs.evolve(usage, gpus=usage.gpus - returned, bytes=usage.bytes - size)


def applies(quota: GPUQuota, namespace: str, labels: Mapping[str, str] | None) -> bool:
    """Whether a quota applies to the services of a namespace; `labels` are None if they are unknown."""
    if quota.spec.namespace_ref:
        return quota.spec.namespace_ref == namespace
    selector = quota.spec.selector
    return selector is not None and labels is not None and selector.matches(labels)


def _denial(quota: GPUQuota, one: Demand, usage: Usage) -> Denial | None:
    limit, lowest, kind = quota.spec, quota.spec.min_priority, f"GPUQuota {quota.key}"
    refusal = ""
    if lowest is not None and one.weight < PRIORITY_WEIGHTS[lowest]:
        refusal = f"{kind} is for services of priority {lowest} or higher: raise spec.priority"
    elif not one.is_counted:
        refusal = f"{kind} needs the number of GPUs: set hardware.gpu.count of the Model, besides its resourceClaims"
    elif limit.vram_bytes and one.gpu_bytes is None:
        refusal = (
            f"{kind} limits the memory of GPUs, and that of this service is unknown: set hardware.gpu.memory of the "
            "Model (for a shared GPU, spec.resources.gpuSharing.memoryLimitGiB)"
        )
    elif _exceeds(quota, one.asked, one.asked * (one.gpu_bytes or 0)):
        refusal = f"{kind}: asks for {_amount(quota, one)}, more than the whole quota of {_limit(quota)}"
    if refusal:
        return Denial(quota.key, Reason.QUOTA_REFUSED, refusal)
    more = one.asked - one.held
    used, free_bytes = usage.gpus - one.held, usage.bytes - one.held * (one.gpu_bytes or 0)
    if not usage.waiting and not _exceeds(quota, usage.gpus + more, usage.bytes + more * (one.gpu_bytes or 0)):
        return None
    size = f", {format_bytes(free_bytes)} of memory" if limit.vram_bytes else ""
    before = f"; {len(usage.waiting)} before it" if usage.waiting else ""
    message = f"{kind}: asks for {_amount(quota, one)}; others use {used} GPUs{size} of {_limit(quota)}{before}"
    return Denial(quota.key, Reason.QUOTA_EXCEEDED, message)


def _exceeds(quota: GPUQuota, gpus: int, size: int) -> bool:
    limit = quota.spec
    return gpus > limit.gpu_count or bool(limit.vram_bytes and size > limit.vram_bytes)


def _amount(quota: GPUQuota, one: Demand) -> str:
    size = f" with {format_bytes(one.asked * (one.gpu_bytes or 0))}" if quota.spec.vram_bytes else ""
    return f"{one.asked} GPUs{size}"


def _limit(quota: GPUQuota) -> str:
    size = f" with {format_bytes(quota.spec.vram_bytes)}" if quota.spec.vram_bytes else ""
    return f"{quota.spec.gpu_count} GPUs{size}"


def declared_gpu_bytes(service: InferenceService, model: Model) -> int | None:
    """Return the declared memory of one GPU of a service in bytes: of its partition, its share, or the whole GPU.

    None if nothing declares it. A partition `3g.40gb` has 40 GiB.
    """
    gpu, resources = model.spec.hardware.gpu, service.spec.resources
    sharing = resources.gpu_sharing
    text = (gpu.memory if gpu is not None else None) or resources.gpu_memory or ""
    if sharing is not None and sharing.mode == "partitioned":
        text = f"{(sharing.profile or '').rpartition('.')[2].lower().removesuffix('gb')}Gi"
    elif sharing is not None and sharing.mode == "shared" and sharing.memory_limit_gib:
        text = f"{sharing.memory_limit_gib}Gi"
    try:
        return parse_bytes(text) if text else None
    except UserError:
        return None


def quota_status(quota: GPUQuota, usage: Usage, now: str) -> dict[str, Any]:
    """Return the status of a quota, except its conditions; `now` is the time of a service that begins to wait."""
    before, waiting = quota.status, [str(key) for key in usage.waiting]
    new: Sequence[str] = [name for name in waiting if name not in before.waiting]
    last = now if new else before.last_denial
    return {
        "usedGPUCount": usage.gpus,
        "usedVRAMBytes": usage.bytes,
        "admissionDenials": (before.admission_denials or 0) + len(new),
        **({"lastDenial": last} if last else {}),
        "waiting": waiting,
    }
