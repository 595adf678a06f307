"""The proxy of a published engine: a separate process that the agent starts, adopts and stops together with the engine.

It is not a child of the engine and has its own cookie, so that its activity is not taken for the engine's. It exits
with the engine, even while no agent runs, since another user could then listen on the engine's port. Killing the agent
cuts no response that passes through the proxy; the next agent finds it by its cookie, and adopts it if its settings
match.
"""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.private_files import make_private_folder, write_private
from llmkube.supervisor.engine.key_file import remove_private
from llmkube.supervisor.engine.logfile import open_for_append, rotate
from llmkube.supervisor.engine.process_stats import CookieScan
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import COOKIE_VARIABLE
from llmkube.supervisor.values.door_state import DoorConfig
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.ports import Shutdown
from llmkube.supervisor.values.proxy_config import ProxyConfig

log = structlog.get_logger(__name__)

PROXIES_FOLDER: Final = "proxies"
_SUFFIX: Final = ".proxy"

END_SECONDS: Final = 2.0
"""Time that a proxy may take to exit after TERM, and again after KILL; requests have been drained before."""

LOG_CAP_BYTES: Final = 1 << 20
"""Size above which the common log of all proxies is rotated when one is started; they log only problems."""

RETRY_SECONDS: Final = 1.0
"""Time between the exit of a proxy and the start of the next one."""


def proxy_cookie(cookie: str) -> str:
    """Return the cookie of an engine's proxy."""
    return cookie + _SUFFIX


def config_path(state_dir: Path, cookie: str) -> Path:
    """Return the settings file of the proxy of the engine with this cookie."""
    return state_dir / PROXIES_FOLDER / f"{cookie}.json"


def proxy_of(record: EngineRecord, allowed: tuple[str, ...], client_keys: tuple[str, ...] = ()) -> ProxyConfig | None:
    """Return the settings of an engine's proxy; None for an engine that clients reach directly.

    Args:
        record: The engine.
        allowed: Networks (CIDR) from which requests need no key, unless clients have keys.
        client_keys: The keys of the service's clients, which the proxy checks where the engine does not.
    """
    if not record.public_host:
        return None
    listen, backend = (record.public_host, record.public_port), (record.host, record.port)
    return ProxyConfig(listen, backend, record.api_key, () if client_keys else allowed, keys=client_keys)


@attrs.frozen
class _Process:
    """A running proxy; `wait` returns when it has exited."""

    pid: int
    started: str
    wait: Callable[[], Awaitable[object]]


@attrs.define(eq=False)
class EngineProxy:
    """Keep the proxy of one engine running.

    Attributes:
        program: The command of the proxy, without its only argument.
        cookie: The engine's cookie.
        path: Its settings file.
        log_path: The file for its output.
        environment: Its whole environment, except the cookie.
        scan: Finds the proxy of an earlier agent.
    """

    program: tuple[str, ...]
    config: ProxyConfig | DoorConfig
    cookie: str
    path: Path
    log_path: Path
    environment: Mapping[str, str]
    scan: CookieScan
    _process: _Process | None = None

    @asynccontextmanager
    async def running(self, shutdown: Shutdown) -> AsyncIterator[None]:
        """Keep the proxy running during the block, and stop it afterwards, unless the next agent takes it over."""
        async with AsyncExitStack() as watches:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_running, watches)
                    yield
                    nursery.cancel_scope.cancel(reason="the engine has exited, or is left running")
            finally:
                if not shutdown.keep:
                    await self._end()  # noqa: ASYNC102 - it shields itself, with a deadline
                    remove_private(self.path)

    async def _keep_running(self, watches: AsyncExitStack) -> NoReturn:
        while True:
            try:
                self._process = await self._adopt(watches)
                break
            except OSError as error:  # no file descriptor is left for the scan; a proxy that exists would have the port
                log.warning("engine proxy scan failed; retrying", error=str(error))
            await trio.sleep(RETRY_SECONDS)
        while True:
            if self._process is None:
                self._process = await self._start()
            if self._process is not None:
                await self._process.wait()
                pid, self._process = self._process.pid, None
                await trio.sleep(RETRY_SECONDS)  # if the engine has exited as well, this task is cancelled meanwhile
                log.warning("engine proxy exited; restarting", pid=pid)
            else:
                await trio.sleep(RETRY_SECONDS)

    async def _adopt(self, watches: AsyncExitStack) -> _Process | None:
        """Adopt the proxy of an earlier agent; one with other settings is stopped, since it has the port."""
        for left in await self.scan.marked_processes(proxy_cookie(self.cookie)):
            started = processes.start_of(left.pid)
            with contextlib.suppress(ProcessLookupError):
                wait = await watches.enter_async_context(processes.open_exit_watch(left.pid))
                if processes.start_of(left.pid) == started:
                    self._process = _Process(left.pid, started, wait)
                    if await trio.to_thread.run_sync(_read, self.path) == self.config.dump():
                        return self._process
                    await self._end()
        return None

    async def _start(self) -> _Process | None:
        """Start the proxy; return None if that fails."""
        cookie = {COOKIE_VARIABLE: proxy_cookie(self.cookie)}
        try:
            output = await trio.to_thread.run_sync(self._prepare)
            try:
                command, environment = [*self.program, str(self.path)], {**self.environment, **cookie}
                process = await processes.spawn(command, output, env=environment, cwd="/")
            finally:
                os.close(output)
        except OSError as error:
            log.warning("engine proxy not started; retrying", error=str(error))
            return None
        return _Process(process.pid, processes.start_of(process.pid), partial(processes.wait_child, process))

    def _prepare(self) -> int:
        """Write its settings, and return the descriptor of its log; blocks."""
        rotate(self.log_path, LOG_CAP_BYTES)
        make_private_folder(self.path.parent)
        write_private(self.path, self.config.dump(), durable=False)
        return open_for_append(self.log_path)[1]

    async def _end(self) -> None:
        """Stop the proxy with TERM, then KILL, in bounded time."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes.send_group(process.pid, process.started, number)
            with trio.move_on_after(END_SECONDS, shield=True):
                await process.wait()
                return
        log.error("engine proxy not stopped", pid=process.pid)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
