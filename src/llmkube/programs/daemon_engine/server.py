"""A daemon's server: one that is borrowed, or ours; questions to it over HTTP; what the kernel shows of processes.

Ours is in a process group of its own. It ends with the front, and the models that it has loaded end with it. Should
the front be killed, the agent finds both by the cookie that they inherit.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import attrs
import psutil
import structlog
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers, Response
from llmkube.programs.daemon_engine.processes import Process
from llmkube.supervisor.host.processes import listens, start_of
from llmkube.supervisor.host.this_machine import footprints_here

REQUEST_SECONDS: Final = 2.0
"""For what a daemon knows without looking at a file."""

_MOST_BYTES: Final = 1 << 20


class DaemonError(Exception):
    """The daemon did not do what it was asked for.

    Attributes:
        status: What it answered; 0 without an answer.
        gone: Nothing listens there, or it broke off.
    """

    def __init__(self, message: str, status: int = 0, *, gone: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.gone = gone


class DaemonLateError(DaemonError):
    """It listens, and has not answered in time."""


@attrs.frozen
class DaemonHttp:
    """The way to one daemon.

    Attributes:
        http: The client.
        url: Where it is.
        name: What people call it.
        headers: What every question carries.
    """

    http: HttpClient
    url: str
    name: str
    headers: Headers

    async def call(
        self, seconds: float, method: str, path: str, body: bytes = b"", *, max_bytes: int = _MOST_BYTES
    ) -> Response:
        """Return what it answers in time.

        Raises:
            DaemonError: Nothing listens there, or it broke off.
            DaemonLateError: It has not answered in time.
        """
        with trio.move_on_after(seconds):
            try:
                return await self.http.request(
                    method, self.url + path, headers=self.headers, body=body, max_body_bytes=max_bytes
                )
            except HttpError as error:
                raise DaemonError(f"no {self.name} answers at {self.url}: {error}", gone=True) from error
        raise DaemonLateError(f"{self.name} at {self.url} has not answered {path} in {seconds:g} s")

    async def get_object(self, path: str) -> dict[str, Any]:
        """Return the object that it answers at a path.

        Raises:
            DaemonError: As `call`, or it answers something else.
        """
        return self.checked_object(await self.call(REQUEST_SECONDS, "GET", path))

    def checked_object(self, answer: Response) -> dict[str, Any]:
        """Return the object in an answer.

        Raises:
            DaemonError: It is a refusal, or holds none.
        """
        if answer.status != 200:
            raise self.refusal(answer)
        return self.parse(answer.body)

    def refusal(self, answer: Response) -> DaemonError:
        """Return what an answer of another status says."""
        try:
            value = self.parse(answer.body)
        except DaemonError:
            value = {}
        return DaemonError(f"{self.name} answers {answer.status}: {error_text(value, answer.body)}", answer.status)

    def parse(self, body: bytes) -> dict[str, Any]:
        """Return the object that a body is.

        Raises:
            DaemonError: It is none.
        """
        try:
            value = json.loads(body)
        except ValueError as error:
            raise DaemonError(f"what {self.name} answers is not JSON: {body[:80]!r}") from error
        if not isinstance(value, dict):
            raise DaemonError(f"what {self.name} answers is no object: {body[:80]!r}")
        return value


def error_text(value: Mapping[str, Any], body: bytes) -> str:
    """Return the words of a refusal, as Ollama, OpenAI's API or FastAPI has them; else its body."""
    error = value.get("error", value.get("detail"))
    if isinstance(error, dict):
        error = error.get("message")
    return (error if isinstance(error, str) and error else body.decode("utf-8", "replace"))[:500]


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return the body of a question."""
    return json.dumps(value).encode()


STOP_SECONDS: Final = 2.0
"""Between TERM and KILL of a server of ours, whose model is unloaded by then."""

POLL_SECONDS: Final = 0.2

log = structlog.get_logger()


class NoDaemonError(ExternalError):
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


Starter = Callable[[], contextlib.AbstractAsyncContextManager[Server]]
"""Runs a server during the block, and ends it afterwards; raises `NoDaemonError` when it does not start."""


@asynccontextmanager
async def no_server() -> AsyncIterator[Server]:
    """Start none: the `Starter` of who asks the owner's server alone.

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
            await self._wait_until_ready(process)
            yield attrs.evolve(self.server, pid=process.pid)
        finally:
            await _terminate(process)  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _wait_until_ready(self, process: trio.Process) -> None:
        program = self.argv[0]
        with trio.move_on_after(self.start_seconds):
            while process.poll() is None:
                with contextlib.suppress(DaemonError):
                    await self.answers()
                    return
                await trio.sleep(POLL_SECONDS)
            raise NoDaemonError(f"{program} serve has ended with {process.returncode}; its words are above")
        raise NoDaemonError(f"{program} serve has not answered in {self.start_seconds:g} s")


@asynccontextmanager
async def borrow_or_start(
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
        value = await version()
    except DaemonError as error:
        if not error.gone:
            raise NoDaemonError(f"{error}; no second one is started beside it") from error
    else:
        reason = f"an {name} runs here; it is used, and stays when this engine ends"
        log.info(reason, url=url, version=value)
        yield Server(url)
        return
    async with starter() as server:
        reason = f"no {name} runs here; one has been started for this engine"
        log.info(reason, url=server.url, pid=server.pid)
        yield server


async def _terminate(process: trio.Process) -> None:
    """TERM for the server, which ends its models; KILL for all of its group; bounded."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if number == signal.SIGTERM:
            with contextlib.suppress(OSError):
                process.terminate()
        else:
            # The leader may have gone, and its number stays taken while the group has members.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()


T = TypeVar("T")


@attrs.frozen
class ProcessTable:
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


async def _in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


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
