"""Power and energy of a host: the newest sample, the energy since the start, and its attribution to services.

A sample is a mean over its own duration, so its energy is exact. Samples may get lost: a short gap between two samples
is filled with their mean (trapezoidal rule), a long one is unknown. All times are of the monotonic clock, which pauses
while the machine sleeps: a sample never covers more time than has passed on that clock.

Energy is attributed to engines by their processor time. The rules for one interval:

* An engine works if its process used at least `WORKING_SHARE` of a core. While no engine works, energy is not
  attributed.
* The energy of the GPU and the neural engine is divided among the working engines: no kernel reports GPU time by
  process without root. An engine encodes each batch on the CPU, so one that computes more uses more processor time.
* Of all other energy (cores, package, memory), an engine gets its share of the processor time of *all* programs, so
  that a compiler's energy is not attributed to a model.

Idle power of the host is included: it is attributed to the engines that work.
"""

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import psutil
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.power.sample import COMBINED, STALE_SECONDS, PowerProblem, PowerSample, without_stalled
from llmkube.supervisor.power.token_energy import TokenCount, TokenEnergy

MAX_GAP_SECONDS: Final = STALE_SECONDS
"""Longest gap between samples that is filled."""

WORKING_SHARE: Final = 0.01
"""Share of one core; answering health checks costs less (`values.liveness.ALIVE_CPU_SHARE`)."""

EXCLUSIVE_DOMAINS: Final = frozenset({"gpu", "ane"})
"""The domains that are assumed to be used by engines only."""

IDLE: Final = frozenset({"idle", "iowait", "guest", "guest_nice", "steal"})
"""Times that are not work of this machine's programs, or are included in another one (proc_stat(5))."""


@attrs.frozen
class Point:
    """The end of the integral: the newest sample, and when it ended."""

    at: float
    watts: Mapping[str, float]


@attrs.frozen
class Interval:
    """The energy between two points.

    Attributes:
        joules: By domain, without the sum.
        measured_seconds: The time for which they are known.
    """

    joules: Mapping[str, float]
    measured_seconds: float


def integrate(before: Point | None, sample: PowerSample, now: float) -> tuple[Point, Interval]:
    """Return the new point and the energy since the previous one.

    Args:
        before: The previous point; None for the first sample.
        sample: A sample that ends now.
        now: Monotonic time in seconds.
    """
    elapsed = min(sample.seconds, MAX_GAP_SECONDS) if before is None else max(0.0, now - before.at)
    covered = min(sample.seconds, elapsed)
    gap = elapsed - covered
    filled = gap if gap <= MAX_GAP_SECONDS else 0.0
    earlier = sample.watts if before is None else before.watts
    joules = {
        domain: watts * covered + (earlier.get(domain, watts) + watts) / 2 * filled
        for domain, watts in sample.watts.items()
        if domain != COMBINED
    }
    return Point(now, sample.watts), Interval(joules, covered + filled)


def share(
    joules: Mapping[str, float], cpu_seconds: Mapping[Key, float], *, host_cpu_seconds: float, seconds: float
) -> dict[Key, float]:
    """Return the joules of each working engine; their sum never exceeds the energy of the interval.

    Args:
        joules: Energy in the interval, by domain.
        cpu_seconds: Processor time of each engine in it.
        host_cpu_seconds: Processor time of all programs in it, including engines.
        seconds: Length of the interval.
    """
    working = {key: used for key, used in cpu_seconds.items() if used > 0 and used >= WORKING_SHARE * seconds}
    engines = sum(working.values())
    if not engines:
        return {}
    total_seconds = max(engines, host_cpu_seconds)
    exclusive = sum(each for domain, each in joules.items() if domain in EXCLUSIVE_DOMAINS)
    shared = sum(each for domain, each in joules.items() if domain not in EXCLUSIVE_DOMAINS)
    return {key: used / engines * exclusive + used / total_seconds * shared for key, used in working.items()}


class CpuTime:
    """Processor time on this machine, in seconds."""

    def of_process(self, pid: int) -> float | None:
        """Return the processor time of a process since its start; None if it has exited or cannot be read."""
        try:
            times = psutil.Process(pid).cpu_times()
        except (psutil.Error, OSError):
            return None
        return float(times.user + times.system)

    def of_host(self) -> float:
        """Return the processor time of all programs since boot; 0.0 if it cannot be read."""
        try:
            times = psutil.cpu_times()._asdict()
        except (OSError, RuntimeError):
            return 0.0
        return float(sum(seconds for name, seconds in times.items() if name not in IDLE))


NOTHING: Final = Interval({}, 0.0)


@attrs.frozen
class EngineUse:
    """The engine of a service: its process (None while none runs), and its newest token count."""

    pid: int | None = None
    tokens: TokenCount | None = None


@attrs.frozen
class ServicePower:
    """Power and energy of one service; `watts` and `joules_per_token` are None if they are not known now."""

    watts: float | None
    joules: float
    joules_per_token: float | None


@attrs.frozen
class PowerView:
    """Power and energy at one moment; only energy if the newest sample is older than `STALE_SECONDS`.

    Attributes:
        watts: By domain.
        joules: By domain, since the start of the agent.
        services: By key.
        problem: Why nothing is measured, or a domain is missing; None if everything is measured.
        source: The source's name; selects the metric names.
    """

    watts: Mapping[str, float] = attrs.field(factory=dict)
    joules: Mapping[str, float] = attrs.field(factory=dict)
    services: Mapping[Key, ServicePower] = attrs.field(factory=dict)
    problem: PowerProblem | None = None
    source: str = "apple"


@attrs.frozen
class _Use:
    """One engine at the newest sample."""

    pid: int
    cpu_seconds: float


@attrs.define(eq=False)
class PowerMeter:
    """Integrate the samples of a source, and attribute their energy to engines.

    Attributes:
        source: The source's name; selects the metric names.
        domains: Measured domains; the energy of each starts at zero.
        engines: Returns the services of this host, each with its engine.
        cpu_time: Reads processor time.
    """

    source: str
    domains: tuple[str, ...]
    engines: Callable[[], Mapping[Key, EngineUse]]
    cpu_time: CpuTime = CpuTime()
    _point: Point | None = None
    _interval: Interval = NOTHING
    _problem: PowerProblem | None = None
    _stalled: bool = False
    _joules: dict[str, float] = attrs.field(init=False)
    _host_cpu_seconds: float = 0.0
    _uses: dict[Key, _Use] = attrs.field(factory=dict)
    _last_joules: dict[Key, float] = attrs.field(factory=dict)  # the joules of the newest interval
    _total_joules: dict[Key, float] = attrs.field(factory=dict)
    _per_token: dict[Key, TokenEnergy] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._joules = dict.fromkeys(self.domains, 0.0)

    def take(self, sample: PowerSample) -> None:
        """Add a sample that ends now."""
        now, before, host = trio.current_time(), self._point, self.cpu_time.of_host()
        host_used, self._host_cpu_seconds = max(0.0, host - self._host_cpu_seconds), host
        elapsed = now - before.at if before is not None else 0.0
        plausible = without_stalled(sample, host_used / elapsed) if elapsed else sample
        self._point, interval = integrate(before, plausible, now)
        self._problem, self._stalled = None, plausible is not sample
        for domain, joules in interval.joules.items():
            self._joules[domain] = self._joules.get(domain, 0.0) + joules
        if self._stalled:  # without one domain, the energy of a service is unknown
            interval = Interval({}, 0.0)
        self._interval = interval
        self._share(elapsed, host_used)

    def failed(self, problem: PowerProblem) -> None:
        """Record why there are no samples."""
        self._problem = problem

    def view(self) -> PowerView:
        """Return the current power and energy."""
        fresh = self._point is not None and trio.current_time() - self._point.at < STALE_SECONDS
        services = {key: self._of_service(key, fresh=fresh) for key in sorted(self.engines())}
        watts = self._point.watts if fresh and self._point is not None else {}
        stalled = PowerProblem.STALLED if self._stalled else None
        return PowerView(watts, dict(self._joules), services, stalled if fresh else self._problem, self.source)

    def _of_service(self, key: Key, *, fresh: bool) -> ServicePower:
        seconds = self._interval.measured_seconds
        watts = self._last_joules.get(key, 0.0) / seconds if fresh and seconds else None
        per_token = self._per_token[key].joules_per_token if fresh and key in self._per_token else None
        return ServicePower(watts, self._total_joules.get(key, 0.0), per_token)

    def _share(self, elapsed_seconds: float, host_used: float) -> None:
        engines, before = self.engines(), self._uses
        self._uses, used = {}, {}
        for key, engine in engines.items():
            if engine.pid is None or (seconds := self.cpu_time.of_process(engine.pid)) is None:
                continue
            self._uses[key] = _Use(engine.pid, seconds)
            if (known := before.get(key)) is not None and known.pid == engine.pid:  # a new engine has no start value
                used[key] = max(0.0, seconds - known.cpu_seconds)
        last = share(self._interval.joules, used, host_cpu_seconds=host_used, seconds=elapsed_seconds)
        self._last_joules = last
        self._total_joules = {key: self._total_joules.get(key, 0.0) + last.get(key, 0.0) for key in engines}
        self._per_token = {key: self._token_energy(key, engine) for key, engine in engines.items()}

    def _token_energy(self, key: Key, engine: EngineUse) -> TokenEnergy:
        if engine.pid is None:
            return TokenEnergy()
        interval, count = self._interval, engine.tokens
        known = self._per_token.get(key, TokenEnergy())
        if known.last is not None and known.last.pid != engine.pid:  # a new engine, which has reported nothing yet
            known = TokenEnergy()
        known = known.with_energy(self._last_joules.get(key, 0.0), measured_seconds=interval.measured_seconds)
        return known if count is None or count.pid != engine.pid else known.with_count(count)
