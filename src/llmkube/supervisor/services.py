"""Which services run here, each in a nursery of its own: started, told and ended as the objects and the claims say.

Whenever a service is marked, what is wished of it is held against what runs; what to do follows from the newest state
alone. The tasks themselves are `service.run_service`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, Never

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.reflector import CONFIRM_SECONDS, Cache
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.cluster.drift_repair import DriftRepair
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Decision, Evict, Skip
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Terms
from llmkube.supervisor.nouns.desired import Desired, desired_here, model_key
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.nouns.journal import Entry
from llmkube.supervisor.nouns.need import need_of
from llmkube.supervisor.nouns.ports import Parting, Ports
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.slot import Slot
from llmkube.supervisor.nouns.target import Idle, Target
from llmkube.supervisor.service.attempt import Site
from llmkube.supervisor.service.events import Event, displacing
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.runner import Runner, run_service
from llmkube.supervisor.service.status_manager import StatusManager

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 15.0
"""After hosts have come or gone, what stands is said again: one that was away may have said something old last."""

DOUBTED = (
    f"deleted together with most other services; its engine ends if a list confirms that, in {CONFIRM_SECONDS:g} s"
)

WORTH_TELLING = frozenset(
    {Skip.DISABLED, Skip.DRY_RUN, Skip.ALL_PROTECTED, Skip.LAST_SERVICE, Skip.TOO_SMALL, Skip.CANNOT_HELP}
)
"""Why no service is evicted, if a person could do something about that."""


@attrs.define(eq=False)
class Running:
    """One service's task, as the roster holds it."""

    desired: Mailbox[Desired]
    life: trio.CancelScope
    status_manager: StatusManager
    runner: Runner


@attrs.define(eq=False)
class Roster:
    """The services that run here, and the marks of those that need another look.

    `changed` is a mailbox whose version grows whenever what is known of a service may have changed.
    """

    settings: AgentSettings
    ports: Ports
    applier: Applier
    events: EventRecorder
    models: Cache[Model]
    services: Cache[InferenceService]
    claims: ClaimManager
    reach: Mailbox[Reach]
    ledger: Ledger = attrs.field(factory=lambda: Ledger(watched=False))
    parting: Parting = attrs.field(factory=Parting)
    running: dict[Key, Running] = attrs.field(factory=dict)
    left: dict[Key, Entry] = attrs.field(init=False)  # by an earlier agent, of services that were not started yet
    marked: set[Key] = attrs.field(factory=set)
    wake: trio.Event = attrs.field(factory=trio.Event)
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    drift_repair: DriftRepair = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.left = dict(self.ports.left)
        self.drift_repair = DriftRepair(self.applier, self._conditions, self.ports.rng)
        self.ledger.told = self._tell_evicted
        self.applier.on_refused = self._tell_refused
        self.services.expect(self.ports.left)

    def synced(self) -> bool:
        """Whether everything that decides what runs here has been seen once."""
        return self.models.synced.is_set() and self.services.synced.is_set() and self.claims.synced

    async def wait_synced(self) -> None:
        """Return when everything that decides what runs here has been seen once."""
        await self.models.synced.wait()
        await self.services.synced.wait()
        await self.claims.wait_synced()

    def mark(self, key: Key) -> None:
        """Look at this service again."""
        self.marked.add(key)
        self.wake.set()

    def on_service(self, key: Key) -> None:
        """A service has changed: look at it again, and at what is said of it."""
        self.mark(key)
        self.drift_repair.look_nowait(Slot(InferenceService, key, "status"))

    def on_model(self, key: Key) -> None:
        """A Model has changed: look at it again, and at every service that refers to it."""
        self.mark_model(key)
        self.drift_repair.look_nowait(Slot(Model, key, "status"))

    def _conditions(self, slot: Slot) -> Iterable[Condition] | None:
        found = self.services.get(slot.key) if slot.kind is InferenceService else self.models.get(slot.key)
        return found.status.conditions if found is not None and found.status is not None else None

    def mark_model(self, key: Key) -> None:
        """Look again at every service that refers to this Model."""
        for service in self.services.values():
            if model_key(service) == key:
                self.mark(service.key)

    def mark_all(self) -> None:
        """Look at everything again."""
        for service in self.services.values():
            self.mark(service.key)
        for key in (*self.running, *self.claims.services()):
            self.mark(key)

    def plan_again(self) -> None:
        """Have every service planned for the engine program that is there now: its flags may be others."""
        for running in self.running.values():
            running.desired.put_nowait(running.desired.value)

    async def run_moves(self) -> Never:
        """Never return: have every service look to it when this host is reached in another way."""
        version = self.reach.version
        while True:
            await self.reach.wait_newer(version)
            version = self.reach.version
            for running in self.running.values():
                running.runner.moved_nowait()

    def tell_memory(self, decision: Decision, before: Decision | None) -> None:
        """Say on every service how short of memory the host is, and why no service gives any back."""
        for key in self.running:
            self._tell_memory(key, decision)
        changed = before is not None and before.level is not decision.level
        skipped = decision.skip in WORTH_TELLING and (before is None or before.skip is not decision.skip)
        for running in self.running.values():
            if changed and Level.UNKNOWN not in {decision.level, before.level if before else None}:
                kind: Literal["Normal", "Warning"] = "Normal" if decision.level is Level.NORMAL else "Warning"
                running.status_manager.emit(Event("MemoryPressureLevelChanged", f"memory is {_word(decision)}", kind))
            if skipped:
                running.status_manager.emit(Event("EvictionSkipped", decision.note))

    def _tell_memory(self, key: Key, decision: Decision) -> None:
        evicted = self.ledger.book.evicted(key)
        self.running[key].status_manager.update(Facts.with_memory, decision.level, evicted, _word(decision))

    def _tell_evicted(self, evict: Evict) -> None:
        running = self.running.get(evict.key)
        if evict.winner in self.running:
            self.running[evict.winner].status_manager.emit(displacing(evict.winner, evict))
        if running is not None:
            running.status_manager.update(Facts.with_eviction, evict)
            if self.ledger.book.decision is not None:
                self._tell_memory(evict.key, self.ledger.book.decision)

    def _tell_refused(self, key: Key, slot: Slot, refused: UserError | None) -> None:
        if key in self.running:
            self.running[key].status_manager.update(Facts.with_refusal, slot, refused)

    async def run(self) -> None:
        """Never return: start, tell and end service tasks as the marks come in."""
        async with trio.open_nursery() as nursery:
            for key, entry in self.ports.left.items():
                if entry.engine is not None:
                    self._start(key, entry.wish, nursery, entry)
            nursery.start_soon(self._go_on_alone, nursery)
            nursery.start_soon(self._mark_all_when_synced)
            while True:
                await self.wake.wait()
                self.wake = trio.Event()
                for key in sorted(self.marked):
                    self._reconcile(key, nursery)
                self.marked.clear()

    async def _mark_all_when_synced(self) -> None:
        await self.wait_synced()
        self.mark_all()

    async def _go_on_alone(self, nursery: trio.Nursery) -> None:
        """Start what ran last, when the API server does not come in time to say what is wanted now."""
        with trio.move_on_after(self.settings.offline_seconds):
            await self.wait_synced()
            for key in self.ports.left:
                if key not in self.running and key not in self.services:
                    await self.ports.journal.remove(key)
        if self.synced():
            await trio.sleep(SETTLE_SECONDS)
            for key in self.ports.left:
                if key not in self.running:  # another host has it by now: the next start must not bring it back
                    await self.ports.journal.remove(key)
            return
        log.warning("the API server does not answer; serving the last known services", services=len(self.ports.left))
        for key, entry in self.ports.left.items():
            if key not in self.running and key not in self.services:
                self._start(key, entry.wish, nursery, entry)

    def _reconcile(self, key: Key, nursery: trio.Nursery) -> None:
        running, service = self.running.get(key), self.services.get(key)
        if service is None and not self.services.synced.is_set():
            return  # marked by a claim: what has not been listed yet is not known to be gone
        current = running.desired.value if running else None
        model = self.models.get(model_key(service)) if service else None
        wish = desired_here(service, model, current, self.settings.accelerators)
        ours = wish is not None and self.claims.may_run(wish, running=running is not None)
        if running is not None and wish is not None:
            running.status_manager.speak(ours and self.claims.reports(wish))
        if running is not None and key in self.services.doubted:
            running.status_manager.emit(Event("DeletionDoubted", DOUBTED))
        if wish is None or not ours:
            if wish is None and running is None and self.synced():
                self.claims.release(key, unlisted=service is None)
            if running is not None:
                running.life.cancel(reason="deleted, or another host's")
        elif running is None:
            self._start(key, wish, nursery)
        elif not running.life.cancel_called and not wish.same_wish(current):
            running.desired.put_nowait(wish)
            self.ledger.follow(key, _terms(wish))
        # A service that comes back while its task ends is marked again by the end of that task.

    def _start(self, key: Key, wish: Desired, nursery: trio.Nursery, left: Entry | None = None) -> None:
        facts = Facts(wish, self.settings.host_name, Reach(None))
        status_manager = StatusManager(
            facts,
            self.settings,
            self.applier,
            self.events,
            self.ports.utcnow,
            self.changed,
            self.reach,
            speaks=self.claims.reports(wish),
        )
        found, before = left.engine if left else None, self.left.pop(key, None)
        kept = before.kept if before and before.wish.service.metadata.uid == wish.service.metadata.uid else None
        runner = Runner(Site(status_manager, self.ports, self.settings, self.parting, self.ledger), found, kept)
        # Listed before its task runs for the first time: a second mark may come in between, and would find no task.
        self.running[key] = running = Running(Mailbox(wish), trio.CancelScope(), status_manager, runner)
        self.ledger.follow(key, _terms(wish))
        if left is not None and left.engine is not None:
            self.ledger.adopt(key, need_of(left.launch, None))
        if self.ledger.book.decision is not None:
            self._tell_memory(key, self.ledger.book.decision)
        nursery.start_soon(self._look_after, key, running, left)

    async def _look_after(self, key: Key, running: Running, left: Entry | None) -> None:
        running.status_manager.start(adopting=left is not None and left.engine is not None)
        first: Target = left.launch if left else Idle(Reason.PENDING)
        with self._listed(key), running.life:
            await run_service(running.desired, running.runner, first)
        if running.life.cancelled_caught:
            log.info("inference service ended", name=key.name, namespace=key.namespace)
            running.status_manager.finish()
            try:
                await self.ports.journal.remove(key)
            except Exception:  # a service's bug stops at the service, to the last line; the next agent removes it
                log.exception("journal entry not removed", name=key.name, namespace=key.namespace)

    @contextmanager
    def _listed(self, key: Key) -> Iterator[None]:
        try:
            yield
        finally:
            del self.running[key]
            self.ledger.forget(key)
            self.changed.put_nowait(None)
            self.mark(key)


def _terms(wish: Desired) -> Terms:
    """What the objects say about a service's place in the memory."""
    spec = wish.service.spec
    return Terms(spec.priority, spec.eviction_protection, wish.model.spec.hardware)


def _word(decision: Decision) -> str:
    if decision.level is Level.UNKNOWN:
        return f"not known: {decision.note}"
    word = {Level.NORMAL: "normal", Level.WARNING: "short", Level.CRITICAL: "critically short"}[decision.level]
    return f"{word}: {decision.why}" if decision.why else word
