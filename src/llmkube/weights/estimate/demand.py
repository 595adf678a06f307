"""The two ends of an estimate: what a command line asks for, and what it comes to, part by part."""

import enum
from typing import Final

import attrs

from llmkube.weights.formats.shape import Shape

DEFAULT_CACHE_RAM_BYTES: Final = 8192 << 20
"""llama-server's default limit of the prompt cache."""

ALL_LAYERS: Final = 1 << 16
"""More layers than any model has: `all` of them."""


class Location(enum.StrEnum):
    """Where bytes are; on a machine with unified memory both count against the same budget."""

    DEVICE = "device"
    HOST = "host"


@attrs.frozen
class Component:
    """One part of what a model needs."""

    name: str
    place: Location
    size_bytes: int


@attrs.frozen
class Estimate:
    """What a model needs, part by part.

    Attributes:
        components: The parts; none of them is negative.
        notes: What a person should know about these figures, one sentence each.
        certain: False if something about the model is unknown; the figures are then on the high side.
    """

    components: tuple[Component, ...]
    notes: tuple[str, ...] = ()
    certain: bool = True

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return sum(each.size_bytes for each in self.components)

    @property
    def device_bytes(self) -> int:
        """What the device holds."""
        return self._bytes_in(Location.DEVICE)

    @property
    def host_bytes(self) -> int:
        """What the host's processor holds."""
        return self._bytes_in(Location.HOST)

    def _bytes_in(self, place: Location) -> int:
        return sum(each.size_bytes for each in self.components if each.place is place)


@attrs.frozen
class Demand:
    """What a command line asks for; defaults are llama-server's own.

    Attributes:
        context: Tokens of all slots together; 0 is what the model was trained for.
        slots: Requests served at the same time.
        unified_kv: One cache for all slots.
        batch: Tokens of a logical batch.
        ubatch: Tokens of a physical batch.
        cache_type_k: Type of the K cache, as on the command line (`q8_0`).
        cache_type_v: Type of the V cache.
        flash_attention: `on`, `off` or `auto`.
        device_layers: Layers on the device, the output layer counted as one more; 0 keeps the model on the processor.
        kv_offload: The cache of a layer lies where the layer is; else in host memory.
        swa_full: Sliding-window layers get a cache for the whole context.
        repack: Weights on the processor may be laid out anew in a second buffer.
        machine: The processor's kind, as `platform.machine()` says; decides which types are repacked.
        mmap: The file is mapped into memory and not copied.
        cache_ram_bytes: Limit of the prompt cache; None for no limit.
        checkpoints: Most context checkpoints of a slot.
        embedding: The server answers with embeddings only.
        overrides: Pattern of tensor names and the buffer that they are to be in, the first match wins.
        speculation: Who guesses ahead (`draft-mtp`, `ngram-mod`), in the order of the command line.
        draft_path: The draft model's file.
        draft_device_layers: As `device_layers`, for the draft model.
        draft: The draft model itself, once its header was read.
        projector_path: The multimodal projector's file.
        projector_bytes: Its size, once it is known.
        projector_on_device: Whether it lies on the device.
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
    embedding: bool = False
    overrides: tuple[tuple[str, str], ...] = ()
    speculation: tuple[str, ...] = ()
    draft_path: str = ""
    draft_device_layers: int = 0
    draft: Shape | None = None
    projector_path: str = ""
    projector_bytes: int | None = None
    projector_on_device: bool = True
