"""One model of an Ollama, as the keeper handles it."""

from collections.abc import Sequence
from typing import Final

import attrs

from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.programs.daemon_engine.ollama.weights import Weights
from llmkube.programs.daemon_engine.ollama.witness import WORDS, Witness
from llmkube.programs.daemon_engine.seen import Seen, Words

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
