"""One job of launchd: load, look, unload. Its own program does not wait for what it asks; these do.

`launchctl bootout` returns before the job has ended, and until then `bootstrap` answers 5 or 37. What is
there is what `launchctl print` says.
"""

import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.errors import UserError

POLL_SECONDS: Final = 0.25
_BUSY: Final = frozenset({5, 37})
"""EIO and EALREADY (xnu's errno.h): the job of that name has not ended, or its user has no session for it."""
_BUSY_SECONDS: Final = 15.0
_MARGIN_SECONDS: Final = 30.0


@attrs.frozen
class Answer:
    """What a call of launchctl printed, and its exit code."""

    code: int
    text: str


Call = Callable[[Sequence[str]], Awaitable[Answer]]
"""Runs `launchctl` with some words."""


@attrs.frozen
class JobState:
    """What launchd knows of a job that is loaded.

    Attributes:
        pid: Its process; None while it has none.
        runs: How often it was started since it was loaded.
        last_exit: How it ended last, in launchd's words; empty before it has.
    """

    pid: int | None
    runs: int
    last_exit: str


def parse_job_state(text: str) -> JobState:
    """Read the answer of `launchctl print`; its format is nowhere promised, so each fact may be missing."""

    def value(key: str) -> str:
        found = re.search(rf"^\s*{key} = (.+?)\s*$", text, re.MULTILINE)
        return found.group(1) if found else ""

    pid, runs, last_exit = value("pid"), value("runs"), value("last exit code")
    return JobState(
        pid=int(pid) if pid.isdecimal() else None,
        runs=int(runs) if runs.isdecimal() else 0,
        last_exit="" if last_exit == "(never exited)" else last_exit or value("last terminating signal"),
    )


@attrs.frozen(kw_only=True)
class Launchd:
    """One job in one of launchd's domains.

    Attributes:
        call: Runs launchctl.
        domain: `gui/501`, or `system`.
        label: The job's.
        exit_seconds: How long launchd waits for its end.
    """

    call: Call
    domain: str
    label: str
    exit_seconds: float

    @property
    def target(self) -> str:
        """How launchctl names the job."""
        return f"{self.domain}/{self.label}"

    async def state(self) -> JobState | None:
        """Return what launchd knows; None while the job is not loaded."""
        answer = await self.call(["print", self.target])
        return None if answer.code else parse_job_state(answer.text)

    async def load(self, file: str) -> None:
        """Load a job, whatever is loaded under its name.

        Raises:
            UserError: launchd does not take it; the sentence has its words, and what helps.
        """
        await self.unload()
        answer = Answer(0, "")
        with trio.move_on_after(_BUSY_SECONDS):
            while True:
                answer = await self.call(["bootstrap", self.domain, file])
                if answer.code not in _BUSY:
                    break
                await self.unload()  # a login has loaded it meanwhile, or its end is not over yet
                await trio.sleep(POLL_SECONDS)
        if answer.code:
            raise UserError(f"launchd does not load {file}: {_words(answer)}{self._advice(answer)}")

    async def unload(self) -> None:
        """Unload the job and wait until it has ended; without one, do nothing.

        Raises:
            UserError: It still goes on, long after launchd should have killed it.
        """
        seconds = self.exit_seconds + _MARGIN_SECONDS
        answer = Answer(0, "")
        with trio.move_on_after(seconds):
            while await self.state() is not None:
                answer = await self.call(["bootout", self.target])
                await trio.sleep(POLL_SECONDS)
            return
        raise UserError(f"launchd has not ended {self.target} within {seconds:g} s: {_words(answer)}")

    def _advice(self, answer: Answer) -> str:
        if answer.code in _BUSY and self.domain.startswith("gui/"):
            return (
                "; a LaunchAgent needs its user logged in at this Mac's screen. Log in there and repeat this, or "
                "repeat it with --daemon, which needs no login"
            )
        return ""


def launchctl_program() -> str | None:
    """Return where launchctl is; None on a machine without launchd."""
    return shutil.which("launchctl")


def caller(*before: str) -> Call:
    """Return what calls launchctl, after the words of another program such as `sudo`.

    Raises:
        UserError: This machine has no launchctl.
    """
    program = launchctl_program()
    if program is None:
        raise UserError("this machine has no launchctl, so no launchd: only a Mac has")

    async def call(words: Sequence[str]) -> Answer:
        command = [*before, program, *words]
        try:
            # No shell, and the program that PATH names; longer than launchd itself waits for a job's end.
            done = await trio.run_process(
                command, check=False, capture_stdout=True, capture_stderr=True, stdin=None if before else b""
            )
        except OSError as exc:
            raise UserError(f"{command[0]} cannot be run: {exc.strerror}") from exc
        return Answer(done.returncode, (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").strip())

    return call


def _words(answer: Answer) -> str:
    return f"{answer.text.splitlines()[-1] if answer.text else 'it says nothing'} (exit code {answer.code})"
