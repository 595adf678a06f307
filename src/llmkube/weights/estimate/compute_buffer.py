"""Estimate the compute buffer from a model's graph, built from its tensors with sizes only.

Each layer is built from the tensors that it has (`attn_qkv`, `ffn_gate_exps`, `ssm_in`, …), in the order in which
llama.cpp runs the parts, and `graph_allocator` returns the peak memory. A layer has two halves: token mixing
(`attention`) and the feed-forward part (here).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.weights.estimate import attention
from llmkube.weights.estimate.graph_allocator import Graph, Node
from llmkube.weights.estimate.graph_builder import Block, GraphBuilder
from llmkube.weights.estimate.layers import Cells, layers_of
from llmkube.weights.formats.shape import Shape

_MAX_GROUP: Final = 8
"""Maximum size of a group of layers that repeats, such as several with a window and one without."""

_GROUPS: Final = 4
"""Number of groups after which the places of allocations repeat: each may get the place that the last one has left."""

_MAX_EXPERTS: Final = 64
"""Maximum number of experts per token: a header may claim any number."""


@attrs.frozen
class Batch:
    """The input of one step.

    Attributes:
        tokens: The tokens of a physical batch.
        outputs: The number of tokens that get a result.
        cache: The caches that the step reads.
        flash: Whether attention is one operation, which never holds all scores at once.
        embedding: Whether the vectors themselves are a result, too.
    """

    tokens: int
    outputs: int
    cache: Cells
    flash: bool
    embedding: bool = False


def compute_bytes(shape: Shape, batch: Batch) -> int:
    """Return the size of the buffer that holds a step's intermediate results."""
    return build_graph(shape, batch).peak_bytes()


def build_graph(shape: Shape, batch: Batch) -> Graph:
    """Return the graph of one step."""
    outside, blocks = blocks_of(shape)
    layers = layers_of(shape)
    build = GraphBuilder(shape, layers, batch.cache, batch.tokens, flash=batch.flash)
    cur = _embeddings(build, outside)
    for index in _distinct(list(zip(layers, build.heads, map(blocks.get, range(len(layers))), strict=False))):
        outputs = batch.outputs if index == len(layers) - 1 else None
        cur = _layer(build, index, blocks.get(index, {}), cur, outputs)
    cur = build.norm(outside, "output_norm", cur)
    cur.is_output = batch.embedding
    output = outside.get("output") or outside.get("token_embd")
    if output and not build.encoder:
        cur = build.new(build.width_of(output), cur)
    cur.is_output = True
    build.graph.expand(cur)
    return build.graph


def _distinct(layers: Sequence[object]) -> Sequence[int]:
    """Return the numbers of the layers that determine the peak: a few of a row of equal ones, or of equal groups.

    Nothing but a group's result, and what all share, is allocated at its end. So each group repeats the allocations of
    an earlier one; those of the first few are all that occur (compared with all layers in tests).
    """
    count = len(layers)
    for size in range(1, _MAX_GROUP + 1):
        begin = size
        for end in range(size, count + 1):
            if end < count and layers[end] == layers[end - size]:
                continue
            if (repeats := (end - begin) // (size * _GROUPS) - 1) > 0:
                return [*range(begin), *range(begin + repeats * size * _GROUPS, count)]
            begin = end + 1
    return range(count)


@functools.lru_cache(maxsize=4)
def blocks_of(shape: Shape) -> tuple[Block, Mapping[int, Block]]:
    """Return the tensors outside the blocks, and those of each block by number."""
    outside: dict[str, tuple[int, ...]] = {}
    inside: dict[int, dict[str, tuple[int, ...]]] = {}
    for tensor in shape.tensors:
        if tensor.sizes:
            block, name = tensor.place
            # T5 has a shorter name for the output of its attention
            name = "attn_output" if name == "attn_o" else name
            (outside if block < 0 else inside.setdefault(block, {}))[name] = tensor.sizes
    return outside, inside


def _embeddings(build: GraphBuilder, outside: Block) -> Node:
    """Embed the tokens; the alternative input of given vectors is reserved as well."""
    cur = build.new(build.width, Node(4 * build.rows))
    rows = build.new(build.width, Node(4 * build.rows))
    given = build.new(build.width)
    given.is_output = True
    build.graph.expand(cur, rows, Node(8 * build.rows), build.new(build.width, given).view(rows))
    if "token_types" in outside:
        cur.is_output = True  # BERT: the token embeddings stay allocated until the end (measured)
        cur = build.new(build.width, cur)
    if "position_embd" in outside:
        cur = build.add(build.new(build.width, build.positions), cur)
    if per_layer := build.shape.number("embedding_length_per_layer_input"):
        # in addition, a vector for each layer: looked up, projected and transposed
        wide = [build.new(per_layer * len(build.layers)) for _ in range(3)]
        for each in wide:
            each.is_output = True
        build.graph.expand(*wide)
    return build.norm(outside, "token_embd_norm", cur)


def _layer(build: GraphBuilder, index: int, block: Block, before: Node, outputs: int | None) -> Node:
    normed = build.norm(block, "attn_norm", before)
    cur = attention.token_mixing(build, index, block, normed)
    joint = "ffn_norm" not in block and "post_attention_norm" not in block and "ffn_down" in block and not build.encoder
    if joint:
        cur = build.add(
            build.add(_feed_forward(build, block, normed), before), attention.output_projection(build, block, cur)
        )
        return cur if outputs is None else build.get_rows(outputs, cur)[0]
    cur = attention.output_projection(build, block, cur)
    if "ffn_norm" in block:
        cur = build.norm(block, "post_attention_norm", cur)
    if outputs is not None and not build.encoder:
        cur, before = build.get_rows(outputs, cur, before)
    cur = residual = build.norm(block, "attn_output_norm", build.add(cur, before))
    cur = build.norm(block, "ffn_norm" if "ffn_norm" in block else "post_attention_norm", cur)
    if cur is residual and not build.encoder:  # a layer without a feed-forward part
        return cur
    cur = build.norm(block, "post_ffw_norm", _feed_forward(build, block, cur))
    return build.norm(block, "layer_output_norm", build.add(cur, residual))


def _feed_forward(build: GraphBuilder, block: Block, cur: Node) -> Node:
    if "ffn_down_exps" in block:
        output = _experts(build, block, cur)
        return build.add(output, gated(build, block, cur, "_shexp")) if "ffn_down_shexp" in block else output
    return gated(build, block, cur) if "ffn_down" in block else cur


def _experts(build: GraphBuilder, block: Block, cur: Node) -> Node:
    """Apply the chosen experts to each token; all their outputs are in memory before they are summed."""
    inner, count = block["ffn_down_exps"][0], block["ffn_down_exps"][-1]
    used = min(max(1, build.shape.number("expert_used_count", 1)), count, _MAX_EXPERTS)
    logits = build.mul_mat(block, "ffn_gate_inp", cur) if "ffn_gate_inp" in block else build.new(count, cur)
    probabilities = build.new(count, logits, in_place=True)
    ranking = build.new(count, probabilities)
    weights = build.new(used, probabilities.view(), ranking.part())
    chosen, seen = ranking.part(), cur.view()
    if "ffn_gate_up_exps" in block:
        halves = build.new(2 * inner * used, seen, chosen)
        activated = build.new(inner * used, halves.part(), halves.part())
    else:
        wide = [build.new(inner * used, seen, chosen) for part in ("gate", "up") if f"ffn_{part}_exps" in block]
        activated = build.new(inner * used, *wide, in_place=len(wide) == 1)
    expert_outputs = build.new(build.width * used, activated, chosen)
    weighted = build.new(build.width * used, expert_outputs, weights, in_place=True)
    shares = [weighted.part() for _ in range(used)]
    build.graph.expand(*shares)
    total = shares[0]
    for share in shares[1:]:
        total = build.new(build.width, total, share, in_place=True)
    return total if used > 1 else build.new(build.width, total)


def gated(build: GraphBuilder, block: Block, cur: Node, suffix: str = "") -> Node:
    """Project up, activate and project down, with or without a gate; one tensor of twice the width has both."""
    inner = block[f"ffn_down{suffix}"][0]
    wide = [build.mul_mat(block, name, cur) for part in ("gate", "up") if (name := f"ffn_{part}{suffix}") in block]
    activated = build.new(inner, *wide, in_place=len(wide) == 1)
    return build.mul_mat(block, f"ffn_down{suffix}", activated)
