"""The services whose tasks run here, and what they are told of their host: its memory, its address, its engine."""

from typing import Literal

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction import Decision, Evict, Skip
from llmkube.supervisor.memory.refusal import not_returned
from llmkube.supervisor.nouns.desired import Desired
from llmkube.supervisor.service.events import Event, displacing
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.runner import Runner
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
