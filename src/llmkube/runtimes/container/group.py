"""Variables for a group of pods on several nodes, and checks of the fields that no group can have. Pure.

A LeaderWorkerSet has one template for the first pod and one for all others: settings that differ between the others
cannot be expressed, and are rejected with their paths.
"""

from collections.abc import Iterator
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.placement import Member, MultiNode
from llmkube.runtimes.container.container_plan import Variable, literal
from llmkube.runtimes.plan import PlanError

PATH: Final = "spec.multiNode"

LEADER_ADDRESS: Final = "$(LWS_LEADER_ADDRESS)"
"""Reference to the variable that a LeaderWorkerSet sets in each container: the name of the group's first pod."""

RANK: Final = "LLMKUBE_NODE_RANK"
"""Variable with the index of a pod in its group, from 0."""

WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label with the index of a pod in its group."""


def check_group(spec: InferenceServiceSpec, multi_node: MultiNode) -> None:
    """Reject fields that a group of pods cannot have.

    Raises:
        PlanError: Its `field` is the path of the invalid field.
    """
    members = multi_node.members
    nodes = [member.node for member in members]
    if len(members) == 1:
        advice = "remove it and name the node in spec.nodeSelector"
        raise PlanError(f"one member is not a group; {advice}", field=f"{PATH}.members")
    for number, node in enumerate(nodes):
        if node in nodes[:number]:
            raise PlanError(f"names {node} twice; each member needs its own node", field=f"{PATH}.members[{number}]")
    capacity = f"the nodes of {PATH}.members have capacity for only one group"
    if spec.replicas > 1:
        raise PlanError(f"is {spec.replicas}, but {capacity}; set 0 or 1", field="spec.replicas")
    if spec.autoscaling is not None:
        raise PlanError(f"{capacity}; remove it", field="spec.autoscaling")
    if (spec.affinity or {}).get("nodeAffinity"):
        raise PlanError(f"{PATH}.members name the nodes; remove nodeAffinity", field="spec.affinity.nodeAffinity")
    for number, member in enumerate(members):
        _check_member(number, member, members[1])
    addressed = [number for number, member in enumerate(members) if number and member.fabric and member.fabric.address]
    if addressed and len(members) > 2:
        raise PlanError(
            "all members but the first share one pod template, which cannot have an address for each; remove it, and "
            "set socketInterface to the interface with this address",
            field=f"{PATH}.members[{addressed[0]}].fabric.address",
        )


def variables(spec: InferenceServiceSpec, multi_node: MultiNode, member: Member) -> tuple[Variable, ...]:
    """Return the variables for NCCL, Gloo and the engine about a member's fabric; the service's own have precedence."""
    own = {one.name for one in spec.env}
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{WORKER_INDEX}']"}}
    found = (Variable(RANK, value_from=rank), *(Variable(*pair) for pair in _fabric(multi_node, member)))
    return tuple(one for one in found if one.name not in own)


def _fabric(multi_node: MultiNode, member: Member) -> Iterator[tuple[str, str]]:
    fabric = member.fabric
    if fabric is not None and fabric.socket_interface:
        yield "NCCL_SOCKET_IFNAME", literal(fabric.socket_interface)
        yield "GLOO_SOCKET_IFNAME", literal(fabric.socket_interface)
    if fabric is not None and fabric.ib_hca:
        yield "NCCL_IB_HCA", literal(fabric.ib_hca)
    if multi_node.ib_gid_index is not None:
        yield "NCCL_IB_GID_INDEX", str(multi_node.ib_gid_index)
    if fabric is not None and fabric.address:
        yield "VLLM_HOST_IP", literal(fabric.address)


def _check_member(number: int, member: Member, second: Member) -> None:
    path = f"{PATH}.members[{number}]"
    if member.model_cache is not None and member.model_cache.claim_name:
        raise PlanError(
            "a claim for a single member is not supported; set spec.modelCache.claimName to one "
            "that all nodes can mount, or let the engine fetch the repository (skipModelInit)",
            field=f"{path}.modelCache.claimName",
        )
    if number < 2:
        return
    for name, ours, theirs in (
        ("socketInterface", _fabric_field(member, "socket_interface"), _fabric_field(second, "socket_interface")),
        ("ibHCA", _fabric_field(member, "ib_hca"), _fabric_field(second, "ib_hca")),
    ):
        if ours != theirs:
            raise PlanError(
                f"is {ours or 'not set'}, but that of members[1] is {theirs or 'not set'}; give their devices the same "
                "name, since all members but the first share one pod template",
                field=f"{path}.fabric.{name}",
            )


def _fabric_field(member: Member, name: str) -> str:
    return (getattr(member.fabric, name) if member.fabric is not None else None) or ""
