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
from llmkube.supervisor.memory.eviction import Decision, Evict, Skip
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.refusal import not_returned
from llmkube.supervisor.memory.reservation import MemorySpec
from llmkube.supervisor.nouns.desired import Desired, Idle, Target, desired_here, draft_key, model_key
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.nouns.journal import Entry
from llmkube.supervisor.nouns.need import need_of
from llmkube.supervisor.nouns.ports import Ports, Shutdown
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.events import Event, displacing
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.runner import Runner, run_service
from llmkube.supervisor.service.status_manager import StatusManager

log = structlog.get_logger(__name__)


WORTH_TELLING = frozenset(
    {Skip.DISABLED, Skip.DRY_RUN, Skip.ALL_PROTECTED, Skip.LAST_SERVICE, Skip.TOO_SMALL, Skip.CANNOT_HELP}
)
"""Why nothing is evicted, if a person could do something about that."""


@attrs.define(eq=False)
class Running:
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
    def wish(self) -> Desired:
        """What it serves, or plans to."""
        return self.status_manager.facts.wish

    def follow(self, wish: Desired) -> None:
        """Serve a newer wish."""
        self.status_manager.follow(wish)
        self.replan.put_nowait(None)


@attrs.define(eq=False)
class RunningServices:
    """The running services by key.

    Attributes:
        book: The host's memory; says which service was evicted.
    """

    book: Book
    by_key: dict[Key, Running] = attrs.field(factory=dict)
    _told_unreturned: int = 0

    def tell_address(self) -> None:
        """This host is reached in another way."""
        for running in self.by_key.values():
            running.runner.address_changed()

    def tell_engine(self) -> None:
        """The engine program is another one; its flags may be others, so every service is planned again."""
        for running in self.by_key.values():
            running.replan.put_nowait(None)

    def tell_memory(self, decision: Decision, before: Decision | None) -> None:
        """How short of memory the host is, and why nothing is evicted."""
        for key in self.by_key:
            self._tell_memory(key, decision)
        known = before is not None and Level.UNKNOWN not in {decision.level, before.level}
        if before is not None and known and before.level is not decision.level:
            kind: Literal["Normal", "Warning"] = "Normal" if decision.level is Level.NORMAL else "Warning"
            self._emit(Event("MemoryPressureLevelChanged", f"memory is {_word(decision)}", kind))
        if decision.skip in WORTH_TELLING and (before is None or before.skip is not decision.skip):
            self._emit(Event("EvictionSkipped", decision.note))
        self._tell_unreturned()

    def tell_memory_to(self, key: Key) -> None:
        """The same for one service, if the memory was looked at."""
        if self.book.decision is not None:
            self._tell_memory(key, self.book.decision)

    def tell_evicted(self, evict: Evict) -> None:
        """A service has to go, and why; the service that it goes for hears of it, too."""
        winner, evicted = self.by_key.get(evict.winner) if evict.winner else None, self.by_key.get(evict.key)
        if winner is not None:
            winner.status_manager.emit(displacing(winner.status_manager.key, evict))
        if evicted is not None:
            evicted.status_manager.update(Facts.with_eviction, evict)
            self.tell_memory_to(evict.key)

    def tell_refused(self, key: Key, slot: Slot, error: UserError | None) -> None:
        """The API server refuses an object of a service, or with None accepts it now."""
        if key in self.by_key:
            self.by_key[key].status_manager.update(Facts.with_refusal, slot, error)

    def _tell_memory(self, key: Key, decision: Decision) -> None:
        evicted, why = self.book.evicted(key), _word(decision)
        self.by_key[key].status_manager.update(Facts.with_memory, decision.level, evicted, why)

    def _tell_unreturned(self) -> None:
        size, told = self.book.unreturned.size_bytes, self._told_unreturned
        self._told_unreturned = size
        if size > told:
            log.warning("wired memory not returned", bytes=size)
            self._emit(Event("MemoryNotReturned", not_returned(size), "Warning"))
        elif told and not size:
            log.info("wired memory returned")

    def _emit(self, event: Event) -> None:
        for running in self.by_key.values():
            running.status_manager.emit(event)


def _word(decision: Decision) -> str:
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

DOUBTED = (
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
        reach: How this host is reached.
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
    reach: Mailbox[Reach] = attrs.field(init=False)
    cordon: HostCordon = attrs.field(init=False)
    hosts: HostMonitor = attrs.field(init=False)
    claims: ClaimManager = attrs.field(init=False)
    ledger: Ledger = attrs.field(init=False)
    recorder: EventRecorder = attrs.field(init=False)
    applier: Applier = attrs.field(init=False)
    drift_repair: DriftRepair = attrs.field(init=False)
    _left: dict[Key, Entry] = attrs.field(init=False)  # by an earlier agent, of services that were not started yet

    def __attrs_post_init__(self) -> None:
        settings, ports = self.settings, self.ports
        self.services.expect(ports.left)
        self.running = RunningServices(Book(settings.memory_rules))
        self.reach = Mailbox(Reach(settings.advertise_address, settings.bind_address, seen=ports.look is None))
        busy, look_again = lambda: bool(self.running.by_key), self.queue.add_all
        self.cordon = HostCordon(ports.cordon, ports.utcnow, settings.accelerators, busy, look_again)
        self.cordon.look()  # before anything is started
        self.hosts = HostMonitor(self.client, settings.lease_namespace, look_again)
        self.claims = ClaimManager(
            self.client,
            settings,
            self.hosts,
            ports.utcnow,
            ports.rng,
            has_file=ports.weights.has,
            desired=self.wish_of,
            enqueue=self.queue.add,
        )
        self.ledger = Ledger(self.running.book, watched=ports.memory is not None, told=self.running.tell_evicted)
        self.recorder = EventRecorder("llmkube-agent", settings.host_name, ports.utcnow, ports.rng)
        self.applier = Applier(ports.rng, self.running.tell_refused)
        self.drift_repair = DriftRepair(self.applier, self.conditions_of, ports.rng)
        self._left = dict(ports.left)

    def synced(self) -> bool:
        """Whether everything that decides what runs here has been seen once."""
        return self.models.synced.is_set() and self.services.synced.is_set() and self.claims.synced

    @property
    def waits_for(self) -> str:
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

    def wish_of(self, key: Key) -> Desired | None:
        """Return what this host should do for a service as last seen; None when the service is not its business."""
        listed, runs = self.services.get(key), self.running.by_key.get(key)
        service = listed.on_hosts if listed is not None else None
        model = self.models.get(model_key(service)) if service else None
        named = draft_key(service) if service else None
        draft = self.models.get(named) if named else None
        return desired_here(service, model, runs.wish if runs else None, self.cordon.serves, draft=draft)

    async def run_address(self) -> Never:
        """Never return: have every service look to it when this host is reached in another way."""
        version = self.reach.version
        while True:
            await self.reach.wait_newer(version)
            version = self.reach.version
            self.running.tell_address()

    async def run(self) -> None:
        """Never return: start, tell and end service tasks as the queue says."""
        async with trio.open_nursery() as nursery:
            for key, entry in self.ports.left.items():
                if entry.engine is not None:
                    self._start(key, entry.wish, nursery, entry)
            nursery.start_soon(self._go_on_alone, nursery)
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

    async def _go_on_alone(self, nursery: trio.Nursery) -> None:
        """Start what ran last, when the API server does not come in time to say what is wanted now."""
        with trio.move_on_after(self.settings.offline_seconds):
            await self.wait_synced()
            for key in self.ports.left:
                if key not in self.running.by_key and key not in self.services:
                    await self.ports.journal.remove(key)
        if self.synced():
            await trio.sleep(SETTLE_SECONDS)
            for key in self.ports.left:
                if key not in self.running.by_key:  # another host has it by now: the next start must not bring it back
                    await self.ports.journal.remove(key)
            return
        if not self.cordon.serves:
            log.warning("the API server does not answer; this host is cordoned and serves nothing", end=self.cordon.end)
            return
        log.warning("the API server does not answer; serving the last known services", services=len(self.ports.left))
        for key, entry in self.ports.left.items():
            if key not in self.running.by_key and key not in self.services:
                self._start(key, entry.wish, nursery, entry)

    def _reconcile(self, key: Key, nursery: trio.Nursery) -> None:
        running, service = self.running.by_key.get(key), self.services.get(key)
        if service is None and not self.services.synced.is_set():
            # Added by a claim: what has not been listed yet is not known to be gone. But a cordon waits for no list.
            if running is not None and running.status_manager.view.pid is not None and not self.cordon.serves:
                running.scope.cancel(reason="the host is cordoned")
            return
        wish = self.wish_of(key)
        ours = wish is not None and self.claims.may_run(wish, running=running is not None)
        if running is not None and wish is not None:
            running.status_manager.speak(ours and self.claims.reports(wish))
        if running is not None and key in self.services.doubted:
            running.status_manager.emit(Event("DeletionDoubted", DOUBTED))
        if wish is None or not ours:
            if wish is None and running is None and self.synced():
                self.claims.release(key, unlisted=service is None)
            if running is not None:
                running.scope.cancel(reason="deleted, another host's, or the host is cordoned")
        elif running is None:
            self._start(key, wish, nursery)
        elif not running.scope.cancel_called and not wish.same_wish(running.wish):
            running.follow(wish)
            self.ledger.follow(key, _memory_spec(wish))
        # A service that comes back while its task ends is added again by the end of that task.

    def _start(self, key: Key, wish: Desired, nursery: trio.Nursery, left: Entry | None = None) -> None:
        facts = Facts(wish, self.settings.host_name, Reach(None))
        status_manager = StatusManager(
            facts,
            self.settings,
            self.applier,
            self.recorder,
            self.ports.utcnow,
            self.changed,
            self.reach,
            speaks=self.claims.reports(wish),
        )
        found, before = left.engine if left else None, self._left.pop(key, None)
        kept = before.kept if before and before.wish.service.metadata.uid == wish.service.metadata.uid else None
        runner = Runner(
            ServiceContext(status_manager, self.ports, self.settings, self.shutdown, self.ledger), found, kept
        )
        # Listed before its task runs for the first time: it may be reconciled again in between.
        self.running.by_key[key] = running = Running(Mailbox(None), trio.CancelScope(), status_manager, runner)
        self.ledger.follow(key, _memory_spec(wish))
        if left is not None and left.engine is not None:
            self.ledger.adopt(key, need_of(left.launch, None))
        self.running.tell_memory_to(key)
        nursery.start_soon(self._look_after, key, running, left)

    async def _look_after(self, key: Key, running: Running, left: Entry | None) -> None:
        running.status_manager.start(adopting=left is not None and left.engine is not None)
        first: Target = left.launch if left else Idle(Reason.PENDING)
        with self._listed(key), running.scope:
            await run_service(running.replan, running.runner, first)
        if running.scope.cancelled_caught:
            log.info("inference service ended", name=key.name, namespace=key.namespace)
            running.status_manager.finish(f"is cordoned {self.cordon.end}" if self.cordon.end else "")
            try:
                await self.ports.journal.remove(key)
            except Exception:  # a service's bug stops at the service, to the last line; the next agent removes it
                log.exception("journal entry not removed", name=key.name, namespace=key.namespace)

    @contextmanager
    def _listed(self, key: Key) -> Iterator[None]:
        try:
            yield
        finally:
            del self.running.by_key[key]
            self.ledger.forget(key)
            self.changed.put_nowait(None)
            self.queue.add(key)


def _memory_spec(wish: Desired) -> MemorySpec:
    """What the objects say about a service's place in the memory."""
    spec = wish.service.spec
    return MemorySpec(spec.priority, spec.eviction_protection, wish.model.spec.hardware)
