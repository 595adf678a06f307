"""The objects that wait to be reconciled: one queue of keys per kind."""

import random
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.k8s.resource import Key
from llmkube.k8s.workqueue import WorkQueue

RETRY: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)
"""Pauses after failures in a row; the cap is also how late a status may be once the API server is back."""


@attrs.frozen(eq=False)
class Queues:
    """One queue per kind that is reconciled."""

    models: WorkQueue[Key]
    services: WorkQueue[Key]
    slices: WorkQueue[Key]
    routers: WorkQueue[Key]

    @classmethod
    def empty(cls, rng: random.Random) -> "Queues":
        """Return empty queues."""
        return cls(new_queue(rng), new_queue(rng), new_queue(rng), new_queue(rng))


def new_queue(rng: random.Random) -> WorkQueue[Key]:
    """Return an empty queue whose failed keys come back after `RETRY`."""
    return WorkQueue(rng, RETRY)
