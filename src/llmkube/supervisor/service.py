"""One InferenceService's nursery: a planner that turns wishes into a target, a runner that keeps an engine in line.

```
 run_service                         lives until the agent cancels its life scope
 └ nursery
   ├ run_planner   Desired ─▶ Target        (fetch, read, plan; never touches a process)
   └ Runner.run    Target ─▶ engine         one attempt after the other
     └ attempt scope                        ends by: exit, stalled load, hang, a newer target
       └ child context                      on the way out: not ready, drained, TERM, grace, KILL, reaped
```

What an earlier agent left is where the first attempt begins: its target comes from the journal, its child is adopted.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import WorldError
from llmkube.base.mailbox import Mailbox
from llmkube.runtimes.exits import Cause, classify
from llmkube.supervisor import health
from llmkube.supervisor.accounts import Claim
from llmkube.supervisor.admission import Refusal
from llmkube.supervisor.desired import Desired
from llmkube.supervisor.journal import EngineRecord, Entry
from llmkube.supervisor.learned import need_of
from llmkube.supervisor.ledger import Ledger, reason_word
from llmkube.supervisor.lifecycle import (
    Exit,
    Failure,
    Reason,
    RestartPolicy,
    RestartState,
    ServiceView,
    after_failure,
)
from llmkube.supervisor.loading import LoadLine
from llmkube.supervisor.measuring import Measuring, context_hint, key_of
from llmkube.supervisor.planner import run_planner
from llmkube.supervisor.ports import Child, Command, Parting, Ports
from llmkube.supervisor.reporter import Reporter
from llmkube.supervisor.settings import AgentSettings
from llmkube.supervisor.target import Idle, Launch, Target

log = structlog.get_logger(__name__)

LAST_LINES: Final = 20
"""How much of an engine's own words goes into a condition."""

CONFIRM_SECONDS: Final = 0.15
"""How long an adopted engine may take to answer before its endpoint is made not-ready."""


async def run_service(desired: Mailbox[Desired], runner: "Runner", first: Target) -> None:
    """Look after one service until cancelled; a bug in here is reported and costs its siblings nothing.

    Args:
        desired: What is wished; the newest counts.
        runner: Keeps the engine in line.
        first: The target until the planner has made one: what an earlier agent left, if it did.
    """
    backoff, failures, reporter = Backoff(), 0, runner.reporter
    while True:
        target: Mailbox[Target] = Mailbox(first)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_planner, desired, target, reporter, runner.ports, runner.ledger)
                nursery.start_soon(runner.run, target)
        except* Exception as bug:
            # One of the three broad catches: here an error stops at the service that it belongs to.
            log.exception("service task failed", name=reporter.key.name, namespace=reporter.key.namespace)
            reporter.say(ServiceView(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {_innermost(bug)!r}"))
        first = Idle(Reason.PENDING)
        failures += 1
        await trio.sleep(backoff.delay(failures, runner.ports.rng))


@attrs.define(eq=False)
class Runner:
    """Keep one engine in line with its target.

    Attributes:
        reporter: Says what is true of the service.
        ports: The outside world.
        settings: The host's.
        parting: Whether the engine stays when this is cancelled.
        adoptable: The process that the first attempt takes over, if an earlier agent left one.
        ledger: Who may take how much of this host's memory.
        policy: When a failed attempt is repeated.
    """

    reporter: Reporter
    ports: Ports
    settings: AgentSettings
    parting: Parting
    adoptable: EngineRecord | None = None
    ledger: Ledger = attrs.field(factory=lambda: Ledger(watched=False))
    policy: RestartPolicy = RestartPolicy()

    async def run(self, target: Mailbox[Target]) -> None:
        """Never return: run what the target says, again after every exit, later and later if it does not hold."""
        key, state = self.reporter.key, RestartState()
        while True:
            version, goal = target.version, target.value
            if isinstance(goal, Idle):
                await self._forget_if_unwanted(goal)
                self.reporter.say(ServiceView(goal.reason, goal.message))
                await target.wait_newer(version)
                state = RestartState()
                continue
            failure = await self._attempt(goal, target)
            if failure is None:  # superseded or evicted: the next one starts with a clean record
                state = RestartState()
                continue
            state, delay = after_failure(self.policy, state, failure, self.ports.rng)
            log.warning(
                "inference service failed",
                name=key.name,
                namespace=key.namespace,
                reason=str(failure.reason),
                failures=state.failures,
                retry_seconds=round(delay, 1),
                message=failure.message.partition("\n")[0],
            )
            self.reporter.failed(failure, state.failures, delay)
            version = target.version
            with trio.move_on_after(delay):
                await target.wait_newer(version)
                state = RestartState()

    async def _attempt(self, launch: Launch, target: Mailbox[Target]) -> Failure | None:
        """Run one incarnation to its end; None means that a newer target or an eviction ended it, not the engine."""
        failure: Failure | None = None
        with trio.CancelScope() as attempt:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_when_superseded, launch, target, attempt)
                    failure = await self._admitted(launch, attempt)
                    nursery.cancel_scope.cancel(reason="the engine ended")
            except* WorldError as group:
                error = _innermost(group)
                stuck = getattr(error, "reason", "") == Reason.ENGINE_STUCK
                failure = Failure(Reason.ENGINE_STUCK if stuck else Reason.ENGINE_NOT_FOUND, str(error))
            except* Exception as bug:
                log.exception("attempt failed", name=self.reporter.key.name, namespace=self.reporter.key.namespace)
                failure = Failure(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {_innermost(bug)!r}")
        return None if attempt.cancelled_caught else failure

    async def _end_when_superseded(self, launch: Launch, target: Mailbox[Target], attempt: trio.CancelScope) -> None:
        """Cancel the attempt when another plan, or none, should run; the same plan again changes nothing."""
        key = self.reporter.key
        while True:
            version, goal = target.version, target.value
            if isinstance(goal, Idle):
                zero = goal.reason == Reason.SCALED_TO_ZERO
                message = "replicas=0; stopping process" if zero else "stopping process"
                log.info(message, name=key.name, namespace=key.namespace, reason=goal.message)
                await self._forget_if_unwanted(goal)
                attempt.cancel(reason=goal.message)
            elif goal.plan.digest != launch.plan.digest:
                log.info("plan changed; restarting", name=key.name, namespace=key.namespace)
                attempt.cancel(reason="the plan changed")
            await target.wait_newer(version)

    async def _end_when_moved(self, host: str, attempt: trio.CancelScope) -> None:
        """Cancel the attempt when the address that the engine listens on is not this host's any more."""
        reach = self.reporter.reach
        while True:
            version = reach.version
            if not reach.value.serves(host):
                key = self.reporter.key
                log.info("address lost; restarting", name=key.name, namespace=key.namespace, hostIP=host)
                attempt.cancel(reason=f"{host} is not this host's address any more")
            await reach.wait_newer(version)

    async def _forget_if_unwanted(self, goal: Idle) -> None:
        """What shall not run is out of the journal before its engine ends: the next agent must not start it again."""
        if goal.reason == Reason.SCALED_TO_ZERO:
            await self.ports.journal.remove(self.reporter.key)

    async def _admitted(self, launch: Launch, attempt: trio.CancelScope) -> Failure:
        """Wait for the memory, run one incarnation within it, and learn from what it took."""
        need = need_of(launch, None)
        if self.adoptable is None:  # else its memory is promised already, and nothing may come before it is taken over
            need = need_of(launch, self.ports.learned.get(await key_of(launch, self.ports.engines)))
        waits = partial(self._waits, launch)
        async with self.ledger.admitted(self.reporter.key, need, attempt, waits) as claim:
            return await self._incarnation(launch, attempt, claim)

    def _waits(self, launch: Launch, refusal: Refusal) -> None:
        """Say why nothing runs, and what would help."""
        key, message = self.reporter.key, refusal.message + context_hint(launch, refusal.room_bytes)
        evicted = self.ledger.evicted(key)
        if evicted is None:
            log.info("waiting for memory", name=key.name, namespace=key.namespace, reason=message)
            self.reporter.say(ServiceView(reason_word(refusal.block), message))
        else:
            self.reporter.say(ServiceView(Reason.EVICTED, f"{evicted.why}. Now: {message}"))

    async def _incarnation(self, launch: Launch, attempt: trio.CancelScope, claim: Claim) -> Failure:
        """Have an engine, wait until it answers, serve until it exits; every way out ends it, unless it shall stay."""
        found, self.adoptable = self.adoptable, None
        async with self._adopted(launch, found) if found else self._spawned(launch) as (child, record):
            self.ledger.runs(claim, child.pid)
            view = ServiceView(
                Reason.LOADING,
                "the engine is loading the model",
                record.host,
                record.port,
                child.pid,
                launch.plan.alias,
            )
            url = f"http://{f'[{record.host}]' if ':' in record.host else record.host}:{record.port}"
            if found is None or not await self._answers_at_once(url + launch.plan.ready_path):
                self.reporter.say(view)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_moved, record.host, attempt)
                failure = await self._serve(child, launch, view, url, claim)
                nursery.cancel_scope.cancel(reason="the engine ended")
            return failure

    @asynccontextmanager
    async def _spawned(self, launch: Launch) -> AsyncIterator[tuple[Child, EngineRecord]]:
        """Start a process; the journal knows of it before it exists."""
        engine = await self.ports.engines.info()
        key, plan, host = self.reporter.key, launch.plan, self.reporter.reach.value.bind
        port = self.ports.engines.free_port(host)
        log.info("starting inference service", name=key.name, namespace=key.namespace, port=port)
        record = EngineRecord(f"{self.ports.rng.getrandbits(64):016x}", host, port)
        command = Command(
            argv=plan.render(program=engine.program, model=str(launch.weights.path), host=host, port=port),
            env=dict(plan.env),
            work_dir=self.settings.state_dir / "work" / key.namespace / key.name,
            log_path=self._log_path,
            cookie=record.cookie,
        )
        entry = Entry(self.reporter.wish, launch, record)
        await self.ports.journal.write(entry)
        async with self.ports.engines.open_child(command, self.parting) as child:
            record = attrs.evolve(record, pid=child.pid, started=child.started, log_offset=child.log_offset)
            await self.ports.journal.write(attrs.evolve(entry, engine=record))
            yield child, record

    @asynccontextmanager
    async def _adopted(self, launch: Launch, record: EngineRecord) -> AsyncIterator[tuple[Child, EngineRecord]]:
        """Take over the process that an earlier agent left."""
        async with self.ports.engines.adopt_child(record, self._log_path, self.parting) as child:
            key = self.reporter.key
            log.info(
                "adopted inference service", name=key.name, namespace=key.namespace, pid=child.pid, port=record.port
            )
            yield child, record

    @property
    def _log_path(self) -> Path:
        return self.settings.state_dir / "logs" / self.reporter.key.namespace / f"{self.reporter.key.name}.log"

    async def _answers_at_once(self, url: str) -> bool:
        with trio.move_on_after(CONFIRM_SECONDS):
            return await health.ask(self.ports.http, url) == "ok"
        return False

    async def _serve(self, child: Child, launch: Launch, view: ServiceView, url: str, claim: Claim) -> Failure:
        """Return when the child has exited, has stalled while loading, hangs, or is not what answers."""
        engine = health.Engine(self.ports.http, url, launch.plan)
        started_at, ready_at = trio.current_time(), None
        failure: Failure | None = None
        ended: Exit | None = None
        async with trio.open_nursery() as nursery:

            async def notice_exit() -> None:
                nonlocal ended
                ended = await child.wait()
                nursery.cancel_scope.cancel(reason=f"the engine ended: {ended}")

            nursery.start_soon(notice_exit)
            failure = await self._load(child, launch, view, engine)
            if failure is None:
                ready_at = trio.current_time()
                self.ledger.loaded(claim)
                message = f"loaded in {ready_at - started_at:.1f} s"
                loaded = attrs.evolve(view, reason=Reason.LOADED, message=message)
                async with (
                    self._drained(url, lambda: failure is None and ended is None, claim.hurried),
                    self.reporter.serving(loaded, self.parting, lambda: ended, lambda: claim.urgent),
                ):
                    log.info(
                        "started inference service",
                        name=self.reporter.key.name,
                        namespace=self.reporter.key.namespace,
                        pid=child.pid,
                        port=view.port,
                    )
                    look = partial(child.look, view.host, view.port, loading=False)
                    measuring = Measuring(child, look, launch, claim, self.ports)
                    hung = await health.watch(engine, measuring.look, self.reporter.answering, self.settings.limits)
                    failure = Failure(Reason.HUNG, f"the engine hangs: {hung}")
                    self.reporter.amend(Reason.HUNG, failure.message)
            nursery.cancel_scope.cancel(reason="it hangs, has stalled, or is not what was asked for")
        seconds = 0.0 if ready_at is None else trio.current_time() - ready_at
        lines = await child.last_lines(LAST_LINES)
        words = "\n" + "\n".join(lines) if lines else ""
        if ended is None and failure is not None:
            return attrs.evolve(failure, message=failure.message + words, ready_seconds=seconds)
        why = classify(ended.code if ended else None, lines, memory_kills=child.memory_kills())
        when = "while loading" if ready_at is None else "while serving"
        reason = Reason.PORT_TAKEN if why.cause is Cause.PORT_TAKEN and ready_at is None else Reason.ENGINE_EXITED
        because = f": {why}" if why.summary else ""
        return Failure(reason, f"the engine ended {when}: {ended}{because}{words}", seconds)

    async def _load(self, child: Child, launch: Launch, view: ServiceView, engine: health.Engine) -> Failure | None:
        """Return when the engine answers, and is what was asked for: None; or when it will not come to that."""
        line, stalled = LoadLine(child, self.reporter, launch.weights.size_bytes), ""
        async with trio.open_nursery() as nursery:

            async def notice_stall() -> None:
                nonlocal stalled
                look = partial(child.look, view.host, view.port, loading=True)
                stalled = await health.watch_load(look, line.write, self.settings.limits)
                nursery.cancel_scope.cancel(reason="the load has stalled")

            nursery.start_soon(notice_stall)
            await health.wait_ready(self.ports.http, engine.ready_url)
            nursery.cancel_scope.cancel(reason="ready")
        if stalled:
            return Failure(Reason.LOAD_STALLED, f"the engine does not get on with loading: {stalled}")
        impostor = await self._impostor(child, view, engine.url)
        return Failure(Reason.PORT_TAKEN, impostor) if impostor else None

    async def _impostor(self, child: Child, view: ServiceView, url: str) -> str:
        """Say who answers in the engine's place; "" when it is the engine itself, with the model that we asked for.

        Between our choice of a port and the engine's bind, somebody else may have taken it, and may answer 200.
        """
        if not await child.listens(view.port):
            return f"port {view.port} is answered by a process that is not this engine"
        names = await health.model_names(self.ports.http, url)
        if names and view.alias not in names:
            return f"port {view.port} serves {', '.join(sorted(names))} instead of {view.alias}"
        return ""

    @asynccontextmanager
    async def _drained(self, url: str, can_end: Callable[[], bool], hurried: trio.Event) -> AsyncIterator[None]:
        """On the way out, let the requests in flight end; new ones no longer come, as the endpoint is withdrawn.

        Those of an engine that hangs do not end, and one that has ended has none. When the host is about to run out of
        memory nobody waits for them.
        """
        try:
            yield
        finally:
            if can_end() and not self.parting.keep and not hurried.is_set():
                with trio.move_on_after(self.settings.drain_seconds, shield=True) as bound:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_cancel_when, hurried, nursery.cancel_scope)
                        await health.wait_idle(self.ports.http, url)
                        nursery.cancel_scope.cancel(reason="no request is in flight")
                if bound.cancelled_caught or hurried.is_set():
                    key = self.reporter.key
                    log.warning("requests in flight are cut short", name=key.name, namespace=key.namespace)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="nobody waits any longer")


def _innermost(error: BaseException) -> BaseException:
    """The first leaf of a group: what actually went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
