"""One InferenceService's nursery: a planner that makes targets, and a runner that keeps an engine in line with them.

```
 run_service                         runs until the agent cancels its scope
 └ nursery
   ├ Planner.run   Desired ─▶ Target        (fetch, read, plan; never touches a process)
   └ Runner.run    Target ─▶ engine
     └ attempts                             one after the other; two during a handover
```

If an earlier agent left an engine, the first target comes from the journal, and the first attempt adopts the process.

**An older plan is the fallback of a newer one that cannot start.** If an engine serves only because the newest plan
cannot, and then exits by itself, it is started again; the newest plan is still retried, as a successor or between two
attempts of the fallback. There is no fallback any more once the newest plan serves, or nothing should run.

**A handover is `nursery.start`.** The runner starts a successor while the current engine serves, and waits in `start`
until it answers. Whatever cancels that wait ends the successor and leaves the current engine alone.
"""

import math
from functools import partial
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, first_leaf
from llmkube.base.mailbox import Mailbox
from llmkube.base.waiting import wait_any
from llmkube.k8s.wire.reasons import Reason, is_failing
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.service.attempt import Attempt
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.measurement import explain
from llmkube.supervisor.service.planner import Planner
from llmkube.supervisor.values.desired import Idle, Launch, Target
from llmkube.supervisor.values.journal import EngineRecord, Entry
from llmkube.supervisor.values.lifecycle import Failure, RestartState, ServiceView, after_failure

log = structlog.get_logger(__name__)

PROPAGATION_SECONDS: Final = 2.0
"""Time for nodes to apply an endpoint that the API server has accepted (kube-proxy batches changes for up to 1 s)."""


ADOPTION_SECONDS: Final = 1.0
"""Time for an adopted engine to answer before it is stopped in favour of another plan: one that serves is replaced by a
handover, and one that still loads is not waited for."""


@attrs.define(eq=False)
class EngineNursery:
    """Starts attempts in a nursery, lists those that have not ended, and retires those that have been replaced."""

    _nursery: trio.Nursery
    _alive: list[Attempt]

    async def start(self, attempt: Attempt) -> None:
        """Return when the engine serves, or the attempt is over; whatever cancels that wait ends the engine."""
        await self._nursery.start(self._run, attempt)

    def retire(self, old: Attempt) -> None:
        """Stop an engine, in a task of its own, once no more requests are sent to it."""
        self._nursery.start_soon(retire, old)

    async def _run(self, attempt: Attempt, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        attempt.set_task_status(task_status)
        del task_status  # it refers to the nursery of the `start` call; the attempt drops it after calling it
        self._alive.append(attempt)
        try:
            await attempt.run()
        finally:
            self._alive.remove(attempt)


async def retire(old: Attempt) -> None:
    """Stop an engine once clients have switched to its successor's endpoint."""
    with trio.move_on_after(old.context.settings.withdraw_seconds):
        await old.context.status_manager.wait_endpoint_applied()
    await trio.sleep(PROPAGATION_SECONDS)
    old.scope.cancel(reason="its successor serves")


async def run_service(replan: Mailbox[None], runner: "Runner", first: Target) -> None:
    """Run one service until cancelled; a bug in here is reported, and other services are not affected.

    Args:
        replan: Its version grows whenever the desired state or the engine program changes.
        runner: The service's runner.
        first: The target until the planner has made one, such as the launch that an earlier agent left.
    """
    backoff, failures, context = Backoff(), 0, runner.context
    manager = context.status_manager
    while True:
        target = context.gate.open(first)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(runner.run, target)  # first: an engine has to be adopted before it can be stopped
                await Planner(context, target).run(replan)  # without a task of its own, of which there are hundreds
        except* Exception as bug:
            # One of the broad catches: an error affects only the service that it belongs to.
            context.log.exception("service task failed")
            view = ServiceView(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {first_leaf(bug)!r}")
            manager.update(Facts.with_view, view)
        first = Idle(Reason.PENDING)
        failures += 1
        await trio.sleep(backoff.delay(failures, context.ports.rng))


@attrs.define(eq=False)
class Runner:
    """Keeps one engine in line with its target.

    Attributes:
        context: State that its engines share.
        adoptable: The process that the first attempt adopts, if an earlier agent left one.
        fallback: The launch that served last, if a newer plan could not replace it; None while the newest one serves.
    """

    context: ServiceContext
    adoptable: EngineRecord | None = None
    fallback: Launch | None = None
    _current: Attempt | None = None  # the engine that serves, or will
    _retiring: Attempt | None = None  # the engine that it has replaced, while that one still runs
    _engines: list[Attempt] = attrs.field(factory=list)  # these two, and the successor of the current one
    _state: RestartState = RestartState()
    _attempts: RestartState = RestartState()  # of the newest plan, while an older one serves or is the fallback
    _attempted_digest: str = ""  # the digest of that plan
    _due_at: float = -math.inf  # when it is tried again

    async def run(
        self, target: Mailbox[Target], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep an engine running for the target, with back-off after failures; never return.

        `started` is called once it watches the target.
        """
        self._current, self._retiring, self._state = None, None, RestartState()
        async with trio.open_nursery() as nursery:
            task_status.started()
            del task_status  # it refers to the nursery of the `start` call: a kilobyte per service
            await self._reconcile_target(EngineNursery(nursery, self._engines), target)

    async def _reconcile_target(self, engines: EngineNursery, target: Mailbox[Target]) -> Never:
        while True:
            version, goal = target.version, target.value
            if isinstance(goal, Idle) and self.adoptable is not None:
                goal = goal.launch or goal  # an engine has to be adopted before it can be stopped
            if isinstance(goal, Idle):
                await self._stop_all(goal, target)
                newest = await target.wait_newer(version)
                if goal.launch is None or newest != goal.launch:  # a failed load that is repeated keeps its back-off
                    self._state = RestartState()
            elif self._current is None:
                self._track_newest(goal)
                await self._launch(engines, await self._choose_launch(goal), goal, target)
            elif self._current.launch.plan.digest == goal.plan.digest:
                self.fallback, self._attempted_digest = None, ""
                self.context.status_manager.update(Facts.with_newest_plan)
                await self._check_budget(goal)
                with trio.CancelScope() as self._current.waiting:  # saves the task that `wait_any` would need
                    await self._current.journal.save_desired()
                    await target.wait_newer(version)
                self._current.waiting = None
            else:
                await self._replace(engines, self._current, goal, target)
            if self._current is not None and self._current.ended.is_set():
                previous, self._current = self._current, None
                await self._after_exit(previous, target)

    def address_changed(self) -> None:
        """Report the host's new address, and stop engines that listen on a lost one."""
        self.context.status_manager.refresh()
        for engine in self._engines:
            engine.address_changed()

    # -- the steps ------------------------------------------------------------------------------------------------

    async def _stop_all(self, goal: Idle, target: Mailbox[Target]) -> None:
        """Stop all engines, and report why; requests that arrive from now on wait, and may load the service again."""
        alive = tuple(self._engines)
        if alive:
            for each in alive:
                each.status.withdraw()
            self.context.ledger.book.record_stopping(self.context.key, trio.current_time())
            zero = goal.reason == Reason.SCALED_TO_ZERO
            message = "replicas=0; stopping process" if zero else "stopping process"
            self.context.log.info(message, reason=goal.message)
        if goal.reason == Reason.SCALED_TO_ZERO:
            self.fallback = None
        await self._forget_if_unwanted(goal)
        if goal.launch is not None:
            self.context.status_manager.update(Facts.with_newest_plan)
        while alive := tuple(each for each in alive if not each.ended.is_set()):
            newest, version = target.value, target.version
            is_over = isinstance(newest, Idle) and newest.launch is None  # no request loads it again
            for each in alive:
                each.scope.cancel(reason=goal.message) if is_over else each.unload(goal.message)
            await wait_any(alive[0].ended.wait, partial(target.wait_newer, version))
        self._current = None
        self.context.status_manager.update(Facts.with_view, ServiceView(goal.reason, goal.message))

    def _track_newest(self, goal: Launch) -> None:
        """Reset the count of failures if this plan is a new one."""
        if self._attempted_digest != goal.plan.digest:
            self._attempted_digest, self._attempts, self._due_at = goal.plan.digest, RestartState(), -math.inf

    async def _choose_launch(self, goal: Launch) -> Launch:
        """Return the launch to start while nothing runs: the newest one, or the fallback while that cannot start."""
        fallback = self.fallback
        if fallback is None or self.adoptable is not None or fallback.plan.digest == goal.plan.digest:
            return goal
        if not await self.context.ports.weights.keeps(fallback.weights):
            self.fallback = None
            return goal
        if trio.current_time() < self._due_at or await self._is_refused(goal):
            return fallback
        return goal

    async def _is_refused(self, goal: Launch) -> bool:
        """Whether there is not enough memory for a plan, even if this service's own engine were stopped."""
        strategy = self.context.ledger.replacement(self.context.key, await self.context.need(goal))
        if isinstance(strategy, Refusal):
            self._report_refused(goal, strategy)
        return isinstance(strategy, Refusal)

    async def _check_budget(self, goal: Launch) -> None:
        """Report if the engine that serves exceeds the memory budget: it keeps running, but could not start again."""
        refusal = self.context.ledger.permanent_refusal(self.context.key, await self.context.need(goal))
        if refusal is not None:
            suffix = "the running engine keeps serving, but once it exits, no engine can replace it"
            message = f"{explain(refusal, goal)}; {suffix}"
            self.context.status_manager.update(Facts.with_outdated, refusal.reason, message)

    def _report_refused(self, goal: Launch, refusal: Refusal) -> None:
        message = f"{explain(refusal, goal)}; the engine of the older spec keeps serving"
        self.context.status_manager.update(Facts.with_outdated, refusal.reason, message)

    async def _launch(self, engines: EngineNursery, launch: Launch, goal: Launch, target: Mailbox[Target]) -> None:
        """Start an engine while there is none; return when it serves, or the attempt is over.

        Args:
            engines: Nursery of the engines.
            launch: The launch to start.
            goal: The newest launch; it differs from `launch` if that is the fallback.
            target: The service's target.
        """
        adoptable, self.adoptable = self.adoptable, None
        self._current = engine = Attempt(self.context, launch, adoptable, fallback=self.fallback)
        delay_seconds = ADOPTION_SECONDS if adoptable else 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_superseded, engine, goal, target, delay_seconds)
            if launch is not goal:
                self.context.log.info("starting the engine of the older spec")
                nursery.start_soon(self._end_wait_when_due, engine, goal)
            await engines.start(engine)
            nursery.cancel_scope.cancel(reason="it serves, or its attempt is over")

    async def _replace(self, engines: EngineNursery, current: Attempt, goal: Launch, target: Mailbox[Target]) -> None:
        """Do the next step of replacing the engine that serves with one of another plan."""
        key, version = self.context.key, target.version
        self._track_newest(goal)
        until = (partial(target.wait_newer, version), current.ended.wait)
        if self._retiring is not None and not self._retiring.ended.is_set():  # one replacement at a time
            await wait_any(self._retiring.ended.wait, *until)
            return
        if trio.current_time() < self._due_at:
            with trio.move_on_at(self._due_at):
                await wait_any(*until)
            if target.version != version:
                self._attempted_digest = ""
            return
        strategy = self.context.ledger.replacement(key, await self.context.need(goal))
        if strategy is Strategy.RECREATE and not self._attempts.failures:
            self.context.log.info("plan changed; restarting")
            self.fallback = None
            current.scope.cancel(reason="the plan changed")
            await current.ended.wait()
        elif strategy is Strategy.ROLLING_UPDATE:
            await self._hand_over(engines, current, goal, target)
        else:  # an engine that serves is not stopped for one that cannot start, or has failed to
            if isinstance(strategy, Refusal):
                self._report_refused(goal, strategy)
                await self._set_fallback(current)
            await wait_any(self.context.ledger.decided.wait, *until)

    async def _hand_over(self, engines: EngineNursery, current: Attempt, goal: Launch, target: Mailbox[Target]) -> None:
        """Start a successor while the current engine serves; once it answers, retire the old one."""
        self.context.log.info("plan changed; starting a successor")
        message = "the engine of the newest spec is loading; the previous one serves until then"
        self.context.status_manager.update(Facts.with_outdated, Reason.REPLACING, message)
        successor = Attempt(self.context, goal, before=current)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_superseded, successor, goal, target, 0.0)
            nursery.start_soon(_lead_after_exit, current, successor)
            await engines.start(successor)
            nursery.cancel_scope.cancel(reason="it serves, or its attempt is over")
        if successor.serves:
            self._current, self._retiring, self._state = successor, current, RestartState()
            engines.retire(current)
        elif successor.status.leads:  # the old one has exited meanwhile
            self._current, self.fallback = successor, current.launch
        elif successor.failure is not None:
            delay, now = self._postpone(successor.failure), self.context.ports.utcnow()
            self.context.status_manager.update(
                Facts.with_replace_failure, successor.failure, self._attempts.failures, delay, now
            )
            await self._set_fallback(current)

    async def _set_fallback(self, current: Attempt) -> None:
        """Make the launch that serves the fallback, since the newest plan could not start."""
        self.fallback = current.launch
        await current.journal.set_served()

    def _postpone(self, failure: Failure) -> float:
        """Count a failure of the newest plan; return the delay in seconds until it is tried again."""
        self._attempts, delay = after_failure(self._attempts, failure, self.context.ports.rng)
        self._due_at = trio.current_time() + delay
        return delay

    async def _after_exit(self, previous: Attempt, target: Mailbox[Target]) -> None:
        """Report why an engine exited, and wait until the next attempt is due or the target changes.

        With a fallback there is no wait: the fallback starts at once.
        """
        failure, manager, now = previous.failure, self.context.status_manager, self.context.ports.utcnow()
        if failure is None:  # superseded or evicted: the next one starts without failures
            self._state = RestartState()
            return
        has_fallback = self.fallback is not None and self.fallback.plan.digest != previous.launch.plan.digest
        if has_fallback:
            delay, failures = self._postpone(failure), self._attempts.failures
            manager.update(Facts.with_newest_failure, failure, failures, delay, now)
        else:
            self._state, delay = after_failure(self._state, failure, self.context.ports.rng)
            failures = self._state.failures
            manager.update(Facts.with_failure, failure, failures, delay, now)
        self.context.log.warning(
            "inference service failed",
            reason=str(failure.reason),
            failures=failures,
            retry_seconds=round(delay, 1),
            message=failure.message.partition("\n")[0],
        )
        if has_fallback:
            return
        gate = self.context.gate
        view, waits = manager.view, gate.activation.on_request and not gate.activation.pinned
        if delay and waits and is_failing(view.reason, unknown=False):
            gate.change(gate.activation.fail(trio.current_time() + delay, Idle(view.reason, view.message)))
            return
        version = target.version
        with trio.move_on_after(delay):
            await target.wait_newer(version)
            self._state = RestartState()

    # -- what ends an engine --------------------------------------------------------------------------------------

    async def _end_when_superseded(
        self, engine: Attempt, goal: Launch, target: Mailbox[Target], delay_seconds: float
    ) -> None:
        """Stop an engine that does not serve yet when another plan, or none, should run; not before `delay_seconds`.

        A fallback is kept as long as `goal` is the newest plan.
        """
        accepted = {engine.launch.plan.digest, goal.plan.digest}
        await trio.sleep(delay_seconds)
        while True:
            version, newest = target.version, target.value
            if isinstance(newest, Idle):
                await self._forget_if_unwanted(newest)
                engine.unload(newest.message)
            elif newest.plan.digest not in accepted:
                self.context.log.info("plan changed while loading")
                engine.scope.cancel(reason="the plan changed")
            await target.wait_newer(version)

    async def _end_wait_when_due(self, engine: Attempt, goal: Launch) -> None:
        """Cancel a fallback's wait for memory when the newest plan is due and would not have to wait."""
        await trio.sleep_until(self._due_at)
        while engine.child is None and await self._is_refused(goal):
            await self.context.ledger.decided.wait()
        if engine.child is None:
            engine.scope.cancel(reason="the newest plan can start")

    async def _forget_if_unwanted(self, goal: Idle) -> None:
        """Record in the journal that a service is idle, or remove one that is scaled to zero."""
        # Before its engine is stopped: the next agent must not start it again.
        context = self.context
        if goal.reason == Reason.SCALED_TO_ZERO:
            await context.ports.journal.remove(context.key)
        elif goal.launch is not None:
            try:
                await context.ports.journal.write(Entry(context.status_manager.facts.desired, goal.launch, idle=True))
            except ExternalError as error:
                context.log.warning("journal entry not written", error=str(error))


async def _lead_after_exit(current: Attempt, successor: Attempt) -> None:
    """Make the successor lead as soon as the current engine exits."""
    await current.ended.wait()
    if current.failure is not None:
        log.warning("replaced engine failed", message=current.failure.message.partition("\n")[0])
    successor.status.lead()
