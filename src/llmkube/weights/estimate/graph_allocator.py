"""Simulate ggml's allocator on a graph of sizes, to get the size of the compute buffer.

The rules (https://github.com/ggml-org/ggml/blob/master/src/ggml-alloc.c):

* Inputs are allocated first.
* Then each node reuses the memory of a parent that no other node needs, if its operation can work in place; otherwise
  it gets the smallest free gap that is large enough, or memory at the end.
* A parent's memory is freed after its last reader.
* The size of the buffer is the highest end that was reached.
"""

import bisect
from collections.abc import Iterable
from typing import Final

_ALIGNMENT: Final = 32


class Node:
    """One tensor of a graph: an input, the result of an operation, or a view of either.

    With `in_place`, as in ggml, the first parent of the same size that can be overwritten is reused.
    """

    __slots__ = ("children", "in_place", "is_output", "offset", "parents", "seen", "size", "source", "views")

    def __init__(self, size: int, parents: tuple["Node", ...] = (), *, in_place: bool = False) -> None:
        self.size = size
        self.parents = parents
        self.in_place = in_place
        self.source: Node | None = None
        self.offset: int | None = None
        self.is_output = self.seen = False
        self.children = self.views = 0

    def view(self, *others: "Node") -> "Node":
        """Return a view of all bytes; `others` are read when it is created."""
        return self._alias(self.size, others)

    def part(self, size: int = 0) -> "Node":
        """Return a view of some bytes, or of all in another order."""
        return self._alias(size, ())

    def _alias(self, size: int, others: tuple["Node", ...]) -> "Node":
        node = Node(size, (self, *others))
        node.source = self.source or self
        return node


def effect(*parents: Node) -> Node:
    """Return a node that only writes into memory outside the graph, such as a cache."""
    return Node(0, parents)


class Graph:
    """Nodes in the order in which they run."""

    def __init__(self) -> None:
        self._leaves: list[Node] = []
        self._nodes: list[Node] = []

    def expand(self, *nodes: Node) -> None:
        """Append these nodes, each after its parents."""
        stack = [(node, iter(node.parents)) for node in reversed(nodes)]
        while stack:
            node, parents = stack[-1]
            # The iterator avoids a rescan: a malicious header may have blocks of 65,536 tensors, each a parent.
            waiting = None if node.seen else next((each for each in parents if not each.seen), None)
            if waiting is not None:
                stack.append((waiting, iter(waiting.parents)))
                continue
            stack.pop()
            if not node.seen:
                node.seen = True
                (self._nodes if node.parents else self._leaves).append(node)

    def __len__(self) -> int:
        return len(self._nodes)

    def peak_bytes(self) -> int:
        """Return the size of the buffer for the graph; can be called only once."""
        arena = _Arena()
        _count(self._nodes)
        for leaf in self._leaves:
            leaf.offset = arena.allocate(leaf.size)
        for node in self._nodes:
            if node.source is None and node.size:
                _place(node, arena)
            for parent in node.parents:
                parent.children -= 1
                if not parent.children and not parent.views:
                    _release(parent, arena)
        return arena.peak_bytes


def _count(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.source is not None:
            node.source.views += 1
        for parent in node.parents:
            parent.children += 1


def _place(node: Node, arena: "_Arena") -> None:
    if node.in_place:
        for parent in node.parents:
            reusable = parent.children == 1 and not parent.views and not parent.is_output
            if reusable and parent.offset is not None and parent.size == node.size:
                node.offset, parent.offset = parent.offset, None
                return
    node.offset = arena.allocate(node.size)


def _release(node: Node, arena: "_Arena") -> None:
    owner = node.source
    if owner is not None:
        owner.views -= 1
        if owner.views or owner.children:
            return
        node = owner
    if node.offset is not None and not node.is_output:
        arena.free(node.offset, node.size)
        node.offset = None


class _Arena:
    """The free gaps in order; everything after the end is free."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._gaps: list[tuple[int, int]] = []  # offset and size of each
        self._end = 0

    def allocate(self, size: int) -> int:
        size += -size % _ALIGNMENT
        fitting = [(gap[1], number) for number, gap in enumerate(self._gaps) if gap[1] >= size]
        if fitting:
            # among gaps of the same size, the last, as in ggml
            smallest = min(fitting)[0]
            number = max(number for found, number in fitting if found == smallest)
            offset, available = self._gaps[number]
            self._gaps[number : number + 1] = [(offset + size, available - size)] if available > size else []
            return offset
        offset = self._end
        self._end += size
        self.peak_bytes = max(self.peak_bytes, self._end)
        return offset

    def free(self, offset: int, size: int) -> None:
        size += -size % _ALIGNMENT
        index = bisect.bisect(self._gaps, (offset, 0))
        if index < len(self._gaps) and self._gaps[index][0] == offset + size:
            size += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == offset:
            offset, before = self._gaps.pop(index - 1)
            size += before
            index -= 1
        if offset + size == self._end:
            self._end = offset
        else:
            self._gaps.insert(index, (offset, size))
