"""The compute buffer: a model's graph, drawn from its tensors, with sizes in place of numbers.

One layer after another is put together from what tensors it has (`attn_qkv`, `ffn_gate_exps`, `ssm_in`, …), in the order
in which llama.cpp runs the parts, and `graph` says how much memory that takes at once.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.weights.graph import Graph, Node, effect
from llmkube.weights.kvcache import Cells, padded
from llmkube.weights.layers import Layer, head_lengths, layers_of
from llmkube.weights.shape import Shape

Tensors = Mapping[str, tuple[int, ...]]
"""The tensors of one block by what follows the block's number, without `.weight`; the values are their dimensions."""


@attrs.frozen
class Batch:
    """What one step works on.

    Attributes:
        tokens: Of a physical batch.
        outputs: How many of them get a result.
        room: The caches that it looks at.
        flash: Attention in one operation, which never holds all scores at once.
    """

    tokens: int
    outputs: int
    room: Cells
    flash: bool


def compute_bytes(shape: Shape, batch: Batch) -> int:
    """Return the size of the buffer that holds a step's intermediate results."""
    return draw(shape, batch).peak_bytes()


def draw(shape: Shape, batch: Batch) -> Graph:
    """Return the graph of one step."""
    pen = _Pen(shape, batch)
    pen.run()
    return pen.graph


def blocks_of(shape: Shape) -> tuple[Tensors, Mapping[int, Tensors]]:
    """Return the tensors outside the blocks, and those of each block by its number."""
    outside: dict[str, tuple[int, ...]] = {}
    inside: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for tensor in shape.tensors:
        parts = tensor.name.removesuffix(".weight").split(".", 2)
        if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal():
            inside[int(parts[1])][parts[2]] = tensor.sizes
        else:
            outside[tensor.name.removesuffix(".weight")] = tensor.sizes
    return outside, inside


class _Pen:
    """Draw one graph."""

    def __init__(self, shape: Shape, batch: Batch) -> None:
        self.graph = Graph()
        self.shape, self.batch = shape, batch
        self.outside, self.blocks = blocks_of(shape)
        self.layers = layers_of(shape)
        self.rows = batch.tokens
        self.width = shape.embedding_size
        self.heads = shape.per_layer("attention.head_count")
        cell_bytes = 2 if batch.flash else 4
        self.masks = {
            layer.window: Node(cell_bytes * batch.room.of(layer) * batch.tokens)
            for layer in self.layers
            if layer.key_elements
        }
        self.positions = Node(4 * batch.tokens)
        self.key_rows, self.value_rows = Node(8 * batch.tokens), Node(8 * batch.tokens)
        self.out_ids = Node(4 * batch.outputs)

    # -- small parts ----------------------------------------------------------------------------------------------

    def new(self, width: int, *parents: Node, in_place: bool = False) -> Node:
        return Node(4 * width * self.rows, parents, in_place=in_place)

    def times(self, block: Tensors, name: str, cur: Node) -> Node:
        """Multiply by a weight, and add its bias if it has one."""
        out = self.new(_width(block[name]), cur)
        return self.new(_width(block[name]), out, in_place=True) if f"{name}.bias" in block else out

    def norm(self, block: Tensors, name: str, cur: Node) -> Node:
        if name not in block:
            return cur
        is_layer_norm = f"{name}.bias" in block
        out = Node(cur.size, (cur,), in_place=not is_layer_norm)
        out = Node(cur.size, (out,), in_place=True)
        return Node(cur.size, (out,), in_place=True) if is_layer_norm else out

    def add(self, one: Node, other: Node) -> Node:
        return Node(one.size, (one, other), in_place=True)

    # -- the whole ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        cur = self.embedded()
        for at, layer in enumerate(self.layers):
            cur = self.layer(at, layer, cur)
        cur = self.norm(self.outside, "output_norm", cur)
        output = self.outside.get("output") or self.outside.get("token_embd")
        if output:
            cur = self.new(_width(output), cur)
        cur.output = True
        self.graph.expand(cur)

    def embedded(self) -> Node:
        """Tokens become vectors; beside it stands what would take vectors from outside, which is reserved as well."""
        cur = self.new(self.width, Node(4 * self.rows))
        rows = self.new(self.width, Node(4 * self.rows))
        given = self.new(self.width, self.new(self.width))
        import os
        V=os.environ.get("VAR","")
        if "r" in V: rows.output=True
        if "e" in V: cur.output=True
        if "l" in V: given.parents[0].output=True
        self.graph.expand(cur, given.view(rows, Node(8 * self.rows)))
        return cur

    def layer(self, at: int, layer: Layer, before: Node) -> Node:
        block = self.blocks.get(at, {})
        last = at == len(self.layers) - 1
        normed = self.norm(block, "attn_norm", before)
        cur = self.attention(at, layer, block, normed)
        cur = self.norm(block, "post_attention_norm", cur)
        if last:
            self.rows = self.batch.outputs
            cur, before = (self.new(self.width, each, self.out_ids) for each in (cur, before))
        between = self.add(cur, before)
        cur = self.norm(block, "ffn_norm", between)
        cur = self.feed_forward(block, cur)
        cur = self.norm(block, "post_ffw_norm", cur)
        return self.add(cur, between)

    def attention(self, at: int, layer: Layer, block: Tensors, cur: Node) -> Node:
        query, key, value = self.queries(at, block, cur)
        self.graph.expand(query, value, key)
        self.graph.expand(effect(key.view(), self.key_rows), effect(value.view(), self.value_rows))
        mask = self.masks[layer.window]
        length = head_lengths(self.shape, windowed=bool(layer.window))[1]
        wide = self.heads[at] * length
        moved = query.view(size=0)
        if self.batch.flash:
            cur = self.new(wide, moved, mask).view()
        else:
            scores = Node(4 * self.heads[at] * self.rows * self.batch.room.of(layer), (moved,))
            scores = Node(scores.size, (scores, mask), in_place=True)
            cur = self.new(wide, self.new(wide, scores).view(size=0))
        self.graph.expand(cur)
        return self.times(block, "attn_output", cur)

    def queries(self, at: int, block: Tensors, cur: Node) -> tuple[Node, Node, Node]:
        if "attn_qkv" in block:
            whole = self.times(block, "attn_qkv", cur)
            heads = self.heads[at] * head_lengths(self.shape)[0]
            keys = self.layers[at].key_elements
            return self.new(heads, whole.view(size=0)), self.new(keys, whole.view(size=0)), whole.view(size=0)
        query, key, value = (self.times(block, f"attn_{which}", cur).view() for which in "qkv")
        query, key = self.norm(block, "attn_q_norm", query), self.norm(block, "attn_k_norm", key)
        return self.turned(query), self.turned(key), value

    def turned(self, cur: Node) -> Node:
        """Rotate by position."""
        return Node(cur.size, (cur, self.positions), in_place=True)

    def feed_forward(self, block: Tensors, cur: Node) -> Node:
        if "ffn_up" not in block:
            return cur
        up = self.times(block, "ffn_up", cur)
        if "ffn_gate" in block:
            inner = self.new(_width(block["ffn_up"]), self.times(block, "ffn_gate", cur), up)
        elif block["ffn_down"][0] < _width(block["ffn_up"]):
            inner = self.new(block["ffn_down"][0], up)
        else:
            inner = Node(up.size, (up,), in_place=True)
        return self.times(block, "ffn_down", inner)


def _width(sizes: tuple[int, ...]) -> int:
    return sizes[1] if len(sizes) > 1 else sizes[0]
