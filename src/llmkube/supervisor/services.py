"""Start, update and stop the tasks of services on this host, as objects and claims require.

Each key in the queue is reconciled: the desired state is compared with what runs, and only the newest state matters.
The tasks themselves are `service.runner.run_service`. They are notified of changes of their host: its memory, its
address, its engine programs.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal, Never

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.base.units import parse_duration
from llmkube.k8s import informer
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.crd.sharing import PRIORITY, ModelPool
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.reflector import CONFIRM_SECONDS, Cache
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster.applier import Applier, DriftRepair
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host_cordon import HostCordon
from llmkube.supervisor.memory.admission import excess_members
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction, Skip
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.refusal import Refusal, relative_name, unreturned_message
from llmkube.supervisor.memory.reservation import MemorySpec, PoolShare
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.door_link import DoorLink
from llmkube.supervisor.service.events import Event, displacing_event
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.gate import WOKEN, Gate, ServiceActivator
from llmkube.supervisor.service.runner import Runner, run_service
from llmkube.supervisor.service.saved_prompts import PromptStore
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.activation import Activation, mode_of, reported_failure
from llmkube.supervisor.values.desired import Desired, Idle, Target, adapter_keys, desired_here, draft_key, model_key
from llmkube.supervisor.values.door_state import DoorEntry
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.journal import Entry
from llmkube.supervisor.values.lifecycle import REPEATED, ServiceView
from llmkube.supervisor.values.need import need_of
from llmkube.supervisor.values.ports import Ports, Shutdown
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)


REPORTED_SKIPS = frozenset(
    {Skip.DISABLED, Skip.DRY_RUN, Skip.ALL_PROTECTED, Skip.LAST_SERVICE, Skip.TOO_SMALL, Skip.CANNOT_HELP}
)
"""Reasons for no eviction that a person could do something about."""


@attrs.define(eq=False)
class RunningService:
    """The task of one service.

    Attributes:
        replan: Its version grows when the service has to be planned again.
        scope: Cancelling it stops the service gracefully.
        status_manager: Reports the service.
        runner: Keeps its engine in line with the target.
    """

    replan: Mailbox[None]
    scope: trio.CancelScope
    status_manager: StatusManager
    runner: Runner

    @property
    def desired(self) -> Desired:
        """Its newest desired state."""
        return self.status_manager.facts.desired

    @property
    def gate(self) -> Gate:
        """Its activation."""
        return self.runner.context.gate

    @property
    def snapshot(self) -> ServiceView:
        """Its newest snapshot."""
        view, gate = self.status_manager.snapshot, self.gate
        key, book = self.status_manager.key, gate.ledger.book
        if (door := book.closed.get(key)) is not None:
            name = relative_name(door.winner, key)
            view = attrs.evolve(view, closed=f"it is unloaded for `{name}` once its requests have ended")
        if not gate.activation.on_request:
            return view
        if gate.is_active and view.reason in REPEATED:
            view = attrs.evolve(view, reason=Reason.RESTARTING)  # at once: before a later attempt it would be idle
        return attrs.evolve(
            view,
            on_request=True,
            load_seconds=book.load_seconds(key),
            hold_seconds=gate.activation.hold_seconds,
            delayed_until=book.room.delayed.get(key, 0.0),
        )

    @property
    def passes_door(self) -> bool:
        """Whether its requests pass through the door."""
        return self.gate.activation.on_request or self.status_manager.view.behind_door

    def door_entry(self, host: str) -> DoorEntry | None:
        """Return its entry at the door; None while its state or the keys of its clients are not known."""
        view, launch = self.snapshot, self.gate.launch
        keys = launch.client_keys if launch is not None else ()
        has_keys = self.desired.service.spec.api_key_secret_ref is not None
        if not view.reason or (has_keys and not keys):
            return None
        return DoorEntry(view, host, keys, self.gate.activation.retry_at)

    def set_desired(self, desired: Desired) -> None:
        """Set a newer desired state."""
        gate, before = self.gate, self.desired
        self.status_manager.set_desired(desired)
        gate.set_activation(gate.activation.with_spec(before, desired, self.runner.context.settings.activation))
        self.replan.put_nowait(None)


@attrs.define(eq=False)
class RunningServices:
    """The running services by key, and their notifications.

    Attributes:
        book: Book of the host's memory, which has the evictions.
    """

    book: Book
    by_key: dict[Key, RunningService] = attrs.field(factory=dict)
    _reported_unreturned: int = 0

    def notify_address_changed(self) -> None:
        """Notify all services that this host's address has changed."""
        for running in self.by_key.values():
            running.runner.address_changed()

    def notify_engine_upgraded(self) -> None:
        """Plan all services again after an engine program has changed: it may have other flags."""
        for running in self.by_key.values():
            running.replan.put_nowait(None)

    def notify_memory(self, decision: Decision, before: Decision | None) -> None:
        """Notify all services of the host's memory pressure, and why nothing is evicted."""
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
        """Notify one service of the memory pressure, if it is known."""
        if self.book.decision is not None:
            self._update_memory(key, self.book.decision)

    def notify_evicted(self, evict: Eviction) -> None:
        """Notify a service of its eviction, and the service that it is evicted for, if there is one."""
        winner, evicted = self.by_key.get(evict.winner) if evict.winner else None, self.by_key.get(evict.key)
        if winner is not None:
            winner.status_manager.emit(displacing_event(winner.status_manager.key, evict))
        if evicted is not None:
            evicted.status_manager.update(Facts.with_eviction, evict)
            evicted.gate.change(evicted.gate.activation.displace(for_another=evict.cause is Cause.DISPLACED))
            self.update_memory_of(evict.key)

    def notify_refused(self, key: Key, slot: Slot, error: UserError | None) -> None:
        """Notify a service that the API server refuses one of its objects, or with None accepts it again."""
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
    """Keys of services that may have changed, for the task that reconciles them."""

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
        """Wait for an addition; return the added keys, and whether all services were added."""
        await self._added.wait()
        taken = frozenset(self._keys), self._all
        self._keys.clear()
        self._all, self._added = False, trio.Event()
        return taken


SETTLE_SECONDS = 15.0
"""Delay after hosts have joined or left before everything is applied again: a returning host may write old state."""

DELETION_DOUBTED = (
    f"the service was deleted together with most others; its engine stops in {CONFIRM_SECONDS:g} s "
    "if the next list confirms the deletion"
)


class Services:
    """Reconciles services: compares the desired state of each with what runs.

    Attributes:
        queue: Keys of services to reconcile.
        services: Cache of InferenceServices.
        models: Cache of Models.
        pools: ModelPools, with an index by the keys of their members.
        shutdown: Whether engines keep running when their tasks are cancelled.
        changed: Its version grows whenever a service may have changed.
        running: The services whose tasks run here.
        host_address: Address of this host.
        cordon: Cordon of this host.
        hosts: Monitors which hosts are alive.
        claims: Manages this host's claims.
        ledger: Admits engines to this host's memory.
        recorder: Writes Events.
        applier: Writes objects.
        drift_repair: Restores statuses that other clients have overwritten.
        activator: Loads and unloads services on request.
        prompts: The saved prompts of this host.
        door: The connection to the door; None on a host without one.
    """

    def __init__(self, client: Client, settings: AgentSettings, ports: Ports) -> None:
        self.client, self.settings, self.ports = client, settings, ports
        self.queue, self.shutdown, self.changed = ServiceQueue(), Shutdown(), Mailbox[None](None)
        self.services, self.models = Cache[InferenceService](), Cache[Model]()
        self.pools = informer.Informer(ModelPool)
        self._pools_of = self.pools.add_index(lambda pool: pool.member_keys)
        self.services.expect(ports.earlier)
        self.running = RunningServices(Book(settings.memory_rules, costs=ports.learned.costs))
        self.host_address = Mailbox(
            HostAddress(settings.advertise_address, settings.bind_address, seen=ports.address is None)
        )
        has_services, reconcile_all = lambda: bool(self.running.by_key), self.queue.add_all
        self.cordon = HostCordon(ports.cordon, ports.utcnow, settings.accelerators, has_services, reconcile_all)
        self.cordon.refresh()  # before anything is started
        self.hosts = HostMonitor(client, settings.lease_namespace, reconcile_all)
        self.claims = ClaimManager(
            client,
            settings,
            self.hosts,
            ports.utcnow,
            ports.rng,
            has_file=ports.weights.has,
            desired=self.desired_state,
            enqueue=self.queue.add,
        )
        is_watched, running = ports.memory is not None, self.running
        doors_changed = partial(self.changed.put_nowait, None)
        self.ledger = Ledger(running.book, is_watched, running.notify_evicted, doors_changed, self._on_refused)
        self.recorder = EventRecorder("llmkube-agent", settings.host_name, ports.utcnow, ports.rng)
        self.applier = Applier(ports.rng, self.running.notify_refused)
        self.drift_repair = DriftRepair(self.applier, self.conditions_of, ports.rng)
        self.activator = ServiceActivator(self._gate_of, self.changed)
        self.prompts = PromptStore.of(settings)
        self.door: DoorLink | None = None
        if ports.door is not None:
            find = self.claims.find_endpoint
            self.door = DoorLink(ports.door, self._door_entries, self._gate_of, self.changed, self.shutdown, find)
        self._earlier = dict(ports.earlier)  # of an earlier agent, for services that have not started yet

    def synced(self) -> bool:
        """Whether all objects that determine what runs here have been listed once."""
        listed = self.models.synced.is_set() and self.services.synced.is_set() and self.pools.cache.answered.is_set()
        return listed and self.claims.synced

    @property
    def not_ready_reason(self) -> str:
        """Reason why this host cannot start services yet; "" if it can. Engines of an earlier agent run meanwhile."""
        claims = self.claims
        kinds = (
            ("InferenceServices", self.services),
            ("Models", self.models),
            ("the claims (Leases) of hosts", claims.leases),
            ("the Leases of hosts", self.hosts.leases),
        )
        missing = [(name, cache.refusal) for name, cache in kinds if not cache.synced.is_set()]
        missing += [("ModelPools", "")] if not self.pools.cache.answered.is_set() else []
        if not missing:
            return "" if self.synced() else "checking that no other machine uses this machine's name"
        refused = [f"cannot list {name}: {refusal}" for name, refusal in missing if refusal]
        return "; ".join(refused) or "waiting for the first list from the API server"

    async def wait_synced(self) -> None:
        """Return when all objects that determine what runs here have been listed once."""
        await self.models.synced.wait()
        await self.services.synced.wait()
        await self.pools.cache.answered.wait()  # a cluster without the kind, or a role without this right, has none
        await self.claims.wait_synced()

    def on_service(self, key: Key) -> None:
        """Reconcile a service that has changed, and check its status for drift."""
        self.queue.add(key)
        self.drift_repair.check_nowait(Slot(InferenceService, key, "status"))

    def on_model(self, key: Key) -> None:
        """Reconcile all services that refer to a Model that has changed, and check its status for drift."""
        for service in self.services.values():
            if key in (model_key(service.on_hosts), draft_key(service), *adapter_keys(service)):
                self.queue.add(service.key)
        self.drift_repair.check_nowait(Slot(Model, key, "status"))

    def on_pool(self, event: informer.Event[ModelPool]) -> None:
        """Reconcile the services that are, or were, members of a ModelPool that has changed."""
        for member in self._pools_of.values(event):
            if member in self.services:
                self.queue.add(member)

    def conditions_of(self, slot: Slot) -> Iterable[Condition] | None:
        """Return the last known conditions of a service or a Model; None if there is no such object."""
        found = self.services.get(slot.key) if slot.kind is InferenceService else self.models.get(slot.key)
        return found.status.conditions if found is not None and found.status is not None else None

    def desired_state(self, key: Key) -> Desired | None:
        """Return the desired state of a service on this host; None if the service does not belong here."""
        listed, runs = self.services.get(key), self.running.by_key.get(key)
        service = listed.on_hosts if listed is not None else None
        model = self.models.get(model_key(service)) if service else None
        named = draft_key(service) if service else None
        draft = self.models.get(named) if named else None
        adapters = tuple(map(self.models.get, adapter_keys(service))) if service else ()
        known = runs.desired if runs else None
        first = known.pool if known and not self.pools.cache.answered.is_set() else None
        pool = next(iter(self.pools.pick(self._pools_of.keys(key))), first)
        return desired_here(service, model, known, self.cordon.serves, draft=draft, adapters=adapters, pool=pool)

    def _on_refused(self, key: Key, refusal: Refusal) -> None:
        """Leave a service that requests need to a host that can load it, if nothing makes room for it here."""
        running, request = self.running.by_key.get(key), self.ledger.book.records[key].request
        if running is not None and request is not None and refusal.is_lasting:
            activation = running.gate.activation
            if activation.on_request and activation.requests:
                self.claims.leave(running.desired, request.need.total_bytes)

    def _gate_of(self, key: Key) -> Gate | None:
        running = self.running.by_key.get(key)
        return None if running is None else running.gate

    def _door_entries(self) -> dict[Key, DoorEntry | None]:
        host, entries = self.host_address.value.bind, dict[Key, DoorEntry | None]()
        for key, to in self.door.left.items() if self.door and self.settings.endpoints_api != "endpoints" else ():
            if self.desired_state(key) is not None:  # with this key, a door of an earlier version refuses all
                entries[key] = DoorEntry(WOKEN, host, ("",), moved_to=to) if to else None
        return entries | {key: each.door_entry(host) for key, each in self.running.by_key.items() if each.passes_door}

    async def run_address(self) -> Never:
        """Notify all services whenever this host's address changes; never return."""
        version = self.host_address.version
        while True:
            await self.host_address.wait_newer(version)
            version = self.host_address.version
            self.running.notify_address_changed()
            self.changed.put_nowait(None)

    async def run(self) -> None:
        """Start, update and stop service tasks for the keys in the queue; never return."""
        async with trio.open_nursery() as nursery:
            for key, entry in self.ports.earlier.items():
                if entry.engine is not None:
                    self._start(key, entry.desired, nursery, entry)
            nursery.start_soon(self._start_offline, nursery)
            nursery.start_soon(self.activator.run, self.running.by_key)
            nursery.start_soon(self._reconcile_all_once_synced)
            nursery.start_soon(self._update_pools)
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
        if self.prompts.root.is_dir():
            await self.prompts.keep_services(self._all_keys())

    async def _update_pools(self) -> Never:
        """Load the default members of ModelPools while no other member is wanted, and unload excess members.

        Never return.
        """
        while True:
            version = self.changed.version
            running = self.running.by_key.values() if len(self.pools.cache) else ()
            members = [(one.desired.pool, one.gate) for one in running if one.desired.pool and one.desired.running]
            wanted = {pool.key for pool, gate in members if gate.activation.wanted}
            for pool, gate in members:
                is_default = pool.spec.default == gate.manager.key.name
                if is_default and pool.key not in wanted and gate.activation.failure is None:
                    gate.change(gate.activation.start())
            for key in excess_members(self.ledger.book.records.reservations()) if members else ():
                if (found := self._gate_of(key)) is not None:
                    found.change(found.activation.unload())
            await self.changed.wait_newer(version)

    async def _start_offline(self, nursery: trio.Nursery) -> None:
        """Start the services in the journal if the API server does not answer in time."""
        with trio.move_on_after(self.settings.offline_seconds):
            await self.wait_synced()
            for key in self.ports.earlier:
                if key not in self.running.by_key and key not in self.services:
                    await self.ports.journal.remove(key)
        if self.synced():
            await trio.sleep(SETTLE_SECONDS)
            for key in self.ports.earlier:
                if key not in self.running.by_key:  # another host has it by now: the next agent must not start it
                    await self.ports.journal.remove(key)
            if self.door is not None:
                self.door.set_complete()
            return
        if not self.cordon.serves:
            log.warning("API server not reachable; host cordoned, serving nothing", end=self.cordon.end)
            return
        log.warning("API server not reachable; serving the last known services", services=len(self.ports.earlier))
        for key, entry in self.ports.earlier.items():
            if key not in self.running.by_key and key not in self.services:
                self._start(key, entry.desired, nursery, entry)

    def _reconcile(self, key: Key, nursery: trio.Nursery) -> None:
        running, service = self.running.by_key.get(key), self.services.get(key)
        if service is None and not self.services.synced.is_set():
            # Added by a claim, and not listed yet, so it may exist. But a cordon does not wait for the list.
            if running is not None and running.status_manager.view.pid is not None and not self.cordon.serves:
                running.scope.cancel(reason="the host is cordoned")
            return
        desired = self.desired_state(key)
        has_engine = running is not None and running.status_manager.view.pid is not None
        is_ours = desired is not None and self.claims.may_run(
            desired, running=running is not None, has_engine=has_engine
        )
        if running is not None and desired is not None:
            running.status_manager.set_reporting(is_ours and self.claims.reports(desired))
        if running is not None and key in self.services.unconfirmed:
            running.status_manager.emit(Event("DeletionDoubted", DELETION_DOUBTED))
        if desired is None or not is_ours:
            if desired is None and running is None and self.synced():
                self.claims.release(key, unlisted=service is None)
            if running is not None:
                self.prompts.deleted |= {key} if service is None else set()
                running.scope.cancel(reason="deleted, or no longer served here")
        elif running is None:
            self._start(key, desired, nursery)
        elif not running.scope.cancel_called and not desired.has_same_spec(running.desired):
            running.set_desired(desired)
            self.ledger.set_spec(key, self._memory_spec(desired))
        # A service that comes back while its task ends is added again by the end of that task.

    def _start(self, key: Key, desired: Desired, nursery: trio.Nursery, resumed: Entry | None = None) -> None:
        waits_for_door = self.door is not None and mode_of(desired, self.settings.activation) == ON_REQUEST
        facts = Facts(desired, self.settings.host_name, HostAddress(None), door=None if waits_for_door else ())
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
        adoptable, earlier = resumed.engine if resumed else None, self._earlier.pop(key, None)
        if earlier is not None and earlier.desired.service.metadata.uid != desired.service.metadata.uid:
            earlier = None
        fallback = earlier.fallback if earlier is not None else None
        is_loaded = earlier is not None and not earlier.idle
        activation = Activation(wanted=is_loaded, failure=None if is_loaded else reported_failure(desired)).with_spec(
            earlier.desired if earlier is not None else None, desired, self.settings.activation
        )
        gate = Gate(status_manager, self.ledger, self.activator.reschedule, activation)
        self.prompts.deleted.discard(key)
        context = ServiceContext(
            status_manager, self.ports, self.settings, self.shutdown, self.ledger, gate, self.door, prompts=self.prompts
        )
        runner = Runner(context, adoptable, fallback)
        # Added before its task runs for the first time, since it may be reconciled again in between.
        self.running.by_key[key] = running = RunningService(Mailbox(None), trio.CancelScope(), status_manager, runner)
        self.ledger.set_spec(key, self._memory_spec(desired))
        gate.set_activation(activation)
        if resumed is not None and resumed.engine is not None:
            self.ledger.adopt(key, need_of(resumed.launch, None))
        self.running.update_memory_of(key)
        nursery.start_soon(self._supervise, key, running, resumed)

    async def _supervise(self, key: Key, running: RunningService, resumed: Entry | None) -> None:
        running.status_manager.start(adopting=resumed is not None and resumed.engine is not None)
        first: Target = resumed.launch if resumed else Idle(Reason.PENDING)
        try:
            with running.scope:
                await run_service(running.replan, running.runner, first)
        finally:
            del self.running.by_key[key]
            self.ledger.forget(key)
            self.changed.put_nowait(None)
            self.queue.add(key)
        if running.scope.cancelled_caught:
            log.info("inference service stopped", name=key.name, namespace=key.namespace)
            running.status_manager.finish(f"is cordoned {self.cordon.end}" if self.cordon.end else "")
            try:
                await self.ports.journal.remove(key)
                if key in self.prompts.deleted:
                    await self.prompts.remove(key)
            except Exception:  # a bug affects only its own service, also here; the next agent removes the entry
                log.exception("journal entry not removed", name=key.name, namespace=key.namespace)

    def _memory_spec(self, desired: Desired) -> MemorySpec:
        """Return the parts of a service's spec that matter for memory."""
        spec, on_request = desired.service.spec, mode_of(desired, self.settings.activation) == ON_REQUEST
        hardware, pinned = desired.model.spec.hardware, spec.activation.pin
        return MemorySpec(spec.priority, spec.eviction_protection, hardware, on_request, pinned, _share(desired))


def _share(desired: Desired) -> PoolShare | None:
    if (pool := desired.pool) is None:
        return None
    limit, patience = max(1, pool.spec.gpu), parse_duration(pool.spec.swap_budget)
    gpus = min(limit, max(1, desired.service.spec.resources.gpu))
    return PoolShare(f"ModelPool {pool.key}", limit, gpus, patience, ranked=pool.spec.swap_policy == PRIORITY)
