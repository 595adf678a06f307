"""What remembers by a state of fixed size: Mamba in both versions, gated delta nets, short convolutions.

Each begins with a convolution over the last few tokens, whose start every slot keeps from the step before.
"""

from llmkube.weights.estimate.graph_allocator import Node, effect
from llmkube.weights.estimate.graph_builder import Block, Pen


def selective_scan(pen: Pen, block: Block, cur: Node) -> Node:
    """Mamba: a convolution, a scan that carries the state along, and a gate."""
    inner, state = pen.shape.number("ssm.inner_size"), pen.shape.number("ssm.state_size")
    whole = pen.times(block, "ssm_in", cur)
    width = pen.width_of(block.get("ssm_conv1d", (inner,)))
    mixed = _convolved(pen, block, whole, width)
    if "ssm_x" in block:
        steps = pen.times(block, "ssm_x", mixed.view())
        rank = pen.shape.number("ssm.time_step_rank")
        step = pen.times(block, "ssm_dt", pen.new(rank, steps.part())) if "ssm_dt" in block else steps
        extra = [step, steps.part()]
    else:
        extra = [pen.new(max(1, pen.shape.number("ssm.time_step_rank")), whole.part())]
    scanned = Node(4 * inner * (pen.rows + state * pen.room.slots), (mixed.part(), *extra))
    pen.graph.expand(effect(scanned.part()))
    gate = pen.new(inner, whole.part())
    skipped = pen.new(inner, mixed.part())
    out = pen.new(inner, gate, pen.new(inner, scanned.part(), skipped, in_place=True))
    return pen.norm(block, "ssm_norm", out.view())


def delta_net(pen: Pen, block: Block, cur: Node) -> Node:
    """A gated delta net: queries and keys repeated for all heads of the values, one fused operation, a gate."""
    inner, state = pen.shape.number("ssm.inner_size"), pen.shape.number("ssm.state_size")
    keys = pen.shape.number("ssm.group_count") * state
    whole = pen.times(block, "attn_qkv", cur)
    pen.graph.expand(whole)
    mixed = _convolved(pen, block, whole, pen.width_of(block["attn_qkv"]))
    memory = Node(4 * inner * state * pen.room.slots)
    memory = Node(memory.size, (mixed.part(),))  # as it was before this step
    pen.graph.expand(memory)
    repeated = [pen.new(inner, pen.new(keys, pen.new(keys, mixed.part()), in_place=True)) for _ in range(2)]
    answer = Node(4 * inner * (pen.rows + state * pen.room.slots), (*repeated, mixed.part(), memory))
    pen.graph.expand(effect(answer.part()))
    normed = pen.new(inner, pen.new(inner, answer.part()))
    gate = pen.times(block, "attn_gate", cur) if "attn_gate" in block else pen.new(inner, cur)
    return pen.new(inner, normed, pen.new(inner, gate.view()))


def short_convolution(pen: Pen, block: Block, cur: Node) -> Node:
    """LFM2: three projections, a convolution over one of them, a gate."""
    whole = pen.times(block, "shortconv.in_proj", cur)
    fed = pen.new(pen.width, whole.part(), whole.part())
    return pen.new(pen.width, whole.part(), _convolved(pen, block, fed, pen.width))


def _convolved(pen: Pen, block: Block, cur: Node, width: int) -> Node:
    before = max(0, (pen.shape.number("ssm.conv_kernel") or pen.shape.number("shortconv.l_cache")) - 1)
    kept = Node(4 * width * before * pen.room.slots, (pen.positions,))
    joined = Node(4 * width * (before * pen.room.slots + pen.rows), (kept.part(), cur.part()))
    pen.graph.expand(effect(joined.part()))
    out = pen.new(width, joined)
    return pen.new(width, out, in_place=True)
