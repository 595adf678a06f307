import pytest

from llmkube.weights.estimate.graph_allocator import Graph, Node, effect


def peak(*nodes):
    graph = Graph()
    graph.expand(*nodes)
    return graph.peak_bytes()


def test_a_chain_needs_two_at_once():
    """A result and what it is made from are there together, and no more than those."""
    node = Node(320)
    for _ in range(10):
        node = Node(320, (node,))
    assert peak(node) == 640


def test_in_place_needs_one():
    """An operation that works in place takes its parent's place."""
    node = Node(320)
    for _ in range(10):
        node = Node(320, (node,), in_place=True)
    assert peak(node) == 320


@pytest.mark.parametrize("reader", [lambda node: node.view(), lambda node: Node(320, (node,))])
def test_what_is_still_read_is_not_overwritten(reader):
    """Memory that another node reads later is not reused in place."""
    first = Node(320)
    changed = Node(320, (first,), in_place=True)
    assert peak(changed, Node(32, (reader(first), changed))) >= 640


def test_a_view_keeps_its_source():
    """Bytes stay while a view of them is read, even if the node itself is no longer read."""
    first = Node(320, (Node(32),))
    seen = first.part()
    assert peak(Node(320, (Node(320, (Node(320, (first,)), seen)),))) > peak(
        Node(320, (Node(320, (Node(320, (first,)),)),))
    )


def test_what_a_view_shows_is_not_overwritten():
    """Nobody works in the place of a node that a view of it still shows."""
    first = Node(320)
    seen = first.view()
    seen_later = Node(32, (seen, Node(320, (first,), in_place=True)))
    assert peak(seen, seen_later) >= 640


def test_the_smallest_gap_is_taken():
    """Of two gaps that are large enough the smaller one is filled, so that the larger stays whole."""
    large, wall, small, end = (Node(size, (Node(0),)) for size in (640, 32, 320, 32))
    graph = Graph()
    graph.expand(large, wall, small, end, effect(large), effect(small))
    graph.expand(fits := Node(320, (wall,)), Node(640, (wall,)), Node(32, (wall, end, fits)))
    assert graph.peak_bytes() <= 640 + 32 + 320 + 32 + 4 * 32


def test_results_that_are_kept_stay():
    """Memory of a kept result is never reused, read or not."""
    first = Node(320)
    first.is_output = True
    assert peak(Node(320, (Node(320, (first,)),))) == 960


def test_parents_are_looked_through_once():
    """A node of a thousand parents is put in order with one walk over them: a hostile header has 65,536."""

    class Parents(tuple):
        __slots__ = ()
        walks = 0

        def __iter__(self):
            Parents.walks += 1
            return super().__iter__()

    first = Node(32)
    graph = Graph()
    graph.expand(Node(32, Parents(Node(32, (first,)) for _ in range(1000))))
    assert Parents.walks == 1
    assert len(graph) == 1001
