"""The server that is used: one that its owner runs, or one of our own, in a process group of its own.

Ours ends with the front, and the models that it has loaded end with it. Should the front be killed, the agent finds
both by the cookie that they inherit.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import attrs
import structlog
import trio

from llmkube.base.errors import WorldError
from llmkube.programs.daemon_engine.daemon_http import DaemonError

END_SECONDS: Final = 2.0
"""Between TERM and KILL of a server of ours, whose model is unloaded by then."""

AGAIN_SECONDS: Final = 0.2

log = structlog.get_logger()


class NoDaemonError(WorldError):
    """No server answers, and none can be started."""


@attrs.frozen
class Server:
    """The server that is used.

    Attributes:
        url: Where it is.
        pid: Its process, if it is ours; None of a borrowed one.
        key: What it asks for; "" where it asks for none.
    """

    url: str
    pid: int | None = None
    key: str = attrs.field(default="", repr=False)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])


class Starter(Protocol):
    """Starts a server where none runs."""

    def started(self) -> contextlib.AbstractAsyncContextManager[Server]:
        """Run one during the block, and end it afterwards.

        Raises:
            NoDaemonError: It does not start.
        """
        ...


@attrs.frozen
class NoStarter:
    """A `Starter` for who asks the owner's server alone."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Start none.

        Raises:
            NoDaemonError: Always.
        """
        await trio.lowlevel.checkpoint()
        raise NoDaemonError("the server in which a killed engine may have left the model cannot be asked")
        yield Server("")  # what makes it a generator


@attrs.frozen(kw_only=True)
class ServerCommand:
    """A server of our own: how it is started, and when it is there.

    Attributes:
        name: What people call it.
        argv: Its command line.
        environ: All of its environment.
        server: Where it will be; its `pid` is filled in.
        answers: Returns once it has answered; raises `DaemonError` while it does not.
        start_seconds: Until it answers.
    """

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str]
    server: Server
    answers: Callable[[], Awaitable[object]]
    start_seconds: float

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        """Run it during the block; afterwards TERM, then KILL for its whole group.

        Raises:
            NoDaemonError: It does not start.
        """
        program = self.argv[0]
        try:
            process = await trio.lowlevel.open_process(
                list(self.argv), env=dict(self.environ), stdin=subprocess.DEVNULL, process_group=0
            )
        except OSError as error:
            raise NoDaemonError(
                f"no {self.name} answers, and {program} cannot be started ({error.strerror}): install it, or start it"
            ) from error
        try:
            await self._answering(process)
            yield attrs.evolve(self.server, pid=process.pid)
        finally:
            await _end(process)  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _answering(self, process: trio.Process) -> None:
        program = self.argv[0]
        with trio.move_on_after(self.start_seconds):
            while process.poll() is None:
                with contextlib.suppress(DaemonError):
                    await self.answers()
                    return
                await trio.sleep(AGAIN_SECONDS)
            raise NoDaemonError(f"{program} serve has ended with {process.returncode}; its words are above")
        raise NoDaemonError(f"{program} serve has not answered in {self.start_seconds:g} s")


@asynccontextmanager
async def borrowed_or_own(
    name: str, url: str, version: Callable[[], Awaitable[str]], starter: Starter
) -> AsyncIterator[Server]:
    """Use the server that answers, which stays; or run one of our own during the block.

    Args:
        name: What people call it.
        url: Where it would be.
        version: Returns its release; raises `DaemonError`.
        starter: Starts one of our own.

    Raises:
        NoDaemonError: None answers, and none can be started.
    """
    try:
        said = await version()
    except DaemonError as error:
        if not error.gone:
            raise NoDaemonError(f"{error}; no second one is started beside it") from error
    else:
        why = f"an {name} runs here; it is used, and stays when this engine ends"
        log.info(why, url=url, version=said)
        yield Server(url)
        return
    async with starter.started() as server:
        why = f"no {name} runs here; one has been started for this engine"
        log.info(why, url=server.url, pid=server.pid)
        yield server


async def _end(process: trio.Process) -> None:
    """TERM for the server, which ends its models; KILL for all of its group; bounded."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if number == signal.SIGTERM:
            with contextlib.suppress(OSError):
                process.terminate()
        else:
            # The leader may have gone, and its number stays taken while the group has members.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(END_SECONDS, shield=True):
            await process.wait()
