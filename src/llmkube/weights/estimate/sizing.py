"""Estimate the memory of a model before it is loaded, in parts with the names that llama.cpp reports.

`estimate` is a pure function of the model's `Shape` and the `Demand` of a command line.
"""

from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.weights.estimate import mlx, projector
from llmkube.weights.estimate.compute_buffer import Batch, compute_bytes
from llmkube.weights.estimate.demand import DEFAULT_CACHE_RAM_BYTES, Component, Demand, Estimate, Location
from llmkube.weights.estimate.layers import (
    CELL_PADDING,
    Cells,
    Layer,
    cache_bytes,
    cells,
    head_lengths,
    layers_of,
    state_bytes,
    unknown_architecture,
)
from llmkube.weights.estimate.tensor_placement import place_adapters, place_weights
from llmkube.weights.formats.shape import Shape

_MIB: Final = 1 << 20

PROCESS_BYTES: Final = 48 * _MIB
"""A server's memory before it loads a model, and its threads' working memory: 38 MiB measured, one slot."""

BYTES_PER_TOKEN: Final = 384
"""The memory of a token in the vocabulary: 220 bytes measured without merges, which may double it."""

_MIN_CACHE_RAM_BYTES: Final = 64 * _MIB
_MAX_CACHE_RAM_BYTES: Final = 1024 * _MIB
_PROJECTOR_WORK_BYTES: Final = 512 * _MIB
_QUANTIZED_CACHE_BYTES: Final = _MIB
"""Rotations and similar data for quantized caches: half of this measured."""
_QUANTIZED: Final = frozenset(("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"))
_FALLBACK_CONTEXT: Final = 4096
_MAX_CONTEXT: Final = 1 << 26


def estimate(shape: Shape, demand: Demand) -> Estimate:
    """Return the memory that this model needs with this command line."""
    if shape.format == "mlx":
        return mlx.estimate(shape, demand)
    builder = _EstimateBuilder()
    _add_weights(builder, shape, demand)
    cache = cache_of(shape, demand)
    _add_memory(builder, shape, demand, cache)
    _add_compute(builder, shape, demand, cache)
    _add_prompt_cache(builder, shape, demand, cache)
    _add_companions(builder, shape, demand)
    builder.add("process", Location.HOST, PROCESS_BYTES + BYTES_PER_TOKEN * shape.vocabulary_size)
    if note := unknown_architecture(shape.architecture):
        builder.doubt(note)
    return builder.estimate()


def cache_of(shape: Shape, demand: Demand) -> Cells:
    """Return the size of the caches for this command line, in tokens."""
    context = demand.context or shape.trained_context or _FALLBACK_CONTEXT
    step = min(demand.ubatch, demand.batch, context)
    return cells(context, max(1, demand.slots), unified=demand.unified_kv, ubatch=step, full_windows=demand.swa_full)


def default_cache_ram_bytes(shape: Shape, demand: Demand) -> int:
    """Return a reasonable limit for the prompt cache: the size of one context in whole MiB, from 64 MiB to 1 GiB.

    llama-server's own limit of 8 GiB does not depend on the model, and is more than many models need themselves.
    """
    cache = cache_of(shape, demand)
    context_bytes = sum(
        cache_bytes(layer, cache, demand.cache_type_k, demand.cache_type_v) + state_bytes(layer, cache.slots)
        for layer in layers_of(shape)
    )
    wanted = max(_MIN_CACHE_RAM_BYTES, min(context_bytes, _MAX_CACHE_RAM_BYTES))
    return -(-wanted // _MIB) * _MIB


def largest_context(shape: Shape, demand: Demand, memory_bytes: int) -> int | None:
    """Return the largest context, in steps of 256 tokens, that fits into `memory_bytes`; None if none does.

    It is at most the trained context, or the requested one if that is larger. A default limit of the prompt cache is
    computed again for each context.
    """
    uses_default_limit = demand.cache_ram_bytes == default_cache_ram_bytes(shape, demand)

    def needed(context: int) -> int:
        candidate = attrs.evolve(demand, context=context)
        if uses_default_limit:
            candidate = attrs.evolve(candidate, cache_ram_bytes=default_cache_ram_bytes(shape, candidate))
        return estimate(shape, candidate).total_bytes

    top = max(demand.context, shape.trained_context or _FALLBACK_CONTEXT, CELL_PADDING)
    low, high = 0, -(-min(top, _MAX_CONTEXT) // CELL_PADDING)
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle * CELL_PADDING) <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    return min(low * CELL_PADDING, top) if low else None


@attrs.define(eq=False)
class _EstimateBuilder:
    """The sum of components by name and place, in the order of their first occurrence."""

    sizes: dict[tuple[str, Location], int] = attrs.Factory(dict)
    notes: list[str] = attrs.Factory(list)
    certain: bool = True
    unlimited: str = ""

    def add(self, name: str, place: Location, size_bytes: int) -> None:
        if size_bytes > 0:
            self.sizes[name, place] = self.sizes.get((name, place), 0) + size_bytes

    def doubt(self, note: str) -> None:
        self.notes.append(note)
        self.certain = False

    def estimate(self) -> Estimate:
        components = tuple(Component(name, place, size) for (name, place), size in self.sizes.items())
        return Estimate(components, tuple(self.notes), self.certain, self.unlimited)


def _add_weights(builder: _EstimateBuilder, shape: Shape, demand: Demand) -> None:
    weights = place_weights(shape, attrs.evolve(demand, context=0, cache_ram_bytes=None))  # neither matters here
    rest = Location.DEVICE if demand.device_layers else Location.HOST
    builder.add("weights", Location.DEVICE, weights.device_bytes)
    builder.add("weights", Location.HOST, weights.host_bytes)
    builder.add("repacked weights", Location.HOST, weights.repacked_bytes)
    if shape.unread_bytes:
        builder.add("weights", rest, shape.unread_bytes)
        builder.doubt("some tensors have a type that only newer engines know; the rest of the file is counted for them")
    if shape.missing_parts:
        builder.add("weights", rest, _unread_part_bytes(shape))
        builder.doubt(
            f"{shape.missing_parts} more files of this model were not read: each is assumed to be like the largest"
        )
    if weights.repacked_bytes and demand.mmap:
        size = format_bytes(weights.repacked_bytes)
        builder.notes.append(f"{size} of the weights are in memory twice; --no-repack avoids this, but is slower")


def _unread_part_bytes(shape: Shape) -> int:
    """Estimate the unread files of a split model: missing blocks are assumed to be as large as the largest known."""
    blocks: dict[int, int] = {}
    for tensor in shape.tensors:
        block, _ = tensor.place
        if block >= 0:
            blocks[block] = blocks.get(block, 0) + tensor.size_bytes
    if len(blocks) > 1:
        missing = max(0, shape.layer_count - len(blocks) + 1)
        return missing * max(blocks.values())
    return shape.size_bytes * shape.missing_parts


def _add_memory(builder: _EstimateBuilder, shape: Shape, demand: Demand, cache: Cells) -> None:
    layers = layers_of(shape)
    for index, layer in enumerate(layers):
        first_on_device = shape.layer_count + 1 - demand.device_layers
        on_device = demand.kv_offload and demand.device_layers > 0 and index >= first_on_device
        place = Location.DEVICE if on_device else Location.HOST
        builder.add("KV cache", place, cache_bytes(layer, cache, demand.cache_type_k, demand.cache_type_v))
        builder.add("recurrent state", place, state_bytes(layer, cache.slots))
    if indexed := shape.number("attention.indexer.key_length"):
        builder.add("KV cache", Location.HOST, 2 * indexed * cache.context * len(layers))
        builder.doubt("the index of sparse attention is assumed to have 16-bit keys for every token")


def _add_compute(builder: _EstimateBuilder, shape: Shape, demand: Demand, cache: Cells) -> None:
    flash = demand.flash_attention != "off"
    tokens = -(-cache.step // cache.slots) * cache.slots
    outputs = tokens if demand.embedding else min(tokens, cache.slots)
    size = compute_bytes(shape, Batch(tokens, outputs, cache, flash, demand.embedding))
    size += _QUANTIZED_CACHE_BYTES if {demand.cache_type_k, demand.cache_type_v} & _QUANTIZED else 0
    if demand.device_layers:
        builder.add("compute buffer", Location.DEVICE, size)
        on_host = demand.device_layers <= shape.layer_count or demand.overrides or not demand.kv_offload
        inputs = 4 * tokens * (3 * shape.embedding_size + cache.full)
        builder.add("compute buffer", Location.HOST, size if on_host else min(size, inputs))
    else:
        builder.add("compute buffer", Location.HOST, size)
    vectors = shape.vocabulary_size + (shape.embedding_size if demand.embedding else 0)
    builder.add("output buffer", Location.HOST, 4 * vectors * cache.slots)


def _add_prompt_cache(builder: _EstimateBuilder, shape: Shape, demand: Demand, cache: Cells) -> None:
    """Add the prompt cache and the slots' checkpoints at their full size, which they reach over time."""
    if demand.embedding:
        return
    if demand.cache_ram_bytes is None:
        builder.unlimited = "the prompt cache has no limit; set --cache-ram to a number of MiB"
        builder.doubt(builder.unlimited)
        builder.add("prompt cache", Location.HOST, DEFAULT_CACHE_RAM_BYTES)
    else:
        builder.add("prompt cache", Location.HOST, demand.cache_ram_bytes)
    kinds = (demand.cache_type_k, demand.cache_type_v)
    one = attrs.evolve(cache, streams=1, slots=1, step=0)
    with_state = [layer for layer in layers_of(shape) if layer.state_elements or (layer.window and not demand.swa_full)]
    size = sum(state_bytes(each, 1) + (cache_bytes(each, one, *kinds) if each.window else 0) for each in with_state)
    each_slot = min(demand.checkpoints, cache.full // max(1, demand.checkpoint_step) + 1)
    builder.add("context checkpoints", Location.HOST, size * each_slot * cache.slots)


def _add_projector(builder: _EstimateBuilder, place: Location, demand: Demand) -> None:
    """Add the projector, and its buffer for the largest picture."""
    found = demand.projector
    if found is None:
        builder.doubt("the size of the multimodal projector is unknown")
        return
    builder.add("mmproj", place, sum(each.size_bytes for each in found.tensors) or found.size_bytes)
    size = _PROJECTOR_WORK_BYTES
    if found.architecture in projector.KINDS:
        size = projector.compute_bytes(found, demand.image_tokens, flash=demand.flash_attention != "off")
    else:
        doubt = f"the projector's kind {found.architecture} is unknown: {format_bytes(size)} are assumed for its work"
        builder.doubt(doubt)
    builder.add("mmproj", place, size)


def _add_companions(builder: _EstimateBuilder, shape: Shape, demand: Demand) -> None:
    """Add the adapters, the projector and the draft model."""
    for place, size in zip((Location.DEVICE, Location.HOST), place_adapters(shape, demand), strict=True):
        builder.add("adapters", place, size)
    if demand.projector_path:
        place = Location.DEVICE if demand.device_layers and demand.projector_on_device else Location.HOST
        _add_projector(builder, place, demand)
    if demand.draft_path and demand.draft is None:
        builder.doubt("the size of the draft model is unknown")
    if demand.draft is not None:
        draft_demand = Demand(
            context=demand.draft_context or demand.context or shape.trained_context,
            device_layers=demand.draft_device_layers,
            cache_ram_bytes=0,
            checkpoints=0,
            flash_attention=demand.flash_attention,
            machine=demand.machine,
            repack=demand.repack,
            slots=demand.slots,
            unified_kv=demand.unified_kv,
            ubatch=demand.ubatch,
            batch=demand.batch,
        )
        for component in estimate(demand.draft, draft_demand).components:
            if component.name != "process":
                builder.add("draft model", component.place, component.size_bytes)
    if "draft-mtp" in demand.speculation and (mtp_layers := shape.number("nextn_predict_layers")):
        key, value = head_lengths(shape)
        layer = Layer(shape.number("attention.head_count_kv") * key, shape.number("attention.head_count_kv") * value)
        cache = cache_of(shape, demand)
        place = Location.DEVICE if demand.device_layers else Location.HOST
        builder.add("draft model", place, min(mtp_layers, shape.layer_count) * cache_bytes(layer, cache, "f16", "f16"))
        builder.add("draft model", place, compute_bytes(shape, Batch(cache.step, cache.slots, cache, flash=True)))
