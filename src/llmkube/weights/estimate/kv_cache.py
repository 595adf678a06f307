"""The KV cache and the recurrent state, layer by layer and to the byte, as llama.cpp allocates them."""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.weights.estimate.layers import Layer
from llmkube.weights.formats.gguf_format import TENSOR_TYPES

CELL_PADDING: Final = 256
"""llama.cpp rounds every cache up to a multiple of this many tokens."""

_TYPES: Final[Mapping[str, tuple[int, int]]] = {
    name.lower(): (elements, size) for name, elements, size in TENSOR_TYPES.values()
}


@attrs.frozen
class Cells:
    """How many tokens a cache is made for.

    Attributes:
        streams: Caches side by side: one for each slot, or one for all.
        whole: Tokens of each stream in a layer that sees everything.
        slots: Requests served at the same time.
        step: Tokens that a step may add before old ones leave a window.
        full_windows: Layers with a window keep the whole context as well.
    """

    streams: int
    whole: int
    slots: int
    step: int
    full_windows: bool = False

    @property
    def context(self) -> int:
        """Tokens of all slots together."""
        return self.streams * self.whole

    def of(self, layer: Layer) -> int:
        """Return the tokens of each stream that this layer keeps."""
        if not layer.window or self.full_windows:
            return self.whole
        shared = self.slots if self.streams == 1 else 1
        return min(self.whole, padded(layer.window * shared + self.step, CELL_PADDING))


def cells(context: int, slots: int, *, unified: bool, ubatch: int, full_windows: bool) -> Cells:
    """Share a context between slots, as llama-server does: each part is rounded up."""
    streams = 1 if unified else slots
    whole = padded(padded(context, CELL_PADDING) // streams, CELL_PADDING)
    return Cells(streams=streams, whole=whole, slots=slots, step=ubatch, full_windows=full_windows)


def cache_bytes(layer: Layer, room: Cells, type_k: str, type_v: str) -> int:
    """Return what one layer's keys and values take, all slots together."""
    row = row_bytes(layer.key_elements, type_k) + row_bytes(layer.value_elements, type_v)
    return room.streams * room.of(layer) * row


def state_bytes(layer: Layer, slots: int) -> int:
    """Return what one layer's recurrent state takes, all slots together; it is kept as f32."""
    return 4 * layer.state_elements * slots


def row_bytes(elements: int, cache_type: str) -> int:
    """Return the bytes of so many elements, scales included; an unknown type counts as f32."""
    block, size = _TYPES.get(cache_type, (1, 4))
    return -(-elements // block) * size


def padded(count: int, multiple: int) -> int:
    """Round up."""
    return count + -count % multiple
