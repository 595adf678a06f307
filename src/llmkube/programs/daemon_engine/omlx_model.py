"""One model of an oMLX, as the keeper handles it."""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import attrs
import trio

from llmkube.base.http.message import Headers
from llmkube.programs.daemon_engine.decisions import DaemonSample, DaemonTexts
from llmkube.programs.daemon_engine.keeper import Adapter
from llmkube.programs.daemon_engine.omlx_api import LOAD_SECONDS, NAME, ModelEntry, OmlxApi
from llmkube.programs.daemon_engine.processes import omlx_servers_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonLateError, ProcessTable

MEASURABLE_BYTES: Final = 32 * 1024**2
"""The least model that shows: buffers of requests come and go by as much."""

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class MemorySample:
    """What a process holds, at one look.

    Attributes:
        pid: The process; None where it is not seen.
        held: What it holds, in bytes.
        size: What the server says that our model takes, in bytes; 0 where it says nothing.
        others: What it says of the other models that are loaded, in bytes by their ids.
    """

    pid: int | None
    held: int = 0
    size: int = 0
    others: Mapping[str, int] = _NONE


@attrs.frozen(kw_only=True)
class MemoryHistory:
    """What is remembered of one process, which holds other models too and does not end with ours.

    What it holds is looked at while the model is listed, and again when it is not: unless that has fallen by half of
    what the model takes, the model is still there, whatever the server says. What other models have come and gone
    meanwhile is counted with what the server says that they take.

    Attributes:
        before: The last look at which the model was not there; None when it was there at the first one.
        loaded: The last look at which it was listed as loaded; None once its memory is back.
    """

    before: MemorySample | None = None
    loaded: MemorySample | None = None


def record_sample(history: MemoryHistory, sample: MemorySample, *, listed: bool) -> MemoryHistory:
    """Take a look into account; of another process than before nothing is known."""
    last = history.loaded or history.before
    if sample.pid is None or (last is not None and last.pid != sample.pid):
        history = MemoryHistory()
    if sample.pid is None:
        return history
    if listed:
        return attrs.evolve(history, loaded=_with_unreleased(history.loaded, sample))
    return history if is_still_held(history, sample) else MemoryHistory(before=sample)


def is_still_held(history: MemoryHistory, sample: MemorySample) -> bool:
    """Whether the process holds the model still, of which the server says that it is not loaded."""
    loaded = history.loaded
    if loaded is None or loaded.pid != sample.pid:
        return False
    size = _model_size(history)
    return size >= MEASURABLE_BYTES and 2 * (loaded.held + growth_of_others(loaded, sample) - sample.held) < size


def _with_unreleased(earlier: MemorySample | None, sample: MemorySample) -> MemorySample:
    """Count models with a look that are not listed any more, and whose memory is not back yet."""
    gone = {} if earlier is None else {name: of for name, of in earlier.others.items() if name not in sample.others}
    if earlier is None or not gone:
        return sample
    if 2 * (earlier.held + growth_of_others(earlier, sample) + sum(gone.values()) - sample.held) >= sum(gone.values()):
        return sample
    return attrs.evolve(sample, others={**sample.others, **gone})


def _model_size(history: MemoryHistory) -> int:
    """What the model takes, in bytes: as the server says, or less if the process has grown by less."""
    loaded, before = history.loaded, history.before
    assert loaded is not None, "asked of a model that was listed"
    if before is None:
        return loaded.size
    grown = max(0, loaded.held - before.held - growth_of_others(before, loaded))
    return min(loaded.size, grown) if loaded.size else grown


def growth_of_others(earlier: MemorySample, later: MemorySample) -> int:
    """Return by how much other models have let the process grow between two looks, in bytes."""
    came = sum(size for name, size in later.others.items() if name not in earlier.others)
    return came - sum(size for name, size in earlier.others.items() if name not in later.others)


TEXTS: Final = DaemonTexts(
    name=NAME,
    moved="start the agent with --omlx-port PORT",
    search="looking for the model's folder among oMLX's models",
    gone="the model is unloaded, and its memory is back",
)

_RETRY_SECONDS: Final = 1.0
_SEARCH_SECONDS: Final = 30.0
"""Between two looks at all processes for one that listens and is not seen."""


@attrs.define(eq=False)
class OmlxModel(Adapter):
    """One model of one server.

    Attributes:
        api: The server.
        port: Where it listens.
        folder: The model's folder, with links followed.
        table: The processes.
        embeds: Whether the model computes embeddings alone.
        resolve: Returns a path with its links followed.
        server: The server's process, where it is ours; None of a borrowed one, which is looked for.
        name: What the server calls the model; "" until it was found there.
    """

    texts = TEXTS
    api: OmlxApi
    port: int
    folder: str
    table: ProcessTable
    embeds: bool = False
    resolve: Callable[[str], Awaitable[str]] = attrs.field(factory=lambda: resolve_links)
    server: int | None = None
    name: str = ""
    _history: MemoryHistory = attrs.field(factory=MemoryHistory)
    _is_loading: bool = False
    _borrowed: tuple[int, str] | None = None
    _next_search_at: float = float("-inf")

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self.api.url

    @property
    def headers(self) -> Headers:
        """Its key, if it asks for one."""
        return self.api.headers.without("content-type")

    @property
    def lock_key(self) -> str:
        """The server and the folder: services of one folder share what is loaded."""
        return "" if self.server is not None else f"{self.url} {self.folder}"

    async def sample(self) -> DaemonSample:
        """Ask the server for its models, and the kernel what its process holds."""
        version, answers, problem, entries = "", "yes", "", tuple[ModelEntry, ...]()
        try:
            version = await self.api.version()
            entries = await self.api.models()
        except DaemonError as error:
            answers, problem = "gone" if error.gone else "late", str(error) if error.status else ""
        pid = await self._pid(search=answers != "gone")
        held = (await self.table.footprints([pid])).get(pid, 0) if pid is not None else 0
        ours = await self.find_model(entry for entry in entries if self.name in ("", entry.id))
        listed = ours is not None and ours.loaded
        others = {entry.id: entry.size for entry in entries if entry.loaded and entry is not ours}
        sample = MemorySample(pid=pid, held=held, size=ours.size if ours else 0, others=others)
        if answers == "yes":
            self._history = record_sample(self._history, sample, listed=listed)
        is_held = listed or is_still_held(self._history, sample) or (self._is_loading and answers != "gone")
        return DaemonSample(
            texts=self.texts,
            answers=answers,  # type: ignore[arg-type]  # one of its three words
            url=self.api.url,
            problem=problem,
            version=version,
            listed=listed,
            holders=(pid,) if pid is not None and is_held else (),
            visible=pid is not None,
            owned=self.server is not None,
        )

    async def prepare(self) -> None:
        """Find out what the server calls the model."""
        entry = await self.find_model(await self.api.models())
        if entry is None:
            self.name = ""
            why = f"the oMLX at {self.url} does not have {self.folder} among its models any more; add the folder above "
            why += "it to the model folders of oMLX, or quit oMLX: then one of our own is started"
            if self.server is not None:
                why = f"oMLX does not take {self.folder} for a model; its words are above"
            raise DaemonError(why, 410)
        self.name = entry.id

    async def load(self) -> None:
        """Have it loaded, once no other client's load of it is under way."""
        self._is_loading = True
        try:
            with trio.move_on_after(LOAD_SECONDS):
                entry = await self._wait_not_loading()
                if entry is None or entry.id != self.name:  # the default model would answer in its place
                    raise DaemonError(f"oMLX does not know {self.name} any more", 404)
                await self.api.load(self.name, embeds=self.embeds)
                return
            raise DaemonLateError(f"another client's load of the model has not ended in {LOAD_SECONDS:g} s")
        finally:
            self._is_loading = False

    async def unload(self) -> None:
        """Have it unloaded, also what an earlier front has left, and if that had it loaded, once the load has ended.

        Until then oMLX says that it is not loaded.
        """
        entry = await self._wait_not_loading()
        if entry is not None and entry.loaded and self._history.loaded is None:
            await self.sample()  # at what its process holds with it, which is to become less
        if name := entry.id if entry else self.name:
            await self.api.unload(name)

    async def find_model(self, entries: Iterable[ModelEntry]) -> ModelEntry | None:
        """Return which model is ours: by its folder, as a name may come to mean another one."""
        for entry in entries:
            if await self.resolve(entry.path) == self.folder:
                return entry
        return None

    async def _wait_not_loading(self) -> ModelEntry | None:
        """Return which model is ours, once no load of it is under way."""
        while (entry := await self.find_model(await self.api.models())) and entry.loading:  # noqa: ASYNC110
            await trio.sleep(_RETRY_SECONDS)
        return entry

    async def _pid(self, *, search: bool) -> int | None:
        if self.server is not None:
            return self.server if (await self.table.starts([self.server]))[0] else None
        if self._borrowed is not None:
            pid, started = self._borrowed
            if (await self.table.starts([pid]))[0] == started:
                return pid
            self._borrowed, self._next_search_at = None, float("-inf")
        if not search:
            self._next_search_at = float("-inf")
        if not search or trio.current_time() < self._next_search_at:
            return None
        self._next_search_at = trio.current_time() + _SEARCH_SECONDS
        found = await self.table.listener(omlx_servers_in(await self.table.read()), self.port)
        if found is not None:
            self._borrowed = (found, (await self.table.starts([found]))[0])
        return found


async def resolve_links(path: str) -> str:
    """Return a path with its links followed; "" of none."""
    return await trio.to_thread.run_sync(os.path.realpath, path, abandon_on_cancel=True) if path else ""
