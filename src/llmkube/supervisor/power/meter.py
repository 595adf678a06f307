"""What is known of a host's power at one moment: the newest sample, the energy since the start, and whose it was."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.power.integral import Interval, Point, integrate
from llmkube.supervisor.power.sample import STALE_SECONDS, PowerProblem, PowerSample, without_stalled
from llmkube.supervisor.power.shares import share
from llmkube.supervisor.power.token_energy import TokenCount, TokenEnergy

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


class ProcessorTime(Protocol):
    """How long programs have computed, in seconds."""

    def of_process(self, pid: int) -> float | None:
        """What a process has taken; None when it cannot be looked at."""
        ...

    def of_host(self) -> float:
        """What all have taken."""
        ...


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
    cpu_time: ProcessorTime
    _point: Point | None = None
    _interval: Interval = NOTHING
    _problem: PowerProblem | None = None
    _stalled: bool = False
    _joules: dict[str, float] = attrs.field(init=False)
    _host_cpu_seconds: float = 0.0
    _uses: dict[Key, _Use] = attrs.field(factory=dict)
    _newest: dict[Key, float] = attrs.field(factory=dict)  # the joules of the newest interval
    _sums: dict[Key, float] = attrs.field(factory=dict)
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
        watts = self._newest.get(key, 0.0) / seconds if fresh and seconds else None
        per_token = self._per_token[key].joules_per_token if fresh and key in self._per_token else None
        return ServicePower(watts, self._sums.get(key, 0.0), per_token)

    def _share(self, elapsed_seconds: float, host_took: float) -> None:
        engines, before = self.engines(), self._uses
        self._uses, took = {}, {}
        for key, engine in engines.items():
            if engine.pid is None or (seconds := self.cpu_time.of_process(engine.pid)) is None:
                continue
            self._uses[key] = _Use(engine.pid, seconds)
            if (known := before.get(key)) is not None and known.pid == engine.pid:  # else: since when is not known
                took[key] = max(0.0, seconds - known.cpu_seconds)
        self._newest = share(self._interval.joules, took, host_cpu_seconds=host_took, seconds=elapsed_seconds)
        self._sums = {key: self._sums.get(key, 0.0) + self._newest.get(key, 0.0) for key in engines}
        self._per_token = {key: self._counted(key, engine) for key, engine in engines.items()}

    def _counted(self, key: Key, engine: EngineUse) -> TokenEnergy:
        if engine.pid is None:
            return TokenEnergy()
        interval, count = self._interval, engine.tokens
        known = self._per_token.get(key, TokenEnergy())
        if known.last is not None and known.last.pid != engine.pid:  # another engine, which has said nothing yet
            known = TokenEnergy()
        known = known.drew(
            self._newest.get(key, 0.0),
            measured_seconds=interval.measured_seconds,
            lost_seconds=interval.lost_seconds,
        )
        return known if count is None or count.pid != engine.pid else known.counted(count)
