"""The compute buffer: a model's graph, drawn from its tensors, with sizes in place of numbers.

One layer after another is put together from the tensors that it has (`attn_qkv`, `ffn_gate_exps`, `ssm_in`, …), in the
order in which llama.cpp runs the parts, and `graph` says how much memory that takes at once. What stands in for tokens
(`mixers`) and what is done to each token by itself (here) are the two halves of a layer.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.weights.estimate import attention
from llmkube.weights.estimate.graph_allocator import Graph, Node
from llmkube.weights.estimate.graph_builder import Block, Pen
from llmkube.weights.estimate.kv_cache import Cells
from llmkube.weights.estimate.layers import layers_of
from llmkube.weights.formats.shape import Shape

_MOST_DRAWN: Final = 64
"""Experts asked per token, at most: a header may claim any number."""


@attrs.frozen
class Batch:
    """What one step works on.

    Attributes:
        tokens: Of a physical batch.
        outputs: How many of them get a result.
        room: The caches that it looks at.
        flash: Attention in one operation, which never holds all scores at once.
        embedding: The vectors themselves are a result, too.
    """

    tokens: int
    outputs: int
    room: Cells
    flash: bool
    embedding: bool = False


def compute_bytes(shape: Shape, batch: Batch) -> int:
    """Return the size of the buffer that holds a step's intermediate results."""
    return draw(shape, batch).peak_bytes()


def draw(shape: Shape, batch: Batch) -> Graph:
    """Return the graph of one step."""
    outside, blocks = blocks_of(shape)
    layers = layers_of(shape)
    pen = Pen(shape, layers, batch.room, batch.tokens, flash=batch.flash)
    cur = _embedded(pen, outside)
    for at in range(len(layers)):
        outputs = batch.outputs if at == len(layers) - 1 else None
        cur = _layer(pen, at, blocks.get(at, {}), cur, outputs)
    cur = pen.norm(outside, "output_norm", cur)
    cur.kept = batch.embedding
    output = outside.get("output") or outside.get("token_embd")
    if output and not pen.encoder:
        cur = pen.new(pen.width_of(output), cur)
    cur.kept = True
    pen.graph.expand(cur)
    return pen.graph


def blocks_of(shape: Shape) -> tuple[Block, Mapping[int, Block]]:
    """Return the tensors outside the blocks, and those of each block by its number."""
    outside: dict[str, tuple[int, ...]] = {}
    inside: dict[int, dict[str, tuple[int, ...]]] = {}
    for tensor in shape.tensors:
        if not tensor.sizes:
            continue
        parts = tensor.name.removesuffix(".weight").split(".", 2)
        if len(parts) == 3 and parts[0] == "blk" and len(parts[1]) < 4 and parts[1].isdecimal():
            inside.setdefault(int(parts[1]), {})[parts[2]] = tensor.sizes
        else:
            outside[tensor.name.removesuffix(".weight")] = tensor.sizes
    return outside, inside


def _embedded(pen: Pen, outside: Block) -> Node:
    """Tokens become vectors; beside it stands what would take vectors from outside, which is reserved as well."""
    cur = pen.new(pen.width, Node(4 * pen.rows))
    rows = pen.new(pen.width, Node(4 * pen.rows))
    given = pen.new(pen.width)
    given.kept = True
    pen.graph.expand(cur, rows, Node(8 * pen.rows), pen.new(pen.width, given).view(rows))
    if "token_types" in outside:
        cur.kept = True  # BERT's: what the tokens become keeps its place until the end (measured)
        cur = pen.new(pen.width, cur)
    if "position_embd" in outside:
        cur = pen.add(pen.new(pen.width, pen.positions), cur)
    if per_layer := pen.shape.number("embedding_length_per_layer_input"):
        # a vector for each layer besides: looked up, projected, and turned round
        wide = [pen.new(per_layer * len(pen.layers)) for _ in range(3)]
        for each in wide:
            each.kept = True
        pen.graph.expand(*wide)
    return pen.norm(outside, "token_embd_norm", cur)


def _layer(pen: Pen, at: int, block: Block, before: Node, outputs: int | None) -> Node:
    normed = pen.norm(block, "attn_norm", before)
    cur = attention.mixed(pen, at, block, normed)
    joint = "ffn_norm" not in block and "post_attention_norm" not in block and "ffn_down" in block and not pen.encoder
    if joint:
        cur = pen.add(pen.add(_feed_forward(pen, block, normed), before), attention.projected(pen, block, cur))
        return cur if outputs is None else pen.picked(outputs, cur)[0]
    cur = attention.projected(pen, block, cur)
    if "ffn_norm" in block:
        cur = pen.norm(block, "post_attention_norm", cur)
    if outputs is not None and not pen.encoder:
        cur, before = pen.picked(outputs, cur, before)
    cur = between = pen.norm(block, "attn_output_norm", pen.add(cur, before))
    cur = pen.norm(block, "ffn_norm" if "ffn_norm" in block else "post_attention_norm", cur)
    if cur is between and not pen.encoder:  # a layer without a part of its own for each token
        return cur
    cur = pen.norm(block, "post_ffw_norm", _feed_forward(pen, block, cur))
    return pen.norm(block, "layer_output_norm", pen.add(cur, between))


def _feed_forward(pen: Pen, block: Block, cur: Node) -> Node:
    if "ffn_down_exps" in block:
        answer = _experts(pen, block, cur)
        return pen.add(answer, _gated(pen, block, cur, "_shexp")) if "ffn_down_shexp" in block else answer
    return _gated(pen, block, cur) if "ffn_down" in block else cur


def _experts(pen: Pen, block: Block, cur: Node) -> Node:
    """Each token asks a few experts, and their answers are all there before they are added up."""
    inner, count = block["ffn_down_exps"][0], block["ffn_down_exps"][-1]
    used = min(max(1, pen.shape.number("expert_used_count", 1)), count, _MOST_DRAWN)
    logits = pen.times(block, "ffn_gate_inp", cur) if "ffn_gate_inp" in block else pen.new(count, cur)
    chances = pen.new(count, logits, in_place=True)
    ranking = pen.new(count, chances)
    weights = pen.new(used, chances.view(), ranking.part())
    chosen, seen = ranking.part(), cur.view()
    if "ffn_gate_up_exps" in block:
        halves = pen.new(2 * inner * used, seen, chosen)
        bent = pen.new(inner * used, halves.part(), halves.part())
    else:
        wide = [pen.new(inner * used, seen, chosen) for part in ("gate", "up") if f"ffn_{part}_exps" in block]
        bent = pen.new(inner * used, *wide, in_place=len(wide) == 1)
    answers = pen.new(pen.width * used, bent, chosen)
    weighted = pen.new(pen.width * used, answers, weights, in_place=True)
    shares = [weighted.part() for _ in range(used)]
    pen.graph.expand(*shares)
    total = shares[0]
    for share in shares[1:]:
        total = pen.new(pen.width, total, share, in_place=True)
    return total if used > 1 else pen.new(pen.width, total)


def _gated(pen: Pen, block: Block, cur: Node, suffix: str = "") -> Node:
    """Widen, bend, narrow; with a gate or without. One tensor that is twice as wide is gate and values in one."""
    inner = block[f"ffn_down{suffix}"][0]
    wide = [pen.times(block, name, cur) for part in ("gate", "up") if (name := f"ffn_{part}{suffix}") in block]
    bent = pen.new(inner, *wide, in_place=len(wide) == 1)
    return pen.times(block, f"ffn_down{suffix}", bent)
