"""How many requests an engine has, read off its metrics (Prometheus' text format). Pure."""

from collections.abc import Iterable


def requests_in_flight(metrics: str, names: Iterable[str]) -> float | None:
    """Return what an engine's metrics of its requests add up to; None where one of them is missing or no number.

    Args:
        metrics: What the engine exports.
        names: The metrics that are 0 while it has no request (`ContainerPlan.busy_metrics`).
    """
    total, lines = 0.0, metrics.splitlines()
    for name in names:
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        try:
            total += sum(float(line[len(name) :].rpartition("}")[2].split()[0]) for line in found)
        except (ValueError, IndexError):
            return None
        if not found:
            return None
    return total
