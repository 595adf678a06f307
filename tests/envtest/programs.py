"""One program of the control plane: started, watched, stopped within a bound, its output in a file."""

import subprocess
from pathlib import Path

import attrs
import psutil
import trio

GRACE_SECONDS = 10.0
"""Between TERM and KILL: etcd and kube-apiserver need about one second each."""

REAP_SECONDS = 5.0
TAIL_BYTES = 3000


class ProgramError(Exception):
    """A program of the control plane did not do what it was started for; the message ends with what it said last."""


@attrs.define(eq=False)
class Program:
    """A process that may be started, stopped and started again under the same name.

    It stays in our process group on purpose: killing a test run by its group leaves no process.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    _process: trio.Process | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process that has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the newest process, running or not; 0 before the first start."""
        return self._process.pid if self._process is not None else 0

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the program."""
        return psutil.Process(self.pid).memory_info().rss if self.running else 0

    async def start(self) -> None:
        """Start the process; its output is appended to the log."""
        with self.log.open("ab") as output:
            self._process = await trio.lowlevel.open_process(
                self.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.log.parent
            )

    async def wait(self) -> None:
        """Return when the newest process has exited."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Return when the process is gone: TERM, at most the grace, KILL. A cancelled caller waits as well."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with trio.CancelScope(deadline=trio.current_time() + grace_seconds, shield=True):
            process.terminate()
            await process.wait()
        if process.poll() is None:
            await self.kill()

    async def kill(self) -> None:
        """Return when the process is gone, killed at once."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with trio.CancelScope(deadline=trio.current_time() + REAP_SECONDS, shield=True):
            process.kill()
            await process.wait()

    def check(self) -> None:
        """Raise ProgramError when it has been started and has exited by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self.error(f"exited with status {self._process.returncode}")

    def error(self, what: str) -> ProgramError:
        """Return an error about this program that quotes the end of its log."""
        text = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace") if self.log.is_file() else ""
        return ProgramError(f"{self.name} {what}; {self.log} ends:\n{text}")
