"""Compute back-off delays from the number of failures; the caller sleeps."""

import random

import attrs


@attrs.frozen
class Backoff:
    """Delays that grow from `base_seconds` to `cap_seconds`, spread by `jitter` so that clients do not retry in step.

    With `jitter` 0.2, each delay is drawn uniformly from 80 to 100 per cent of its nominal value.
    """

    base_seconds: float = 1.0
    cap_seconds: float = 60.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after this number of consecutive failures (1 or more)."""
        exponent = min(max(failures, 1) - 1, 64)  # 2.0**1024 would overflow in a crash loop that lasts a year
        nominal = min(self.cap_seconds, self.base_seconds * self.factor**exponent)
        return nominal * (1 - self.jitter * rng.random())
