"""One InferenceService's nursery: a planner that turns wishes into a target, a runner that keeps an engine in line.

```
 run_service                         lives until the agent cancels its life scope
 └ nursery
   ├ run_planner   Desired ─▶ Target        (fetch, read, plan; never touches a process)
   └ Runner.run    Target ─▶ engine
     └ incarnations                         one after the other, and two while one replaces the other
```

What an earlier agent left is where the first incarnation begins: its target comes from the journal, its child is
adopted.

**A handover is `nursery.start`.** The runner starts a successor beside the engine that serves, and waits inside `start`
until it answers; until then, whatever cancels the wait ends the successor, and the old engine knows nothing of it.
"""

from functools import partial
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import innermost
from llmkube.base.mailbox import Mailbox
from llmkube.base.waiting import wait_any
from llmkube.supervisor.admission import Refusal, Way
from llmkube.supervisor.desired import Desired
from llmkube.supervisor.incarnation import Incarnation, Site
from llmkube.supervisor.journal import EngineRecord
from llmkube.supervisor.ledger import reason_word
from llmkube.supervisor.lifecycle import Failure, Reason, RestartPolicy, RestartState, ServiceView, after_failure
from llmkube.supervisor.measuring import context_hint
from llmkube.supervisor.planner import run_planner
from llmkube.supervisor.target import Idle, Launch, Target

log = structlog.get_logger(__name__)

FOLLOW_SECONDS: Final = 2.0
"""After the API server has heard of a new endpoint; nodes follow after a moment (kube-proxy gathers for up to 1 s)."""

CONFIRMED_SECONDS: Final = 1.0
"""So long an engine that an earlier agent left may take to answer before it is ended for another plan: one that serves
is replaced, and one that still loads is not waited for."""


async def run_service(desired: Mailbox[Desired], runner: "Runner", first: Target) -> None:
    """Look after one service until cancelled; a bug in here is reported and costs its siblings nothing.

    Args:
        desired: What is wished; the newest counts.
        runner: Keeps the engine in line.
        first: The target until the planner has made one: what an earlier agent left, if it did.
    """
    backoff, failures, site = Backoff(), 0, runner.site
    reporter = site.reporter
    while True:
        target: Mailbox[Target] = Mailbox(first)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_planner, desired, target, reporter, site.ports, site.ledger)
                nursery.start_soon(runner.run, target)
        except* Exception as bug:
            # One of the broad catches: here an error stops at the service that it belongs to.
            log.exception("service task failed", name=reporter.key.name, namespace=reporter.key.namespace)
            reporter.say(ServiceView(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {innermost(bug)!r}"))
        first = Idle(Reason.PENDING)
        failures += 1
        await trio.sleep(backoff.delay(failures, site.ports.rng))


@attrs.define(eq=False)
class Runner:
    """Keep one engine in line with its target.

    Attributes:
        site: Where its engines live.
        adoptable: The process that the first attempt takes over, if an earlier agent left one.
        policy: When a failed attempt is repeated.
    """

    site: Site
    adoptable: EngineRecord | None = None
    policy: RestartPolicy = RestartPolicy()
    _incarnations: trio.Nursery = attrs.field(init=False)  # open while `run` runs; it owns every engine's task
    _current: Incarnation | None = None  # the engine that serves, or will
    _retiring: Incarnation | None = None  # the one that it has replaced, as long as that one is there
    _engines: list[Incarnation] = attrs.field(factory=list)  # these two, and one that is to replace the first
    _content: trio.CancelScope = attrs.field(factory=trio.CancelScope)  # nothing to do while the engine runs
    _state: RestartState = RestartState()
    _attempts: RestartState = RestartState()  # to replace the one that serves
    _attempted: str = ""  # the digest of the plan that they were about

    async def run(self, target: Mailbox[Target]) -> None:
        """Never return: run what the target says, again after every exit, later and later if it does not hold."""
        self._current, self._retiring, self._state = None, None, RestartState()
        async with trio.open_nursery() as self._incarnations:
            await self._keep_in_line(target)

    async def _keep_in_line(self, target: Mailbox[Target]) -> Never:
        while True:
            version, goal = target.version, target.value
            if isinstance(goal, Idle):
                await self._rest(goal)
                await target.wait_newer(version)
                self._state = RestartState()
            elif self._current is None:
                await self._begin(goal, target)
            elif self._current.launch.plan.digest == goal.plan.digest:
                self.site.reporter.current()
                with trio.CancelScope() as self._content:  # one task less than `wait_any`, for each service at rest
                    await target.wait_newer(version)
            else:
                await self._replace(self._current, goal, target)
            if self._current is not None and self._current.ended.is_set():
                ended, self._current = self._current, None
                await self._mourn(ended.failure, target)

    async def _live(
        self, engine: Incarnation, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have an engine; started when it serves, or has ended before it did."""
        self._engines.append(engine)
        try:
            await engine.run(task_status=task_status)
        finally:
            self._engines.remove(engine)
        if engine is self._current:
            self._content.cancel(reason="the engine has ended")

    def moved(self) -> None:
        """This host is reached in another way: say so, and end what listens on an address that it has lost."""
        self.site.reporter.moved()
        for engine in self._engines:
            engine.moved()

    # -- the steps ------------------------------------------------------------------------------------------------

    async def _rest(self, goal: Idle) -> None:
        """Have nothing run, and say why."""
        key = self.site.reporter.key
        engines = tuple(self._engines)
        if engines:
            zero = goal.reason == Reason.SCALED_TO_ZERO
            message = "replicas=0; stopping process" if zero else "stopping process"
            log.info(message, name=key.name, namespace=key.namespace, reason=goal.message)
        await self._forget_if_unwanted(goal)
        for each in engines:
            each.scope.cancel(reason=goal.message)
        for each in engines:
            await each.ended.wait()
        self._current = None
        self.site.reporter.say(ServiceView(goal.reason, goal.message))

    async def _begin(self, goal: Launch, target: Mailbox[Target]) -> None:
        """Have an engine where there is none; return when it serves, or has ended."""
        found, self.adoptable = self.adoptable, None
        self._current = engine = Incarnation(self.site, goal, found)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_superseded, engine, target, CONFIRMED_SECONDS if found else 0.0)
            await self._incarnations.start(self._live, engine)
            nursery.cancel_scope.cancel(reason="it serves, or has ended")

    async def _replace(self, current: Incarnation, goal: Launch, target: Mailbox[Target]) -> None:
        """Do the next thing on the way from the engine that serves to one of another plan."""
        key, version = self.site.reporter.key, target.version
        if self._attempted != goal.plan.digest:
            self._attempted, self._attempts = goal.plan.digest, RestartState()
        until = (partial(target.wait_newer, version), current.ended.wait)
        if self._retiring is not None and not self._retiring.ended.is_set():  # one replacement at a time
            await wait_any(self._retiring.ended.wait, *until)
            return
        way = self.site.ledger.replacement(key, await self.site.need(goal))
        if way is Way.INSTEAD and not self._attempts.failures:
            log.info("plan changed; restarting", name=key.name, namespace=key.namespace)
            current.scope.cancel(reason="the plan changed")
            await current.ended.wait()
        elif way is Way.BESIDE:
            await self._hand_over(current, goal, target)
        else:  # what serves is not given up for what cannot start, or has failed to
            if isinstance(way, Refusal):
                message = way.message + context_hint(goal, way.room_bytes)
                self.site.reporter.outdated(
                    reason_word(way.block), f"{message}; the engine of the older spec serves on"
                )
            await wait_any(self.site.ledger.decided.wait, *until)

    async def _hand_over(self, current: Incarnation, goal: Launch, target: Mailbox[Target]) -> None:
        """Start a successor beside the engine that serves; when it answers, the old one may go."""
        key, version = self.site.reporter.key, target.version
        log.info("plan changed; starting a successor", name=key.name, namespace=key.namespace)
        self.site.reporter.outdated(
            "Replacing", "the engine of the newest spec is loading; the one before serves until then"
        )
        successor = Incarnation(self.site, goal, before=current)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_superseded, successor, target, 0.0)
            nursery.start_soon(_lead_when_alone, current, successor)
            await self._incarnations.start(self._live, successor)
            nursery.cancel_scope.cancel(reason="it serves, or has ended")
        if successor.serves:
            self._current, self._retiring, self._state = successor, current, RestartState()
            self._incarnations.start_soon(self._retire, current)
        elif successor.voice.leads:  # the old one has ended meanwhile
            self._current = successor
        elif successor.failure is not None:
            self._attempts, delay = after_failure(self.policy, self._attempts, successor.failure, self.site.ports.rng)
            self.site.reporter.not_replaced(successor.failure, self._attempts.failures, delay)
            with trio.move_on_after(delay):
                await wait_any(partial(target.wait_newer, version), current.ended.wait)
            if target.version != version:
                self._attempts = RestartState()

    async def _retire(self, old: Incarnation) -> None:
        """Let an engine end when nobody is sent to it any more."""
        with trio.move_on_after(self.site.settings.withdraw_seconds):
            await self.site.reporter.wait_endpoint_heard()
        await trio.sleep(FOLLOW_SECONDS)
        old.scope.cancel(reason="its successor serves")

    async def _mourn(self, failure: Failure | None, target: Mailbox[Target]) -> None:
        """Say why an engine has ended, and wait until the next attempt is due, or another plan."""
        if failure is None:  # superseded or evicted: the next one starts with a clean record
            self._state = RestartState()
            return
        self._state, delay = after_failure(self.policy, self._state, failure, self.site.ports.rng)
        log.warning(
            "inference service failed",
            name=self.site.reporter.key.name,
            namespace=self.site.reporter.key.namespace,
            reason=str(failure.reason),
            failures=self._state.failures,
            retry_seconds=round(delay, 1),
            message=failure.message.partition("\n")[0],
        )
        self.site.reporter.failed(failure, self._state.failures, delay)
        version = target.version
        with trio.move_on_after(delay):
            await target.wait_newer(version)
            self._state = RestartState()

    # -- what ends an engine --------------------------------------------------------------------------------------

    async def _end_when_superseded(self, engine: Incarnation, target: Mailbox[Target], patience: float) -> None:
        """End an engine that does not serve yet when another plan, or none, should run, after so many seconds."""
        key = self.site.reporter.key
        await trio.sleep(patience)
        while True:
            version, goal = target.version, target.value
            if isinstance(goal, Idle):
                await self._forget_if_unwanted(goal)
                engine.scope.cancel(reason=goal.message)
            elif goal.plan.digest != engine.launch.plan.digest:
                log.info("plan changed while loading", name=key.name, namespace=key.namespace)
                engine.scope.cancel(reason="the plan changed")
            await target.wait_newer(version)

    async def _forget_if_unwanted(self, goal: Idle) -> None:
        """What shall not run is out of the journal before its engine ends: the next agent must not start it again."""
        if goal.reason == Reason.SCALED_TO_ZERO:
            await self.site.ports.journal.remove(self.site.reporter.key)


async def _lead_when_alone(current: Incarnation, successor: Incarnation) -> None:
    """When the engine that serves ends by itself, its service is the successor's at once."""
    await current.ended.wait()
    if current.failure is not None:
        log.warning("replaced engine failed", message=current.failure.message.partition("\n")[0])
    successor.voice.lead()
