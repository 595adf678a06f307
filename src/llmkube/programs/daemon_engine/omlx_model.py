"""One model of an oMLX server, as an adapter for the keeper."""

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
"""Smallest model whose memory is measurable: the buffers of requests vary by as much."""

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class MemorySample:
    """One sample of a process's memory.

    Attributes:
        pid: The process; None if it is not visible.
        held: Memory that it holds, in bytes.
        size: Size of our model as the server reports it, in bytes; 0 if not reported.
        others: Sizes of the other loaded models as reported, in bytes by id.
    """

    pid: int | None
    held: int = 0
    size: int = 0
    others: Mapping[str, int] = _NONE


@attrs.frozen(kw_only=True)
class MemoryHistory:
    """Memory history of one process, which may hold other models too and does not exit when ours is unloaded.

    Its memory is sampled while the model is listed, and when it no longer is. Unless the memory has fallen by at least
    half of the model's size, the model is still held, whatever the server lists. Other models that were loaded or
    unloaded meanwhile are accounted for by the sizes that the server reports.

    Attributes:
        before: Last sample without the model; None if the first one already had it.
        loaded: Last sample in which it was listed as loaded; None once its memory has been freed.
    """

    before: MemorySample | None = None
    loaded: MemorySample | None = None


def record_sample(history: MemoryHistory, sample: MemorySample, *, listed: bool) -> MemoryHistory:
    """Return the history with a sample added; another process starts a new history."""
    last = history.loaded or history.before
    if sample.pid is None or (last is not None and last.pid != sample.pid):
        history = MemoryHistory()
    if sample.pid is None:
        return history
    if listed:
        return attrs.evolve(history, loaded=_with_unreleased(history.loaded, sample))
    return history if is_still_held(history, sample) else MemoryHistory(before=sample)


def is_still_held(history: MemoryHistory, sample: MemorySample) -> bool:
    """Whether the process still holds a model that the server lists as not loaded."""
    loaded = history.loaded
    if loaded is None or loaded.pid != sample.pid:
        return False
    size = _model_size(history)
    return size >= MEASURABLE_BYTES and 2 * (loaded.held + growth_of_others(loaded, sample) - sample.held) < size


def _with_unreleased(earlier: MemorySample | None, sample: MemorySample) -> MemorySample:
    """Return the sample with models added that are no longer listed, but whose memory has not been freed yet."""
    gone = {} if earlier is None else {name: size for name, size in earlier.others.items() if name not in sample.others}
    if earlier is None or not gone:
        return sample
    if 2 * (earlier.held + growth_of_others(earlier, sample) + sum(gone.values()) - sample.held) >= sum(gone.values()):
        return sample
    return attrs.evolve(sample, others={**sample.others, **gone})


def _model_size(history: MemoryHistory) -> int:
    """Return the model's size in bytes: as the server reports it, or less if the process has grown by less."""
    loaded, before = history.loaded, history.before
    assert loaded is not None, "called only for a model that was listed"
    if before is None:
        return loaded.size
    grown = max(0, loaded.held - before.held - growth_of_others(before, loaded))
    return min(loaded.size, grown) if loaded.size else grown


def growth_of_others(earlier: MemorySample, later: MemorySample) -> int:
    """Return how much the process has grown by other models between two samples, in bytes."""
    came = sum(size for name, size in later.others.items() if name not in earlier.others)
    return came - sum(size for name, size in earlier.others.items() if name not in later.others)


TEXTS: Final = DaemonTexts(
    name=NAME,
    moved="start the agent with --omlx-port PORT",
    search="looking for the model's folder among oMLX's models",
    gone="the model is unloaded, and its memory is free",
)

_RETRY_SECONDS: Final = 1.0
_SEARCH_SECONDS: Final = 30.0
"""Interval between scans of all processes for a server whose process has not been found."""


@attrs.define(eq=False)
class OmlxModel(Adapter):
    """One model of one server.

    Attributes:
        api: API of the server.
        port: Port of the server.
        folder: Folder of the model, with links resolved.
        table: The process table.
        embeds: Whether the model only computes embeddings.
        resolve: Returns a path with links resolved.
        server: Process of our own server; None for a borrowed one, whose process is searched for.
        name: Name of the model in the server; empty until it is found there.
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
    def headers(self) -> Headers:
        """Headers with the server's key, if it requires one."""
        return self.api.headers.without("content-type")

    @property
    def lock_key(self) -> str:
        """The server and the folder: services with the same folder share the loaded model."""
        return "" if self.server is not None else f"{self.url} {self.folder}"

    async def sample(self) -> DaemonSample:
        """Query the models of the server and the memory of its process."""
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
            answers=answers,  # type: ignore[arg-type]  # one of three literals
            url=self.api.url,
            problem=problem,
            version=version,
            listed=listed,
            holders=(pid,) if pid is not None and is_held else (),
            visible=pid is not None,
            owned=self.server is not None,
        )

    async def prepare(self) -> None:
        """Find the name of the model in the server."""
        entry = await self.find_model(await self.api.models())
        if entry is None:
            self.name = ""
            why = f"the oMLX at {self.url} no longer lists {self.folder} among its models; add the parent folder to "
            why += "the model folders of oMLX, or quit oMLX to have LLMKube start its own"
            if self.server is not None:
                why = f"oMLX does not recognize {self.folder} as a model; see its output above"
            raise DaemonError(why, 410)
        self.name = entry.id

    async def load(self) -> None:
        """Load the model, after waiting for another client's load of it."""
        self._is_loading = True
        try:
            with trio.move_on_after(LOAD_SECONDS):
                entry = await self._wait_not_loading()
                if entry is None or entry.id != self.name:  # the default model would answer instead
                    raise DaemonError(f"oMLX no longer has {self.name}", 404)
                await self.api.load(self.name, embeds=self.embeds)
                return
            raise DaemonLateError(f"another client's load of the model has not finished in {LOAD_SECONDS:g} s")
        finally:
            self._is_loading = False

    async def unload(self) -> None:
        """Unload the model, even if an earlier front has loaded it, after waiting for a load that is in progress.

        Until such a load is finished, oMLX lists the model as not loaded.
        """
        entry = await self._wait_not_loading()
        if entry is not None and entry.loaded and self._history.loaded is None:
            await self.sample()  # record the memory with the model, before it shrinks
        if name := entry.id if entry else self.name:
            await self.api.unload(name)

    async def find_model(self, entries: Iterable[ModelEntry]) -> ModelEntry | None:
        """Return our model, found by its folder, since a name may come to mean another model."""
        for entry in entries:
            if await self.resolve(entry.path) == self.folder:
                return entry
        return None

    async def _wait_not_loading(self) -> ModelEntry | None:
        """Return our model once it is not being loaded."""
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
    """Return a path with links resolved; empty for an empty path."""
    return await trio.to_thread.run_sync(os.path.realpath, path, abandon_on_cancel=True) if path else ""
