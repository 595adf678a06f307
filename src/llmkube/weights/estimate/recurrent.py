"""What remembers by a state of fixed size: Mamba in both versions, gated delta nets, short convolutions.

Each begins with a convolution over the last few tokens, whose start every slot keeps from the step before.
"""

from llmkube.weights.estimate.graph_allocator import Node, effect
from llmkube.weights.estimate.graph_builder import Block, GraphBuilder


def selective_scan(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Mamba: a convolution, a scan that carries the state along, and a gate."""
    inner, state = build.shape.number("ssm.inner_size"), build.shape.number("ssm.state_size")
    whole = build.mul_mat(block, "ssm_in", cur)
    width = build.width_of(block.get("ssm_conv1d", (inner,)))
    mixed = _convolved(build, block, whole, width)
    if "ssm_x" in block:
        steps = build.mul_mat(block, "ssm_x", mixed.view())
        rank = build.shape.number("ssm.time_step_rank")
        step = build.mul_mat(block, "ssm_dt", build.new(rank, steps.part())) if "ssm_dt" in block else steps
        extra = [step, steps.part()]
    else:
        extra = [build.new(max(1, build.shape.number("ssm.time_step_rank")), whole.part())]
    scanned = Node(4 * inner * (build.rows + state * build.room.slots), (mixed.part(), *extra))
    build.graph.expand(effect(scanned.part()))
    gate = build.new(inner, whole.part())
    skipped = build.new(inner, mixed.part())
    out = build.new(inner, gate, build.new(inner, scanned.part(), skipped, in_place=True))
    return build.norm(block, "ssm_norm", out.view())


def delta_net(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """A gated delta net: queries and keys repeated for all heads of the values, one fused operation, a gate."""
    inner, state = build.shape.number("ssm.inner_size"), build.shape.number("ssm.state_size")
    keys = build.shape.number("ssm.group_count") * state
    whole = build.mul_mat(block, "attn_qkv", cur)
    build.graph.expand(whole)
    mixed = _convolved(build, block, whole, build.width_of(block["attn_qkv"]))
    memory = Node(4 * inner * state * build.room.slots)
    memory = Node(memory.size, (mixed.part(),))  # as it was before this step
    build.graph.expand(memory)
    repeated = [build.new(inner, build.new(keys, build.new(keys, mixed.part()), in_place=True)) for _ in range(2)]
    answer = Node(4 * inner * (build.rows + state * build.room.slots), (*repeated, mixed.part(), memory))
    build.graph.expand(effect(answer.part()))
    normed = build.new(inner, build.new(inner, answer.part()))
    gate = build.mul_mat(block, "attn_gate", cur) if "attn_gate" in block else build.new(inner, cur)
    return build.new(inner, normed, build.new(inner, gate.view()))


def short_convolution(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """LFM2: three projections, a convolution over one of them, a gate."""
    whole = build.mul_mat(block, "shortconv.in_proj", cur)
    fed = build.new(build.width, whole.part(), whole.part())
    return build.new(build.width, whole.part(), _convolved(build, block, fed, build.width))


def _convolved(build: GraphBuilder, block: Block, cur: Node, width: int) -> Node:
    before = max(0, (build.shape.number("ssm.conv_kernel") or build.shape.number("shortconv.l_cache")) - 1)
    kept = Node(4 * width * before * build.room.slots, (build.positions,))
    joined = Node(4 * width * (before * build.room.slots + build.rows), (kept.part(), cur.part()))
    build.graph.expand(effect(joined.part()))
    out = build.new(width, joined)
    return build.new(width, out, in_place=True)
