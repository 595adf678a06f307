"""The exact sizes of what each layer of a model stores per token or per slot, as llama.cpp lays it out.

The windows of an architecture's layers are in its header or in the tables of `families.toml`, which explains each. The
facts are from llama.cpp's `llama-model.cpp` (the patterns of windows) and `llama-hparams.cpp` (the state of recurrent
layers).
"""

import functools
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.package_data import read_table
from llmkube.weights.formats.gguf_format import TENSOR_TYPES
from llmkube.weights.formats.shape import Shape

_FAMILIES: Final = read_table(__package__, "families")


def _family(name: str) -> frozenset[str]:
    return frozenset(_FAMILIES[name])


_WINDOW_PERIOD: Final[Mapping[str, int]] = _FAMILIES["window_period"]
_WINDOW: Final[Mapping[str, int]] = _FAMILIES["window"]
_FIRST_IS_FULL: Final = _family("first_is_whole")
_WINDOW_IGNORED: Final = _family("window_ignored")
_NO_CACHE: Final = _family("encoder") | _family("diffusion")
_ENCODER: Final = _family("encoder") | _family("encoder_with_cache")
_RECURRENT: Final = _family("recurrent")
_WHERE_NO_HEADS: Final = _family("where_no_heads")
_INTERVAL: Final = _family("interval")
_BOTH: Final = _family("both")
_PLAIN: Final = _family("plain")

KNOWN: Final = _PLAIN | _WINDOW_PERIOD.keys() | _NO_CACHE | _ENCODER | _RECURRENT | _WHERE_NO_HEADS | _INTERVAL | _BOTH


@attrs.frozen
class Layer:
    """The cached elements of one layer.

    Attributes:
        key_elements: Of each token's keys; 0 without a cache.
        value_elements: Of each token's values; 0 if they are part of the keys (MLA).
        window: The tokens that it attends to; 0 for all.
        state_elements: Of each slot's recurrent state, four bytes each.
    """

    key_elements: int = 0
    value_elements: int = 0
    window: int = 0
    state_elements: int = 0


@functools.lru_cache(maxsize=4)  # `largest_context` needs them for each candidate
def layers_of(shape: Shape) -> tuple[Layer, ...]:
    """Return the layers that run, in order, without those for multi-token prediction."""
    windows, recurrent = _windows(shape), _recurrent(shape)
    state = _state_elements(shape)
    heads = shape.per_layer("attention.head_count_kv", shape.number("attention.head_count"))
    cached = 0 if shape.architecture in _NO_CACHE else shape.layer_count - shape.number("attention.shared_kv_layers")
    feed_forward = shape.per_layer("feed_forward_length")
    found = []
    for index in range(max(0, shape.layer_count - shape.number("nextn_predict_layers"))):
        key, value = head_lengths(shape, windowed=bool(windows[index]))
        only_recurrent = recurrent[index] and shape.architecture not in _BOTH
        kv_heads = 0 if only_recurrent or index >= cached else heads[index]
        idle = shape.architecture in {"nemotron_h", "nemotron_h_moe"} and feed_forward[index] > 0
        found.append(
            Layer(
                key_elements=kv_heads * key,
                value_elements=0 if shape.number("attention.key_length_mla") else kv_heads * value,
                window=windows[index],
                state_elements=state if recurrent[index] and not idle else 0,
            )
        )
    return tuple(found)


def head_lengths(shape: Shape, *, windowed: bool = False) -> tuple[int, int]:
    """Return the elements of one head's key and value."""
    default = shape.embedding_size // max(1, shape.number("attention.head_count"))
    key, value = (shape.number(f"attention.{which}_length", default) for which in ("key", "value"))
    if windowed:
        key = shape.number("attention.key_length_swa") or key
        value = shape.number("attention.value_length_swa") or value
    return key, value


def is_known(shape: Shape) -> bool:
    """Return whether the memory of this architecture is known rather than guessed."""
    return shape.architecture in KNOWN


def unknown_architecture(architecture: str) -> str:
    """Return a note for people if the memory of this architecture is guessed; "" if it is known."""
    guess = "its memory is estimated as if every layer attended to all tokens"
    return "" if architecture in KNOWN else f"the architecture {architecture} is not known to LLMKube: {guess}"


def is_encoder(shape: Shape) -> bool:
    """Return whether the model returns vectors and predicts no token."""
    return shape.architecture in _ENCODER


def reads_whole(shape: Shape) -> bool:
    """Return whether attention reads the tokens of a step instead of a cache."""
    return shape.architecture in _NO_CACHE | _ENCODER


def _windows(shape: Shape) -> tuple[int, ...]:
    none = (0,) * shape.layer_count
    window = shape.number("attention.sliding_window", _WINDOW.get(shape.architecture, 0))
    if not window or shape.architecture in _WINDOW_IGNORED:
        return none
    pattern = shape.numbers.get("attention.sliding_window_pattern", ())
    if len(pattern) >= shape.layer_count and len(pattern) > 1:
        return tuple(window if each else 0 for each in pattern[: shape.layer_count])
    # With a period of 1, each layer is the last of its period.
    period = pattern[0] if len(pattern) == 1 and pattern[0] > 0 else _WINDOW_PERIOD.get(shape.architecture, 0)
    if not period:
        return none
    full = 0 if shape.architecture in _FIRST_IS_FULL else period - 1
    return tuple(0 if index % period == full else window for index in range(shape.layer_count))


def _recurrent(shape: Shape) -> tuple[bool, ...]:
    every = (True,) * shape.layer_count
    if shape.architecture in _RECURRENT | _BOTH:
        return every
    if listed := shape.numbers.get("attention.recurrent_layers", ()):
        return tuple(bool(each) for each in (*listed, *[0] * shape.layer_count)[: shape.layer_count])
    if shape.architecture in _INTERVAL:
        interval = max(1, shape.number("full_attention_interval", 4))
        return tuple((index + 1) % interval != 0 for index in range(shape.layer_count))
    if shape.architecture in _WHERE_NO_HEADS or (shape.number("ssm.inner_size") and not is_known(shape)):
        heads = shape.per_layer("attention.head_count_kv", shape.number("attention.head_count"))
        return tuple(count == 0 for count in heads)
    return (False,) * shape.layer_count


def _state_elements(shape: Shape) -> int:
    """Return the elements of one recurrent layer for one slot: those of its convolution and of its state."""
    width = shape.embedding_size
    if wkv := shape.number("wkv.head_size"):
        return width * shape.number("token_shift_count", 2) + width * wkv
    if conv := shape.number("shortconv.l_cache"):
        return width * max(0, conv - 1)
    before = max(0, shape.number("ssm.conv_kernel") - 1)
    if head := shape.number("kda.head_dim"):
        heads = shape.number("attention.head_count")
        return 3 * before * heads * head + heads * head * head
    inner, state, groups = (shape.number(f"ssm.{name}") for name in ("inner_size", "state_size", "group_count"))
    return before * (inner + 2 * groups * state) + state * inner


CELL_PADDING: Final = 256
"""llama.cpp rounds every cache up to a multiple of this many tokens."""

_TYPES: Final[Mapping[str, tuple[int, int]]] = {
    name.lower(): (elements, size) for name, elements, size in TENSOR_TYPES.values()
}


@attrs.frozen
class Cells:
    """The size of a cache in tokens.

    Attributes:
        streams: The number of separate caches: one for each slot, or one for all.
        full: The tokens of each stream in a layer without a window.
        slots: The number of concurrent requests.
        step: The tokens that a step may add before old ones leave a window.
        full_windows: Whether layers with a window cache the whole context as well.
    """

    streams: int
    full: int
    slots: int
    step: int
    full_windows: bool = False

    @property
    def context(self) -> int:
        """The tokens of all slots together."""
        return self.streams * self.full

    def of(self, layer: Layer) -> int:
        """Return the tokens of each stream that this layer caches."""
        if not layer.window or self.full_windows:
            return self.full
        shared = self.slots if self.streams == 1 else 1
        return min(self.full, padded(layer.window * shared + self.step, CELL_PADDING))


def cells(context: int, slots: int, *, unified: bool, ubatch: int, full_windows: bool) -> Cells:
    """Return the cells for a context that is divided among slots as in llama-server: each part is rounded up."""
    streams = 1 if unified else slots
    full = padded(padded(context, CELL_PADDING) // streams, CELL_PADDING)
    return Cells(streams=streams, full=full, slots=slots, step=ubatch, full_windows=full_windows)


def cache_bytes(layer: Layer, cache: Cells, type_k: str, type_v: str) -> int:
    """Return the size of one layer's keys and values, all slots together."""
    row = row_bytes(layer.key_elements, type_k) + row_bytes(layer.value_elements, type_v)
    return cache.streams * cache.of(layer) * row


def state_bytes(layer: Layer, slots: int) -> int:
    """Return the size of one layer's recurrent state, all slots together; it is stored as f32."""
    return 4 * layer.state_elements * slots


def row_bytes(elements: int, cache_type: str) -> int:
    """Return the bytes of a row, including scales; an unknown type is taken to be f32."""
    block, size = _TYPES.get(cache_type, (1, 4))
    return -(-elements // block) * size


def padded(count: int, multiple: int) -> int:
    """Round up to a multiple."""
    return count + -count % multiple
