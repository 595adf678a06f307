"""Load, inspect and unload a launchd job, and wait until the change is complete.

`launchctl bootout` returns before the job has exited, and until then `bootstrap` fails with 5 or 37. Whether a job is
loaded is read from `launchctl print`.
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
"""EIO and EALREADY (xnu's errno.h): the previous job has not exited, or its user has no login session."""
_BUSY_SECONDS: Final = 15.0
_MARGIN_SECONDS: Final = 30.0

EXIT_SECONDS: Final = 90.0
"""Assumed exit timeout of a job whose file is unknown."""


@attrs.frozen
class CallResult:
    """Exit code and output of a launchctl call."""

    code: int
    text: str


Call = Callable[[Sequence[str]], Awaitable[CallResult]]
"""Runs `launchctl` with arguments."""


@attrs.frozen
class JobState:
    """State of a loaded job.

    Attributes:
        pid: None while it has no process.
        runs: Number of starts since it was loaded.
        last_exit: Last exit code or signal as launchd prints it; empty before the first exit.
    """

    pid: int | None
    runs: int
    last_exit: str


def parse_job_state(text: str) -> JobState:
    """Parse the output of `launchctl print`; its format is not documented, so every value may be missing."""

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
    """A job in a launchd domain.

    Attributes:
        call: Runs launchctl.
        domain: `gui/501`, or `system`.
        label: Name of the job.
        exit_seconds: How long launchd waits for its exit before it sends KILL.
    """

    call: Call
    domain: str
    label: str
    exit_seconds: float

    @property
    def target(self) -> str:
        """The job's service target, `gui/501/com.example.job`."""
        return f"{self.domain}/{self.label}"

    async def state(self) -> JobState | None:
        """Return the state of the job; None while it is not loaded."""
        answer = await self.call(["print", self.target])
        return None if answer.code else parse_job_state(answer.text)

    async def load(self, file: str) -> None:
        """Load a job and replace the one that is loaded under its name.

        Raises:
            UserError: launchd rejects it; the message has launchctl's output and a fix.
        """
        await self.unload()
        answer = CallResult(0, "")
        with trio.move_on_after(_BUSY_SECONDS):
            while True:
                answer = await self.call(["bootstrap", self.domain, file])
                if answer.code not in _BUSY:
                    break
                await self.unload()  # a login has loaded it in the meantime, or it is still exiting
                await trio.sleep(POLL_SECONDS)
        if answer.code:
            raise UserError(f"{file} not loaded: {_last_message(answer)}{self._advice(answer)}")

    async def unload(self) -> None:
        """Unload the job, if it is loaded, and wait until it has exited.

        Raises:
            UserError: It still runs long after launchd should have killed it.
        """
        seconds = self.exit_seconds + _MARGIN_SECONDS
        answer = CallResult(0, "")
        with trio.move_on_after(seconds):
            while await self.state() is not None:
                answer = await self.call(["bootout", self.target])
                await trio.sleep(POLL_SECONDS)
            return
        raise UserError(f"launchd job {self.target} not unloaded within {seconds:g} s: {_last_message(answer)}")

    def _advice(self, answer: CallResult) -> str:
        if answer.code in _BUSY and self.domain.startswith("gui/"):
            return (
                "; a LaunchAgent needs its user to be logged in at this Mac's screen. Log in there and run this again, "
                "or add --daemon, which needs no login"
            )
        return ""


def launchctl_program() -> str | None:
    """Return the path of launchctl; None on a machine without launchd."""
    return shutil.which("launchctl")


def launchctl_caller(*prefix: str) -> Call:
    """Return a function that runs launchctl, behind a prefix such as `sudo`.

    Raises:
        UserError: This machine has no launchctl.
    """
    program = launchctl_program()
    if program is None:
        raise UserError("this machine has no launchctl: it needs macOS")

    async def call(words: Sequence[str]) -> CallResult:
        command = [*prefix, program, *words]
        try:
            # No shell; and no timeout, because sudo may wait for a password.
            done = await trio.run_process(
                command, check=False, capture_stdout=True, capture_stderr=True, stdin=None if prefix else b""
            )
        except OSError as exc:
            raise UserError(f"{command[0]} cannot be run: {exc.strerror}") from exc
        return CallResult(done.returncode, (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").strip())

    return call


def _last_message(answer: CallResult) -> str:
    return f"{answer.text.splitlines()[-1] if answer.text else 'no output'} (exit code {answer.code})"


def current_user() -> User:
    """Return the user of this process; the home is HOME, else the account's."""
    account = pwd.getpwuid(os.geteuid())
    return User(uid=account.pw_uid, name=account.pw_name, home=Path(os.environ.get("HOME") or account.pw_dir))


def launchd_of(
    user: User, *, label: str, daemon: bool = False, exit_seconds: float = EXIT_SECONDS, change: bool = True
) -> Launchd:
    """Return a user's job: in the domain of the login session, or in the system domain for a daemon.

    A daemon is changed through sudo; pass `change=False` to only read its state, which needs no sudo.

    Raises:
        UserError: This machine has no launchd.
    """
    call = launchctl_caller(*(["sudo"] if change and daemon and user.uid else []))
    domain = "system" if daemon else f"gui/{user.uid}"
    return Launchd(call=call, domain=domain, label=label, exit_seconds=exit_seconds)


def write_plist(job: Job) -> None:
    """Write a job's file into the folder that launchd reads.

    Raises:
        UserError: sudo failed, which is needed for a daemon.
    """
    text = plist_text(job)
    if not job.daemon:
        job.file.parent.mkdir(parents=True, exist_ok=True)
        write_private(job.file, text)  # atomic, because the next install reads the file
        job.file.chmod(0o644)
        return
    with tempfile.NamedTemporaryFile(suffix=".plist") as draft:
        draft.write(text)
        draft.flush()
        _run_as_root("install", "-o", "root", "-g", "wheel", "-m", "0644", draft.name, str(job.file))


def remove_plist(file: Path) -> None:
    """Remove a job's file.

    Raises:
        UserError: sudo failed, which is needed for a daemon.
    """
    if is_daemon(file):
        _run_as_root("rm", "-f", str(file))
    else:
        file.unlink(missing_ok=True)


def is_daemon(file: Path) -> bool:
    """Whether a job's file is in the folder of daemons, which only root may change."""
    return file.parent == DAEMONS


def request_root() -> None:
    """Let sudo ask for the password now, if it needs one.

    Raises:
        UserError: sudo failed, or it needs a password and there is no terminal.
    """
    if not os.geteuid():
        return
    if _has_terminal():
        _run_as_root("-v")
    elif subprocess.run(["sudo", "-n", "-v"], check=False, stderr=subprocess.DEVNULL).returncode:  # noqa: S607 - as PATH has it
        command_line = shlex.join([program_name(), *sys.argv[1:]])
        raise UserError(
            "sudo needs a password, and there is no terminal; nothing was changed. Run this in a terminal of this Mac "
            f"(over ssh: ssh -t):\n  {command_line}"
        )


def _has_terminal() -> bool:
    """Whether sudo can ask for a password: it uses the controlling terminal, whatever stdin and stdout are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _run_as_root(*words: str) -> None:
    command = [*(["sudo"] if os.geteuid() else []), *words]
    click.echo(f"$ {' '.join(command)}", err=True)
    if subprocess.run(command, check=False).returncode:  # noqa: S603 - no shell, and the words are ours
        raise UserError(f"`{' '.join(command)}` failed")
