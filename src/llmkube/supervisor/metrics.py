"""What Prometheus may ask of an agent: read from the snapshot at scrape time, so nothing can drift or leak a series."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from llmkube import __version__
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import Reservation, Role
from llmkube.supervisor.memory.view import MemoryView
from llmkube.supervisor.nouns.cordon import Cordon
from llmkube.supervisor.nouns.host_credential import CredentialState, HostCredential
from llmkube.supervisor.nouns.lifecycle import ServiceView
from llmkube.supervisor.power.meter import PowerView
from llmkube.weights.download.progress import Progress

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
            f"{PREFIX}_process_restarts", "Engines that ended without a request of the agent.", labels=LABELS
        )
        state = GaugeMetricFamily(
            f"{PREFIX}_service_state", "1 for the reason that the service is in now.", labels=(*LABELS, "reason")
        )
        engine = GaugeMetricFamily(
            f"{PREFIX}_engine_info",
            "1 for the engine that runs: its runtime, its build, and the format of its weights (unknown of one that an"
            " earlier release of the agent has started).",
            labels=(*LABELS, "engine", "build", "format"),
        )
        for key, view in services.items():
            labels = (key.namespace, key.name)
            if view.pid is not None:
                engine.add_metric((*labels, view.engine, view.build or "unknown", view.weights_format or "unknown"), 1)
            healthy.add_metric(labels, float(view.ready))
            restarts.add_metric(labels, view.restarts)
            state.add_metric((*labels, str(view.reason)), 1)
        yield from (healthy, restarts, state, engine)


@attrs.define(eq=False)
class DownloadCollector(Collector):
    """Gauges of the downloads that are under way, one series per source; a finished one has none."""

    downloads: Callable[[], Mapping[str, Progress]]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one snapshot; what is not known yet has no series."""
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


@attrs.define(eq=False)
class CredentialCollector(Collector):
    """Whether the API server lets the host in, and until when, where that is known."""

    credential: Callable[[], HostCredential]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one value."""
        now = self.credential()
        refused = now.state is CredentialState.REFUSED
        yield GaugeMetricFamily(
            f"{PREFIX}_credential_refused", "1 while the API server refuses the host's credential, else 0.", refused
        )
        if now.expires_at is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}_credential_expiry_timestamp_seconds", "When the host's token ends.", now.expires_at
            )


@attrs.define(eq=False)
class CordonCollector(Collector):
    """Whether the host's owner has taken it back, and until when, where an end was said."""

    cordon: Callable[[], Cordon | None]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one value."""
        now = self.cordon()
        yield GaugeMetricFamily(
            f"{PREFIX}_cordoned", "1 while the host's owner has it serve nothing, else 0.", now is not None
        )
        if now is not None and now.until is not None:
            end = now.until.timestamp()
            yield GaugeMetricFamily(f"{PREFIX}_cordon_end_timestamp_seconds", "When the host serves again.", end)


PRESSURE: Final = {Level.UNKNOWN: -1, Level.NORMAL: 0, Level.WARNING: 1, Level.CRITICAL: 2}
"""The original's numbers, and one for a level that is not known."""


@attrs.define(eq=False)
class MemoryCollector(Collector):
    """Figures of the host's memory; none while memory is not watched."""

    memory: Callable[[], MemoryView | None]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one snapshot; a cause or reason that has not happened yet is at 0."""
        seen = self.memory()
        if seen is None:
            return
        for name, text, value in (
            ("memory_budget_bytes", "What all engines of this host may take together.", seen.budget.limit_bytes),
            ("memory_free_bytes", "What one more model could get now.", seen.free_bytes),
            ("system_memory_bytes", "The host's memory.", seen.sample.total_bytes),
            ("system_memory_available_bytes", "What programs could still take.", seen.sample.available_bytes),
            ("memory_unreturned_bytes", "What stays wired of engines that have ended.", seen.unreturned_bytes),
            ("memory_pressure_level", "0 normal, 1 warning, 2 critical, -1 unknown.", PRESSURE[seen.level]),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
        yield from self._services(seen)
        evictions = CounterMetricFamily(
            f"{PREFIX}_evictions", "Engines that had to give their memory back.", labels=("cause",)
        )
        for cause in Cause:
            evictions.add_metric((str(cause),), seen.evictions.get(cause, 0))
        skips = CounterMetricFamily(
            f"{PREFIX}_evictions_skipped", "Times when memory was short and no service was evicted.", labels=("reason",)
        )
        for reason in Skip:
            skips.add_metric((str(reason),), seen.skips.get(reason, 0))
        yield from (evictions, skips)

    def _services(self, seen: MemoryView) -> Iterable[Metric]:
        estimated, reserved, measured, error = (
            GaugeMetricFamily(f"{PREFIX}_memory_{name}", text, labels=LABELS)
            for name, text in (
                ("estimated_bytes", "What the service was expected to take."),
                ("reserved_bytes", "What it has been promised, or takes if that is more."),
                ("measured_bytes", "What its processes hold."),
                ("estimate_error_ratio", "By how much the most that it has held differs from the estimate."),
            )
        )
        waiting = {each.key: each.need for each in seen.requests}
        engines: dict[Key, list[Reservation]] = {key: [] for key in waiting}
        for each in seen.reservations:
            engines.setdefault(each.key, []).append(each)
        for key, held in sorted(engines.items()):
            held.sort(key=lambda each: each.role is not Role.SERVING)
            labels, need = (key.namespace, key.name), held[0].need if held else waiting[key]
            reserved.add_metric(labels, sum(each.total_bytes for each in held))
            if need.estimated_bytes:
                estimated.add_metric(labels, need.estimated_bytes)
            if resident := sum(each.resident_bytes for each in held):
                measured.add_metric(labels, resident)
            if need.estimated_bytes and held and held[0].peak_bytes:
                error.add_metric(labels, held[0].peak_bytes / need.estimated_bytes - 1)
        yield from (estimated, reserved, measured, error)


@attrs.define(eq=False)
class PowerCollector(Collector):
    """What the host draws, and for which service; energy is a counter, whose rate is right however seldom one asks."""

    power: Callable[[], PowerView]

    def collect(self) -> Iterable[Metric]:
        """Build the families from one view; a power without a recent measurement has no series."""
        seen = self.power()
        yield from self._of_apple(seen) if seen.source == "apple" else self._of_others(seen)
        problem = GaugeMetricFamily(
            f"{PREFIX}_power_problem",
            "1 for the reason why no power is measured now, or a part of it is not.",
            labels=("reason",),
        )
        if seen.problem is not None:
            problem.add_metric((str(seen.problem),), 1)
        watts, per_token = (
            GaugeMetricFamily(f"{PREFIX}_service_{name}", text, labels=LABELS)
            for name, text in (
                ("power_watts", "What the chip draws for the service, by its share of the work."),
                ("joules_per_token", "What a token has taken of the engine that runs now."),
            )
        )
        joules = CounterMetricFamily(
            f"{PREFIX}_service_energy_joules", "What the chip has drawn for the service.", labels=LABELS
        )
        for key, service in seen.services.items():
            labels = (key.namespace, key.name)
            joules.add_metric(labels, service.joules)
            if service.watts is not None:
                watts.add_metric(labels, service.watts)
            if service.joules_per_token is not None:
                per_token.add_metric(labels, service.joules_per_token)
        yield from (problem, watts, joules, per_token)

    def _of_apple(self, seen: PowerView) -> Iterable[Metric]:
        """Yield what the guide's dashboards ask for."""
        for domain, watts in seen.watts.items():
            yield GaugeMetricFamily(f"{PREFIX}_apple_power_{domain}_watts", "What it draws, estimated by macOS.", watts)
        yield _energy(f"{PREFIX}_apple_energy_joules", seen)

    def _of_others(self, seen: PowerView) -> Iterable[Metric]:
        power = GaugeMetricFamily(f"{PREFIX}_power_watts", "What the host's processors draw.", labels=("domain",))
        for domain, watts in seen.watts.items():
            power.add_metric((domain,), watts)
        yield power
        yield _energy(f"{PREFIX}_energy_joules", seen)


def _energy(name: str, seen: PowerView) -> CounterMetricFamily:
    energy = CounterMetricFamily(name, "What it has drawn since the agent began.", labels=("domain",))
    for domain, joules in seen.joules.items():
        energy.add_metric((domain,), joules)
    return energy


def agent_registry(
    snapshot: Snapshot,
    downloads: Callable[[], Mapping[str, Progress]] = dict,
    memory: Callable[[], MemoryView | None] = lambda: None,
    power: Callable[[], PowerView] | None = None,
    credential: Callable[[], HostCredential] = HostCredential,
    *,
    cordon: Callable[[], Cordon | None] = lambda: None,
) -> CollectorRegistry:
    """Return a registry of its own: figures of agent, memory, credential, cordon, downloads, its process."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(snapshot))
    registry.register(MemoryCollector(memory))
    registry.register(DownloadCollector(downloads))
    registry.register(CredentialCollector(credential))
    registry.register(CordonCollector(cordon))
    if power is not None:
        registry.register(PowerCollector(power))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
