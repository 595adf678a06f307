"""One model of an Ollama, as the keeper handles it: what its server says, and which processes the kernel shows."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.programs.daemon_engine.keeping import Seen, Words
from llmkube.programs.daemon_engine.ollama_api import DaemonApi
from llmkube.programs.daemon_engine.ollama_weights import Weights
from llmkube.programs.daemon_engine.processes import Holders, holders_of, ollama_servers_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonLateError, ProcessTable

SCAN_SECONDS: Final = 30.0
"""Between two looks at all processes while nothing changes: a look at a few costs a hundredth."""

WORDS: Final = Words(
    name="Ollama",
    moved="start the agent with OLLAMA_HOST=ADDRESS:PORT",
    search="looking for the model in Ollama's store",
)

_NO_BLOB: Final = "sha256-"
"""Of a model whose file is not known yet: no process holds it."""


@attrs.frozen
class _Scan:
    """What all processes have shown, and for how long that counts if the few that matter are the same."""

    facts: tuple[str, tuple[str, ...]]
    holders: Holders
    server: int
    pids: tuple[int, ...]
    starts: tuple[str, ...]
    until: float


@attrs.define(eq=False)
class Witness:
    """Looks at one model of one server.

    Attributes:
        api: The server.
        port: Where it listens.
        name: The model's name in its store.
        table: The processes.
        server: The server's process, where it is ours; None of a borrowed one, which is looked for.
        blob: The model's file, once it is known.
    """

    api: DaemonApi
    port: int
    name: str
    table: ProcessTable
    server: int | None = None
    blob: str = ""
    _borrowed: int | None = None
    _before: "_Scan | None" = None

    async def look(self) -> Seen:
        """Ask the server, and look at the processes."""
        version, names, answers = "", tuple[str, ...](), "yes"
        try:
            version = await self.api.version()
            names = await self.api.loaded()
        except DaemonLateError:
            answers = "late"
        except DaemonError as error:
            answers = "gone" if error.gone or not version else "late"
        held, server = await self.look_at_processes(names)
        ours = {self.name, f"{self.name}:latest"}
        listed = sum(name in ours for name in names)
        return Seen(
            words=WORDS,
            answers=answers,  # type: ignore[arg-type]  # one of its three words
            url=self.api.url,
            version=version,
            listed=listed > 0,
            others_listed=len(names) - listed,
            holders=held.served,
            others=held.others,
            orphans=held.orphans,
            visible=server is not None or bool(held.orphans),
            owned=self.server is not None,
        )

    async def look_at_processes(self, names: tuple[str, ...]) -> tuple[Holders, int | None]:
        """Return who holds the model, and the server's pid: those found before, while all of them run."""
        before, facts = self._before, (self.blob, names)
        recent = before is not None and before.facts == facts and trio.current_time() < before.until
        if before is not None and recent and await self.table.starts(before.pids) == before.starts:
            return before.holders, before.server
        holders, server = await self._scan()
        self._before = None
        if server is not None and holders.served and not holders.orphans:
            pids = (server, *holders.served, *holders.others)
            starts = await self.table.starts(pids)
            if all(starts):
                until = trio.current_time() + SCAN_SECONDS
                self._before = _Scan(facts, holders, server, pids, starts, until)
        return holders, server

    async def _scan(self) -> tuple[Holders, int | None]:
        processes = await self.table.read()
        servers = ollama_servers_in(processes)
        server = self.server
        if server is None:
            if self._borrowed not in servers:
                self._borrowed = await self.table.listener(servers, self.port)
            server = self._borrowed
        return holders_of(self.blob or _NO_BLOB, processes, server), server


KEEP_ALIVE: Final = "5m"
"""How long Ollama keeps the model without a renewal: so long its memory is taken after this process was killed."""


@attrs.frozen(eq=False)
class OllamaModel:
    """An `Adapter` (which see).

    Attributes:
        witness: Looks at it.
        weights: Brings it into the server's store.
        embeds: Whether the model computes embeddings alone.
    """

    witness: Witness
    weights: Weights
    embeds: bool = False

    @property
    def words(self) -> Words:
        """What is said of Ollama."""
        return WORDS

    @property
    def name(self) -> str:
        """The model's name in the store."""
        return self.witness.name

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self.witness.api.url

    @property
    def headers(self) -> Headers:
        """None: it asks for no key."""
        return NO_HEADERS

    @property
    def shared_as(self) -> str:
        """The server and the name, which two engines of one service may share while one replaces the other."""
        return "" if self.witness.server is not None else f"{self.url} {self.name}"

    async def look(self) -> Seen:
        """Ask the server, and look at the processes."""
        return await self.witness.look()

    async def prepare(self) -> None:
        """Have it in the store."""
        self.witness.blob = await self.weights.prepare(self.witness.api)

    async def load(self) -> None:
        """Have it loaded, with `KEEP_ALIVE` to stay."""
        await self.witness.api.load(self.name, KEEP_ALIVE, embeds=self.embeds)

    async def renew(self) -> None:
        """Give it `KEEP_ALIVE` from now on."""
        await self.witness.api.renew(self.name, KEEP_ALIVE, embeds=self.embeds)

    async def unload(self) -> None:
        """Have it unloaded; also what an earlier front has left, whose file its name tells."""
        if not self.witness.blob:
            self.witness.blob = await self.witness.api.blob_of(self.name) or ""
        await self.witness.api.unload(self.name)

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        return await self.witness.table.cpu_seconds(pids)

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await self.witness.table.end(pids)
