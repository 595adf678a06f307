"""Which services run here, each in a nursery of its own: started, told and ended as the objects and the claims say.

Whenever a service is taken from the queue, what is wished of it is held against what runs; what to do follows from the
newest state alone. The tasks themselves are `service.run_service`.

The services whose tasks run here, and what they are told of their host: its memory, its address, its engine.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, Never

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.reflector import CONFIRM_SECONDS, Cache
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.cluster.drift_repair import DriftRepair
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host_cordon import HostCordon
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction import Decision, Eviction, Skip
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.refusal import unreturned_message
from llmkube.supervisor.memory.reservation import MemorySpec
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.events import Event, displacing_event
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.runner import Runner, run_service
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.desired import Desired, Idle, Target, desired_here, draft_key, model_key
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.journal import Entry
from llmkube.supervisor.values.need import need_of
from llmkube.supervisor.values.ports import Ports, Shutdown
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)


REPORTED_SKIPS = frozenset(
    {Skip.DISABLED, Skip.DRY_RUN, Skip.ALL_PROTECTED, Skip.LAST_SERVICE, Skip.TOO_SMALL, Skip.CANNOT_HELP}
)
"""Why nothing is evicted, if a person could do something about that."""


@attrs.define(eq=False)
class RunningService:
    """One service's task.

    Attributes:
        replan: Has the planner look again: its version grows with every newer wish.
        scope: Cancel it, and the service ends in order.
        status_manager: What is said of it.
        runner: Keeps its engine in line.
    """

    replan: Mailbox[None]
    scope: trio.CancelScope
    status_manager: StatusManager
    runner: Runner

    @property
    def desired(self) -> Desired:
        """What it serves, or plans to."""
        return self.status_manager.facts.desired

    def follow(self, desired: Desired) -> None:
        """Serve a newer wish."""
        self.status_manager.follow(desired)
        self.replan.put_nowait(None)


@attrs.define(eq=False)
class RunningServices:
    """The running services by key.

    Attributes:
        book: The host's memory; says which service was evicted.
    """

    book: Book
    by_key: dict[Key, RunningService] = attrs.field(factory=dict)
    _reported_unreturned: int = 0

    def notify_address_changed(self) -> None:
        """This host is reached in another way."""
        for running in self.by_key.values():
            running.runner.address_changed()

    def notify_engine_upgraded(self) -> None:
        """The engine program is another one; its flags may be others, so every service is planned again."""
        for running in self.by_key.values():
            running.replan.put_nowait(None)

    def notify_memory(self, decision: Decision, before: Decision | None) -> None:
        """How short of memory the host is, and why nothing is evicted."""
        for key in self.by_key:
            self._update_memory(key, decision)
        known = before is not None and Level.UNKNOWN not in {decision.level, before.level}
        if before is not None and known and before.level is not decision.level:
            kind: Literal["Normal", "Warning"] = "Normal" if decision.level is Level.NORMAL else "Warning"
            self._emit(Event("MemoryPressureLevelChanged", f"memory is {_pressure_text(decision)}", kind))
        if decision.skip in REPORTED_SKIPS and (before is None or before.skip is not decision.skip):
            self._emit(Event("EvictionSkipped", decision.note))
        self._report_unreturned()

    def update_memory_of(self, key: Key) -> None:
        """The same for one service, if the memory was looked at."""
        if self.book.decision is not None:
            self._update_memory(key, self.book.decision)

    def notify_evicted(self, evict: Eviction) -> None:
        """A service has to go, and why; the service that it goes for hears of it, too."""
        winner, evicted = self.by_key.get(evict.winner) if evict.winner else None, self.by_key.get(evict.key)
        if winner is not None:
            winner.status_manager.emit(displacing_event(winner.status_manager.key, evict))
        if evicted is not None:
            evicted.status_manager.update(Facts.with_eviction, evict)
            self.update_memory_of(evict.key)

    def notify_refused(self, key: Key, slot: Slot, error: UserError | None) -> None:
        """The API server refuses an object of a service, or with None accepts it now."""
        if key in self.by_key:
            self.by_key[key].status_manager.update(Facts.with_refusal, slot, error)

    def _update_memory(self, key: Key, decision: Decision) -> None:
        evicted, why = self.book.evicted(key), _pressure_text(decision)
        self.by_key[key].status_manager.update(Facts.with_memory, decision.level, evicted, why)

    def _report_unreturned(self) -> None:
        size, notified = self.book.unreturned.size_bytes, self._reported_unreturned
        self._reported_unreturned = size
        if size > notified:
            log.warning("wired memory not returned", bytes=size)
            self._emit(Event("MemoryNotReturned", unreturned_message(size), "Warning"))
        elif notified and not size:
            log.info("wired memory returned")

    def _emit(self, event: Event) -> None:
        for running in self.by_key.values():
            running.status_manager.emit(event)


def _pressure_text(decision: Decision) -> str:
    if decision.level is Level.UNKNOWN:
        return f"not known: {decision.note}"
    word = {Level.NORMAL: "normal", Level.WARNING: "short", Level.CRITICAL: "critically short"}[decision.level]
    return f"{word}: {decision.why}" if decision.why else word


@attrs.define(eq=False)
class ServiceQueue:
    """Hold the keys of services that may have changed until one task takes them."""

    _keys: set[Key] = attrs.field(factory=set)
    _all: bool = False
    _added: trio.Event = attrs.field(factory=trio.Event)

    def add(self, key: Key) -> None:
        """Have a service reconciled."""
        self._keys.add(key)
        self._added.set()

    def add_all(self) -> None:
        """Have every service reconciled."""
        self._all = True
        self._added.set()

    async def take(self) -> tuple[frozenset[Key], bool]:
        """Wait for an addition; return the keys that were added by name, and whether all were."""
        await self._added.wait()
        taken = frozenset(self._keys), self._all
        self._keys.clear()
        self._all, self._added = False, trio.Event()
        return taken


SETTLE_SECONDS = 15.0
"""After hosts have come or gone, what stands is said again: one that was away may have said something old last."""

DELETION_DOUBTED = (
    f"the service was deleted together with most others; its engine ends in {CONFIRM_SECONDS:g} s "
    "if the next list confirms that"
)


@attrs.define(eq=False)
class Services:
    """Reconcile services: hold what is wished of each against what runs.

    Attributes:
        queue: Which services are to be reconciled.
        services: The InferenceServices of the cluster.
        models: Its Models.
        shutdown: Whether engines stay when their tasks are cancelled.
        changed: Its version grows whenever what is known of a service may have changed.
        running: The services whose tasks run here.
        host_address: How this host is reached.
        cordon: Whether this host serves at all.
        hosts: Which hosts are alive.
        claims: Which services this host may run.
        ledger: Who may take how much of this host's memory.
        recorder: Writes Events.
        applier: Writes objects.
        drift_repair: Looks after what was written.
    """

    client: Client
    settings: AgentSettings
    ports: Ports
    queue: ServiceQueue = attrs.field(factory=ServiceQueue)
    services: Cache[InferenceService] = attrs.field(factory=Cache)
    models: Cache[Model] = attrs.field(factory=Cache)
    shutdown: Shutdown = attrs.field(factory=Shutdown)
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    running: RunningServices = attrs.field(init=False)
    host_address: Mailbox[HostAddress] = attrs.field(init=False)
    cordon: HostCordon = attrs.field(init=False)
    hosts: HostMonitor = attrs.field(init=False)
    claims: ClaimManager = attrs.field(init=False)
    ledger: Ledger = attrs.field(init=False)
    recorder: EventRecorder = attrs.field(init=False)
    applier: Applier = attrs.field(init=False)
    drift_repair: DriftRepair = attrs.field(init=False)
    _earlier: dict[Key, Entry] = attrs.field(init=False)  # by an earlier agent, of services that were not started yet

    def __attrs_post_init__(self) -> None:
        settings, ports = self.settings, self.ports
        self.services.expect(ports.earlier)
        self.running = RunningServices(Book(settings.memory_rules))
        self.host_address = Mailbox(
            HostAddress(settings.advertise_address, settings.bind_address, seen=ports.look is None)
        )
        has_services, reconcile_all = lambda: bool(self.running.by_key), self.queue.add_all
        self.cordon = HostCordon(ports.cordon, ports.utcnow, settings.accelerators, has_services, reconcile_all)
        self.cordon.look()  # before anything is started
        self.hosts = HostMonitor(self.client, settings.lease_namespace, reconcile_all)
        self.claims = ClaimManager(
            self.client,
            settings,
            self.hosts,
            ports.utcnow,
            ports.rng,
            has_file=ports.weights.has,
            desired=self.desired_state,
            enqueue=self.queue.add,
        )
        self.ledger = Ledger(self.running.book, watched=ports.memory is not None, notified=self.running.notify_evicted)
        self.recorder = EventRecorder("llmkube-agent", settings.host_name, ports.utcnow, ports.rng)
        self.applier = Applier(ports.rng, self.running.notify_refused)
        self.drift_repair = DriftRepair(self.applier, self.conditions_of, ports.rng)
        self._earlier = dict(ports.earlier)

    def synced(self) -> bool:
        """Whether everything that decides what runs here has been seen once."""
        return self.models.synced.is_set() and self.services.synced.is_set() and self.claims.synced

    @property
    def not_ready_reason(self) -> str:
        """What keeps this host from taking up services, or empty; what an earlier agent has left runs meanwhile."""
        claims = self.claims
        kinds = (
            ("InferenceServices", self.services),
            ("Models", self.models),
            ("the claims (Leases) of hosts", claims.leases),
            ("the Leases of hosts", self.hosts.leases),
        )
        missing = [(name, cache.refusal) for name, cache in kinds if not cache.synced.is_set()]
        if not missing:
            return "" if self.synced() else "waits until no other host can have its name"
        refused = [f"cannot list {name}: {refusal}" for name, refusal in missing if refusal]
        return "; ".join(refused) or "waiting for the first list from the API server"

    async def wait_synced(self) -> None:
        """Return when everything that decides what runs here has been seen once."""
        await self.models.synced.wait()
        await self.services.synced.wait()
        await self.claims.wait_synced()

    def on_service(self, key: Key) -> None:
        """A service has changed: look at it again, and at what is said of it."""
        self.queue.add(key)
        self.drift_repair.check_nowait(Slot(InferenceService, key, "status"))

    def on_model(self, key: Key) -> None:
        """A Model has changed: look at every service that refers to it, and at what is said of it."""
        for service in self.services.values():
            if key in (model_key(service.on_hosts), draft_key(service)):
                self.queue.add(service.key)
        self.drift_repair.check_nowait(Slot(Model, key, "status"))

    def conditions_of(self, slot: Slot) -> Iterable[Condition] | None:
        """Return the conditions of a service or a Model as last seen; None when there is no such object."""
        found = self.services.get(slot.key) if slot.kind is InferenceService else self.models.get(slot.key)
        return found.status.conditions if found is not None and found.status is not None else None

    def desired_state(self, key: Key) -> Desired | None:
        """Return what this host should do for a service as last seen; None when the service is not its business."""
        listed, runs = self.services.get(key), self.running.by_key.get(key)
        service = listed.on_hosts if listed is not None else None
        model = self.models.get(model_key(service)) if service else None
        named = draft_key(service) if service else None
        draft = self.models.get(named) if named else None
        return desired_here(service, model, runs.desired if runs else None, self.cordon.serves, draft=draft)

    async def run_address(self) -> Never:
        """Never return: have every service look to it when this host is reached in another way."""
        version = self.host_address.version
        while True:
            await self.host_address.wait_newer(version)
            version = self.host_address.version
            self.running.notify_address_changed()

    async def run(self) -> None:
        """Never return: start, tell and end service tasks as the queue says."""
        async with trio.open_nursery() as nursery:
            for key, entry in self.ports.earlier.items():
                if entry.engine is not None:
                    self._start(key, entry.desired, nursery, entry)
            nursery.start_soon(self._start_offline, nursery)
            nursery.start_soon(self._reconcile_all_once_synced)
            while True:
                keys, every = await self.queue.take()
                for key in sorted(keys | self._all_keys() if every else keys):
                    self._reconcile(key, nursery)

    def _all_keys(self) -> frozenset[Key]:
        listed = (service.key for service in self.services.values())
        return frozenset((*listed, *self.running.by_key, *self.claims.services()))

    async def _reconcile_all_once_synced(self) -> None:
        await self.wait_synced()
        self.queue.add_all()

    async def _start_offline(self, nursery: trio.Nursery) -> None:
        """Start what ran last, when the API server does not come in time to say what is wanted now."""
        with trio.move_on_after(self.settings.offline_seconds):
            await self.wait_synced()
            for key in self.ports.earlier:
                if key not in self.running.by_key and key not in self.services:
                    await self.ports.journal.remove(key)
        if self.synced():
            await trio.sleep(SETTLE_SECONDS)
            for key in self.ports.earlier:
                if key not in self.running.by_key:  # another host has it by now: the next start must not bring it back
                    await self.ports.journal.remove(key)
            return
        if not self.cordon.serves:
            log.warning("the API server does not answer; this host is cordoned and serves nothing", end=self.cordon.end)
            return
        log.warning("the API server does not answer; serving the last known services", services=len(self.ports.earlier))
        for key, entry in self.ports.earlier.items():
            if key not in self.running.by_key and key not in self.services:
                self._start(key, entry.desired, nursery, entry)

    def _reconcile(self, key: Key, nursery: trio.Nursery) -> None:
        running, service = self.running.by_key.get(key), self.services.get(key)
        if service is None and not self.services.synced.is_set():
            # Added by a claim: what has not been listed yet is not known to be gone. But a cordon waits for no list.
            if running is not None and running.status_manager.view.pid is not None and not self.cordon.serves:
                running.scope.cancel(reason="the host is cordoned")
            return
        desired = self.desired_state(key)
        is_ours = desired is not None and self.claims.may_run(desired, running=running is not None)
        if running is not None and desired is not None:
            running.status_manager.set_reporting(is_ours and self.claims.reports(desired))
        if running is not None and key in self.services.unconfirmed:
            running.status_manager.emit(Event("DeletionDoubted", DELETION_DOUBTED))
        if desired is None or not is_ours:
            if desired is None and running is None and self.synced():
                self.claims.release(key, unlisted=service is None)
            if running is not None:
                running.scope.cancel(reason="deleted, another host's, or the host is cordoned")
        elif running is None:
            self._start(key, desired, nursery)
        elif not running.scope.cancel_called and not desired.has_same_spec(running.desired):
            running.follow(desired)
            self.ledger.follow(key, _memory_spec(desired))
        # A service that comes back while its task ends is added again by the end of that task.

    def _start(self, key: Key, desired: Desired, nursery: trio.Nursery, earlier: Entry | None = None) -> None:
        facts = Facts(desired, self.settings.host_name, HostAddress(None))
        status_manager = StatusManager(
            facts,
            self.settings,
            self.applier,
            self.recorder,
            self.ports.utcnow,
            self.changed,
            self.host_address,
            reports_status=self.claims.reports(desired),
        )
        found, before = earlier.engine if earlier else None, self._earlier.pop(key, None)
        fallback = (
            before.fallback if before and before.desired.service.metadata.uid == desired.service.metadata.uid else None
        )
        runner = Runner(
            ServiceContext(status_manager, self.ports, self.settings, self.shutdown, self.ledger), found, fallback
        )
        # Listed before its task runs for the first time: it may be reconciled again in between.
        self.running.by_key[key] = running = RunningService(Mailbox(None), trio.CancelScope(), status_manager, runner)
        self.ledger.follow(key, _memory_spec(desired))
        if earlier is not None and earlier.engine is not None:
            self.ledger.adopt(key, need_of(earlier.launch, None))
        self.running.update_memory_of(key)
        nursery.start_soon(self._supervise, key, running, earlier)

    async def _supervise(self, key: Key, running: RunningService, earlier: Entry | None) -> None:
        running.status_manager.start(adopting=earlier is not None and earlier.engine is not None)
        first: Target = earlier.launch if earlier else Idle(Reason.PENDING)
        with self._registered(key), running.scope:
            await run_service(running.replan, running.runner, first)
        if running.scope.cancelled_caught:
            log.info("inference service ended", name=key.name, namespace=key.namespace)
            running.status_manager.finish(f"is cordoned {self.cordon.end}" if self.cordon.end else "")
            try:
                await self.ports.journal.remove(key)
            except Exception:  # a service's bug stops at the service, to the last line; the next agent removes it
                log.exception("journal entry not removed", name=key.name, namespace=key.namespace)

    @contextmanager
    def _registered(self, key: Key) -> Iterator[None]:
        try:
            yield
        finally:
            del self.running.by_key[key]
            self.ledger.forget(key)
            self.changed.put_nowait(None)
            self.queue.add(key)


def _memory_spec(desired: Desired) -> MemorySpec:
    """What the objects say about a service's place in the memory."""
    spec = desired.service.spec
    return MemorySpec(spec.priority, spec.eviction_protection, desired.model.spec.hardware)
