"""A daemon's server, borrowed or our own: HTTP requests to it, its start and stop, and the process table.

Our own server is in its own process group. It stops with the front, and the processes of its models stop with it. If
the front is killed, the agent finds all of them by the cookie that they inherit.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
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
"""Timeout of requests that a daemon answers without reading a file."""

_MAX_BYTES: Final = 1 << 20


class DaemonError(Exception):
    """A request to the daemon failed.

    Attributes:
        status: HTTP status; 0 without a response.
        gone: Nothing listens there, or the connection broke.
    """

    def __init__(self, message: str, status: int = 0, *, gone: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.gone = gone


class DaemonLateError(DaemonError):
    """The daemon listens, but did not answer in time."""


@attrs.frozen
class DaemonHttp:
    """HTTP access to one daemon.

    Attributes:
        name: Name of the daemon in messages.
        headers: Headers of every request.
    """

    http: HttpClient
    url: str
    name: str
    headers: Headers

    async def call(
        self, seconds: float, method: str, path: str, body: bytes = b"", *, max_bytes: int = _MAX_BYTES
    ) -> Response:
        """Send a request and return the response.

        Raises:
            DaemonError: Nothing listens there, or the connection broke.
            DaemonLateError: There was no response in time.
        """
        with trio.move_on_after(seconds):
            try:
                return await self.http.request(
                    method, self.url + path, headers=self.headers, body=body, max_body_bytes=max_bytes
                )
            except HttpError as error:
                raise DaemonError(f"no {self.name} answers at {self.url}: {error}", gone=True) from error
        raise DaemonLateError(f"{self.name} at {self.url} has not answered {path} within {seconds:g} s")

    async def get_object(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path.

        Raises:
            DaemonError: As in `call`, or the response is not a JSON object.
        """
        return self.checked_object(await self.call(REQUEST_SECONDS, "GET", path))

    def checked_object(self, answer: Response) -> dict[str, Any]:
        """Return the JSON object in a response.

        Raises:
            DaemonError: The status is not 200, or the body is not a JSON object.
        """
        if answer.status != 200:
            raise self.refusal(answer)
        return self.parse(answer.body)

    def refusal(self, answer: Response) -> DaemonError:
        """Return the error for a response that reports a failure."""
        try:
            value = self.parse(answer.body)
        except DaemonError:
            value = {}
        return DaemonError(f"{self.name} answers {answer.status}: {error_text(value, answer.body)}", answer.status)

    def parse(self, body: bytes) -> dict[str, Any]:
        """Return the JSON object in a body.

        Raises:
            DaemonError: The body is not a JSON object.
        """
        try:
            value = json.loads(body)
        except ValueError as error:
            raise DaemonError(f"the response of {self.name} is not JSON: {body[:80]!r}") from error
        if not isinstance(value, dict):
            raise DaemonError(f"the response of {self.name} is not an object: {body[:80]!r}")
        return value


def error_text(value: Mapping[str, Any], body: bytes) -> str:
    """Return the message of an error response in the format of Ollama, OpenAI's API or FastAPI, or else its body."""
    error = value.get("error", value.get("detail"))
    if isinstance(error, dict):
        error = error.get("message")
    return (error if isinstance(error, str) and error else body.decode("utf-8", "replace"))[:500]


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return a value as the body of a request."""
    return json.dumps(value).encode()


STOP_SECONDS: Final = 2.0
"""Interval between SIGTERM and SIGKILL of our own server, whose model is unloaded by then."""

POLL_SECONDS: Final = 0.2

log = structlog.get_logger()


class NoDaemonError(ExternalError):
    """No server answers, and none can be started."""


@attrs.frozen
class Server:
    """The server in use.

    Attributes:
        pid: Process of our own server; None for a borrowed one.
        key: API key of the server; empty if it requires none.
    """

    url: str
    pid: int | None = None
    key: str = attrs.field(default="", repr=False)

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self.url.rpartition(":")[2])


Starter = Callable[[], contextlib.AbstractAsyncContextManager[Server]]
"""Context manager that runs a server, and stops it afterwards; raises `NoDaemonError` if it does not start."""


@asynccontextmanager
async def no_server() -> AsyncIterator[Server]:
    """Never start a server: the `Starter` for using only the owner's server.

    Raises:
        NoDaemonError: Always.
    """
    await trio.lowlevel.checkpoint()
    raise NoDaemonError("the server in which a killed engine may have left the model is not available")
    yield Server("")  # makes this a generator


@attrs.frozen(kw_only=True)
class ServerCommand:
    """Command that starts our own server, and the check that it answers.

    Attributes:
        name: Name of the daemon in messages.
        environ: The complete environment.
        server: The server to be, without its `pid`.
        answers: Returns if the server answers; raises `DaemonError` if it does not.
        start_seconds: Limit until it answers.
    """

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str]
    server: Server
    answers: Callable[[], Awaitable[object]]
    start_seconds: float

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        """Run the server during the block; afterwards send SIGTERM, then SIGKILL to its whole group.

        Raises:
            NoDaemonError: The server does not start.
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
            raise NoDaemonError(f"{program} serve exited with {process.returncode}; see its output above")
        raise NoDaemonError(f"{program} serve has not answered within {self.start_seconds:g} s")


@asynccontextmanager
async def borrow_or_start(
    name: str, url: str, version: Callable[[], Awaitable[str]], starter: Starter
) -> AsyncIterator[Server]:
    """Borrow the server that answers, and leave it running; or run our own during the block.

    Args:
        name: Name of the daemon in messages.
        url: URL of a server to borrow.
        version: Returns its release; raises `DaemonError`.
        starter: Starts our own server.

    Raises:
        NoDaemonError: No server answers, and none can be started.
    """
    try:
        value = await version()
    except DaemonError as error:
        if not error.gone:
            raise NoDaemonError(f"{error}; no second server is started next to it") from error
    else:
        reason = f"an {name} runs here; it is used, and keeps running when this engine exits"
        log.info(reason, url=url, version=value)
        yield Server(url)
        return
    async with starter() as server:
        reason = f"no {name} runs here; LLMKube has started one for this engine"
        log.info(reason, url=server.url, pid=server.pid)
        yield server


async def _terminate(process: trio.Process) -> None:
    """Send SIGTERM to the server, which stops its models, then SIGKILL to its whole group; bounded."""
    # The leader may have exited at the second step, but its pid is not reused while the group has members.
    for send in (process.terminate, partial(os.killpg, process.pid, signal.SIGKILL)):
        with suppress(OSError):
            send()
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()


T = TypeVar("T")


@attrs.frozen
class ProcessTable:
    """The processes of this machine; macOS hides the command lines of other users."""

    async def read(self) -> Sequence[Process]:
        """Return all processes that are visible to this user."""
        return await _in_thread(_processes)

    async def starts(self, pids: Sequence[int]) -> tuple[str, ...]:
        """Return for each process a value that differs for a later one with its pid; empty if it has exited."""
        return await _in_thread(lambda: tuple(map(start_of, pids)))

    async def listener(self, servers: Sequence[int], port: int) -> int | None:
        """Return the process that listens on a port; None if none of these is seen to."""
        return await _in_thread(lambda: next((pid for pid in servers if listens(pid, port)), None))

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return the CPU time of these processes."""
        return await _in_thread(lambda: sum(map(_cpu_seconds, pids)))

    async def footprints(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the memory of these processes with their descendants, in bytes by pid."""
        return await _in_thread(lambda: footprints_here(pids))

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await _in_thread(lambda: _kill(pids))


async def _in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


def _processes() -> Sequence[Process]:
    found = (each.info for each in psutil.process_iter(["pid", "ppid", "cmdline"]))
    return [Process(each["pid"], each["ppid"] or 0, tuple(each["cmdline"] or ())) for each in found]


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, SystemError):  # SystemError: reaped while psutil 7.2 read it on macOS (psutil issue 2854)
        return 0.0
    return float(times.user + times.system)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(psutil.Error, SystemError):  # it has exited
            psutil.Process(pid).kill()
