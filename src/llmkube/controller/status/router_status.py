"""Derive a ModelRouter's phase, conditions and backends from its config and the reports of its pods. Pure.

| observed | phase |
|---|---|
| the spec is refused, and no pods serve an earlier one | Failed |
| the API server refuses its objects, or the pods cannot start | Failed |
| not all of its pods are ready yet | Provisioning |
| a backend is missing or unhealthy, or pods still serve an earlier spec | Degraded |
| otherwise | Ready |
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from llmkube.controller.status.pods import Trouble, trouble_of
from llmkube.k8s.crd.modelrouter import CLOUD, LOCAL, BackendStatus, ModelRouter
from llmkube.k8s.wire.conditions import ACCEPTED, AVAILABLE, DEGRADED, PROGRESSING, SPEC_HONOURED, Statement, settle
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workloads import Deployment, Pod
from llmkube.router.config.routing_config import Backend, RoutingConfig


@attrs.frozen(kw_only=True)
class BackendHealth:
    """Health of a backend, as reported by a router's pods.

    Attributes:
        healthy: Whether requests are sent to it.
        message: Reason if they are not.
    """

    healthy: bool
    message: str = ""


@attrs.frozen(kw_only=True)
class RouterFacts:
    """Observed state of a router.

    Attributes:
        config: Its compiled config; None if its spec is refused.
        errors: Reasons for the refusal, by field.
        ignored: Fields without effect, each with the reason.
        refusal: The API server's error for one of its objects; empty if there is none.
        exists: Whether it runs, or is about to.
        ready: Number of ready replicas.
        wanted: Number of desired replicas.
        is_rolled_out: Whether all replicas are ready and up to date.
        pods: Its pods.
        health: Health by the backend's name, where it is known.
        endpoint: URL for clients.
        budgets: Utilization of each budget, in the form of the status.
    """

    config: RoutingConfig | None
    errors: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    refusal: str = ""
    exists: bool = False
    ready: int = 0
    wanted: int = 0
    is_rolled_out: bool = False
    pods: tuple[Pod, ...] = ()
    health: Mapping[str, BackendHealth] = attrs.field(factory=dict)
    endpoint: str = ""
    budgets: tuple[Mapping[str, Any], ...] = ()


def deployment_facts(deployment: Deployment | None) -> dict[str, Any]:
    """Return the facts of a router that its Deployment provides."""
    if deployment is None:
        return {}
    status, wanted = deployment.status, deployment.spec.replicas
    observed = status.observed_generation >= deployment.metadata.generation
    return {
        "exists": True,
        "ready": status.ready_replicas,
        "wanted": wanted,
        "is_rolled_out": observed and status.updated_replicas == status.ready_replicas == wanted,
    }


def derive_router_status(router: ModelRouter, facts: RouterFacts, *, now: datetime.datetime) -> dict[str, Any]:
    """Return a router's status.

    Args:
        router: The router as observed.
        facts: Its observed state.
        now: Transition time of conditions and probes that change.
    """
    backends = [_backend(one, facts, router.status.backends, now) for one in _backends(router, facts)]
    down = [f"{one['name']}: {one['message']}" for one in backends if one.get("healthy") is False]
    trouble = trouble_of(facts.pods) if not facts.is_rolled_out else None
    statements = _statements(facts, down, trouble)
    return {
        "phase": _phase(facts, down, trouble),
        "endpoint": facts.endpoint if facts.exists else "",
        "activeRules": len(facts.config.rules) if facts.config is not None else 0,
        "backends": backends,
        "budgetUtilization": [dict(one) for one in facts.budgets],
        "conditions": settle(statements, router.status.conditions, generation=router.metadata.generation, now=now),
    }


def unsupported_status(router: ModelRouter, message: str, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the status of a router that this controller cannot run."""
    result = [Statement(kind, False, Reason.NOT_SUPPORTED, message) for kind in (ACCEPTED, AVAILABLE)]
    generation = router.metadata.generation
    return {"phase": "Failed", "conditions": settle(result, router.status.conditions, generation=generation, now=now)}


def _phase(facts: RouterFacts, down: list[str], trouble: Trouble | None) -> str:
    serves = facts.ready > 0
    if not serves and (facts.errors or facts.refusal or (trouble is not None and not trouble.transient)):
        return "Failed"
    if facts.errors or facts.refusal:
        return "Degraded"
    if not facts.is_rolled_out:
        return "Provisioning"
    return "Degraded" if down else "Ready"


def _statements(facts: RouterFacts, down: list[str], trouble: Trouble | None) -> Iterable[Statement]:
    serves_on = "; the router keeps serving the previous spec" if facts.ready else ""
    if facts.errors:
        yield Statement(ACCEPTED, False, Reason.INVALID, "; ".join(facts.errors) + serves_on)
    else:
        yield Statement(ACCEPTED, True, Reason.ACCEPTED, "the spec is valid")
        ignored = "; ".join(facts.ignored)
        message = f"without effect: {ignored}" if ignored else "every field has an effect"
        yield Statement(SPEC_HONOURED, not ignored, Reason.FIELDS_IGNORED if ignored else Reason.HONOURED, message)
    pods = f"{facts.ready} of {facts.wanted} replicas ready"
    reason = Reason.INFERENCE_READY if facts.ready else Reason.NO_READY_REPLICAS
    yield Statement(AVAILABLE, facts.ready > 0, reason, pods)
    moving = not facts.is_rolled_out and not facts.errors and not facts.refusal
    why = trouble.message if trouble is not None else pods
    yield Statement(PROGRESSING, moving, Reason.CREATING if moving else Reason.INFERENCE_READY, why)
    if facts.refusal:
        yield Statement(DEGRADED, True, Reason.REFUSED, facts.refusal + serves_on)
    elif trouble is not None and not trouble.transient:
        yield Statement(DEGRADED, True, trouble.reason, trouble.message)
    elif down:
        yield Statement(DEGRADED, True, Reason.BACKENDS_UNAVAILABLE, "; ".join(down))
    else:
        yield Statement(DEGRADED, False, Reason.HONOURED, "no backend is known to be unreachable")


def _backends(router: ModelRouter, facts: RouterFacts) -> Iterable[tuple[str, str, Backend | None]]:
    """Yield name, tier and compiled config of each backend."""
    configured = facts.config.backends if facts.config is not None else {}
    for one in router.spec.backends:
        backend = configured.get(one.name)
        local = backend.local if backend is not None else one.effective_tier == LOCAL
        yield one.name, LOCAL if local else CLOUD, backend


def _backend(
    one: tuple[str, str, Backend | None], facts: RouterFacts, before: tuple[BackendStatus, ...], now: datetime.datetime
) -> dict[str, Any]:
    name, tier, backend = one
    result: dict[str, Any] = {"name": name, "tier": tier, "address": backend.base_url if backend is not None else ""}
    health = facts.health.get(name)
    if backend is not None and backend.missing:
        result |= {"healthy": False, "message": backend.missing}
    elif health is not None:
        result |= {"healthy": health.healthy, "message": health.message}
    # The time of the last change: a time that changed with every probe would cause a write each time.
    last = next((status for status in before if status.name == name), None)
    same = last is not None and (last.healthy, last.message, last.address) == (
        result.get("healthy"),
        result.get("message", ""),
        result["address"],
    )
    if "healthy" in result:
        result["lastProbeTime"] = last.last_probe_time if same and last and last.last_probe_time else timestamp(now)
    return result
