"""Prometheus metrics of an agent, built from snapshots at scrape time, so that no series can be stale or leak."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from llmkube import __version__
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import Reservation, Role
from llmkube.supervisor.power.meter import PowerView
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.host_credential import CredentialState, HostCredential
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.weights.download.progress import Progress

PREFIX = "llmkube_metal_agent"
"""Prefix in the guide of the Go implementation, whose metrics keep their names."""

DOWNLOAD_PREFIX = "llmkube_download"

LABELS = ("namespace", "name")


Services = Callable[[], Mapping[Key, ServiceView]]
"""Returns all services that run on this host."""

PRESSURE: Final = {Level.UNKNOWN: -1, Level.NORMAL: 0, Level.WARNING: 1, Level.CRITICAL: 2}
"""Numbers of the Go implementation, and one for an unknown level."""


@attrs.frozen(eq=False)
class FamilyCollector(Collector):
    """Builds families from one snapshot at scrape time, so that they are consistent."""

    families: Callable[[], Iterable[Metric]]

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self.families()


def _gauge(name: str, text: str, labels: Sequence[str] = LABELS) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


def _counter(name: str, text: str, labels: Sequence[str] = LABELS) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


def _value(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def service_families(services: Services) -> Iterable[Metric]:
    """Yield metrics of engines and services, with one series per current service."""
    views = services()
    yield InfoMetricFamily(PREFIX, "The agent's version.", {"version": __version__})
    running = sum(view.pid is not None for view in views.values())
    yield _value("managed_processes", "Running engine processes.", running)
    healthy = _gauge("process_healthy", "1 while the engine is known to answer, else 0.")
    restarts = _counter("process_restarts", "Engines that failed, as opposed to being stopped by the agent.")
    state = _gauge("service_state", "1 for the current reason of the service.", (*LABELS, "reason"))
    engine = _gauge(
        "engine_info",
        "1 for the running engine: its runtime, build and weights format (unknown if an earlier release of the agent"
        " started it).",
        (*LABELS, "engine", "build", "format"),
    )
    for key, view in views.items():
        labels = (key.namespace, key.name)
        if view.pid is not None:
            engine.add_metric((*labels, view.engine, view.build or "unknown", view.weights_format or "unknown"), 1)
        healthy.add_metric(labels, float(view.ready))
        restarts.add_metric(labels, view.restarts)
        state.add_metric((*labels, str(view.reason)), 1)
    yield from (healthy, restarts, state, engine)


def download_families(downloads: Callable[[], Mapping[str, Progress]]) -> Iterable[Metric]:
    """Yield metrics of the running downloads, with one series per source; unknown values have none."""
    done, total, rate, remaining = (
        GaugeMetricFamily(f"{DOWNLOAD_PREFIX}_{name}", text, labels=("source",))
        for name, text in (
            ("bytes", "Downloaded bytes of the file."),
            ("total_bytes", "Size of the file."),
            ("bytes_per_second", "Recent download rate."),
            ("left_seconds", "Estimated seconds until the download is complete."),
        )
    )
    for source, progress in downloads().items():
        done.add_metric((source,), progress.done_bytes)
        if progress.total_bytes:
            total.add_metric((source,), progress.total_bytes)
        if progress.rate is not None:
            rate.add_metric((source,), progress.rate)
        if progress.seconds_left is not None:
            remaining.add_metric((source,), progress.seconds_left)
    yield from (done, total, rate, remaining)


def credential_families(credential: Callable[[], HostCredential]) -> Iterable[Metric]:
    """Yield the state of the host's credential, and its expiry if known."""
    current = credential()
    refused = current.state is CredentialState.REFUSED
    yield _value("credential_refused", "1 while the API server refuses the host's credential, else 0.", refused)
    if current.expires_at is not None:
        yield _value("credential_expiry_timestamp_seconds", "Expiry of the host's token.", current.expires_at)


def cordon_families(cordon: Callable[[], Cordon | None]) -> Iterable[Metric]:
    """Yield whether the host is cordoned, and the end of the cordon if it has one."""
    current = cordon()
    yield _value("cordoned", "1 while the host is cordoned by its owner, else 0.", current is not None)
    if current is not None and current.until is not None:
        yield _value("cordon_end_timestamp_seconds", "End of the cordon.", current.until.timestamp())


def memory_families(memory: Callable[[], MemoryView | None]) -> Iterable[Metric]:
    """Yield metrics of the host's memory; none while it is not watched."""
    view = memory()
    if view is None:
        return
    for name, text, value in (
        ("memory_budget_bytes", "Memory budget for all engines of this machine.", view.budget.limit_bytes),
        ("memory_free_bytes", "Memory that is available for one more model.", view.free_bytes),
        ("system_memory_bytes", "Total memory of this machine.", view.sample.total_bytes),
        ("system_memory_available_bytes", "Memory that is available to programs.", view.sample.available_bytes),
        ("memory_unreturned_bytes", "Memory that exited engines have left wired.", view.unreturned_bytes),
        ("memory_pressure_level", "0 normal, 1 warning, 2 critical, -1 unknown.", PRESSURE[view.level]),
    ):
        yield _value(name, text, value)
    yield from _memory_of_services(view)
    evictions = _counter("evictions", "Engines that were evicted.", ("cause",))
    for cause in Cause:  # 0 for one that has not happened yet; the same below
        evictions.add_metric((str(cause),), view.evictions.get(cause, 0))
    skips = _counter("evictions_skipped", "Number of times memory was short and no service was evicted.", ("reason",))
    for reason in Skip:
        skips.add_metric((str(reason),), view.skips.get(reason, 0))
    yield from (evictions, skips)


def _memory_of_services(view: MemoryView) -> Iterable[Metric]:
    estimated = _gauge("memory_estimated_bytes", "Estimated memory of the service.")
    reserved = _gauge("memory_reserved_bytes", "Memory that is reserved for the service, or used if that is more.")
    measured = _gauge("memory_measured_bytes", "Memory that the service's processes use.")
    error = _gauge("memory_estimate_error_ratio", "Relative difference of the service's peak memory from the estimate.")
    waiting = {each.key: each.need for each in view.requests}
    engines: dict[Key, list[Reservation]] = {key: [] for key in waiting}
    for each in view.reservations:
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


def power_families(power: Callable[[], PowerView]) -> Iterable[Metric]:
    """Yield power and energy of the host and its services; power without a recent measurement has no series.

    Energy is a counter, whose rate is exact at any scrape interval. The guide's dashboards use `apple_power`.
    """
    view = power()
    apple = view.source == "apple"
    if apple:
        for domain, watts in view.watts.items():
            yield _value(f"apple_power_{domain}_watts", "Power, estimated by macOS.", watts)
    else:
        drawn = _gauge("power_watts", "Power of this machine's processors.", ("domain",))
        for domain, watts in view.watts.items():
            drawn.add_metric((domain,), watts)
        yield drawn
    name = "apple_energy_joules" if apple else "energy_joules"
    energy = _counter(name, "Energy since the agent started.", ("domain",))
    for domain, joules in view.joules.items():
        energy.add_metric((domain,), joules)
    yield energy
    text = "1 for the reason why power is not measured now, or only in part."
    problem = _gauge("power_problem", text, ("reason",))
    if view.problem is not None:
        problem.add_metric((str(view.problem),), 1)
    service_power = _gauge("service_power_watts", "Power assigned to the service by its share of the work.")
    per_token = _gauge("service_joules_per_token", "Energy per token of the running engine.")
    total = _counter("service_energy_joules", "Energy assigned to the service by its share of the work.")
    for key, service in view.services.items():
        labels = (key.namespace, key.name)
        total.add_metric(labels, service.joules)
        if service.watts is not None:
            service_power.add_metric(labels, service.watts)
        if service.joules_per_token is not None:
            per_token.add_metric(labels, service.joules_per_token)
    yield from (problem, service_power, total, per_token)


def agent_registry(
    services: Services,
    downloads: Callable[[], Mapping[str, Progress]] = dict,
    memory: Callable[[], MemoryView | None] = lambda: None,
    power: Callable[[], PowerView] | None = None,
    credential: Callable[[], HostCredential] = HostCredential,
    *,
    cordon: Callable[[], Cordon | None] = lambda: None,
) -> CollectorRegistry:
    """Return a new registry with the metrics of the agent and its process."""
    registry = CollectorRegistry()
    for families in (
        partial(service_families, services),
        partial(memory_families, memory),
        partial(download_families, downloads),
        partial(credential_families, credential),
        partial(cordon_families, cordon),
        *([partial(power_families, power)] if power is not None else []),
    ):
        registry.register(FamilyCollector(families))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
