"""One look at a model: what the server says, and which processes the kernel shows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import attrs
import psutil
import trio

from llmkube.cli.daemon_engine.daemon_api import DaemonApi, DaemonError, DaemonLateError
from llmkube.cli.daemon_engine.keeping import Seen
from llmkube.cli.daemon_engine.runners import Holders, Process, holders_of, servers_in
from llmkube.supervisor.host.processes import listens, start_of

T = TypeVar("T")

SCAN_SECONDS: Final = 30.0
"""Between two looks at all processes while nothing changes: a look at a few costs a hundredth."""

_NO_BLOB: Final = "sha256-"
"""Of a model whose file is not known yet: no process holds it."""


class ProcessTable(Protocol):
    """What the kernel shows of processes."""

    async def read(self) -> Sequence[Process]:
        """Return all that this user may see."""
        ...

    async def starts(self, pids: Sequence[int]) -> tuple[str, ...]:
        """Return what tells each of these processes from a later one with its number; "" of one that has ended."""
        ...

    async def listener(self, servers: Sequence[int], port: int) -> int | None:
        """Return which of these processes listens on a port; None if none is seen to."""
        ...

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        ...

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        ...


@attrs.frozen
class ThisMachine:
    """The processes of this machine; of other users' macOS shows no command line."""

    async def read(self) -> Sequence[Process]:
        """Return all that this user may see."""
        return await _in_thread(lambda: tuple(processes_here()))

    async def starts(self, pids: Sequence[int]) -> tuple[str, ...]:
        """Return what tells each of these processes from a later one with its number; "" of one that has ended."""
        return await _in_thread(lambda: tuple(map(start_of, pids)))

    async def listener(self, servers: Sequence[int], port: int) -> int | None:
        """Return which of these processes listens on a port; None if none is seen to."""
        return await _in_thread(lambda: next((pid for pid in servers if listens(pid, port)), None))

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        return await _in_thread(lambda: sum(map(_cpu_seconds, pids)))

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await _in_thread(lambda: _kill(pids))


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
        held, server = await self._holders(names)
        ours = {self.name, f"{self.name}:latest"}
        listed = sum(name in ours for name in names)
        return Seen(
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

    async def _holders(self, names: tuple[str, ...]) -> tuple[Holders, int | None]:
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
        servers = servers_in(processes)
        server = self.server
        if server is None:
            if self._borrowed not in servers:
                self._borrowed = await self.table.listener(servers, self.port)
            server = self._borrowed
        return holders_of(self.blob or _NO_BLOB, processes, server), server


async def _in_thread(look: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(look, abandon_on_cancel=True)


def processes_here() -> Iterator[Process]:
    """Yield what this user may see; of others macOS shows no command line. Blocks."""
    for each in psutil.process_iter(["pid", "ppid", "cmdline"]):
        yield Process(each.info["pid"], each.info["ppid"] or 0, tuple(each.info["cmdline"] or ()))


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, SystemError):  # SystemError: reaped while psutil 7.2 read it on macOS (psutil issue 2854)
        return 0.0
    return float(times.user + times.system)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(psutil.Error, SystemError):  # it has ended
            psutil.Process(pid).kill()
