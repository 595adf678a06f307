"""What the journal says of one engine, for the next agent: the wish that it serves, its plan, its process."""

import ipaddress

import attrs
import structlog

from llmkube.base.errors import WorldError
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine.key_file import new_key
from llmkube.supervisor.nouns.desired import Launch
from llmkube.supervisor.nouns.host_addresses import LOOPBACK
from llmkube.supervisor.nouns.journal import EngineRecord, Entry, FileJournal
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.status_manager import StatusManager

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class EngineJournal:
    """One engine's entry in the journal.

    Attributes:
        manager: Of the service's status; it has the newest wish.
        journal: On the disk.
        launch: What the engine runs.
        kept: What has served last, if newer plans could not start since.
    """

    manager: StatusManager
    journal: FileJournal
    launch: Launch
    kept: Launch | None = None
    _entry: Entry | None = None  # what the journal says of the process, or will say

    @property
    def knows(self) -> bool:
        """Whether there is an entry of the process."""
        return self._entry is not None

    def expect(self, record: EngineRecord) -> None:
        """The process runs; the journal knows of it, or does as soon as it leads."""
        self._entry = self._entry_of(record)

    async def note(self, record: EngineRecord) -> None:
        """Write it down; WorldError when the disk does not take it."""
        entry = self._entry_of(record)
        await self.journal.write(entry)
        self._entry = entry

    async def noted(self, record: EngineRecord) -> bool:
        """Write it down; whether the disk has taken it."""
        try:
            await self.note(record)
        except WorldError as error:
            self.manager.log.warning("journal entry not written", error=str(error))
            return False
        return True

    async def keep(self) -> None:
        """Have the next agent know that this has served, and that newer plans could not start since."""
        if self.kept is None:
            self.kept = self.launch
            await self._note_again()

    async def follow(self) -> None:
        """Have the next agent know the newest wish, also where that restarts nothing: a priority, another uid."""
        if self._entry is not None and self._entry.wish is not self.manager.facts.wish:
            await self._note_again()

    async def _note_again(self) -> None:
        """Note what has changed about a process of which the journal knows."""
        if self._entry is not None and self._entry.engine is not None:
            await self.noted(self._entry.engine)

    def _entry_of(self, record: EngineRecord) -> Entry:
        return Entry(self.manager.facts.wish, self.launch, record, self.kept)


def new_record(context: ServiceContext, plan: LaunchPlan) -> EngineRecord:
    """Choose ports and a key for an engine that is about to start.

    One that cannot ask for keys listens on the loopback address, and its clients reach a proxy that asks.

    Raises:
        WorldError: This host does not have the address.
    """
    settings, engines = context.settings, context.ports.engines
    cookie, host = f"{context.ports.rng.getrandbits(64):016x}", context.status_manager.reach.value.bind
    clients_have_keys, asks = bool(plan.keys_digest), HOST_RUNTIMES[plan.runtime].takes_keys
    if asks and settings.insecure_lan and not clients_have_keys:
        return EngineRecord(cookie, host, engines.free_port(host))
    if asks and (clients_have_keys or not settings.publishes):
        return EngineRecord(cookie, host, engines.free_port(host), api_key=new_key())
    inside = LOOPBACK[ipaddress.ip_address(host).version]
    return EngineRecord(
        cookie,
        inside,
        engines.free_port(inside),
        api_key=new_key(),
        public_host=host,
        public_port=engines.free_port(host),
    )
