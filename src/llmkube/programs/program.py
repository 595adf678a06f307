"""A program that stays: it stops in its own order, innermost first, when a signal asks it to.

Cancelling the outermost scope would take the API server away from under the agent that still has to say good-bye. So
a signal cancels only the scope that `Stop.scope` opened last; what lies around it ends by itself, layer by layer.
"""

import contextlib
import ctypes
import gc
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar

import attrs
import psutil
import trio

from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import netloc

T = TypeVar("T")

LOOPBACK: Final = "127.0.0.1"
"""Where everything of ours listens unless the user says otherwise."""


MAX_DESCRIPTORS: Final = 10_240
"""What macOS takes at most when it is asked for more than it has (OPEN_MAX in its sys/syslimits.h; setrlimit(2))."""


def raise_descriptor_limit() -> None:
    """Allow this process, and the engines that it starts, as many open files as its user may have, 10,240 at most.

    launchd and macOS's terminals give 256: a gateway with a hundred answers under way has none left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # what there is has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@attrs.define(eq=False)
class Stop:
    """A signal asked the program to end; `reason` names it."""

    reason: str = ""
    _scopes: list[trio.CancelScope] = attrs.field(factory=list)

    def request_nowait(self, reason: str) -> None:
        """Cancel the innermost place that waits for this; later places do not begin at all."""
        self.reason = reason
        if self._scopes:
            self._scopes[-1].cancel(reason=reason)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """A stop ends this block, unless another such block is open within it."""
        with trio.CancelScope() as scope:
            if self.reason:
                scope.cancel(reason=self.reason)
            self._scopes.append(scope)
            try:
                yield
            finally:
                self._scopes.remove(scope)


GC_THRESHOLD: Final = 10_000
"""Objects that come, net, before the youngest are looked through: a burst of requests makes and drops hundreds each."""


def freeze_heap() -> None:
    """Let the garbage collector never look again at what is loaded by now; called once a program has started.

    A hundred thousand objects of modules, schemas and caches stay for good. Looking through them takes 0.1 s, again and
    again while a busy API server shares this process, and a failed engine waits that long for its successor.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def trim_heap() -> None:
    """Give back to the kernel what the C library keeps of memory that is free; macOS's takes it back by itself.

    A burst of new services needs large pieces for a moment. glibc gives back only what lies at the top of its heap, and
    objects that stay lie above the rest.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


def process_age_seconds() -> float:
    """Return for how long this process has been there: what a user has waited, imports included."""
    # Both by the wall clock, which may have been set meanwhile: the figure is shown and decides nothing.
    return max(0.0, time.time() - psutil.Process().create_time())


async def run_signals(
    stop: Stop, report: Callable[[str], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> NoReturn:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a stop; later ones get an answer, and the order is kept."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored, and means it
        numbers.append(signal.SIGHUP)  # a closed terminal: engines have sessions of their own and would stay
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            if stop.reason:
                report(f"{name}: already stopping; waiting for the engines to end")
            else:
                report(f"{name}: stopping")
                stop.request_nowait(name)
    raise AssertionError("a signal receiver never ends")


async def run_until_signal(body: Callable[[Stop], Awaitable[T]], report: Callable[[str], None]) -> T | None:
    """Return what the body returns, or None if a signal ended it; the body says with `Stop.scope` where it may end."""
    stop = Stop()
    result = None
    async with trio.open_nursery() as signals:
        await signals.start(run_signals, stop, report)
        with stop.scope():
            result = await body(stop)
        signals.cancel_scope.cancel(reason="all has stopped")
    return result


@contextlib.asynccontextmanager
async def open_service_nursery() -> AsyncIterator[trio.Nursery]:
    """Hold a nursery whose tasks serve the block: they are cancelled when it ends, and gone when this returns."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel(reason="what they served has ended")


@attrs.frozen
class Port:
    """A port that is ours before anything else starts, so that a taken one costs nothing."""

    listeners: Sequence[trio.SocketListener]
    url: str


@contextlib.asynccontextmanager
async def open_port(number: int, flag: str, host: str | None = LOOPBACK) -> AsyncIterator[Port]:
    """Listen on the loopback address, another one, or with None on all; 0 takes a free port.

    Raises:
        PortTakenError: Another program has it; the sentence names the flag.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = await open_listeners(host, number, field=flag)
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        taken = listeners[0].socket.getsockname()[1]
        yield Port(listeners, f"http://{netloc((host or LOOPBACK, taken))}")


@contextlib.asynccontextmanager
async def open_optional_port(number: int, flag: str, host: str | None = LOOPBACK) -> AsyncIterator[Port | None]:
    """Listen as `open_port` does, or not at all if the number is 0."""
    if number:
        async with open_port(number, flag, host) as port:
            yield port
    else:
        yield None
