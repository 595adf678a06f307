"""Say which kinds the controller cannot list, why, and what that costs; everything else goes on without them."""

from collections.abc import Iterator
from typing import Any, Final

import attrs
from prometheus_client.core import GaugeMetricFamily

from llmkube.k8s.reflector import Cache

NOTHING_WORKS: Final = "no Model and no InferenceService is reconciled"
PODS_WAIT: Final = "services in pods stay as they are, with the status that they have"
ROUTERS_WAIT: Final = "routers in pods stay as they are, with the status that they have"
HOSTS_WAIT: Final = "what hosts serve keeps the status that it has"
FETCHES_WAIT: Final = "no weights are fetched for Models in pods, and those keep the status that they have"


@attrs.frozen(eq=False)
class FollowedKind:
    """One collection that the controller follows.

    Attributes:
        name: What it holds.
        cost: What does not happen until it has been listed once.
        cache: Its objects.
    """

    name: str
    cost: str
    cache: Cache[Any]

    @property
    def sentence(self) -> str:
        """What cannot be listed, why, and what it costs; empty while the last list has succeeded."""
        if not self.cache.refusal:
            return ""
        cost = "changes of them are not seen" if self.cache.synced.is_set() else self.cost
        return f"cannot list {self.name}: {cost} ({self.cache.refusal})"


@attrs.define(eq=False)
class ControllerHealth:
    """What `/readyz` and the metrics say; one that stands by follows nothing.

    Attributes:
        kinds: What the controller follows while it acts, or is about to.
        acting: Whether it reconciles.
    """

    kinds: tuple[FollowedKind, ...] = ()
    acting: bool = False

    def ready(self) -> tuple[bool, str]:
        """Whether the controller does its work, or could take it over, and what it lacks."""
        lacks = [sentence for kind in self.kinds if (sentence := kind.sentence)]
        does_nothing = any(kind.cost == NOTHING_WORKS and not kind.cache.synced.is_set() for kind in self.kinds)
        state = "acting" if self.acting else "starting" if self.kinds else "standing by"
        return not (lacks and does_nothing), "; ".join((state, *lacks))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the series without looking at any kind."""
        yield _family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Say of each kind whether its last list has failed."""
        family = _family()
        for kind in self.kinds:
            family.add_metric([kind.name], bool(kind.cache.refusal))
        yield family


def _family() -> GaugeMetricFamily:
    about = "1 for a kind that the controller cannot list; /readyz says why and what it costs."
    return GaugeMetricFamily("llmkube_controller_kind_unlisted", about, labels=["kind"])
