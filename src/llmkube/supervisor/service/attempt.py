"""One engine from the wait for memory to the end of its process, as nested scopes.

```
 run                                  contains every error: it becomes this engine's failure
 └ memory                             reserved before the spawn, released when the process is gone
   └ child                            spawned or adopted; on exit TERM, grace, KILL, reap
     ├ exit watch, stall watch        while it loads
     └ drained ─ withdrawn ─ hang watch while it answers; on exit: not ready, then requests in flight may finish
```

An engine ends only when one of these scopes is left, and the steps of its end are in the order of the blocks.

The journal has an entry for the engine: desired state, plan and process. The next agent adopts the engine from it.

A model that a killed engine left in a shared daemon is unloaded while the next engine waits for memory. If there is
memory for both, the next engine takes that model over and loads nothing.
"""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, first_leaf
from llmkube.base.waiting import wait_any
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import timestamp
from llmkube.runtimes.plan import UNLOAD_LEFT, EngineInfo, LaunchPlan
from llmkube.runtimes.process.exits import GivenUp
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES, holds_elsewhere, log_reader_of
from llmkube.supervisor.engine import health
from llmkube.supervisor.engine.key_file import key_path, new_key
from llmkube.supervisor.engine.logfile import next_log, old_log
from llmkube.supervisor.engine.proxy import proxy_of
from llmkube.supervisor.memory.ledger import Allocation
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.service import metal
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.engine_status import LAST_LINES, EngineStatus, Outcome, failure_of, watch_model
from llmkube.supervisor.service.events import cut_short_event
from llmkube.supervisor.service.loading import RunningEngine
from llmkube.supervisor.service.measurement import EngineMeasurement, explain
from llmkube.supervisor.service.saved_prompts import EnginePrompts, RestoreError
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.host_addresses import LOOPBACK
from llmkube.supervisor.values.journal import EngineRecord, Entry, FileJournal
from llmkube.supervisor.values.lifecycle import Exit, Failure, ServiceView, reason_of
from llmkube.supervisor.values.need import need_of
from llmkube.supervisor.values.ports import Child, Command, Grace
from llmkube.supervisor.values.settings import SAVE_SECONDS

log = structlog.get_logger(__name__)

UNLOAD_SECONDS: Final = 60.0
"""Time limit of the program that unloads: an unload may take eight seconds, and Python may start from a slow disk."""

RETRY: Final = Backoff(base_seconds=10.0, cap_seconds=300.0)
"""Delays between attempts to unload while the daemon does not answer or keeps the model."""


@asynccontextmanager
async def unloading_leftover(context: ServiceContext, launch: Launch, refused: trio.Event) -> AsyncIterator[None]:
    """Unload what a killed engine of this launch left in a shared daemon, while the body waits for memory.

    Args:
        context: State that the engines of the service share.
        launch: The plan that is to start.
        refused: Set once there is not enough memory for it.
    """

    async def unload_once_refused() -> None:
        await refused.wait()
        await unload_leftover(context, launch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(unload_once_refused)
        yield
        nursery.cancel_scope.cancel(reason="memory reserved")


async def unload_leftover(context: ServiceContext, launch: Launch) -> None:
    """Unload what a killed engine of this launch left in the daemon; retry with back-off until that succeeds.

    When cancelled, stop the program before returning: nothing is unloaded afterwards.
    """
    failures = 0
    while True:
        try:
            result = await _run_unload(context, launch)
        except* ExternalError as group:
            result, why = Exit(None), str(first_leaf(group))
        else:
            why = str(result)
        if result.code == 0:
            return
        failures += 1
        delay = RETRY.delay(failures, context.ports.rng)
        context.log.warning("leftover model not unloaded", reason=why, retry_seconds=round(delay, 1))
        await trio.sleep(delay)


async def _run_unload(context: ServiceContext, launch: Launch) -> Exit:
    """Run the engine's program in its unload mode; return its exit."""
    engines = context.ports.engines
    engine, cookie = await engines.info(launch.plan.engine_key), f"{context.ports.rng.getrandbits(64):016x}"
    command = context.command(launch, engine, cookie, host="127.0.0.1", port=0)
    command = attrs.evolve(command, argv=(*command.argv, UNLOAD_LEFT))
    seconds = context.settings.grace_seconds
    async with engines.open_child(command, context.shutdown, Grace(seconds, seconds)) as child:
        with trio.move_on_after(UNLOAD_SECONDS):
            return await child.wait()
        return Exit(None)


@attrs.define(eq=False)
class EngineJournal:
    """One engine's entry in the journal.

    Attributes:
        manager: The service's status manager, which has the newest desired state.
        journal: The journal on disk.
        launch: The engine's plan and weights.
        fallback: The launch that served last, if no newer plan could start since.
    """

    manager: StatusManager
    journal: FileJournal
    launch: Launch
    fallback: Launch | None = None
    _entry: Entry | None = None  # of the process; it may not be written yet

    @property
    def has_entry(self) -> bool:
        """Whether there is an entry for the process."""
        return self._entry is not None

    def expect(self, record: EngineRecord) -> None:
        """Set the entry of a running process that the journal already has, or will have once the engine leads."""
        self._entry = self._entry_of(record)

    async def save(self, record: EngineRecord) -> None:
        """Write the entry; raise ExternalError if that fails."""
        entry = self._entry_of(record)
        await self.journal.write(entry)
        self._entry = entry

    async def try_save(self, record: EngineRecord) -> bool:
        """Write the entry; return whether that succeeded."""
        try:
            await self.save(record)
        except ExternalError as error:
            self.manager.log.warning("journal entry not written", error=str(error))
            return False
        return True

    async def set_served(self) -> None:
        """Record that this launch has served and that no newer plan could start since."""
        if self.fallback is None:
            self.fallback = self.launch
            await self._save_again()

    async def save_desired(self) -> None:
        """Record the newest desired state, even if it restarts nothing (another priority, another uid)."""
        if self._entry is not None and self._entry.desired is not self.manager.facts.desired:
            await self._save_again()

    async def _save_again(self) -> None:
        """Write the entry again, if the journal has the process."""
        if self._entry is not None and self._entry.engine is not None:
            await self.try_save(self._entry.engine)

    def _entry_of(self, record: EngineRecord) -> Entry:
        return Entry(self.manager.facts.desired, self.launch, record, self.fallback)


def new_record(context: ServiceContext, plan: LaunchPlan) -> EngineRecord:
    """Choose ports and a key for an engine that is about to start.

    An engine that cannot check keys listens on the loopback address, behind a proxy that checks them; an engine that is
    loaded on request listens there, too, behind the door.

    Raises:
        ExternalError: This host does not have the address.
    """
    settings, engines = context.settings, context.ports.engines
    cookie, address = f"{context.ports.rng.getrandbits(64):016x}", context.status_manager.host_address.value.bind
    clients_have_keys, takes_keys = bool(plan.keys_digest), HOST_RUNTIMES[plan.runtime].takes_keys
    is_open = takes_keys and settings.insecure_lan and not clients_have_keys
    is_behind_door = context.door is not None and context.gate.activation.on_request
    is_direct = is_open or (takes_keys and (clients_have_keys or not settings.publishes))
    host = address if is_direct and not is_behind_door else LOOPBACK[ipaddress.ip_address(address).version]
    record = EngineRecord(cookie, host, engines.free_port(host), api_key="" if is_open else new_key())
    if is_direct or is_behind_door:
        return record
    return attrs.evolve(record, public_host=address, public_port=engines.free_port(address))


JOURNAL_RETRY_SECONDS: Final = 1.0
"""Pause between attempts to write a successor into the journal."""


class KeysUnknownError(ExternalError):
    """The API keys of a service's clients are unknown, so its engine cannot start."""

    reason = Reason.API_KEYS_NOT_READ


@attrs.define(eq=False)
class Attempt:
    """One engine of a service.

    Attributes:
        context: State that it shares with the other engines of its service.
        launch: Its plan and weights.
        adoptable: The process to adopt, if an earlier agent left one.
        before: The engine that serves until this one answers, if there is one.
        fallback: The launch that served last, if no newer plan could start since.
        journal: Its entry for the next agent.
        child: Its process, while there is one.
        status: Its status.
        scope: Cancelling it stops the engine gracefully.
        serves: Whether it has answered.
        ended: Set when the attempt is over and its process is gone.
        failure: Why it failed, if it did.
        prompts: Its saved prompts, once it has a process.
        waiting: Cancelled when the attempt is over.
    """

    context: ServiceContext
    launch: Launch
    adoptable: EngineRecord | None = None
    before: "Attempt | None" = None
    fallback: Launch | None = None
    child: Child | None = None
    journal: EngineJournal = attrs.field(init=False)
    status: EngineStatus = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    serves: bool = False
    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: Failure | None = None
    prompts: EnginePrompts | None = None
    waiting: trio.CancelScope | None = None
    _task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    _serving: trio.CancelScope = attrs.field(factory=trio.CancelScope)  # while it answers; `unload` cancels it
    _refused: trio.Event = attrs.field(factory=trio.Event)  # set when memory was refused once
    _host: str = ""  # the address that it listens on, while it loads and serves

    def __attrs_post_init__(self) -> None:
        manager, newest = self.context.status_manager, self.launch != self.fallback
        self.journal = EngineJournal(manager, self.context.ports.journal, self.launch, self.fallback)
        self.status = EngineStatus(manager, self.context.leader, newest=newest)

    def set_task_status(self, task_status: trio.TaskStatus[None]) -> None:
        """Have `started` called once: when the engine serves, or the attempt is over before that."""
        self._task_status = task_status

    async def run(self) -> None:
        """Wait for memory, start the engine, serve, and stop it."""
        try:
            with self.scope:
                try:
                    self.failure = await self._run_admitted()
                except* ExternalError as group:
                    error = first_leaf(group)
                    self.failure = Failure(reason_of(error), str(error))
                except* Exception as bug:
                    # One of the broad catches: a bug in here fails this engine only.
                    self.context.log.exception("attempt failed")
                    self.failure = Failure(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {first_leaf(bug)!r}")
        finally:
            self.ended.set()
            if self.waiting is not None:
                self.waiting.cancel(reason="the engine has exited")
        self._report_started()

    def _report_started(self) -> None:
        task_status, self._task_status = self._task_status, trio.TASK_STATUS_IGNORED
        task_status.started()

    def unload(self, reason: str) -> None:
        """Stop the engine once the requests that it has have ended, whatever time they take; others wait."""
        (self._serving if self.serves else self.scope).cancel(reason=reason)

    def address_changed(self) -> None:
        """Stop the engine if this host no longer has the address that it listens on."""
        if self._host and not self.context.status_manager.host_address.value.serves(self._host):
            self.context.log.info("address lost; restarting", hostIP=self._host)
            self.scope.cancel(reason=f"this machine no longer has the address {self._host}")

    # -- memory ---------------------------------------------------------------------------------------------------

    async def _run_admitted(self) -> Failure | None:
        """Reserve memory and run the engine in it; None if it no longer fits next to the engine that serves."""
        context, key = self.context, self.context.key
        if self.before is not None:
            with context.ledger.reserve_successor(key, await context.need(self.launch), scope=self.scope) as allocation:
                return await self._in_process(allocation) if allocation is not None else None
        self.status.lead()
        # An adopted engine already has its memory, and must be adopted before anything else happens.
        need = (
            need_of(self.launch, None, context.settings.devices) if self.adoptable else await context.need(self.launch)
        )
        admitted = context.ledger.admitted(key, need, scope=self.scope, report=self._report_wait)
        if self.adoptable or not holds_elsewhere(self.launch.plan.runtime):
            async with admitted as allocation:
                return await self._in_process(allocation)
        async with AsyncExitStack() as stack:
            async with unloading_leftover(context, self.launch, self._refused):
                allocation = await stack.enter_async_context(admitted)
            return await self._in_process(allocation)

    def _report_wait(self, refusal: Refusal) -> None:
        """Report why nothing runs and what would help."""
        self._refused.set()
        key, message = self.context.key, explain(refusal, self.launch)
        evicted = self.context.ledger.book.evicted(key)
        if evicted is None:
            self.context.log.info("waiting for memory", reason=message)
            self.status.set_view(ServiceView(refusal.reason, message))
        else:
            self.status.set_view(ServiceView(Reason.EVICTED, f"{evicted.why}. Now: {message}"))

    # -- the process ----------------------------------------------------------------------------------------------

    async def _in_process(self, allocation: Allocation) -> Failure | None:
        """Start or adopt a process, and serve until it exits; it is stopped on return, unless a shutdown keeps it."""
        context, adoptable = self.context, self.adoptable
        grace = metal.grace_of(self.launch, context.settings, partial(context.ledger.wait_urgent, allocation))
        async with self._adopted(adoptable, grace) if adoptable else self._spawned(grace) as (child, record):
            self.child = child
            if not self.journal.has_entry:  # a successor, which the journal gets when it takes over
                self.journal.expect(record)
            context.ledger.started(allocation, child.pid)
            allocation.unload = self.unload
            running = RunningEngine(child, record, self.launch, context.ports.http, context.settings.limits)
            self._host = "" if self._is_behind_door(record) else record.address[0]
            self.address_changed()
            try:
                return await self._serve(running, allocation)
            finally:
                self._host = ""

    def _is_behind_door(self, record: EngineRecord) -> bool:
        """Whether an engine accepts connections of this host only, although the host publishes its engines."""
        bind = self.context.status_manager.host_address.value.bind
        is_local = [address in LOOPBACK.values() for address in (record.address[0], bind)]
        return self.context.door is not None and is_local == [True, False]

    @asynccontextmanager
    async def _spawned(self, grace: Grace) -> AsyncIterator[tuple[Child, EngineRecord]]:
        """Start a process; its entry is in the journal before the process exists.

        A successor gets no entry yet: the next agent would adopt the engine that serves and end this one as an orphan.
        """
        context, launch = self.context, self.launch
        engine = await context.ports.engines.info(launch.plan.engine_key)
        if launch.plan.keys_digest and not launch.client_keys:
            raise KeysUnknownError("client API keys unknown: the API server has not returned their Secret yet")
        record = attrs.evolve(new_record(context, launch.plan), build=engine.version)
        context.log.info("starting inference service", port=record.address[1])
        opening = context.ports.engines.open_child(await self._command(record, engine), context.shutdown, grace)
        standalone = self.before is None
        if standalone:
            await self.journal.save(record)
        async with opening as child:  # drops the command, whose environment takes kilobytes
            record = attrs.evolve(record, pid=child.pid, started=child.started, log_offset=child.log_offset)
            if standalone:
                await self.journal.save(record)
            yield child, record

    async def _command(self, record: EngineRecord, engine: EngineInfo) -> Command:
        context, launch = self.context, self.launch
        keys = key_path(context.settings.state_dir, record.cookie)
        command = context.command(launch, engine, record.cookie, host=record.host, port=record.port, keys=str(keys))
        saving = await context.prompts.flags_for(context.key, launch.plan, engine, record.api_key)
        return attrs.evolve(
            command,
            argv=(*command.argv, *saving),
            log_path=context.log_path if self.before is None else next_log(context.log_path),
            keys_path=keys if record.api_key else None,
            api_keys=(record.api_key, *launch.client_keys),
            proxy=proxy_of(record, context.settings.keyless_networks, launch.client_keys),
        )

    @asynccontextmanager
    async def _adopted(self, record: EngineRecord, grace: Grace) -> AsyncIterator[tuple[Child, EngineRecord]]:
        """Adopt the process that an earlier agent left."""
        context = self.context
        self.journal.expect(record)
        path = next_log(context.log_path) if record.next_log else context.log_path
        async with context.ports.engines.adopt_child(record, path, context.shutdown, grace) as child:
            context.log.info("adopted inference service", pid=child.pid, port=record.address[1])
            if record.next_log:  # its agent was killed during a handover
                record = await self._rename_log(child, record)
            yield child, record

    async def _rename_log(self, child: Child, record: EngineRecord) -> EngineRecord:
        """Give the log the service's usual name; until then `next_log` in the journal marks the old one."""
        await child.rename_log(self.context.log_path)
        record = attrs.evolve(record, next_log=False)
        self.journal.expect(record)
        await self.journal.try_save(record)  # if it fails, the next write has it, or the next agent renames again
        return record

    # -- its service ----------------------------------------------------------------------------------------------

    async def _serve(self, running: RunningEngine, allocation: Allocation) -> Failure | None:
        """Return when the child has exited, stalls while loading, hangs, or does not own its port; None if unloaded."""
        context, launch, child = self.context, self.launch, running.child
        view = ServiceView(
            Reason.LOADING,
            "the engine is loading the model",
            *running.record.address,
            child.pid,
            launch.plan.reported_model,
            api_key=running.record.api_key,
            mode=launch.plan.mode,
            engine=launch.plan.runtime,
            build=running.record.build,
            weights_format=launch.plan.weights_format,
            adapters=launch.plan.adapters,
            behind_door=self._is_behind_door(running.record),
        )
        started_at = trio.current_time()
        outcome = Outcome(published=self.adoptable is not None)  # by an earlier agent
        owner = context.status_manager.facts.desired.service.metadata.uid
        self.prompts = prompts = EnginePrompts(context.prompts, running, context.key, owner)

        async with trio.open_nursery() as nursery:

            async def watch_exit() -> None:
                outcome.exit = await child.wait()
                nursery.cancel_scope.cancel(reason=f"the engine exited: {outcome.exit}")

            nursery.start_soon(watch_exit)
            async with (
                self._drained(running, outcome, allocation.expedited, prompts),
                self.status.withdrawn(outcome, allocation, context.shutdown),
            ):
                if self.adoptable is None or not await running.answers_at_once():
                    self.status.set_view(view)
                outcome.failure = await running.wait_loaded(self.status, adopted=self.adoptable is not None)
                metal_monitor = metal.MetalMonitor(child, launch, context.settings)
                if outcome.failure is None and (self.adoptable is None or metal.uses_metal(launch, context.settings)):
                    outcome.failure = await metal_monitor.first_failure(running.engine)
                if outcome.failure is None:
                    outcome.ready_at = trio.current_time()
                    context.ledger.record_loaded(allocation, adopted=self.adoptable is not None)
                    restored = await self._restore_prompts(prompts)
                    lines = await child.first_lines()
                    gpu_warning = metal_monitor.load_warning(lines, context.ledger.set_device_limit)
                    lost = self._given_up(lines, allocation)
                    fields = tuple(str(each) for each in lost if each.setting)
                    offload = metal_monitor.log_reader.offload(lines)
                    view = attrs.evolve(view, build=await running.engine.build() or view.build)
                    view = attrs.evolve(view, given_up=fields, offload=offload)
                    by = " ".join(filter(None, (view.engine, view.build, "from", view.weights_format, "weights")))
                    message = f"loaded in {outcome.ready_at - started_at:.1f} s by {by}{gpu_warning}{restored}"
                    message = "; ".join([message, *(str(each) for each in lost if not each.setting)])
                    if self.before is not None:  # last: until `serve`, its endpoint is not ready
                        await self._take_over(running, allocation)
                    await trio.lowlevel.checkpoint_if_cancelled()  # an engine that is being stopped gets no request
                    self.status.serve(attrs.evolve(view, reason=Reason.LOADED, message=message))
                    outcome.published = self.serves = True
                    context.gate.record_loaded()
                    with self._serving:
                        outcome.failure = await self._watch(running, allocation, prompts)
            nursery.cancel_scope.cancel(reason="it is unloaded, hangs, has stalled, or does not own its port")
        if self._serving.cancelled_caught:
            return None
        return failure_of(
            outcome,
            await child.last_lines(LAST_LINES),
            rules=log_reader_of(launch.plan.runtime).rules,
            now=trio.current_time(),
            memory_kills=child.memory_kills(),
            memory_short=context.ledger.book.is_short,
        )

    def _given_up(self, lines: Sequence[str], allocation: Allocation) -> tuple[GivenUp, ...]:
        """Return what the engine has given up while it loaded; release the memory that it does not use then."""
        plan, estimate = self.launch.plan, self.launch.estimate
        lost = log_reader_of(plan.runtime).given_up(lines, plan.argv)
        unused = {each.part for each in lost if each.part}
        if unused and estimate is not None:
            parts = (each for each in estimate.components if each.name in unused)
            self.context.ledger.release_parts(allocation, parts)
        return lost

    async def _watch(self, running: RunningEngine, allocation: Allocation, prompts: EnginePrompts) -> Failure:
        """Return when the engine hangs or its GPU has failed; save its prompts whenever it is idle."""
        context, child, record, engine = self.context, running.child, running.record, running.engine
        context.log.info("started inference service", pid=child.pid, port=record.address[1])
        self._report_started()
        read = partial(child.read_stats, record.host, record.port, loading=False)
        read_nowait = partial(child.read_stats_nowait, record.host, record.port)
        errors = partial(getattr, context.status_manager, "errors")
        measuring = EngineMeasurement(child, read, read_nowait, self.launch, allocation, context.ports, errors)
        failures: list[Failure] = []

        async def watch_hang() -> None:
            hung = await health.watch(
                engine,
                measuring.measure,
                self.status.set_answering,
                running.limits,
                read_stats_nowait=measuring.measure_nowait,
                on_tokens=partial(context.status_manager.record_tokens, child.pid),
            )
            failures.append(watch_failure(hung))

        other_watches = self._other_watches(measuring, prompts, failures)
        if other_watches:
            await wait_any(watch_hang, *other_watches)
        else:  # saves a nursery in each of hundreds of services
            await watch_hang()
        failure = failures[0]
        self.status.set_reason(failure.reason, failure.message)
        return failure

    def _other_watches(
        self, measuring: EngineMeasurement, prompts: EnginePrompts, failures: list[Failure]
    ) -> list[Callable[[], Awaitable[None]]]:
        """Return the watches that few engines need, which add to `failures`."""
        context, running = self.context, prompts.running

        async def watch_metal() -> None:
            monitor = metal.MetalMonitor(running.child, self.launch, context.settings)
            failures.append(await monitor.wait_failure(measuring.read))

        async def watch_model_loss() -> None:
            tick = context.settings.limits.tick_seconds
            await watch_model(running.engine, self.status.set_model, tick)

        async def save_prompts() -> int | None:
            with measuring.ignoring():
                return await prompts.save(timestamp(context.ports.utcnow()))

        def used_at() -> float:
            return max(measuring.worked_at, context.gate.activation.used_at)

        other_watches: list[Callable[[], Awaitable[None]]] = []
        other_watches += [partial(prompts.keep_saved, used_at, self._may_save, save_prompts)] if prompts.is_on else []
        other_watches += [watch_metal] if metal.uses_metal(self.launch, context.settings) else []
        other_watches += [watch_model_loss] if holds_elsewhere(self.launch.plan.runtime) else []
        return other_watches

    async def _take_over(self, running: RunningEngine, allocation: Allocation) -> None:
        """Replace the other engine: first in the journal, then in the memory ledger, then for clients."""
        record = attrs.evolve(running.record, next_log=True)
        while not await self.journal.try_save(record):  # noqa: ASYNC110 - a disk sends no event; the old engine serves
            await trio.sleep(JOURNAL_RETRY_SECONDS)
        if self.before is not None and self.before.child is not None:
            await self.before.child.rename_log(old_log(self.context.log_path))
        await self._rename_log(running.child, record)
        self.context.ledger.take_over(allocation)
        self.status.lead()
        self.before = None

    async def _restore_prompts(self, prompts: EnginePrompts) -> str:
        """Restore what was saved of this launch, unless it is adopted; return what to add to the report of the load.

        After a failed restore the engine is replaced at once, without what it could not restore.
        """
        serving = self.before.prompts if self.before is not None else None
        try:
            if serving is not None and serving.digest == prompts.digest:  # otherwise they would be of no use here
                with trio.move_on_after(SAVE_SECONDS):
                    await serving.save(timestamp(self.context.ports.utcnow()))
            restored = await (prompts.restore() if self.adoptable is None else prompts.report())
        except RestoreError as error:
            self.context.log.warning("saved prompts not restored; restarting the engine", error=str(error))
            self.scope.cancel(reason="saved prompts could not be restored")
            await trio.lowlevel.checkpoint()
            return ""
        return f"; {restored}" if restored else ""

    @asynccontextmanager
    async def _drained(
        self, running: RunningEngine, outcome: Outcome, expedited: trio.Event, prompts: EnginePrompts
    ) -> AsyncIterator[None]:
        """On exit, wait until the requests in flight have finished, and save what the engine has computed.

        The endpoint is withdrawn, so no new ones arrive; the engine may not know yet of one that this host's gateway
        has sent to it. An unload takes the time that such requests need; any other stop has a limit. Do not wait for an
        engine that hangs or has exited, nor when memory is critically short; save nothing while memory is short, or if
        another engine serves.
        """
        context = self.context

        try:
            yield
            if self._serving.cancelled_caught:
                await wait_any(expedited.wait, partial(self._wait_answered, running))
        finally:
            can_drain = outcome.published and outcome.failure is None and outcome.exit is None
            if can_drain and (self._serving.cancelled_caught or not (context.shutdown.keep or expedited.is_set())):
                with trio.move_on_after(context.settings.drain_seconds, shield=True) as bound:
                    await wait_any(expedited.wait, partial(self._wait_finished, running))
                if bound.cancelled_caught or expedited.is_set():
                    late = f"not finished within {context.settings.drain_seconds:g} s"
                    why = "memory is critically short" if expedited.is_set() else late
                    context.status_manager.emit(cut_short_event(why))
                elif self._may_save():
                    with trio.move_on_after(SAVE_SECONDS, shield=True):
                        await wait_any(expedited.wait, partial(prompts.save, timestamp(context.ports.utcnow())))

    def _may_save(self) -> bool:
        """Whether what the engine has computed may be saved now."""
        return self.status.leads and not self.context.ledger.book.is_short

    async def _wait_finished(self, running: RunningEngine) -> None:
        """Return when no request is in flight, neither at this host's gateway or door nor in the engine."""
        await self._wait_answered(running)
        await running.engine.wait_idle()

    async def _wait_answered(self, running: RunningEngine) -> None:
        """Return when the requests that this host's gateway or door have sent to the engine have ended."""
        for use in self.context.gate.uses():
            await use.wait()
        if self.context.door is not None:
            await self.context.door.wait_unused(self.context.key, running.record.address[1])


def watch_failure(found: str) -> Failure:
    """Return the failure of a serving engine, given the result of `health.watch`."""
    if found.startswith(health.ERROR_REPLY):
        return Failure(Reason.COMPUTE_FAILED, f"clients get errors, and {found}")
    return Failure(Reason.HUNG, f"the engine hangs: {found}")
