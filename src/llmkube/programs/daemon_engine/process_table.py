"""What the kernel shows of processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import attrs
import psutil
import trio

from llmkube.programs.daemon_engine.processes import Process
from llmkube.supervisor.host.processes import listens, start_of
from llmkube.supervisor.host.this_machine import footprints_here

T = TypeVar("T")


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

    async def footprints(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return what these processes hold with all below them, in bytes by their numbers."""
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

    async def footprints(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return what these processes hold with all below them, in bytes by their numbers."""
        return await _in_thread(lambda: footprints_here(pids))

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await _in_thread(lambda: _kill(pids))


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
