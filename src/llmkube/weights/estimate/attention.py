"""The token mixing of a layer: one of several kinds of attention, or a recurrent state instead.

The recurrent states, of fixed size, are those of Mamba (both versions), gated delta nets and short convolutions.
"""

from llmkube.weights.estimate.graph_allocator import Node, effect
from llmkube.weights.estimate.graph_builder import Block, GraphBuilder
from llmkube.weights.estimate.layers import head_lengths


def token_mixing(build: GraphBuilder, index: int, block: Block, cur: Node) -> Node:
    """Return the result of attention or of a recurrent state, before the output projection."""
    if "ssm_in" in block and "attn_output" in block:
        parallel = build.mul_mat(block, "ssm_out", _selective_scan(build, block, cur))
        build.graph.expand(effect(parallel))
        return _attention(build, index, block, cur)
    if "ssm_in" in block:
        return _selective_scan(build, block, cur)
    if "ssm_out" in block and "attn_qkv" in block:
        return _delta_net(build, block, cur)
    if "shortconv.in_proj" in block:
        return _short_convolution(build, block, cur)
    if "attn_kv_a_mqa" in block:
        return _latent(build, index, block, cur)
    if "attn_output" in block:
        return _attention(build, index, block, cur)
    return cur if "ffn_down" in block else _unknown(build, block, cur)


def output_projection(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Project the result to the model's width."""
    for name in ("attn_output", "ssm_out", "shortconv.out_proj"):
        if name in block:
            return build.mul_mat(block, name, cur)
    return cur


def _unknown(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Multiply by all matrices of the block and release nothing before the end."""
    parts = [build.mul_mat(block, name, cur) for name, sizes in block.items() if len(sizes) > 1]
    return build.new(build.width, cur, *parts)


# -- attention ----------------------------------------------------------------------------------------------------


def _attention(build: GraphBuilder, index: int, block: Block, cur: Node) -> Node:
    query, key, value = _projections(build, index, block, cur)
    build.graph.expand(query, value, key)
    read: tuple[Node, ...] = ()
    if build.reads_whole:
        read = tuple(Node(each.size // 2, (each.part(),)) for each in (key, value)) if build.fused else (key, value)
        build.graph.expand(*read)
    else:
        _write_cache(build, key, value)
    length = head_lengths(build.shape, windowed=bool(build.layers[index].window))[1]
    cur = _attend(build, index, query, length, *read)
    if "attn_q" in block and build.width_of(block["attn_q"]) == 2 * block["attn_output"][0]:  # also an output gate
        gate = Node(cur.size, (Node(cur.size, (query.part(),)),), in_place=True)
        cur = Node(cur.size, (cur, gate))
    return cur


def _write_cache(build: GraphBuilder, key: Node, value: Node | None) -> None:
    """Write into the cache, which is outside the buffer."""
    build.graph.expand(effect(key.view(), build.key_rows))
    if value is not None:
        build.graph.expand(effect(value.view(), build.value_rows))


def _attend(build: GraphBuilder, index: int, query: Node, length: int, *read: Node) -> Node:
    """Compute attention; `read` are the keys and values that are not in a cache."""
    layer = build.layers[index]
    heads, mask = build.heads[index], build.masks[layer.window]
    if build.fused:
        cur = build.new(heads * length, query.part(), mask, *read).view()
    else:
        scores = Node(4 * heads * build.rows * build.visible_tokens(layer), (query.part(), *read))
        if build.buckets is not None:  # a bias by distance, looked up and transposed
            looked_up = Node(scores.size, (build.buckets,))
            scores = Node(scores.size, (scores, Node(scores.size, (looked_up.part(),))), in_place=True)
        scores = Node(scores.size, (scores, mask), in_place=True)
        cur = build.new(heads * length, build.new(heads * length, scores).part())
    build.graph.expand(cur)
    return cur


def _projections(build: GraphBuilder, index: int, block: Block, cur: Node) -> tuple[Node, Node, Node]:
    if "attn_qkv" in block:
        fused = build.mul_mat(block, "attn_qkv", cur)
        length = head_lengths(build.shape)[0]
        heads = max(1, build.heads[index]) * length
        keys = max(0, build.width_of(block["attn_qkv"]) - heads) // 2
        return build.rotated(build.new(heads, fused.part())), build.rotated(build.new(keys, fused.part())), fused.part()
    query = build.mul_mat(block, "attn_q", cur).view()
    key, value = (
        build.mul_mat(block, name, cur).view() if (name := f"attn_{which}") in block else query for which in "kv"
    )
    query, key = build.norm(block, "attn_q_norm", query), build.norm(block, "attn_k_norm", key)
    return build.rotated(query), build.rotated(key), value


def _latent(build: GraphBuilder, index: int, block: Block, cur: Node) -> Node:
    """Compute attention over one compressed vector per token (MLA), or in older files over heads expanded from it."""
    heads = build.heads[index]
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
        expanded = build.mul_mat(block, "attn_kv_b", build.norm(block, "attn_kv_a_norm", both.part(rank)))
        value = build.new(heads * values, expanded.part())
        key = build.new(
            query.size // max(1, 4 * build.rows),
            expanded.part(),
            build.new(heads * rotated, build.rotated(both.part(rotated))),
        )
        build.graph.expand(query, value, key)
        _write_cache(build, key, value)
        return _attend(build, index, query, values)
    absorbed = build.new(heads * rank, query.part())
    query = build.new(heads * (rank + rotated), absorbed.view(), build.rotated(query.part(heads * rotated)))
    both = build.mul_mat(block, "attn_kv_a_mqa", normed)
    latent = build.norm(block, "attn_kv_a_norm", both.part(rank))
    key = build.new(rank + rotated, latent.view(), build.rotated(both.part(rotated)))
    build.graph.expand(query, key)
    _write_cache(build, key, None)
    attended = _attend(build, index, query, rank)
    return build.new(heads * values, build.new(heads * values, attended.part()).part())


# -- a state of fixed size: each starts with a convolution over the last tokens, which every slot stores -----------


def _selective_scan(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Mamba: a convolution, a scan with the state, and a gate."""
    inner, state = build.shape.number("ssm.inner_size"), build.shape.number("ssm.state_size")
    fused = build.mul_mat(block, "ssm_in", cur)
    width = build.width_of(block.get("ssm_conv1d", (inner,)))
    mixed = _convolved(build, block, fused, width)
    if "ssm_x" in block:
        steps = build.mul_mat(block, "ssm_x", mixed.view())
        rank = build.shape.number("ssm.time_step_rank")
        step = build.mul_mat(block, "ssm_dt", build.new(rank, steps.part())) if "ssm_dt" in block else steps
        extra = [step, steps.part()]
    else:
        extra = [build.new(max(1, build.shape.number("ssm.time_step_rank")), fused.part())]
    scanned = Node(4 * inner * (build.rows + state * build.cache.slots), (mixed.part(), *extra))
    build.graph.expand(effect(scanned.part()))
    gate = build.new(inner, fused.part())
    skipped = build.new(inner, mixed.part())
    out = build.new(inner, gate, build.new(inner, scanned.part(), skipped, in_place=True))
    return build.norm(block, "ssm_norm", out.view())


def _delta_net(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """A gated delta net: queries and keys repeated for all value heads, one fused operation, a gate."""
    inner, state = build.shape.number("ssm.inner_size"), build.shape.number("ssm.state_size")
    keys = build.shape.number("ssm.group_count") * state
    fused = build.mul_mat(block, "attn_qkv", cur)
    build.graph.expand(fused)
    mixed = _convolved(build, block, fused, build.width_of(block["attn_qkv"]))
    memory = Node(4 * inner * state * build.cache.slots)
    memory = Node(memory.size, (mixed.part(),))  # as it was before this step
    build.graph.expand(memory)
    repeated = [build.new(inner, build.new(keys, build.new(keys, mixed.part()), in_place=True)) for _ in range(2)]
    answer = Node(4 * inner * (build.rows + state * build.cache.slots), (*repeated, mixed.part(), memory))
    build.graph.expand(effect(answer.part()))
    normed = build.new(inner, build.new(inner, answer.part()))
    gate = build.mul_mat(block, "attn_gate", cur) if "attn_gate" in block else build.new(inner, cur)
    return build.new(inner, normed, build.new(inner, gate.view()))


def _short_convolution(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """LFM2: three projections, a convolution over one of them, a gate."""
    fused = build.mul_mat(block, "shortconv.in_proj", cur)
    fed = build.new(build.width, fused.part(), fused.part())
    return build.new(build.width, fused.part(), _convolved(build, block, fed, build.width))


def _convolved(build: GraphBuilder, block: Block, cur: Node, width: int) -> Node:
    before = max(0, (build.shape.number("ssm.conv_kernel") or build.shape.number("shortconv.l_cache")) - 1)
    conv_state = Node(4 * width * before * build.cache.slots, (build.positions,))
    joined = Node(4 * width * (before * build.cache.slots + build.rows), (conv_state.part(), cur.part()))
    build.graph.expand(effect(joined.part()))
    out = build.new(width, joined)
    return build.new(width, out, in_place=True)
