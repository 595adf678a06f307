"""`llmkube up start`, `stop`, `status`, `logs`, `install` and `uninstall`."""

import os
import re
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio

from llmkube.base.settings import settings_of
from llmkube.base.units import format_bytes
from llmkube.cli.commands.programs.background.agent_jobs import EXIT_MARGIN_SECONDS, UP_LABEL, Job, User
from llmkube.cli.commands.programs.background.agent_status import chosen_folder, state_dir_option
from llmkube.cli.commands.programs.background.launchctl import current_user, launchctl_program, launchd_of, write_plist
from llmkube.cli.commands.programs.background.log_file import last_lines, print_log
from llmkube.cli.commands.programs.background.systemd import UNIT, systemctl, unit_path, unit_text
from llmkube.cli.target_cluster import ClusterFlags, own_up_dir
from llmkube.cli.view.output import printable, wrapped
from llmkube.programs.config import UpConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import NumberRange, command, settings_options
from llmkube.programs.page.machine import OPENER_FILE, UP_LOG
from llmkube.programs.page.tail import POLL_SECONDS
from llmkube.programs.state_dir import hold_state_dir, loading_note
from llmkube.programs.state_location import ADDRESSES_FILE, read_addresses, running_up_pid, wait_for_exit
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.cache import incomplete_bytes

_TAIL_LINES: Final = 10
_INSTALL_LOCK: Final = "install.lock"


@command("start")
@click.option("--timeout", type=NumberRange(min=0), default=60.0, help="Seconds to wait for the start. Default: 60.")
@settings_options(UpConfig)
def start(*, timeout: float, **flags: Any) -> None:
    """Run `llmkube up` in the background until `llmkube up stop` or the end of the login session."""
    config = load("up", UpConfig, flags)
    folder = chosen_folder(config.state_dir)
    if (pid := running_up_pid(folder)) is not None:
        click.echo(f"llmkube up is already running (pid {pid})\n{addresses_of(folder)}".rstrip())
        return
    with hold_state_dir(folder):  # creates it, and checks that it is private and not in use
        _print_loading_note(folder, config)
    (folder / ADDRESSES_FILE).unlink(missing_ok=True)
    with (folder / UP_LOG).open("ab") as file:
        offset = file.tell()
        child = subprocess.Popen(  # noqa: S603 - this program
            command_line(flags, folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    trio.run(_wait_started, child, folder, offset, timeout)
    click.echo(f"llmkube up is running in the background (pid {child.pid})\n{addresses_of(folder)}")


@command("stop")
@state_dir_option
@click.option("--timeout", type=NumberRange(min=0), default=120.0, help="Seconds to wait for its exit. Default: 120.")
def stop(state_dir: Path | None, timeout: float) -> None:
    """Stop `llmkube up` and its engines, and wait until they have exited."""
    folder = chosen_folder(state_dir)
    pid = running_up_pid(folder)
    if pid is None:
        raise CommandError(f"llmkube up is not running with the state directory {folder}", ExitCode.NOT_FOUND)
    os.kill(pid, signal.SIGINT)
    trio.run(wait_for_exit, folder, pid, timeout)
    click.echo(f"llmkube up stopped (pid {pid})")
    if unfinished := incomplete_bytes(open_store(folder / "store")):
        note = f"unfinished downloads take {format_bytes(unfinished)}: they continue at the next start;"
        click.echo(wrapped(f"{note} `llmkube cache prune` removes them", err=True), err=True)


@command("status")
@state_dir_option
def up_status(state_dir: Path | None) -> None:
    """Show whether `llmkube up` is running, its addresses, and whether it starts at login.

    Exits with 3 if it is not running.
    """
    folder = chosen_folder(state_dir)
    pid = running_up_pid(folder)
    state = "is not running" if pid is None else f"is running (pid {pid})"
    click.echo(f"llmkube up {state} with the state directory {folder}")
    if pid is not None and (addresses := addresses_of(folder)):
        click.echo(addresses)
    at_login = _login_job_file()
    click.echo(f"at login    {at_login if at_login.exists() else 'no; enable it with `llmkube up install`'}")
    if pid is None:
        sys.exit(ExitCode.NOT_FOUND)


@command("page")
@state_dir_option
@click.option("--print", "prints", is_flag=True, help="Print the address with its token instead of opening it.")
def page(state_dir: Path | None, prints: bool) -> None:
    """Open the page of the running `llmkube up` in a browser, with the right to change things."""
    folder = (own_up_dir(ClusterFlags()) if state_dir is None else None) or chosen_folder(state_dir)
    file = folder / OPENER_FILE
    if running_up_pid(folder) is None or not file.exists():
        raise CommandError(f"llmkube up is not running with the state directory {folder}", ExitCode.NOT_FOUND)
    if prints or not webbrowser.open(file.as_uri()):
        address = re.search(r'href="([^"]+)"', file.read_text("utf-8"))
        click.echo(address[1] if address else "")


@command("logs")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
@state_dir_option
def up_logs(follow: bool, lines: int | None, state_dir: Path | None) -> None:
    """Print the log of `llmkube up` in the background; for an engine's log, use `llmkube logs NAME`."""
    written_by = "`llmkube up` writes it after `llmkube up start` or `llmkube up install`, and else to its terminal"
    print_log(chosen_folder(state_dir) / UP_LOG, lines, follow=follow, written_by=written_by)


@command("install")
@settings_options(UpConfig)
def install(**flags: Any) -> None:
    """Run `llmkube up` with these flags now and at every login of this user, with launchd or systemd."""
    config = load("up", UpConfig, flags)
    folder = chosen_folder(config.state_dir)
    stop_seconds = config.drain_seconds + EXIT_MARGIN_SECONDS
    if launchctl_program() is None:
        systemctl("show-environment")  # fails before anything is written if systemd does not respond
    with hold_state_dir(folder, _INSTALL_LOCK):  # creates and checks it; a running `llmkube up` is replaced below
        _print_loading_note(folder, config)
    if launchctl_program() is not None:
        job = _launchd_job(current_user(), command_line(flags, folder), folder, stop_seconds)
        trio.run(_load, job)
        click.echo(f"{job.file} runs llmkube up now and at every login; see `llmkube up status`")
        return
    text = unit_text(command_line(flags, folder), folder / UP_LOG, stop_seconds=stop_seconds)
    file = unit_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    systemctl("daemon-reload")
    systemctl("enable", UNIT)
    systemctl("restart", UNIT)
    click.echo(f"{file} runs llmkube up now and at every login; see `llmkube up status`")
    click.echo("to run it after each boot without a login: loginctl enable-linger", err=True)


@command("uninstall")
def uninstall() -> None:
    """Stop `llmkube up` and do not run it at login; models and objects are kept."""
    file = _login_job_file()
    if not file.exists():
        raise CommandError(f"{file} not found", ExitCode.NOT_FOUND)
    if launchctl_program() is not None:
        trio.run(launchd_of(current_user(), label=UP_LABEL, exit_seconds=EXIT_MARGIN_SECONDS).unload)
        file.unlink()
    else:
        systemctl("disable", "--now", UNIT)
        file.unlink()
        systemctl("daemon-reload")
    click.echo(f"{file} removed, llmkube up stopped")


def _print_loading_note(folder: Path, config: UpConfig) -> None:
    if note := loading_note(folder, config.activation):
        click.echo(wrapped(note, err=True), err=True)


def _login_job_file() -> Path:
    if launchctl_program() is not None:
        return _launchd_job(current_user(), (), Path(), 0.0).file
    return unit_path()


def _launchd_job(user: User, argv: Sequence[str], folder: Path, stop_seconds: float) -> Job:
    return Job(
        label=UP_LABEL, argv=argv, home=user.home, user=user.name, log=folder / UP_LOG, exit_seconds=round(stop_seconds)
    )


async def _load(job: Job) -> None:
    launchd = launchd_of(current_user(), label=job.label, exit_seconds=job.exit_seconds)
    await launchd.unload()
    write_plist(job)
    await launchd.load(str(job.file))


def command_line(flags: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the command line of `llmkube up` with these flags and this Python; all paths are absolute."""
    words = [sys.executable, "-m", "llmkube", "up", "--state-dir", str(folder)]
    for each in settings_of(UpConfig):
        value = flags.get(each.name)
        if each.name == "state_dir" or value in {None, ()}:
            continue
        if each.type is bool:
            words.append(each.flag if value else f"--no-{each.flag[2:]}")
        else:
            words += [
                f"{each.flag}={_absolute(each.type, text)}" for text in (value if each.type is tuple else [value])
            ]
    return words


def addresses_of(folder: Path) -> str:
    """Return the addresses of the `llmkube up` on a state directory; "" while it starts."""
    return "\n".join(map(printable, read_addresses(folder).splitlines()))


def _absolute(kind: type[Any], text: str) -> str:
    return str(Path(text).absolute()) if kind is Path else text


async def _wait_started(child: "subprocess.Popen[bytes]", folder: Path, offset: int, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while child.poll() is None:
            if running_up_pid(folder) == child.pid and addresses_of(folder):
                return
            await trio.sleep(POLL_SECONDS)
        raise CommandError(f"llmkube up exited: {last_lines(folder / UP_LOG, offset, _TAIL_LINES)}")
    raise CommandError(
        f"llmkube up (pid {child.pid}) has not started after {seconds:g} s; see `llmkube up logs`", ExitCode.TIMED_OUT
    )
