"""One look at a model: what the server says, and which processes the kernel shows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import attrs
import psutil
import trio

from llmkube.cli.ollama_engine.daemon_api import DaemonApi, DaemonError, DaemonLateError
from llmkube.cli.ollama_engine.keeping import Seen
from llmkube.cli.ollama_engine.runners import Holders, Process, holders_of, servers_in
from llmkube.supervisor.host.processes import listens

T = TypeVar("T")

_NO_BLOB: Final = "sha256-"
"""Of a model whose file is not known yet: no process holds it."""


class ProcessTable(Protocol):
    """What the kernel shows of processes."""

    async def read(self) -> Sequence[Process]:
        """Return all that this user may see."""
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

    async def listener(self, servers: Sequence[int], port: int) -> int | None:
        """Return which of these processes listens on a port; None if none is seen to."""
        return await _in_thread(lambda: next((pid for pid in servers if listens(pid, port)), None))

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        return await _in_thread(lambda: sum(map(_cpu_seconds, pids)))

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await _in_thread(lambda: _kill(pids))


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
        held, server = await self._holders()
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

    async def _holders(self) -> tuple[Holders, int | None]:
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
