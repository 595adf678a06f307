"""How often and how long the controller worked, and how it ended; names as in the reference, prefix `llmkube_`."""

from typing import Literal

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram

Result = Literal["success", "retry", "error"]
"""`retry`: the world said no for now; `error`: our bug, or a server that refuses what we wrote."""

_DURATION_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)


@attrs.define(eq=False)
class ReconcileMetrics:
    """Count reconciles by controller and result, and time them in seconds."""

    total: Counter
    duration_seconds: Histogram

    @classmethod
    def on(cls, registry: CollectorRegistry) -> "ReconcileMetrics":
        """Register the series.

        Raises:
            ValueError: The registry already has them; one controller per registry.
        """
        return cls(
            total=Counter(
                "llmkube_reconcile_total",
                "Reconciles by controller and result.",
                ["controller", "result"],
                registry=registry,
            ),
            duration_seconds=Histogram(
                "llmkube_reconcile_duration_seconds",
                "Seconds per reconcile, by controller.",
                ["controller"],
                buckets=_DURATION_BUCKETS,
                registry=registry,
            ),
        )

    def observe(self, controller: str, result: Result, seconds: float) -> None:
        """Count one reconcile."""
        self.total.labels(controller, result).inc()
        self.duration_seconds.labels(controller).observe(seconds)
