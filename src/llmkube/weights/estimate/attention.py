"""The half of a layer in which tokens hear of each other: attention in its kinds, or a recurrent state in its place."""

from llmkube.weights.estimate import recurrent
from llmkube.weights.estimate.graph_allocator import Node, effect
from llmkube.weights.estimate.graph_builder import Block, Pen
from llmkube.weights.estimate.layers import head_lengths


def mixed(pen: Pen, at: int, block: Block, cur: Node) -> Node:
    """Return what the tokens have heard, before it is projected back."""
    if "ssm_in" in block and "attn_output" in block:
        beside = pen.times(block, "ssm_out", recurrent.selective_scan(pen, block, cur))
        pen.graph.expand(effect(beside))
        return _attention(pen, at, block, cur)
    if "ssm_in" in block:
        return recurrent.selective_scan(pen, block, cur)
    if "ssm_out" in block and "attn_qkv" in block:
        return recurrent.delta_net(pen, block, cur)
    if "shortconv.in_proj" in block:
        return recurrent.short_convolution(pen, block, cur)
    if "attn_kv_a_mqa" in block:
        return _latent(pen, at, block, cur)
    if "attn_output" in block:
        return _attention(pen, at, block, cur)
    return cur if "ffn_down" in block else _unknown(pen, block, cur)


def projected(pen: Pen, block: Block, cur: Node) -> Node:
    """Return it at the model's width."""
    for name in ("attn_output", "ssm_out", "shortconv.out_proj"):
        if name in block:
            return pen.times(block, name, cur)
    return cur


def _unknown(pen: Pen, block: Block, cur: Node) -> Node:
    """Multiply by all that is there, and let go of nothing before the end."""
    parts = [pen.times(block, name, cur) for name, sizes in block.items() if len(sizes) > 1]
    return pen.new(pen.width, cur, *parts)


# -- attention ----------------------------------------------------------------------------------------------------


def _attention(pen: Pen, at: int, block: Block, cur: Node) -> Node:
    query, key, value = _projections(pen, at, block, cur)
    pen.graph.expand(query, value, key)
    read: tuple[Node, ...] = ()
    if pen.encoder:
        read = tuple(Node(each.size // 2, (each.part(),)) for each in (key, value)) if pen.flash else (key, value)
        pen.graph.expand(*read)
    else:
        _remember(pen, key, value)
    length = head_lengths(pen.shape, windowed=bool(pen.layers[at].window))[1]
    cur = _heard(pen, at, query, length, *read)
    if _is_gated(pen, block):
        gate = Node(cur.size, (Node(cur.size, (query.part(),)),), in_place=True)
        cur = Node(cur.size, (cur, gate))
    return cur


def _remember(pen: Pen, key: Node, value: Node | None) -> None:
    """Write into the cache, which is no part of the buffer."""
    pen.graph.expand(effect(key.view(), pen.key_rows))
    if value is not None:
        pen.graph.expand(effect(value.view(), pen.value_rows))


def _heard(pen: Pen, at: int, query: Node, length: int, *read: Node) -> Node:
    """Compare queries with all keys, and add up the values; `read` are those that lie in no cache."""
    layer = pen.layers[at]
    heads, mask = pen.heads[at], pen.masks[layer.window]
    if pen.flash:
        cur = pen.new(heads * length, query.part(), mask, *read).view()
    else:
        scores = Node(4 * heads * pen.rows * pen.seen(layer), (query.part(), *read))
        scores = Node(scores.size, (scores, mask), in_place=True)
        cur = pen.new(heads * length, pen.new(heads * length, scores).part())
    pen.graph.expand(cur)
    return cur


def _projections(pen: Pen, at: int, block: Block, cur: Node) -> tuple[Node, Node, Node]:
    if "attn_qkv" in block:
        whole = pen.times(block, "attn_qkv", cur)
        length = head_lengths(pen.shape)[0]
        heads = max(1, pen.heads[at]) * length
        keys = max(0, pen.width_of(block["attn_qkv"]) - heads) // 2
        return pen.turned(pen.new(heads, whole.part())), pen.turned(pen.new(keys, whole.part())), whole.part()
    query = pen.times(block, "attn_q", cur).view()
    key, value = (pen.times(block, name, cur).view() if (name := f"attn_{which}") in block else query for which in "kv")
    query, key = pen.norm(block, "attn_q_norm", query), pen.norm(block, "attn_k_norm", key)
    return pen.turned(query), pen.turned(key), value


def _is_gated(pen: Pen, block: Block) -> bool:
    """Whether the query's tensor holds a gate for the answer as well."""
    return "attn_q" in block and pen.width_of(block["attn_q"]) == 2 * block["attn_output"][0]


def _latent(pen: Pen, at: int, block: Block, cur: Node) -> Node:
    """Attention over one compressed vector per token (MLA), or over heads that are made from it (files before that)."""
    heads = pen.heads[at]
    rank = pen.shape.number("attention.kv_lora_rank")
    turned = max(0, pen.width_of(block["attn_kv_a_mqa"]) - rank)
    values = block.get("attn_output", (pen.width,))[0] // max(1, heads)
    normed = cur
    if "attn_q_a" in block:
        cur = pen.norm(block, "attn_q_a_norm", pen.times(block, "attn_q_a", cur))
        query = pen.times(block, "attn_q_b", cur)
    else:
        query = pen.times(block, "attn_q", cur)
    if "attn_k_b" not in block:
        query = pen.turned(query.view())
        both = pen.times(block, "attn_kv_a_mqa", normed)
        made = pen.times(block, "attn_kv_b", pen.norm(block, "attn_kv_a_norm", both.part(rank)))
        value = pen.new(heads * values, made.part())
        key = pen.new(
            query.size // max(1, 4 * pen.rows), made.part(), pen.new(heads * turned, pen.turned(both.part(turned)))
        )
        pen.graph.expand(query, value, key)
        _remember(pen, key, value)
        return _heard(pen, at, query, values)
    absorbed = pen.new(heads * rank, query.part())
    query = pen.new(heads * (rank + turned), absorbed.view(), pen.turned(query.part(heads * turned)))
    both = pen.times(block, "attn_kv_a_mqa", normed)
    latent = pen.norm(block, "attn_kv_a_norm", both.part(rank))
    key = pen.new(rank + turned, latent.view(), pen.turned(both.part(turned)))
    pen.graph.expand(query, key)
    _remember(pen, key, None)
    heard = _heard(pen, at, query, rank)
    return pen.new(heads * values, pen.new(heads * values, heard.part()).part())
