"""What llama.cpp says that it has allocated, `… buffer size = N MiB`, as components; and what its GPU may hold.

The lines are there at `--verbosity 4`. A model that is loaded again after a sleep writes them again: hand `reported`
the lines of one load.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from llmkube.weights.estimate.demand import Component, Place

_LINE: Final = re.compile(
    r"\b(?P<buffer>[A-Za-z][\w.-]*)\s+(?P<kind>model|KV|RS|compute|output|DSV4 \w+ state) buffer size\s*=\s*"
    r"(?P<size>\d{1,12}(?:\.\d{1,6})?) MiB",
    re.ASCII,
)
_NAMES: Final[Mapping[str, str]] = {
    "model": "weights",
    "KV": "KV cache",
    "RS": "recurrent state",
    "compute": "compute buffer",
    "output": "output buffer",
}
_DEVICE_LIMIT: Final = re.compile(r"recommendedMaxWorkingSetSize\s*=\s*(?P<size>\d{1,9}(?:\.\d{1,6})?) MB", re.ASCII)
_ON_HOST: Final = re.compile(r"CPU(_\w+)?|BLAS|\w+_Host")


def parse_buffer(line: str) -> Component | None:
    """Return the buffer that a line of the log reports, if it reports one.

    `CPU`, `CPU_Mapped`, `CPU_REPACK` and pinned memory (`CUDA_Host`) are the host's; all others are a device's, mapped
    ones on a Mac (`MTL0_Mapped`) included.
    """
    found = _LINE.search(line)
    if found is None:
        return None
    buffer, kind = found["buffer"], found["kind"]
    name = "repacked weights" if buffer.endswith("_REPACK") else _NAMES.get(kind, "recurrent state")
    place = Place.HOST if _ON_HOST.fullmatch(buffer) else Place.DEVICE
    return Component(name, place, round(float(found["size"]) * (1 << 20)))


def device_limit(lines: Iterable[str]) -> int | None:
    """Return what Metal has told an engine that its GPU may hold, in bytes: ggml writes it with millions of them."""
    found = [size for line in lines if (said := _DEVICE_LIMIT.search(line)) and (size := float(said["size"]))]
    return round(max(found) * 1_000_000) if found else None


def reported(lines: Iterable[str]) -> tuple[Component, ...]:
    """Add up the buffers that these lines report, by name and place, in the order of their first mention."""
    sizes: dict[tuple[str, Place], int] = {}
    for line in lines:
        if (buffer := parse_buffer(line)) is not None:
            key = buffer.name, buffer.place
            sizes[key] = sizes.get(key, 0) + buffer.size_bytes
    return tuple(Component(name, place, size) for (name, place), size in sizes.items())
