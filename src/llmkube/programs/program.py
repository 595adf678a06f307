"""A long-running program that a signal stops in order, innermost layer first.

A signal cancels only the innermost `Stop.scope`; the layers around it then end one after the other. Cancelling the
outermost scope would stop the API server while the agent still has to write its last status.
"""

import contextlib
import ctypes
import gc
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import attrs
import psutil
import trio

from llmkube.base.http.listen import ListenError, PortTakenError, open_listeners
from llmkube.base.http.message import netloc

T = TypeVar("T")

LOOPBACK: Final = "127.0.0.1"
"""Address on which programs listen unless the user sets another."""

LOOPBACK_IPV6: Final = "::1"
"""Address that many clients try first for `localhost`."""

MAX_DESCRIPTORS: Final = 10_240
"""The highest limit that macOS accepts (OPEN_MAX in its sys/syslimits.h; setrlimit(2))."""


def raise_descriptor_limit() -> None:
    """Raise the open-file limit of this process and its engines to the hard limit, 10,240 at most.

    The limit under launchd and in macOS's terminals is 256, which a gateway exhausts with a hundred requests under way.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # continue with the current limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@attrs.define(eq=False)
class Stop:
    """A request to stop the program; `reason` is the signal."""

    reason: str = ""
    _scopes: list[trio.CancelScope] = attrs.field(factory=list)

    def request_nowait(self, reason: str) -> None:
        """Cancel the innermost scope; scopes that are opened later are cancelled at once."""
        self.reason = reason
        if self._scopes:
            self._scopes[-1].cancel(reason=reason)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Open a block that a stop cancels, unless another such block is open within it."""
        with trio.CancelScope() as scope:
            if self.reason:
                scope.cancel(reason=self.reason)
            self._scopes.append(scope)
            try:
                yield
            finally:
                self._scopes.remove(scope)


GC_THRESHOLD: Final = 10_000
"""Net allocations before the youngest generation is collected: each request allocates and frees hundreds of objects."""


def freeze_heap() -> None:
    """Exempt all current objects from garbage collection; call this once a program has started.

    The hundred thousand objects of modules, schemas and caches are permanent. Traversing them takes 0.1 s, often if a
    busy API server shares this process, and delays the restart of a failed engine.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


_M_ARENA_MAX: Final = -8  # mallopt(3)


def use_one_heap() -> None:
    """Have the threads of this process allocate from one heap; call this before the first thread starts.

    glibc makes a heap for each thread that allocates at the same time as others, up to eight per core, keeps them when
    their threads have ended, and `malloc_trim` does not return the memory at their tops: some MiB each.
    """
    limit = getattr(ctypes.CDLL(None), "mallopt", None)  # only in glibc
    if limit is not None:
        limit(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return the C library's free memory to the kernel, with `use_one_heap`; macOS does so by itself.

    A burst of new services briefly needs large blocks. glibc returns only memory at the top of its heap, which
    long-lived objects occupy.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim is not None:
        trim(0)


def process_age_seconds() -> float:
    """Return the age of this process, including imports: the time that a user has waited."""
    # Both by the wall clock, which may have been set meanwhile: the figure is only displayed.
    return max(0.0, time.time() - psutil.Process().create_time())


async def run_signals(
    stop: Stop, report: Callable[[str], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> NoReturn:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a stop; later ones are only reported."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it on purpose
        numbers.append(signal.SIGHUP)  # a closed terminal: engines have their own sessions and would keep running
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            if stop.reason:
                report(f"{name}: already stopping; waiting for the engines to exit")
            else:
                report(f"{name}: stopping")
                stop.request_nowait(name)
    raise AssertionError("a signal receiver never ends")


async def run_until_signal(body: Callable[[Stop], Awaitable[T]], report: Callable[[str], None]) -> T | None:
    """Run the body and return its result, or None if a signal cancels the body.

    A signal cancels the innermost open `Stop.scope`; the body itself is the outermost.
    """
    stop = Stop()
    result = None
    async with trio.open_nursery() as signals:
        await signals.start(run_signals, stop, report)
        with stop.scope():
            result = await body(stop)
        signals.cancel_scope.cancel(reason="the body has finished")
    return result


@contextlib.asynccontextmanager
async def open_service_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks serve the block: they are cancelled when it ends, and have exited on return."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel(reason="the served block has ended")


@attrs.frozen
class Port:
    """An open port. It is opened before anything else starts, so that a taken port is reported at once."""

    listeners: Sequence[trio.SocketListener]
    url: str


@contextlib.asynccontextmanager
async def open_port(number: int, flag: str, host: str | None = LOOPBACK, *, also: str = "") -> AsyncIterator[Port]:
    """Listen on the loopback address, another one, or with None on all; 0 takes a free port.

    Args:
        number: The port.
        flag: Flag that chose it.
        host: The address.
        also: Another address that gets the same port, if this machine has it; "" for none.

    Raises:
        PortTakenError: Another program has it; the message names the flag.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = await open_listeners(host, number, field=flag)
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        taken = listeners[0].socket.getsockname()[1]
        if also:
            try:
                found = await open_listeners(also, taken, field=flag)
            except PortTakenError:
                raise
            except ListenError:
                found = []  # a machine without IPv6
            for listener in found:
                stack.push_async_callback(listener.aclose)
            listeners += found
        yield Port(listeners, f"http://{netloc((host or LOOPBACK, taken))}")


async def check_ports(numbers: Mapping[str, int]) -> None:
    """Check that the ports of a program, by their flags, are free.

    Raises:
        PortTakenError: Some are taken; the message names each of them with the program that listens there.
    """
    taken = []
    for flag, number in numbers.items():
        if (holder := await find_holder(number)) is not None:
            taken.append(f"{number} ({flag}) is in use by {holder or 'another program'}")
    if taken:
        raise PortTakenError(f"port {', port '.join(taken)}; stop that program, or choose other ports with these flags")


async def find_holder(port: int) -> str | None:
    """Return the name and pid of the program that has a port, "" if only root may see it; None if the port is free."""
    try:
        for listener in await open_listeners(LOOPBACK, port):
            await trio.aclose_forcefully(listener)
    except PortTakenError:
        return await trio.to_thread.run_sync(_holder_of, port, abandon_on_cancel=True)
    return None


def _holder_of(port: int) -> str:
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                words = psutil.Process(each.pid).cmdline()
                name = "llmkube up" if "up" in words and "llmkube" in {Path(word).name for word in words} else ""
                return f"{name or psutil.Process(each.pid).name()} (pid {each.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""


@contextlib.asynccontextmanager
async def open_optional_port(number: int, flag: str, host: str | None = LOOPBACK) -> AsyncIterator[Port | None]:
    """Listen as `open_port` does, or not at all if the number is 0."""
    if number:
        async with open_port(number, flag, host) as port:
            yield port
    else:
        yield None
