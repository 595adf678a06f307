"""What Prometheus may ask of an agent: read from the snapshot at scrape time, so nothing can drift or leak a series."""

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
"""The guide's prefix; the names before the first underscore-separated unit are the guide's as well."""

DOWNLOAD_PREFIX = "llmkube_download"

LABELS = ("namespace", "name")


Services = Callable[[], Mapping[Key, ServiceView]]
"""Returns every service that this host looks after."""

PRESSURE: Final = {Level.UNKNOWN: -1, Level.NORMAL: 0, Level.WARNING: 1, Level.CRITICAL: 2}
"""The original's numbers, and one for a level that is not known."""


@attrs.frozen(eq=False)
class FamilyCollector(Collector):
    """Build families from one snapshot at scrape time, so that they agree with each other."""

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
    """Yield figures of engines and services, one series per service that exists right now."""
    views = services()
    yield InfoMetricFamily(PREFIX, "The agent's version.", {"version": __version__})
    running = sum(view.pid is not None for view in views.values())
    yield _value("managed_processes", "Engine processes that run now.", running)
    healthy = _gauge("process_healthy", "1 while the engine is known to answer, else 0.")
    restarts = _counter("process_restarts", "Engines that ended without a request of the agent.")
    state = _gauge("service_state", "1 for the reason that the service is in now.", (*LABELS, "reason"))
    engine = _gauge(
        "engine_info",
        "1 for the engine that runs: its runtime, its build, and the format of its weights (unknown of one that an"
        " earlier release of the agent has started).",
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
    """Yield figures of the downloads that are under way, one series per source; what is not known has none."""
    done, total, rate, remaining = (
        GaugeMetricFamily(f"{DOWNLOAD_PREFIX}_{name}", text, labels=("source",))
        for name, text in (
            ("bytes", "Bytes of the file that are here."),
            ("total_bytes", "Bytes that the file has."),
            ("bytes_per_second", "Bytes that came per second over the last seconds."),
            ("left_seconds", "Seconds until it is here."),
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
    """Yield whether the API server lets the host in, and until when, where that is known."""
    now = credential()
    refused = now.state is CredentialState.REFUSED
    yield _value("credential_refused", "1 while the API server refuses the host's credential, else 0.", refused)
    if now.expires_at is not None:
        yield _value("credential_expiry_timestamp_seconds", "When the host's token ends.", now.expires_at)


def cordon_families(cordon: Callable[[], Cordon | None]) -> Iterable[Metric]:
    """Yield whether the host's owner has taken it back, and until when, where an end was said."""
    now = cordon()
    yield _value("cordoned", "1 while the host's owner has it serve nothing, else 0.", now is not None)
    if now is not None and now.until is not None:
        yield _value("cordon_end_timestamp_seconds", "When the host serves again.", now.until.timestamp())


def memory_families(memory: Callable[[], MemoryView | None]) -> Iterable[Metric]:
    """Yield figures of the host's memory; none while it is not watched.

    A cause or reason that has not happened yet is at 0.
    """
    view = memory()
    if view is None:
        return
    for name, text, value in (
        ("memory_budget_bytes", "What all engines of this host may take together.", view.budget.limit_bytes),
        ("memory_free_bytes", "What one more model could get now.", view.free_bytes),
        ("system_memory_bytes", "The host's memory.", view.sample.total_bytes),
        ("system_memory_available_bytes", "What programs could still take.", view.sample.available_bytes),
        ("memory_unreturned_bytes", "What stays wired of engines that have ended.", view.unreturned_bytes),
        ("memory_pressure_level", "0 normal, 1 warning, 2 critical, -1 unknown.", PRESSURE[view.level]),
    ):
        yield _value(name, text, value)
    yield from _memory_of_services(view)
    evictions = _counter("evictions", "Engines that had to give their memory back.", ("cause",))
    for cause in Cause:
        evictions.add_metric((str(cause),), view.evictions.get(cause, 0))
    skips = _counter("evictions_skipped", "Times when memory was short and no service was evicted.", ("reason",))
    for reason in Skip:
        skips.add_metric((str(reason),), view.skips.get(reason, 0))
    yield from (evictions, skips)


def _memory_of_services(view: MemoryView) -> Iterable[Metric]:
    estimated = _gauge("memory_estimated_bytes", "What the service was expected to take.")
    reserved = _gauge("memory_reserved_bytes", "What it has been promised, or takes if that is more.")
    measured = _gauge("memory_measured_bytes", "What its processes hold.")
    error = _gauge("memory_estimate_error_ratio", "By how much the most that it has held differs from the estimate.")
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
    """Yield what the host draws, and for which service; a power without a recent measurement has no series.

    Energy is a counter, whose rate is right however seldom one asks. The guide's dashboards ask for `apple_power`.
    """
    view = power()
    apple = view.source == "apple"
    if apple:
        for domain, watts in view.watts.items():
            yield _value(f"apple_power_{domain}_watts", "What it draws, estimated by macOS.", watts)
    else:
        drawn = _gauge("power_watts", "What the host's processors draw.", ("domain",))
        for domain, watts in view.watts.items():
            drawn.add_metric((domain,), watts)
        yield drawn
    name = "apple_energy_joules" if apple else "energy_joules"
    energy = _counter(name, "What it has drawn since the agent began.", ("domain",))
    for domain, joules in view.joules.items():
        energy.add_metric((domain,), joules)
    yield energy
    why = "1 for the reason why no power is measured now, or a part of it is not."
    problem = _gauge("power_problem", why, ("reason",))
    if view.problem is not None:
        problem.add_metric((str(view.problem),), 1)
    service_power = _gauge("service_power_watts", "What the chip draws for the service, by its share of the work.")
    per_token = _gauge("service_joules_per_token", "What a token has taken of the engine that runs now.")
    total = _counter("service_energy_joules", "What the chip has drawn for the service.")
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
    """Return a registry of its own: figures of agent, memory, credential, cordon, downloads, its process."""
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
