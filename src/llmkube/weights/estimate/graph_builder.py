"""Build a graph of sizes from a model and one step, with the operations that all kinds of layers share."""

from collections.abc import Mapping

from llmkube.weights.estimate.graph_allocator import Graph, Node
from llmkube.weights.estimate.layers import Cells, Layer, is_encoder, reads_whole
from llmkube.weights.formats.shape import Shape

Block = Mapping[str, tuple[int, ...]]
"""The dimensions of a block's tensors, by the name after the block's number, without `.weight`."""


class GraphBuilder:
    """Builder of a graph for a model and a step; its operations are named as in ggml; all layers share its inputs."""

    def __init__(self, shape: Shape, layers: tuple[Layer, ...], cache: Cells, rows: int, *, flash: bool) -> None:
        self.shape, self.layers, self.cache, self.rows, self.flash = shape, layers, cache, rows, flash
        self.graph = Graph()
        cached = [layer for layer in layers if layer.key_elements]
        self.encoder, self.reads_whole = is_encoder(shape), reads_whole(shape)
        self.width = shape.embedding_size
        self.heads = shape.per_layer("attention.head_count")
        self.positions = Node(4 * rows)
        # A model that adds positions to the tokens does not rotate. Determined once: there may be 65,536 tensors.
        names = {tensor.name for tensor in shape.tensors}
        by_distance = "enc.blk.0.attn_rel_b.weight" in names
        self.buckets = Node(4 * rows * rows) if by_distance else None
        self.rotates = not by_distance and "position_embd.weight" not in names
        self.fused = flash and not by_distance
        cell_bytes = 2 if flash else 4
        self.masks = {layer.window: Node(cell_bytes * self.visible_tokens(layer) * rows) for layer in layers}
        self.key_rows = Node(8 * rows)
        # without flash attention, values are transposed, and each element has its own index
        widest = 1 if flash else max((layer.value_elements for layer in cached), default=1)
        self.value_rows = Node(8 * rows * max(1, widest))

    def visible_tokens(self, layer: Layer) -> int:
        """Return the number of tokens that each token of a step attends to."""
        return self.rows if self.reads_whole else self.cache.of(layer)

    def new(self, width: int, *parents: Node, in_place: bool = False) -> Node:
        """Return a result with `width` elements for each token."""
        return Node(4 * width * self.rows, parents, in_place=in_place)

    def mul_mat(self, block: Block, name: str, cur: Node) -> Node:
        """Multiply by a weight and add its bias, if any; a missing weight is taken to be square."""
        width = self.width_of(block[name]) if name in block else self.width
        out = self.new(width, cur)
        return self.new(width, out, in_place=True) if f"{name}.bias" in block else out

    def norm(self, block: Block, name: str, cur: Node) -> Node:
        """Normalize, if the block has this norm; the product with the weight is never in place (measured)."""
        if name not in block:
            return cur
        is_layer_norm = f"{name}.bias" in block
        out = Node(cur.size, (Node(cur.size, (cur,), in_place=not is_layer_norm),))
        return Node(cur.size, (out,), in_place=True) if is_layer_norm else out

    def add(self, one: Node, other: Node) -> Node:
        """Add, in place of either operand if possible."""
        return Node(one.size, (one, other), in_place=True)

    def rotated(self, cur: Node) -> Node:
        """Apply rotary positions, if the model has them."""
        return Node(cur.size, (cur, self.positions), in_place=True) if self.rotates else cur

    def get_rows(self, outputs: int, *nodes: Node) -> tuple[Node, ...]:
        """Continue with only the tokens that get a result."""
        self.rows = outputs
        chosen = Node(4 * outputs)
        return tuple(self.new(self.width, each, chosen) for each in nodes)

    @staticmethod
    def width_of(sizes: tuple[int, ...]) -> int:
        """Return the length of the rows that this weight produces."""
        return sizes[1] if len(sizes) > 1 else sizes[0]
