"""How much memory a launch is promised: the most that was estimated, reported or measured for it."""

from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.runtimes.process.host_runtimes import holds_elsewhere
from llmkube.supervisor.memory.learned import Figure
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.values.desired import Launch

GUESS_SHARE: Final = 1.2
GUESS_BYTES: Final = 512 << 20
"""What a file's size says about the memory that it needs: little, and too little for a long context."""


def need_of(launch: Launch, figure: Figure | None) -> Need:
    """Return how much a launch will take: the largest of what was estimated, reported and measured."""
    return attrs.evolve(_size_of(launch, figure), elsewhere=holds_elsewhere(launch.plan.runtime))


def _size_of(launch: Launch, figure: Figure | None) -> Need:
    estimate, known = launch.estimate, figure or Figure()
    seen_bytes = max(known.measured_bytes, known.reported_bytes)
    if estimate is not None:
        device = max(estimate.device_bytes, known.device_bytes)
        return Need(max(estimate.total_bytes, seen_bytes), device, estimated_bytes=estimate.total_bytes)
    if seen_bytes:
        return Need(seen_bytes, known.device_bytes)
    size = launch.weights.size_bytes
    why = f"neither the header of its file ({format_bytes(size)}) nor its command line says"
    return Need(int(size * GUESS_SHARE) + GUESS_BYTES, sized=False, why=why)
