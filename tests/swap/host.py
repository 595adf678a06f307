"""A host that plays a workload on a virtual clock: it holds requests, and loads and unloads models as a policy decides.

The policy decides after each event. The host checks what must never happen, whatever the policy is: a start that takes
bytes that others use (the kernel would kill a process), and an unload that cuts a request.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import Bytes, Outcome, Resident, Waiting
from swap.workloads import LOAD_NOISE, Call, Model, Workload

EXIT_SECONDS: Final = 2.0
"""Time from the end of the last request until an engine's memory is free."""


class Policy(Protocol):
    """Decides which models are loaded."""

    def used(self, key: Key, now: float) -> None:
        """Record a request."""

    def loaded(self, key: Key, seconds: float, now: float) -> None:
        """Record a load."""

    def step(self, residents: Sequence[Resident], waiting: Sequence[Waiting], free: Bytes, now: float) -> Outcome:
        """Decide."""

    def unload(self, residents: Sequence[Resident], lacking: Bytes, now: float) -> Sequence[Resident]:
        """Return the idle models to unload when other programs need memory."""


@attrs.define(eq=False)
class Request:
    """A request from its arrival to its end."""

    call: Call
    key: Key
    at: float
    done: Callable[[float], None]
    started_at: float | None = None
    refused_at: float | None = None


@attrs.define(eq=False)
class Engine:
    """The engine of one model, and the requests at its door."""

    model: Model
    key: Key
    state: str = "gone"
    closed_at: float | None = None
    loads: int = 0
    running: int = 0
    loaded_at: float | None = None
    used_at: float = 0.0
    gone_at: float = 0.0
    held: list[Request] = attrs.field(factory=list)

    def resident(self) -> Resident:
        """Return what a policy sees of it."""
        return Resident(
            key=self.key,
            bytes=self.model.bytes,
            rank=self.model.rank,
            on_request=not self.model.always,
            pinned=self.model.pinned,
            uses=self.running if self.closed_at is not None else self.running + len(self.held),
            closed_at=self.closed_at,
            exiting=self.state == "exiting",
            loaded_at=self.loaded_at,
            used_at=self.used_at,
        )


@attrs.define(eq=False)
class Result:
    """Result of a policy for a workload.

    Attributes:
        load_seconds: The swap cost: the sum over all loads, without noise.
        loaded_at: When each load began.
        requests: All requests with their arrivals and starts.
        killed: Starts for which the memory was not there.
        cut: Unloads of a model with requests in use, or of a pinned one.
        overtaken: The most loads of others of the same or a lower rank that began while a service waited.
    """

    load_seconds: float = 0.0
    loads: int = 0
    loaded_at: list[float] = attrs.field(factory=list)
    requests: list[Request] = attrs.field(factory=list)
    killed: int = 0
    cut: int = 0
    overtaken: int = 0
    steps: int = 0

    @property
    def waits(self) -> list[float]:
        """The waits of the requests that were started."""
        return [each.started_at - each.at for each in self.requests if each.started_at is not None]

    @property
    def refused(self) -> list[Request]:
        """The requests that were answered with 503 at their bound."""
        return [each for each in self.requests if each.refused_at is not None]


@attrs.define(eq=False)
class Host:
    """One run of a workload."""

    workload: Workload
    policy: Policy
    result: Result = attrs.field(factory=Result)
    _engines: dict[str, Engine] = attrs.field(factory=dict)
    _events: list[tuple[float, int, Callable[[float], None]]] = attrs.field(factory=list)
    _numbers: Any = attrs.field(factory=itertools.count)
    _wanted: int = 0  # bytes of the host that other programs want
    _used: dict[str, int] = attrs.field(factory=dict)
    _wake_at: float | None = None
    _overtaken: dict[str, int] = attrs.field(factory=dict)
    _have: int = 0  # bytes of the host that they have
    _changed: bool = True

    def play(self) -> Result:
        """Play the workload until no request is left."""
        for model in self.workload.models:
            self._engines[model.name] = Engine(model, Key("ns", model.name))
        self._used = dict.fromkeys(self.workload.limits, 0)
        for call in self.workload.calls:
            self._at(call.at, lambda now, call=call: self._arrive(call, now, lambda _: None))
        for each in self.workload.squeezes:
            self._at(each.at, lambda _, size=each.bytes: self._squeeze(size))
            self._at(each.until, lambda _, size=each.bytes: self._squeeze(-size))
        self._at(0.0, lambda _: None)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
            while self._events and self._events[0][0] == now:
                heapq.heappop(self._events)[2](now)
            if self._changed:
                self._changed = False
                self._decide(now)
        return self.result

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    # -- requests -------------------------------------------------------------------------------------------------

    def _arrive(self, call: Call, now: float, done: Callable[[float], None]) -> None:
        engine = self._engines[call.model]
        request = Request(call, engine.key, now, done)
        self.result.requests.append(request)
        self.policy.used(engine.key, now)
        if engine.state == "loaded" and engine.closed_at is None:
            self._start(engine, request, now)
        else:
            engine.held.append(request)
            self._changed = True
            self._at(now + self.workload.max_hold, lambda now: self._expire(engine, request, now))

    def _expire(self, engine: Engine, request: Request, now: float) -> None:
        if request.started_at is None:
            engine.held.remove(request)
            self._changed = True
            request.refused_at = now
            self._end(request, now)

    def _start(self, engine: Engine, request: Request, now: float) -> None:
        request.started_at = engine.used_at = now
        engine.running += 1
        call = request.call
        if call.call is None:
            self._at(now + call.seconds, lambda now: self._finish(engine, request, now))
            return
        rest = max(0.0, call.seconds - call.call.at)

        def resume(now: float) -> None:
            self._at(now + rest, lambda now: self._finish(engine, request, now))

        self._at(now + call.call.at, lambda now, sub=call.call: self._arrive(sub, now, resume))

    def _finish(self, engine: Engine, request: Request, now: float) -> None:
        engine.running -= 1
        engine.used_at = now
        self._changed = self._changed or not engine.running
        self._end(request, now)

    def _end(self, request: Request, now: float) -> None:
        request.done(now)
        if (then := request.call.then) is not None:
            self._at(now + then.at, lambda now: self._arrive(then, now, lambda _: None))

    # -- engines --------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        outcome = self._step(now)
        while self._carry_out(outcome, now):
            outcome = self._step(now)
        if outcome.next_at is not None and outcome.next_at != self._wake_at:
            assert outcome.next_at > now, outcome
            self._wake_at = outcome.next_at
            self._at(outcome.next_at, self._wake)

    def _step(self, now: float) -> Outcome:
        free = {device: limit - self._used[device] for device, limit in self.workload.limits.items()}
        free["host"] -= self._wanted
        coming = sum(each.model.bytes["host"] for each in self._engines.values() if each.state == "exiting")
        if free["host"] + coming < 0:
            idle = [each for each in self._residents() if each.on_request and not (each.uses or each.pinned)]
            idle = [each for each in idle if not each.exiting and each.closed_at is None]
            for each in self.policy.unload(idle, {"host": -free["host"] - coming}, now) if idle else ():
                self._unload(self._engines[each.key.name], now)
        self.result.steps += 1
        return self.policy.step(self._residents(), [*self._waiting()], free, now)

    def _carry_out(self, outcome: Outcome, now: float) -> bool:
        """Return whether anything has changed, so that another step is due."""
        for key in outcome.started:
            self._load(self._engines[key.name], now)
        for victim in outcome.displaced:
            self._unload(self._engines[victim.name], now)
        opened = False
        for each in self._engines.values():
            if each.key in outcome.closed:
                each.closed_at = now if each.closed_at is None else each.closed_at
            elif each.closed_at is not None:
                each.closed_at, opened = None, opened or bool(each.held)
                self._open(each, now)
        return bool(opened or outcome.started or outcome.displaced)

    def _residents(self) -> list[Resident]:
        return [each.resident() for each in self._engines.values() if each.state != "gone"]

    def _wake(self, now: float) -> None:
        self._wake_at, self._changed = None, True

    def _waiting(self):
        for each in self._engines.values():
            if each.state == "gone" and (each.held or each.model.always):
                model, since = each.model, each.held[0].at if each.held else each.gone_at
                yield Waiting(
                    key=each.key,
                    bytes=model.bytes,
                    since=since,
                    rank=model.rank,
                    on_request=not model.always,
                    requests=len(each.held),
                )

    def _load(self, engine: Engine, now: float) -> None:
        assert engine.state == "gone", engine
        name = engine.model.name
        noise = random.Random(f"{self.workload.seed} {name} {engine.loads}").gauss(0, LOAD_NOISE)
        seconds = engine.model.load_seconds * math.exp(noise)
        engine.state, engine.loads, engine.loaded_at = "loading", engine.loads + 1, None
        self._take(engine.model, 1)
        if any(
            self._used[device] + (self._have if device == "host" else 0) > limit
            for device, limit in self.workload.limits.items()
        ):
            self.result.killed += 1
        self.result.loads += 1
        self.result.loaded_at.append(now)
        self.result.load_seconds += engine.model.load_seconds
        self._overtaken.pop(name, None)
        for other in self._engines.values():
            if other.state == "gone" and other.held and other.model.rank >= engine.model.rank:
                count = self._overtaken[other.model.name] = self._overtaken.get(other.model.name, 0) + 1
                self.result.overtaken = max(self.result.overtaken, count)
        self._at(now + seconds, lambda now: self._answer(engine, seconds, now))

    def _take(self, model: Model, sign: int) -> None:
        for device, size in model.bytes.items():
            self._used[device] += sign * size

    def _squeeze(self, size: int) -> None:
        self._wanted += size
        self._settle()
        self._changed = True

    def _settle(self) -> None:
        self._have = min(self._wanted, self.workload.limits["host"] - self._used["host"])

    def _answer(self, engine: Engine, seconds: float, now: float) -> None:
        if engine.state != "loading":
            return
        engine.state, engine.loaded_at, engine.used_at = "loaded", now, now
        self.policy.loaded(engine.key, seconds, now)
        self._changed = True
        self._open(engine, now)

    def _open(self, engine: Engine, now: float) -> None:
        held, engine.held = engine.held, []
        for request in held:
            self._start(engine, request, now)

    def _unload(self, engine: Engine, now: float) -> None:
        assert engine.state in {"loading", "loaded"}, engine
        if engine.running or engine.model.pinned or (engine.held and engine.closed_at is None):
            self.result.cut += 1
        engine.state, engine.closed_at, engine.loaded_at = "exiting", None, None
        self._at(now + EXIT_SECONDS, lambda now: self._gone(engine, now))

    def _gone(self, engine: Engine, now: float) -> None:
        engine.state, engine.gone_at = "gone", now
        self._take(engine.model, -1)
        self._settle()
        self._changed = True
