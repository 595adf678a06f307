"""The user whose jobs launchd runs: in which domain, and how their files get where they belong."""

import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import attrs
import click

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.cli.commands.programs.background.launchctl import Launchd, caller
from llmkube.cli.commands.programs.background.launchd_job import DAEMONS, Job, plist_text
from llmkube.programs.program_name import program_name

EXIT_SECONDS: Final = 90.0
"""How long a job may take to end whose file is not at hand."""


@attrs.frozen(kw_only=True)
class User:
    """As whom the agent runs.

    Attributes:
        uid: The number.
        name: The name.
        home: The home.
    """

    uid: int
    name: str
    home: Path


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
    call = caller(*(["sudo"] if change and daemon and user.uid else []))
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
        _as_root("install", "-o", "root", "-g", "wheel", "-m", "0644", draft.name, str(job.file))


def remove_plist(file: Path) -> None:
    """Remove a job's file.

    Raises:
        UserError: sudo, which a daemon's takes, has failed.
    """
    if is_daemon(file):
        _as_root("rm", "-f", str(file))
    else:
        file.unlink(missing_ok=True)


def is_daemon(file: Path) -> bool:
    """Whether a job's file is in the machine's folder, which root alone may change."""
    return file.parent == DAEMONS


def ask_for_root() -> None:
    """Have sudo ask for the password now; without a terminal, go on only if sudo needs none.

    Raises:
        UserError: It was not given, and there is no terminal to ask at.
    """
    if not os.geteuid():
        return
    if _has_terminal():
        _as_root("-v")
    elif subprocess.run(["sudo", "-n", "-v"], check=False, stderr=subprocess.DEVNULL).returncode:  # noqa: S607 - as PATH has it
        typed = shlex.join([program_name(), *sys.argv[1:]])
        raise UserError(
            "sudo wants a password, and there is no terminal at which it could ask; nothing has changed. Type this in "
            f"a terminal of this Mac (over ssh: ssh -t):\n  {typed}"
        )


def _has_terminal() -> bool:
    """Whether sudo can ask: it does so at the controlling terminal, whatever stdin and stdout are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _as_root(*words: str) -> None:
    command = [*(["sudo"] if os.geteuid() else []), *words]
    click.echo(f"$ {' '.join(command)}", err=True)
    if subprocess.run(command, check=False).returncode:  # noqa: S603 - no shell, and the words are ours
        raise UserError(f"`{' '.join(command)}` has failed")
