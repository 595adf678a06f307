"""The half of a layer that mixes tokens: attention in its kinds, or a recurrent state in its place.

States of fixed size are those of Mamba in both versions, of gated delta nets and of short convolutions.
"""

from llmkube.weights.estimate.graph_allocator import Node, effect
from llmkube.weights.estimate.graph_builder import Block, GraphBuilder
from llmkube.weights.estimate.layers import head_lengths


def token_mixing(build: GraphBuilder, at: int, block: Block, cur: Node) -> Node:
    """Return what the tokens exchange by attention or through a recurrent state, before the output projection."""
    if "ssm_in" in block and "attn_output" in block:
        parallel = build.mul_mat(block, "ssm_out", _selective_scan(build, block, cur))
        build.graph.expand(effect(parallel))
        return _attention(build, at, block, cur)
    if "ssm_in" in block:
        return _selective_scan(build, block, cur)
    if "ssm_out" in block and "attn_qkv" in block:
        return _delta_net(build, block, cur)
    if "shortconv.in_proj" in block:
        return _short_convolution(build, block, cur)
    if "attn_kv_a_mqa" in block:
        return _latent(build, at, block, cur)
    if "attn_output" in block:
        return _attention(build, at, block, cur)
    return cur if "ffn_down" in block else _unknown(build, block, cur)


def output_projection(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Return it at the model's width."""
    for name in ("attn_output", "ssm_out", "shortconv.out_proj"):
        if name in block:
            return build.mul_mat(block, name, cur)
    return cur


def _unknown(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Multiply by all that is there, and let go of nothing before the end."""
    parts = [build.mul_mat(block, name, cur) for name, sizes in block.items() if len(sizes) > 1]
    return build.new(build.width, cur, *parts)


# -- attention ----------------------------------------------------------------------------------------------------


def _attention(build: GraphBuilder, at: int, block: Block, cur: Node) -> Node:
    query, key, value = _projections(build, at, block, cur)
    build.graph.expand(query, value, key)
    read: tuple[Node, ...] = ()
    if build.encoder:
        read = tuple(Node(each.size // 2, (each.part(),)) for each in (key, value)) if build.flash else (key, value)
        build.graph.expand(*read)
    else:
        _write_cache(build, key, value)
    length = head_lengths(build.shape, windowed=bool(build.layers[at].window))[1]
    cur = _attend(build, at, query, length, *read)
    if _is_gated(build, block):
        gate = Node(cur.size, (Node(cur.size, (query.part(),)),), in_place=True)
        cur = Node(cur.size, (cur, gate))
    return cur


def _write_cache(build: GraphBuilder, key: Node, value: Node | None) -> None:
    """Write into the cache, which is no part of the buffer."""
    build.graph.expand(effect(key.view(), build.key_rows))
    if value is not None:
        build.graph.expand(effect(value.view(), build.value_rows))


def _attend(build: GraphBuilder, at: int, query: Node, length: int, *read: Node) -> Node:
    """Compare queries with all keys, and add up the values; `read` are those that lie in no cache."""
    layer = build.layers[at]
    heads, mask = build.heads[at], build.masks[layer.window]
    if build.flash:
        cur = build.new(heads * length, query.part(), mask, *read).view()
    else:
        scores = Node(4 * heads * build.rows * build.seen(layer), (query.part(), *read))
        scores = Node(scores.size, (scores, mask), in_place=True)
        cur = build.new(heads * length, build.new(heads * length, scores).part())
    build.graph.expand(cur)
    return cur


def _projections(build: GraphBuilder, at: int, block: Block, cur: Node) -> tuple[Node, Node, Node]:
    if "attn_qkv" in block:
        whole = build.mul_mat(block, "attn_qkv", cur)
        length = head_lengths(build.shape)[0]
        heads = max(1, build.heads[at]) * length
        keys = max(0, build.width_of(block["attn_qkv"]) - heads) // 2
        return build.rotated(build.new(heads, whole.part())), build.rotated(build.new(keys, whole.part())), whole.part()
    query = build.mul_mat(block, "attn_q", cur).view()
    key, value = (
        build.mul_mat(block, name, cur).view() if (name := f"attn_{which}") in block else query for which in "kv"
    )
    query, key = build.norm(block, "attn_q_norm", query), build.norm(block, "attn_k_norm", key)
    return build.rotated(query), build.rotated(key), value


def _is_gated(build: GraphBuilder, block: Block) -> bool:
    """Whether the query's tensor holds a gate for the answer as well."""
    return "attn_q" in block and build.width_of(block["attn_q"]) == 2 * block["attn_output"][0]


def _latent(build: GraphBuilder, at: int, block: Block, cur: Node) -> Node:
    """Attention over one compressed vector per token (MLA), or over heads that are made from it (files before that)."""
    heads = build.heads[at]
    rank = build.shape.number("attention.kv_lora_rank")
    rotated = max(0, build.width_of(block["attn_kv_a_mqa"]) - rank)
    values = block.get("attn_output", (build.width,))[0] // max(1, heads)
    normed = cur
    if "attn_q_a" in block:
        cur = build.norm(block, "attn_q_a_norm", build.mul_mat(block, "attn_q_a", cur))
        query = build.mul_mat(block, "attn_q_b", cur)
    else:
        query = build.mul_mat(block, "attn_q", cur)
    if "attn_k_b" not in block:
        query = build.rotated(query.view())
        both = build.mul_mat(block, "attn_kv_a_mqa", normed)
        made = build.mul_mat(block, "attn_kv_b", build.norm(block, "attn_kv_a_norm", both.part(rank)))
        value = build.new(heads * values, made.part())
        key = build.new(
            query.size // max(1, 4 * build.rows),
            made.part(),
            build.new(heads * rotated, build.rotated(both.part(rotated))),
        )
        build.graph.expand(query, value, key)
        _write_cache(build, key, value)
        return _attend(build, at, query, values)
    absorbed = build.new(heads * rank, query.part())
    query = build.new(heads * (rank + rotated), absorbed.view(), build.rotated(query.part(heads * rotated)))
    both = build.mul_mat(block, "attn_kv_a_mqa", normed)
    latent = build.norm(block, "attn_kv_a_norm", both.part(rank))
    key = build.new(rank + rotated, latent.view(), build.rotated(both.part(rotated)))
    build.graph.expand(query, key)
    _write_cache(build, key, None)
    attended = _attend(build, at, query, rank)
    return build.new(heads * values, build.new(heads * values, attended.part()).part())


# -- a state of fixed size: each begins with a convolution over the last tokens, whose start every slot keeps ------


def _selective_scan(build: GraphBuilder, block: Block, cur: Node) -> Node:
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


def _delta_net(build: GraphBuilder, block: Block, cur: Node) -> Node:
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


def _short_convolution(build: GraphBuilder, block: Block, cur: Node) -> Node:
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
