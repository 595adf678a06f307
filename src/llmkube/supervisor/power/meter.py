"""What is known of a host's power at one moment: the newest sample, the energy since the start, and whose it was.

A sample is a mean over its own seconds, so its energy is exact. Samples get lost: a hole between two of them is filled
with the mean of both (the trapezoid) while it is short, and is unknown when it is long. All times are of the monotonic
clock, which stands still while the machine sleeps: a sample never counts for more time than that clock has passed.

What the chip draws while engines work is shared among them by their processor time. The rule, for one interval:

* An engine works if its process took at least `WORKING_SHARE` of a core. While no engine works, no energy is anybody's.
* Of a GPU, and of the neural engine, the engines that work share all: no kernel tells GPU time by process without root.
  An engine has to encode each batch on the CPU, so the one that computes more takes more processor time.
* Of all else (cores, package, memory), an engine gets its part of the processor time that *all* programs took: what a
  compiler draws meanwhile is not the model's.

What the host draws at rest is part of it: it belongs to those that work while they work.
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
"""What a host drew in a longer one is not known."""


WORKING_SHARE: Final = 0.01
"""Of one core; below it is what answering health checks costs (`nouns.liveness.ALIVE_CPU_SHARE`)."""

EXCLUSIVE_DOMAINS: Final = frozenset({"gpu", "ane"})
"""The domains that other programs are taken to leave alone."""

IDLE: Final = frozenset({"idle", "iowait", "guest", "guest_nice", "steal"})
"""What is no work of this machine's programs, or is counted under another name as well (proc_stat(5))."""


@attrs.frozen
class Point:
    """Where the integral has come to: the newest sample, and when it ended."""

    at: float
    watts: Mapping[str, float]


@attrs.frozen
class Interval:
    """What was drawn between two points.

    Attributes:
        joules: By domain, without that of the sum.
        measured_seconds: The time for which they are known.
        lost_seconds: The time for which they are not.
    """

    joules: Mapping[str, float]
    measured_seconds: float
    lost_seconds: float = 0.0


def integrate(before: Point | None, sample: PowerSample, now: float) -> tuple[Point, Interval]:
    """Return the new point and what was drawn since the one before.

    Args:
        before: The point of the last sample; None for the first one.
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
    return Point(now, sample.watts), Interval(joules, covered + filled, gap - filled)


def share(
    joules: Mapping[str, float], cpu_seconds: Mapping[Key, float], *, host_cpu_seconds: float, seconds: float
) -> dict[Key, float]:
    """Return the joules of each engine that works; their sum is never more than what was drawn.

    Args:
        joules: What was drawn in the interval, by domain.
        cpu_seconds: Processor time that each engine took in it.
        host_cpu_seconds: Processor time that all programs took in it, the engines' included.
        seconds: How long the interval was.
    """
    working = {key: took for key, took in cpu_seconds.items() if took > 0 and took >= WORKING_SHARE * seconds}
    engines = sum(working.values())
    if not engines:
        return {}
    total_seconds = max(engines, host_cpu_seconds)
    exclusive = sum(each for domain, each in joules.items() if domain in EXCLUSIVE_DOMAINS)
    shared = sum(each for domain, each in joules.items() if domain not in EXCLUSIVE_DOMAINS)
    return {key: took / engines * exclusive + took / total_seconds * shared for key, took in working.items()}


class CpuTime:
    """Processor time of this machine, in seconds; each look is one read of the kernel."""

    def of_process(self, pid: int) -> float | None:
        """What a process has taken since its start; None when it has ended, or cannot be looked at."""
        try:
            times = psutil.Process(pid).cpu_times()
        except (psutil.Error, OSError):
            return None
        return float(times.user + times.system)

    def of_host(self) -> float:
        """What all programs have taken since the machine was started; 0.0 when that cannot be read."""
        try:
            times = psutil.cpu_times()._asdict()
        except (OSError, RuntimeError):
            return 0.0
        return float(sum(seconds for name, seconds in times.items() if name not in IDLE))


NOTHING: Final = Interval({}, 0.0)


@attrs.frozen
class EngineUse:
    """The engine of a service: its process (None while none runs), and what it has said of its tokens."""

    pid: int | None = None
    tokens: TokenCount | None = None


@attrs.frozen
class ServicePower:
    """What one service draws: `watts` and `joules_per_token` are None when they are not known now."""

    watts: float | None
    joules: float
    joules_per_token: float | None


@attrs.frozen
class PowerView:
    """What is known at one moment: nothing but energy when the newest sample is older than `STALE_SECONDS`.

    Attributes:
        watts: By domain.
        joules: By domain, since the start of the agent.
        services: By key.
        problem: Why nothing is measured, or a domain is not; None while all is.
        source: What the figures are called after.
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
    """Takes the samples of a source; looks at the engines when one comes.

    Attributes:
        source: What its figures are called after.
        domains: What is measured apart; the energy of each begins at zero.
        engines: Returns the services of this host, each with its engine.
        cpu_time: How long programs have computed.
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
        """Note a sample that ends now."""
        now, before, host = trio.current_time(), self._point, self.cpu_time.of_host()
        host_took, self._host_cpu_seconds = max(0.0, host - self._host_cpu_seconds), host
        elapsed = now - before.at if before is not None else 0.0
        moving = without_stalled(sample, host_took / elapsed) if elapsed else sample
        self._point, drawn = integrate(before, moving, now)
        self._problem, self._stalled = None, moving is not sample
        for domain, joules in drawn.joules.items():
            self._joules[domain] = self._joules.get(domain, 0.0) + joules
        # A part of what a service draws is no figure of it.
        self._interval = Interval({}, 0.0, drawn.measured_seconds + drawn.lost_seconds) if self._stalled else drawn
        self._share(elapsed, host_took)

    def failed(self, problem: PowerProblem) -> None:
        """Note that no sample comes."""
        self._problem = problem

    def view(self) -> PowerView:
        """Return what is known now."""
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

    def _share(self, elapsed_seconds: float, host_took: float) -> None:
        engines, before = self.engines(), self._uses
        self._uses, took = {}, {}
        for key, engine in engines.items():
            if engine.pid is None or (seconds := self.cpu_time.of_process(engine.pid)) is None:
                continue
            self._uses[key] = _Use(engine.pid, seconds)
            if (known := before.get(key)) is not None and known.pid == engine.pid:  # else: since when is not known
                took[key] = max(0.0, seconds - known.cpu_seconds)
        self._last_joules = share(self._interval.joules, took, host_cpu_seconds=host_took, seconds=elapsed_seconds)
        self._total_joules = {
            key: self._total_joules.get(key, 0.0) + self._last_joules.get(key, 0.0) for key in engines
        }
        self._per_token = {key: self._token_energy(key, engine) for key, engine in engines.items()}

    def _token_energy(self, key: Key, engine: EngineUse) -> TokenEnergy:
        if engine.pid is None:
            return TokenEnergy()
        interval, count = self._interval, engine.tokens
        known = self._per_token.get(key, TokenEnergy())
        if known.last is not None and known.last.pid != engine.pid:  # another engine, which has said nothing yet
            known = TokenEnergy()
        known = known.drew(
            self._last_joules.get(key, 0.0),
            measured_seconds=interval.measured_seconds,
            lost_seconds=interval.lost_seconds,
        )
        return known if count is None or count.pid != engine.pid else known.counted(count)
