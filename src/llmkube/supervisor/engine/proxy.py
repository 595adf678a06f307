"""The proxy of a published engine: a process of its own, which an agent starts, adopts and ends with the engine.

It is no child of the engine and has a cookie of its own: what it does is no sign of life of the engine. It ends with
the engine, also while no agent runs: another user may then listen where the engine did. An agent that is killed cuts no
answer that passes through it; the next one finds it by its cookie, and goes on with it if it would
start the same.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.private_files import write_private
from llmkube.supervisor.engine.key_file import remove_private
from llmkube.supervisor.engine.logfile import open_for_append, rotate
from llmkube.supervisor.engine.process_stats import CookieScan
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import COOKIE_VARIABLE
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.ports import Shutdown
from llmkube.supervisor.values.proxy_config import ProxyConfig

log = structlog.get_logger(__name__)

_FOLDER: Final = "proxies"
_SUFFIX: Final = ".proxy"

END_SECONDS: Final = 2.0
"""How long a proxy may take to end after TERM, and again after KILL; the engine's requests have been drained before."""

LOG_CAP_BYTES: Final = 1 << 20
"""The log of all proxies of a host is looked at when one is started; they write when something is wrong."""

RETRY_SECONDS: Final = 1.0
"""Between the end of a proxy and the start of the next one."""


def proxy_cookie(cookie: str) -> str:
    """Return the cookie of an engine's proxy."""
    return cookie + _SUFFIX


def config_path(state_dir: Path, cookie: str) -> Path:
    """Return where the proxy of the engine with this cookie finds its settings."""
    return state_dir / _FOLDER / f"{cookie}.json"


def proxy_of(record: EngineRecord, allowed: tuple[str, ...], client_keys: tuple[str, ...] = ()) -> ProxyConfig | None:
    """Return what the proxy of an engine does; None for an engine that clients reach without one.

    Args:
        record: The engine.
        allowed: The networks (CIDR) from which requests need no key, unless clients have keys.
        client_keys: The keys of the service's clients, which the proxy asks for where the engine asks for none.
    """
    if not record.public_host:
        return None
    listen, backend = (record.public_host, record.public_port), (record.host, record.port)
    return ProxyConfig(listen, backend, record.api_key, () if client_keys else allowed, keys=client_keys)


def remove_config_files(state_dir: Path, left: frozenset[str]) -> None:
    """Remove the settings of all proxies but those of the engines with these cookies, half-written ones too; blocks."""
    for path in (state_dir / _FOLDER).glob("*"):
        if path.stem not in left:
            remove_private(path)


@attrs.frozen
class _Process:
    """A proxy that runs; `wait` returns when it has ended."""

    pid: int
    started: str
    wait: Callable[[], Awaitable[object]]


@attrs.define(eq=False)
class EngineProxy:
    """Keep the proxy of one engine running.

    Attributes:
        program: The command that runs one, without its only argument.
        config: What it does.
        cookie: The engine's.
        path: Where its settings are.
        log_path: Which file takes its output.
        environment: All of its environment, without its cookie.
        scan: Finds what an earlier agent has left.
    """

    program: tuple[str, ...]
    config: ProxyConfig
    cookie: str
    path: Path
    log_path: Path
    environment: Mapping[str, str]
    scan: CookieScan
    _process: _Process | None = None

    @asynccontextmanager
    async def running(self, shutdown: Shutdown) -> AsyncIterator[None]:
        """Have it run during the block, and end it afterwards, unless it stays for the next agent."""
        async with AsyncExitStack() as watches:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_running, watches)
                    yield
                    nursery.cancel_scope.cancel(reason="the engine has ended, or stays")
            finally:
                if not shutdown.keep:
                    await self._end()  # noqa: ASYNC102 - it shields itself, with a deadline
                    remove_private(self.path)

    async def _keep_running(self, watches: AsyncExitStack) -> NoReturn:
        while True:
            try:
                self._process = await self._adopt(watches)
                break
            except OSError as error:  # no descriptor is left to look with; another one has the port, if there is one
                log.warning("cannot look for the proxy of an engine; will be repeated", error=str(error))
            await trio.sleep(RETRY_SECONDS)
        while True:
            if self._process is None:
                self._process = await self._start()
            if self._process is not None:
                await self._process.wait()
                pid, self._process = self._process.pid, None
                await trio.sleep(RETRY_SECONDS)  # if it was the engine that has ended, this task is cancelled meanwhile
                log.warning("the proxy of an engine has ended; another one is started", pid=pid)
            else:
                await trio.sleep(RETRY_SECONDS)

    async def _adopt(self, watches: AsyncExitStack) -> _Process | None:
        """Go on with what an earlier agent has left; a proxy with other settings is ended, for it has the port."""
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
        """Start it; None when that is not possible now."""
        cookie = {COOKIE_VARIABLE: proxy_cookie(self.cookie)}
        try:
            output = await trio.to_thread.run_sync(self._prepare)
            try:
                process = await trio.lowlevel.open_process(
                    [*self.program, str(self.path)],
                    env={**self.environment, **cookie},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            finally:
                os.close(output)
        except OSError as error:
            log.warning("the proxy of an engine does not start; will be repeated", error=str(error))
            return None
        return _Process(process.pid, processes.start_of(process.pid), partial(processes.wait_child, process))

    def _prepare(self) -> int:
        """Write its settings, and return the descriptor of its log; blocks."""
        rotate(self.log_path, LOG_CAP_BYTES)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.path, self.config.dump(), durable=False)
        return open_for_append(self.log_path)[1]

    async def _end(self) -> None:
        """TERM, then KILL; bounded."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes.send_group(process.pid, process.started, number)
            with trio.move_on_after(END_SECONDS, shield=True):
                await process.wait()
                return
        log.error("the proxy of an engine does not end", pid=process.pid)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
