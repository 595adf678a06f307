"""Estimate the memory of a projector for pictures (`--mmproj`): the buffer for encoding one picture.

The graph is that of llama.cpp's `clip.cpp` and `tools/mtmd/models`: the picture becomes patches, a transformer encodes
them, and a few layers project the result into the model's vectors.
"""

import functools
import math
from typing import Any, Final

import attrs

from llmkube.base.package_data import read_table
from llmkube.weights.estimate.compute_buffer import blocks_of, gated
from llmkube.weights.estimate.graph_allocator import Node
from llmkube.weights.estimate.graph_builder import Block, GraphBuilder
from llmkube.weights.estimate.layers import Cells
from llmkube.weights.formats.shape import Shape

KINDS: Final[dict[str, Any]] = read_table(__package__, "projectors")["kinds"]
"""The kinds of projectors whose graph is known."""


def compute_bytes(projector: Shape, tokens: int, *, flash: bool) -> int:
    """Return the size of the buffer that holds the intermediate results of the largest picture.

    Args:
        projector: A projector of one of `KINDS`.
        tokens: The limit of `--image-max-tokens`, for kinds whose pictures have different sizes; 0 for their own.
        flash: Whether attention is one operation.
    """
    build = _PictureBuilder(projector, tokens, flash=flash)
    cur = build.embedded()
    for at in range(min(projector.layer_count - build.has_class, 8)):  # more would repeat the same allocations
        cur = build.encoded(build.blocks.get(at, {}), cur)
    cur = build.projected(build.norm(build.outside, "post_ln", cur))
    cur.is_output = True
    build.graph.expand(cur)
    return build.graph.peak_bytes()


class _PictureBuilder(GraphBuilder):
    """Builder of the graph for one picture, with a row for each patch."""

    def __init__(self, projector: Shape, tokens: int, *, flash: bool) -> None:
        kind, number = KINDS[projector.architecture], projector.number
        self.merge = number("spatial_merge_size") or number("projector.scale_factor") or kind.get("merge", 1)
        limit = kind.get("tokens", 0)
        side = number("image_size") // max(1, number("patch_size"))
        rows = min((tokens or limit) * self.merge**2 if limit else side**2, 1 << 16)
        super().__init__(projector, (), Cells(1, 0, 1, 0), rows, flash=flash)
        named = tuple(each._replace(name=each.name.removeprefix("v.")) for each in projector.tensors)
        self.outside, self.blocks = blocks_of(attrs.evolve(projector, tensors=named))
        self.has_class = "class_embd" in self.outside
        self.turns = [Node(4 * rows * size) for size in kind.get("positions", ())]
        types = {each.type for each in named if each.name == "patch_embd.weight"}
        self.patch_elements, self.column_bytes = math.prod(self.outside["patch_embd"][:3]), 4 if "F32" in types else 2

    def norm(self, block: Block, name: str, cur: Node) -> Node:
        """Normalize, if there is this norm."""
        if name not in block:
            return cur
        is_layer_norm = f"{name}.bias" in block
        out = Node(cur.size, (Node(cur.size, (cur,), in_place=not is_layer_norm),), in_place=True)
        return Node(cur.size, (out,), in_place=True) if is_layer_norm else out

    def embedded(self) -> Node:
        """Return the vectors of the patches; some kinds read two frames."""
        picture = Node(4 * self.rows * self.patch_elements)
        frames = 1 + ("patch_embd.weight.1" in self.outside)
        columns = [Node(self.column_bytes * self.rows * self.patch_elements, (picture,)) for _ in range(frames)]
        cur = functools.reduce(self.add, (self.new(self.width, self.new(self.width, each).part()) for each in columns))
        for _ in range(frames):
            cur = self.new(self.width, cur.part())
        if self.has_class:
            self.rows += 1
            cur = self.add(self.new(self.width, cur), self.new(self.width, Node(4 * self.rows)))
        return self.norm(self.outside, "pre_ln", cur)

    def encoded(self, block: Block, before: Node) -> Node:
        """Return the result of one layer."""
        normed = self.norm(block, "ln1", before)
        query, key, value = (self.mul_mat(block, f"attn_{part}", normed).view() for part in "qkv")
        for turn in self.turns:  # the positions of rows and columns
            query, key = (Node(each.size, (each, turn), in_place=True) for each in (query, key))
        self.graph.expand(query, key, value)
        if self.flash:
            cur = self.new(self.width, query.part(), *(Node(each.size // 2, (each.part(),)) for each in (key, value)))
        else:
            turned = Node(value.size, (value.part(),))
            scores = Node(4 * self.heads[0] * self.rows**2, (key.part(), query.part()))
            scores = Node(scores.size, (scores,), in_place=True)
            cur = self.new(self.width, self.new(self.width, turned, scores).part())
        residual = self.add(self.mul_mat(block, "attn_out", cur.view()), before)
        if block["ffn_down"][0] == self.width:  # older files have the two names swapped
            block = {**block, "ffn_up": block["ffn_down"], "ffn_down": block["ffn_up"]}
        return self.add(residual, gated(self, block, self.norm(block, "ln2", residual)))

    def projected(self, cur: Node) -> Node:
        """Return the vectors for the model."""
        outside = self.outside
        if self.has_class:
            self.rows -= 1
            cur = self.new(self.width, cur, Node(4 * self.rows))
        if self.merge > 1:
            cur = cur.view() if "mm.2" in outside else self.new(self.width, cur.part())
            self.rows //= self.merge**2
        if "mm.2" in outside:
            cur = self.mul_mat(outside, "mm.1" if "mm.1" in outside else "mm.0", cur)
            return self.mul_mat(outside, "mm.2", Node(cur.size, (cur,), in_place=True))
        cur = self.new(self.width, self.new(self.width, cur).part())
        cur = Node(cur.size, (Node(cur.size, (cur,), in_place=True),), in_place=True)
        weight = outside["mm.input_projection"]
        return self.new(weight[0], Node(4 * math.prod(weight), (Node(0),)), cur)
