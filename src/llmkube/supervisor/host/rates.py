"""How fast a counter of the kernel grows. Pure."""

import attrs


@attrs.frozen
class Count:
    """A counter at a moment of the monotonic clock."""

    value: int
    at_seconds: float


def per_second(before: Count | None, now: Count) -> float:
    """Return the growth between two looks; 0.0 for the first, for two at once, and for a counter that began anew."""
    if before is None or now.at_seconds <= before.at_seconds or now.value < before.value:
        return 0.0
    return (now.value - before.value) / (now.at_seconds - before.at_seconds)
