"""One model of an oMLX, as the keeper handles it."""

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.message import Headers
from llmkube.programs.daemon_engine.daemon_http import DaemonError, DaemonLateError
from llmkube.programs.daemon_engine.omlx.account import Account, Shot, noted, remains
from llmkube.programs.daemon_engine.omlx.daemon_api import LOAD_SECONDS, NAME, DaemonApi, Entry
from llmkube.programs.daemon_engine.process import Process
from llmkube.programs.daemon_engine.processes import ProcessTable
from llmkube.programs.daemon_engine.seen import Seen, Words

WORDS: Final = Words(
    name=NAME,
    moved="start the agent with --omlx-port PORT",
    search="looking for the model's folder among oMLX's models",
    gone="the model is unloaded, and its memory is back",
)

_AGAIN_SECONDS: Final = 1.0
_LOOK_FOR_SECONDS: Final = 30.0
"""Between two looks at all processes for one that listens and is not seen."""


@attrs.define(eq=False)
class OmlxModel:
    """An `Adapter` (which see).

    Attributes:
        api: The server.
        port: Where it listens.
        folder: The model's folder, with links followed.
        table: The processes.
        embeds: Whether the model computes embeddings alone.
        follow: Returns a path with its links followed.
        server: The server's process, where it is ours; None of a borrowed one, which is looked for.
        name: What the server calls the model; "" until it was found there.
    """

    api: DaemonApi
    port: int
    folder: str
    table: ProcessTable
    embeds: bool = False
    follow: Callable[[str], Awaitable[str]] = attrs.field(factory=lambda: followed)
    server: int | None = None
    name: str = ""
    _account: Account = attrs.field(factory=Account)
    _loads: bool = False
    _borrowed: tuple[int, str] | None = None
    _look_for_at: float = float("-inf")

    @property
    def words(self) -> Words:
        """What is said of oMLX."""
        return WORDS

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self.api.url

    @property
    def headers(self) -> Headers:
        """Its key, if it asks for one."""
        return self.api.headers.without("content-type")

    @property
    def shared_as(self) -> str:
        """The server and the folder: services of one folder share what is loaded."""
        return "" if self.server is not None else f"{self.url} {self.folder}"

    async def look(self) -> Seen:
        """Ask the server for its models, and the kernel what its process holds."""
        version, answers, said, entries = "", "yes", "", tuple[Entry, ...]()
        try:
            version = await self.api.version()
            entries = await self.api.models()
        except DaemonError as error:
            answers, said = "gone" if error.gone else "late", str(error) if error.status else ""
        pid = await self._pid(search=answers != "gone")
        held = (await self.table.footprints([pid])).get(pid, 0) if pid is not None else 0
        ours = await self.of_folder(entry for entry in entries if self.name in ("", entry.id))
        listed = ours is not None and ours.loaded
        others = {entry.id: entry.size for entry in entries if entry.loaded and entry is not ours}
        shot = Shot(pid=pid, held=held, size=ours.size if ours else 0, others=others)
        if answers == "yes":
            self._account = noted(self._account, shot, listed=listed)
        has = listed or remains(self._account, shot) or (self._loads and answers != "gone")
        return Seen(
            words=WORDS,
            answers=answers,  # type: ignore[arg-type]  # one of its three words
            url=self.api.url,
            said=said,
            version=version,
            listed=listed,
            holders=(pid,) if pid is not None and has else (),
            visible=pid is not None,
            owned=self.server is not None,
        )

    async def prepare(self) -> None:
        """Find out what the server calls the model."""
        entry = await self.of_folder(await self.api.models())
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
        self._loads = True
        try:
            with trio.move_on_after(LOAD_SECONDS):
                entry = await self._not_loading()
                if entry is None or entry.id != self.name:  # the default model would answer in its place
                    raise DaemonError(f"oMLX does not know {self.name} any more", 404)
                await self.api.load(self.name, embeds=self.embeds)
                return
            raise DaemonLateError(f"another client's load of the model has not ended in {LOAD_SECONDS:g} s")
        finally:
            self._loads = False

    async def renew(self) -> None:
        """Do nothing: what oMLX unloads by itself, its owner has told it to."""
        await trio.lowlevel.checkpoint()

    async def unload(self) -> None:
        """Have it unloaded, also what an earlier front has left, and if that had it loaded, once the load has ended.

        Until then oMLX says that it is not loaded.
        """
        entry = await self._not_loading()
        if entry is not None and entry.loaded and self._account.loaded is None:
            await self.look()  # at what its process holds with it, which is to become less
        if name := entry.id if entry else self.name:
            await self.api.unload(name)

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        return await self.table.cpu_seconds(pids)

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await self.table.end(pids)

    async def of_folder(self, entries: Iterable[Entry]) -> Entry | None:
        """Return which model is ours: by its folder, as a name may come to mean another one."""
        for entry in entries:
            if await self.follow(entry.path) == self.folder:
                return entry
        return None

    async def _not_loading(self) -> Entry | None:
        """Return which model is ours, once no load of it is under way."""
        while (entry := await self.of_folder(await self.api.models())) and entry.loading:  # noqa: ASYNC110
            await trio.sleep(_AGAIN_SECONDS)
        return entry

    async def _pid(self, *, search: bool) -> int | None:
        if self.server is not None:
            return self.server if (await self.table.starts([self.server]))[0] else None
        if self._borrowed is not None:
            pid, started = self._borrowed
            if (await self.table.starts([pid]))[0] == started:
                return pid
            self._borrowed, self._look_for_at = None, float("-inf")
        if not search:
            self._look_for_at = float("-inf")
        if not search or trio.current_time() < self._look_for_at:
            return None
        self._look_for_at = trio.current_time() + _LOOK_FOR_SECONDS
        found = await self.table.listener(servers_in(await self.table.read()), self.port)
        if found is not None:
            self._borrowed = (found, (await self.table.starts([found]))[0])
        return found


def servers_in(processes: Sequence[Process]) -> tuple[int, ...]:
    """Return the processes that may be a server of oMLX: by its program, its app, or its Python; none of ours.

    Who was started by another of them comes before it: what starts a server is not the server.
    """
    parents = {each.pid: each.parent for each in processes if _may_be_omlx(each.argv[:3])}

    def depth(pid: int) -> int:
        above: list[int] = []
        while pid in parents and pid not in above:  # a number that was given anew may close a ring
            above.append(pid)
            pid = parents[pid]
        return len(above)

    return tuple(sorted(parents, key=lambda pid: (-depth(pid), pid)))


def _may_be_omlx(words: Sequence[str]) -> bool:
    return any("omlx" in word.lower() for word in words) and not any("llmkube" in word for word in words)


async def followed(path: str) -> str:
    """Return a path with its links followed; "" of none."""
    return await trio.to_thread.run_sync(os.path.realpath, path, abandon_on_cancel=True) if path else ""
