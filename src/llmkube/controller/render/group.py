"""A model over several nodes is a LeaderWorkerSet: a pod that answers, and one on each further node. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.render.labels import pod_selector
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import MultiNode
from llmkube.k8s.wire.names import service_name
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.container.group import uses_fabric

_ENDING: Final = "-group"
_ROOM: Final = 45
"""Characters of a group's name that leave room for what its pods and their revisions append."""

_ANSWERING: Final = ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle")
"""What only the container that answers has."""


def group_name(service: str) -> str:
    """Return the name of a service's LeaderWorkerSet: that makes a headless Service of its own name, so not ours."""
    name = f"{service_name(service)}{_ENDING}"
    if len(name) <= _ROOM:
        return name
    digest = hashlib.sha256(service.encode()).hexdigest()[:6]
    return f"{name[: _ROOM - len(_ENDING) - len(digest) - 1].rstrip('-')}-{digest}{_ENDING}"


def leader_plan(plan: ContainerPlan) -> ContainerPlan:
    """Return the container of the pod that answers."""
    group = plan.group
    if group is None:
        return plan
    return attrs.evolve(plan, args=(*plan.args, *group.leader), env=(*group.leader_env, *plan.env))


def worker_plan(plan: ContainerPlan) -> ContainerPlan:
    """Return the container of all other pods: no client asks them anything, so nothing stands before their engine."""
    group = plan.group
    assert group is not None, "the caller has looked"
    args = (*plan.args, *group.workers)
    return attrs.evolve(plan, args=args, env=(*group.worker_env, *plan.env), key_check=None)


def group_spec(
    service: InferenceService, leader: dict[str, Any], worker: dict[str, Any], *, replicas: int
) -> dict[str, Any]:
    """Return the spec of a LeaderWorkerSet.

    A pod that ends takes its whole group along: vLLM's processes wait for ever for one that has been started anew.

    Args:
        service: The service.
        leader: The template of the pod that answers.
        worker: That of the others, made from `worker_plan`.
        replicas: How many groups; 0 or 1.
    """
    wish = service.spec.multi_node
    assert wish is not None, "the caller has looked"
    nodes = [member.node for member in wish.members]
    return {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
        },
        "leaderWorkerTemplate": {
            "size": len(nodes),
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": _placed(service, wish, leader, nodes[:1]),
            "workerTemplate": _placed(service, wish, _silent(worker), nodes[1:]),
        },
    }


def _silent(template: Mapping[str, Any]) -> dict[str, Any]:
    engine, *_ = template["spec"]["containers"]
    kept = {name: value for name, value in engine.items() if name not in _ANSWERING}
    return {**template, "spec": {**template["spec"], "containers": [kept]}}


def _placed(
    service: InferenceService, wish: MultiNode, template: Mapping[str, Any], nodes: Sequence[str]
) -> dict[str, Any]:
    """Return a template whose pods run on these nodes alone, one on each."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    apart = {"labelSelector": {"matchLabels": pod_selector(service)}, "topologyKey": "kubernetes.io/hostname"}
    spec = template["spec"]
    affinity = dict(spec.get("affinity") or {})
    others = dict(affinity.get("podAntiAffinity") or {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    others[required] = [*(others.get(required) or ()), apart]
    affinity |= {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}, "podAntiAffinity": others}
    engine, *beside = spec["containers"]
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if uses_fabric(wish) else {}
    placed = {**spec, **network, "affinity": affinity, "containers": [_with_rdma(engine, wish), *beside]}
    return {**template, "spec": placed}


def _with_rdma(engine: Mapping[str, Any], wish: MultiNode) -> dict[str, Any]:
    if not wish.rdma_resource:
        return dict(engine)
    resources = dict(engine.get("resources") or {})
    resources["limits"] = {**(resources.get("limits") or {}), wish.rdma_resource: "1"}
    return {**engine, "resources": resources}
