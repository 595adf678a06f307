"""What a group of pods over several nodes is told, and what no group can have. Pure.

A LeaderWorkerSet has one template for the first pod and one for all others: what differs from one of the others to the
next cannot be said, and is refused by its path.
"""

from collections.abc import Iterator
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.placement import Member, MultiNode
from llmkube.runtimes.container.container_plan import Variable, literal
from llmkube.runtimes.plan import PlanError

PATH: Final = "spec.multiNode"

LEADER_ADDRESS: Final = "$(LWS_LEADER_ADDRESS)"
"""The name of a group's first pod, in a variable that LeaderWorkerSets give to each container."""

RANK: Final = "LLMKUBE_NODE_RANK"
"""The variable that says which pod of its group one is, from 0."""

WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""The label of pods that says so."""


def check_group(spec: InferenceServiceSpec, multi_node: MultiNode) -> None:
    """Refuse what a group of pods cannot have.

    Raises:
        PlanError: Its `field` is the path that stands in the way.
    """
    members = multi_node.members
    nodes = [member.node for member in members]
    if len(members) == 1:
        raise PlanError("one member is no group: leave it out and name the node in spec.nodeSelector",
                        field=f"{PATH}.members")  # fmt: skip
    for number, node in enumerate(nodes):
        if node in nodes[:number]:
            raise PlanError(f"names {node} twice: each member has a node of its own", field=f"{PATH}.members[{number}]")
    if spec.replicas > 1:
        raise PlanError(f"is {spec.replicas}, and the nodes of {PATH}.members hold one group: write 0 or 1",
                        field="spec.replicas")  # fmt: skip
    if spec.autoscaling is not None:
        raise PlanError(f"the nodes of {PATH}.members hold one group: leave it out", field="spec.autoscaling")
    if (spec.affinity or {}).get("nodeAffinity"):
        raise PlanError(f"{PATH}.members name the nodes: leave it out", field="spec.affinity.nodeAffinity")
    for number, member in enumerate(members):
        _check_member(number, member, members[1])
    addressed = [number for number, member in enumerate(members) if number and member.fabric and member.fabric.address]
    if addressed and len(members) > 2:
        raise PlanError(
            "all members but the first share one pod template, which cannot name an address for each: leave it out, "
            "and name the socketInterface that has it",
            field=f"{PATH}.members[{addressed[0]}].fabric.address",
        )


def variables(spec: InferenceServiceSpec, multi_node: MultiNode, member: Member) -> tuple[Variable, ...]:
    """Return how NCCL, Gloo and the engine find the fabric from a member; the service's own variables win."""
    own = {one.name for one in spec.env}
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{WORKER_INDEX}']"}}
    found = (Variable(RANK, value_from=rank), *(Variable(*pair) for pair in _fabric(multi_node, member)))
    return tuple(one for one in found if one.name not in own)


def uses_fabric(multi_node: MultiNode) -> bool:
    """Whether a member says how it is reached: addresses and interfaces are those of its node."""
    return any(member.fabric is not None for member in multi_node.members)


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
            "a claim of one member alone is not supported: name one that all nodes can mount in "
            "spec.modelCache.claimName, or let the engine fetch the repository (skipModelInit)",
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
                f"is {ours or 'not given'} and that of members[1] is {theirs or 'not given'}: all members but the "
                "first share one pod template, so give their devices the same name",
                field=f"{path}.fabric.{name}",
            )


def _fabric_field(member: Member, name: str) -> str:
    return (getattr(member.fabric, name) if member.fabric is not None else None) or ""
