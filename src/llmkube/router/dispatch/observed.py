"""What requests have shown of the backends, for the decisions about the next ones. Pure."""

from collections import Counter
from typing import Final

import attrs

_NEWEST_SHARE: Final = 0.2


@attrs.define(eq=False)
class Observed:
    """What was seen of the backends.

    Attributes:
        in_flight: Requests under way, those in a queue among them, by the backend's name.
        first_byte_seconds: Time to the first byte, by the backend's name: a mean in which the newest counts a fifth.
    """

    in_flight: Counter[str] = attrs.field(factory=Counter)
    first_byte_seconds: dict[str, float] = attrs.field(factory=dict)

    def began(self, backend: str, seconds: float) -> None:
        """Note how long a backend took to begin its answer."""
        before = self.first_byte_seconds.get(backend, seconds)
        self.first_byte_seconds[backend] = before + _NEWEST_SHARE * (seconds - before)
