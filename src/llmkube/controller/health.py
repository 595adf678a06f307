"""Health of the controller: kinds that it cannot list, why, and with what effect; all else works without them."""

from collections.abc import Iterator
from typing import Any, Final

import attrs
from prometheus_client.core import GaugeMetricFamily

from llmkube.k8s.reflector import Cache

NOTHING_WORKS: Final = "Models and InferenceServices are not reconciled"
PODS_WAIT: Final = "services in pods and their status are not updated"
ROUTERS_WAIT: Final = "routers in pods and their status are not updated"
HOSTS_WAIT: Final = "the status of services on hosts is not updated"
FETCHES_WAIT: Final = "no weights are fetched for Models in pods, and their status is not updated"


@attrs.frozen(eq=False)
class WatchedKind:
    """A kind that the controller watches.

    Attributes:
        name: The kind in messages, such as "Deployments".
        effect: Effect of the missing list, for messages; it ends once the kind has been listed.
    """

    name: str
    effect: str
    cache: Cache[Any]

    @property
    def problem(self) -> str:
        """The kind that cannot be listed, the effect and the reason; empty if the last list succeeded."""
        if not self.cache.refusal:
            return ""
        effect = "changes to them are not seen" if self.cache.synced.is_set() else self.effect
        return f"cannot list {self.name}: {effect} ({self.cache.refusal})"


@attrs.define(eq=False)
class ControllerHealth:
    """Health of the controller, for `/readyz` and the metrics.

    Attributes:
        kinds: Watched kinds; empty while another controller holds the Lease.
        acting: Whether it reconciles.
    """

    kinds: tuple[WatchedKind, ...] = ()
    acting: bool = False

    def ready(self) -> tuple[bool, str]:
        """Return whether the controller works or could take over, and its state with the kinds that it cannot list."""
        lacks = [problem for kind in self.kinds if (problem := kind.problem)]
        does_nothing = any(kind.effect == NOTHING_WORKS and not kind.cache.synced.is_set() for kind in self.kinds)
        state = "acting" if self.acting else "starting" if self.kinds else "standing by"
        return not (lacks and does_nothing), "; ".join((state, *lacks))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe the series."""
        yield _family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Report for each kind whether its last list failed."""
        family = _family()
        for kind in self.kinds:
            family.add_metric([kind.name], bool(kind.cache.refusal))
        yield family


def _family() -> GaugeMetricFamily:
    about = "1 for a kind that the controller cannot list; /readyz shows the reason and the effect."
    return GaugeMetricFamily("llmkube_controller_kind_unlisted", about, labels=["kind"])
