"""A real redis-server for tests: the one on PATH, or Debian's, unpacked once in the cache of the other programs."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from debian_packages import unpack
from free_ports import free_port
from go_programs import cache_root

ANSWER_SECONDS = 30.0
PASSWORD = "correct-horse"


def redis_program() -> tuple[str, dict[str, str]]:
    """Return the program and its environment.

    Raises:
        PackageError: There is none, and Debian's is not available.
    """
    if found := shutil.which("redis-server"):
        return found, dict(os.environ)
    folder = cache_root(os.environ) / "redis"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".redis-", dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            unpack("redis-server", made, dependencies=True)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # another worker was faster
                    raise
    libraries = {str(each.parent) for each in folder.rglob("*.so*")}
    return str(folder / "usr/bin/redis-server"), os.environ | {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


@attrs.define(eq=False)
class RedisServer:
    """A redis-server on a port of its own; its data is lost with it."""

    port: int
    process: subprocess.Popen | None = None

    async def start(self) -> None:
        """Start it, and return when it accepts connections."""
        program, environ = await trio.to_thread.run_sync(redis_program)
        flags = f"--port {self.port} --bind 127.0.0.1 --appendonly no --requirepass {PASSWORD} --save"
        self.process = await trio.to_thread.run_sync(partial(_start, [program, *flags.split(), ""], environ))
        with trio.fail_after(ANSWER_SECONDS):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                except OSError:
                    assert self.process.poll() is None, "redis-server has ended"
                    await trio.sleep(0.02)
                    continue
                await stream.aclose()
                return

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; after one that stops or ends it, wait until it has."""
        assert self.process is not None
        self.process.send_signal(number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            self.process.wait()
        if number == signal.SIGSTOP:
            os.waitpid(self.process.pid, os.WUNTRACED)


def _start(command: list[str], environ: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def open_redis() -> AsyncIterator[RedisServer]:
    """Run a server during the block."""
    server = RedisServer(free_port())
    await server.start()
    try:
        yield server
    finally:
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)
