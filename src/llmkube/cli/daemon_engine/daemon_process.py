"""An `ollama serve` of our own, where no server answers: at a port of its own, in a process group of its own.

It ends with the front, and the models that it has loaded end with it. Should the front be killed, the agent finds both
by the cookie that they inherit.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

import attrs
import structlog
import trio

from llmkube.base.errors import WorldError
from llmkube.cli.daemon_engine.daemon_api import DaemonApi, DaemonError

END_SECONDS: Final = 2.0
"""Between TERM and KILL of a server of ours, whose model is unloaded by then."""

START_SECONDS: Final = 60.0
"""Until it answers: it looks for GPUs first."""

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
    """

    url: str
    pid: int | None = None

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


@asynccontextmanager
async def borrowed_or_own(api: DaemonApi, port: int, starter: Starter) -> AsyncIterator[Server]:
    """Use the server that answers, which stays; or run one of our own during the block.

    Raises:
        NoDaemonError: None answers, and none can be started.
    """
    try:
        version = await api.version()
    except DaemonError as error:
        if not error.gone:
            raise NoDaemonError(f"{error}; no second one is started beside it") from error
    else:
        log.info("an Ollama runs here; it is used, and stays when this engine ends", url=api.url, version=version)
        yield Server(api.url)
        return
    async with starter.started() as server:
        log.info("no Ollama runs here; one has been started for this engine", url=server.url, pid=server.pid)
        yield server


@attrs.frozen
class OllamaProgram:
    """Starts Ollama's own program.

    Attributes:
        program: Its name or path.
        api: The way to servers.
        port: A free one on loopback.
        environ: The environment that it inherits.
    """

    program: str
    api: DaemonApi
    port: int
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Run one during the block; afterwards TERM, then KILL for its whole group."""
        where = f"127.0.0.1:{self.port}"
        # NOPRUNE: at its start it would remove blobs that no model names yet, and its store may be shared.
        # NUM_PARALLEL: each further one would take a context's memory more than the agent has promised.
        ours = {"OLLAMA_HOST": where, "OLLAMA_NOPRUNE": "1", "OLLAMA_NUM_PARALLEL": "1"}
        try:
            process = await trio.lowlevel.open_process(
                [self.program, "serve"],
                env={**self.environ, **ours},
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            raise NoDaemonError(
                f"no Ollama answers, and {self.program} cannot be started ({error.strerror}): install it, or start it"
            ) from error
        try:
            await self._answering(process, f"http://{where}")
            yield Server(f"http://{where}", process.pid)
        finally:
            await _end(process)  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _answering(self, process: trio.Process, url: str) -> None:
        api = attrs.evolve(self.api, url=url)
        with trio.move_on_after(START_SECONDS):
            while process.poll() is None:
                with contextlib.suppress(DaemonError):
                    await api.version()
                    return
                await trio.sleep(AGAIN_SECONDS)
            raise NoDaemonError(f"{self.program} serve has ended with {process.returncode}; its words are above")
        raise NoDaemonError(f"{self.program} serve has not answered in {START_SECONDS:g} s")


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
