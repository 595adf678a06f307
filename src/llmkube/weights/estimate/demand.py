"""The input and the result of an estimate: the demand of a command line, and the memory by part."""

import enum
from typing import Final

import attrs

from llmkube.weights.formats.shape import Shape, Tensor

DEFAULT_CACHE_RAM_BYTES: Final = 8192 << 20
"""llama-server's default limit of the prompt cache."""

ALL_LAYERS: Final = 1 << 16
"""More layers than any model has; means all layers."""


class Location(enum.StrEnum):
    """The location of bytes; with unified memory, both draw on the same budget."""

    DEVICE = "device"
    HOST = "host"


@attrs.frozen
class Component:
    """One part of a model's memory."""

    name: str
    place: Location
    size_bytes: int


@attrs.frozen
class Estimate:
    """The memory that a model needs, by part.

    Attributes:
        components: The parts, never negative.
        notes: Remarks for people about these figures, one sentence each.
        certain: False if something about the model is unknown; the figures are then high estimates.
        unlimited: The part that has no limit, with the fix; "" if each part has one.
    """

    components: tuple[Component, ...]
    notes: tuple[str, ...] = ()
    certain: bool = True
    unlimited: str = ""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(each.size_bytes for each in self.components)

    def bytes_in(self, place: Location) -> int:
        """Return the memory in one location."""
        return sum(each.size_bytes for each in self.components if each.place is place)


@attrs.frozen
class Demand:
    """The options of a command line that determine memory; the defaults are llama-server's.

    Attributes:
        context: Tokens of all slots together; 0 means the trained context.
        slots: Number of concurrent requests.
        unified_kv: One cache for all slots.
        batch: Tokens of a logical batch.
        ubatch: Tokens of a physical batch.
        cache_type_k: Type of the K cache, as on the command line (`q8_0`).
        cache_type_v: Type of the V cache.
        flash_attention: `on`, `off` or `auto`.
        device_layers: Layers on the device, with the output layer as one more; 0 keeps the model on the CPU.
        kv_offload: The cache of a layer is in the same memory as the layer; otherwise in host memory.
        swa_full: Sliding-window layers get a cache for the whole context.
        repack: Weights on the CPU may be repacked into a second buffer.
        machine: The CPU architecture, from `platform.machine()`; determines which types are repacked.
        mmap: The file is mapped into memory, not copied.
        cache_ram_bytes: Limit of the prompt cache; None for no limit.
        checkpoints: Maximum context checkpoints per slot.
        checkpoint_step: Minimum distance of two checkpoints, in tokens.
        embedding: The server serves only embeddings.
        overrides: Patterns of tensor names and their buffers; the first match wins.
        speculation: The methods of speculative decoding (`draft-mtp`, `ngram-mod`), in order.
        draft_path: The draft model's file.
        draft_device_layers: As `device_layers`, for the draft model.
        draft_context: Tokens of the draft model; 0 means as many as the model.
        draft: The draft model, after its header was read.
        adapters: The tensors of the LoRA adapters.
        devices: Names of the devices to use, separated by commas; "" for all.
        split_mode: Split of the model over several devices, as in llama.cpp; `none` uses one.
        main_gpu: Index of that one.
        tensor_split: Proportions of the devices, separated by commas; "" for those of their free memory.
        projector_path: The multimodal projector's file.
        projector: The multimodal projector, after its header was read.
        projector_on_device: Whether it is on the device.
        image_tokens: Vectors of the largest picture, for a projector of pictures of any size; 0 for its own limit.
    """

    context: int = 0
    slots: int = 1
    unified_kv: bool = False
    batch: int = 2048
    ubatch: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    device_layers: int = 0
    kv_offload: bool = True
    swa_full: bool = False
    repack: bool = True
    machine: str = "x86_64"
    mmap: bool = True
    cache_ram_bytes: int | None = DEFAULT_CACHE_RAM_BYTES
    checkpoints: int = 32
    checkpoint_step: int = 8192
    embedding: bool = False
    overrides: tuple[tuple[str, str], ...] = ()
    speculation: tuple[str, ...] = ()
    draft_path: str = ""
    draft_device_layers: int = 0
    draft_context: int = 0
    draft: Shape | None = None
    adapters: tuple[Tensor, ...] = ()
    devices: str = ""
    split_mode: str = ""
    main_gpu: int = 0
    tensor_split: str = ""
    projector_path: str = ""
    projector: Shape | None = None
    projector_on_device: bool = True
    image_tokens: int = 0
