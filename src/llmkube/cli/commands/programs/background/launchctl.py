"""One job of launchd: load, look, unload. Its own program does not wait for what it asks; these do.

`launchctl bootout` returns before the job has ended, and until then `bootstrap` answers 5 or 37. What is
there is what `launchctl print` says.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.cli.commands.programs.background.agent_jobs import DAEMONS, Job, User, plist_text
from llmkube.programs.failures import program_name

POLL_SECONDS: Final = 0.25
_BUSY: Final = frozenset({5, 37})
"""EIO and EALREADY (xnu's errno.h): the job of that name has not ended, or its user has no session for it."""
_BUSY_SECONDS: Final = 15.0
_MARGIN_SECONDS: Final = 30.0

EXIT_SECONDS: Final = 90.0
"""How long a job may take to end whose file is not at hand."""


@attrs.frozen
class CallResult:
    """What a call of launchctl printed, and its exit code."""

    code: int
    text: str


Call = Callable[[Sequence[str]], Awaitable[CallResult]]
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
        answer = CallResult(0, "")
        with trio.move_on_after(_BUSY_SECONDS):
            while True:
                answer = await self.call(["bootstrap", self.domain, file])
                if answer.code not in _BUSY:
                    break
                await self.unload()  # a login has loaded it meanwhile, or its end is not over yet
                await trio.sleep(POLL_SECONDS)
        if answer.code:
            raise UserError(f"launchd does not load {file}: {_last_message(answer)}{self._advice(answer)}")

    async def unload(self) -> None:
        """Unload the job and wait until it has ended; without one, do nothing.

        Raises:
            UserError: It still goes on, long after launchd should have killed it.
        """
        seconds = self.exit_seconds + _MARGIN_SECONDS
        answer = CallResult(0, "")
        with trio.move_on_after(seconds):
            while await self.state() is not None:
                answer = await self.call(["bootout", self.target])
                await trio.sleep(POLL_SECONDS)
            return
        raise UserError(f"launchd has not ended {self.target} within {seconds:g} s: {_last_message(answer)}")

    def _advice(self, answer: CallResult) -> str:
        if answer.code in _BUSY and self.domain.startswith("gui/"):
            return (
                "; a LaunchAgent needs its user logged in at this Mac's screen. Log in there and repeat this, or "
                "repeat it with --daemon, which needs no login"
            )
        return ""


def launchctl_program() -> str | None:
    """Return where launchctl is; None on a machine without launchd."""
    return shutil.which("launchctl")


def launchctl_caller(*prefix: str) -> Call:
    """Return what calls launchctl, after the words of another program such as `sudo`.

    Raises:
        UserError: This machine has no launchctl.
    """
    program = launchctl_program()
    if program is None:
        raise UserError("this machine has no launchctl, so no launchd: only a Mac has")

    async def call(words: Sequence[str]) -> CallResult:
        command = [*prefix, program, *words]
        try:
            # No shell, and the program that PATH names; longer than launchd itself waits for a job's end.
            done = await trio.run_process(
                command, check=False, capture_stdout=True, capture_stderr=True, stdin=None if prefix else b""
            )
        except OSError as exc:
            raise UserError(f"{command[0]} cannot be run: {exc.strerror}") from exc
        return CallResult(done.returncode, (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").strip())

    return call


def _last_message(answer: CallResult) -> str:
    return f"{answer.text.splitlines()[-1] if answer.text else 'it says nothing'} (exit code {answer.code})"


def current_user() -> User:
    """Return the user of this process, with the home that HOME names, else the account's."""
    account = pwd.getpwuid(os.geteuid())
    return User(uid=account.pw_uid, name=account.pw_name, home=Path(os.environ.get("HOME") or account.pw_dir))


def launchd_of(
    user: User, *, label: str, daemon: bool = False, exit_seconds: float = EXIT_SECONDS, change: bool = True
) -> Launchd:
    """Return a user's job, in the domain of its login or, as a daemon, in that of the machine, through sudo.

    Without `change`, launchd is only asked, which takes no sudo.

    Raises:
        UserError: This machine has no launchd.
    """
    call = launchctl_caller(*(["sudo"] if change and daemon and user.uid else []))
    domain = "system" if daemon else f"gui/{user.uid}"
    return Launchd(call=call, domain=domain, label=label, exit_seconds=exit_seconds)


def write_plist(job: Job) -> None:
    """Write a job's file where launchd looks for it.

    Raises:
        UserError: sudo, which a daemon's takes, has failed.
    """
    text = plist_text(job)
    if not job.daemon:
        job.file.parent.mkdir(parents=True, exist_ok=True)
        write_private(job.file, text)  # whole or not at all: the next install reads it
        job.file.chmod(0o644)
        return
    with tempfile.NamedTemporaryFile(suffix=".plist") as draft:
        draft.write(text)
        draft.flush()
        _run_as_root("install", "-o", "root", "-g", "wheel", "-m", "0644", draft.name, str(job.file))


def remove_plist(file: Path) -> None:
    """Remove a job's file.

    Raises:
        UserError: sudo, which a daemon's takes, has failed.
    """
    if is_daemon(file):
        _run_as_root("rm", "-f", str(file))
    else:
        file.unlink(missing_ok=True)


def is_daemon(file: Path) -> bool:
    """Whether a job's file is in the machine's folder, which root alone may change."""
    return file.parent == DAEMONS


def request_root() -> None:
    """Have sudo ask for the password now; without a terminal, go on only if sudo needs none.

    Raises:
        UserError: It was not given, and there is no terminal to ask at.
    """
    if not os.geteuid():
        return
    if _has_terminal():
        _run_as_root("-v")
    elif subprocess.run(["sudo", "-n", "-v"], check=False, stderr=subprocess.DEVNULL).returncode:  # noqa: S607 - as PATH has it
        command_line = shlex.join([program_name(), *sys.argv[1:]])
        raise UserError(
            "sudo wants a password, and there is no terminal at which it could ask; nothing has changed. Type this in "
            f"a terminal of this Mac (over ssh: ssh -t):\n  {command_line}"
        )


def _has_terminal() -> bool:
    """Whether sudo can ask: it does so at the controlling terminal, whatever stdin and stdout are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _run_as_root(*words: str) -> None:
    command = [*(["sudo"] if os.geteuid() else []), *words]
    click.echo(f"$ {' '.join(command)}", err=True)
    if subprocess.run(command, check=False).returncode:  # noqa: S603 - no shell, and the words are ours
        raise UserError(f"`{' '.join(command)}` has failed")
