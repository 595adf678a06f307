"""What Prometheus may ask of an agent: read from the snapshot at scrape time, so nothing can drift or leak a series."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from llmkube import __version__
from llmkube.k8s.resource import Key
from llmkube.supervisor.lifecycle import ServiceView
from llmkube.weights.progress import Progress

PREFIX = "llmkube_metal_agent"
"""The guide's prefix; the names before the first underscore-separated unit are the guide's as well."""

DOWNLOAD_PREFIX = "llmkube_download"

LABELS = ("namespace", "name")


class Snapshot(Protocol):
    """Where the figures come from."""

    def services(self) -> dict[Key, ServiceView]:
        """Every service that this host looks after."""
        ...


@attrs.define(eq=False)
class AgentCollector(Collector):
    """Gauges and counters of one agent, one series per service that exists right now."""

    snapshot: Snapshot

    def collect(self) -> Iterable[Metric]:
        """Build the families from one snapshot, so that they agree with each other."""
        services = self.snapshot.services()
        yield InfoMetricFamily(PREFIX, "The agent's version.", {"version": __version__})
        running = sum(view.pid is not None for view in services.values())
        yield GaugeMetricFamily(f"{PREFIX}_managed_processes", "Engine processes that run now.", running)
        healthy = GaugeMetricFamily(
            f"{PREFIX}_process_healthy", "1 while the engine is known to answer, else 0.", labels=LABELS
        )
        restarts = CounterMetricFamily(
            f"{PREFIX}_process_restarts", "Engines that ended although nobody asked them to.", labels=LABELS
        )
        state = GaugeMetricFamily(
            f"{PREFIX}_service_state", "1 for the reason that the service is in now.", labels=(*LABELS, "reason")
        )
        for key, view in services.items():
            labels = (key.namespace, key.name)
            healthy.add_metric(labels, float(view.ready))
            restarts.add_metric(labels, view.restarts)
            state.add_metric((*labels, str(view.reason)), 1)
        yield from (healthy, restarts, state)


@attrs.define(eq=False)
class DownloadCollector(Collector):
    """Gauges of the downloads that are under way, one series per source; a finished one has none."""

    downloads: Callable[[], Mapping[str, Progress]]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one snapshot; what nobody knows yet has no series."""
        labels = ("source",)
        here = GaugeMetricFamily(f"{DOWNLOAD_PREFIX}_bytes", "Bytes of the file that are here.", labels=labels)
        total = GaugeMetricFamily(f"{DOWNLOAD_PREFIX}_total_bytes", "Bytes that the file has.", labels=labels)
        rate = GaugeMetricFamily(
            f"{DOWNLOAD_PREFIX}_bytes_per_second", "Bytes that came per second over the last seconds.", labels=labels
        )
        left = GaugeMetricFamily(f"{DOWNLOAD_PREFIX}_left_seconds", "Seconds until it is here.", labels=labels)
        for source, progress in self.downloads().items():
            here.add_metric((source,), progress.done_bytes)
            if progress.total_bytes:
                total.add_metric((source,), progress.total_bytes)
            if progress.rate is not None:
                rate.add_metric((source,), progress.rate)
            if progress.seconds_left is not None:
                left.add_metric((source,), progress.seconds_left)
        yield from (here, total, rate, left)


def agent_registry(snapshot: Snapshot, downloads: Callable[[], Mapping[str, Progress]] = dict) -> CollectorRegistry:
    """Return a registry of its own with the agent's figures, its downloads' and those of its Python process."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(snapshot))
    registry.register(DownloadCollector(downloads))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
