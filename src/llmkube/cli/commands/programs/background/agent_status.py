"""`llmkube agent status`: one look, or with `--watch` in place on a terminal and a line per change elsewhere."""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Never

import attrs
import click
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.cli.commands.programs.background.agent_jobs import agent_job_files
from llmkube.cli.commands.programs.background.cordon_commands import cordon_sentence
from llmkube.cli.commands.programs.background.health import probed_health, probed_metrics
from llmkube.cli.commands.programs.background.interpreter import interpreter_news
from llmkube.cli.commands.programs.background.lan_access import REACHED, REFUSED, read_lan_access
from llmkube.cli.commands.programs.background.launchctl import JobState, launchctl_program
from llmkube.cli.commands.programs.background.launchd_job import AGENT_LABEL
from llmkube.cli.commands.programs.background.launchd_user import User, current_user, launchd_of
from llmkube.cli.commands.programs.background.power_status import power_words, without_figures
from llmkube.cli.commands.programs.background.start_limit import read_failed_starts
from llmkube.cli.options import watch_option
from llmkube.cli.view.live_view import TICK_SECONDS, append_lines, is_terminal, show_in_place
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.config.tables import load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, guarded
from llmkube.programs.state_location import check_state_dir, local_state_dir
from llmkube.programs.state_lock import holder_of
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.nouns.admitted_networks import AdmittedNetworks, networks_path

_IDLE = "does not run"
_INDENT = 12

state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Its state directory.  [LLMKUBE_STATE_DIR]"
)


@click.command("status", context_settings=HELP)
@state_dir_option
@watch_option
@guarded
def status(state_dir: Path | None, watch: bool) -> None:
    """Say whether the agent runs, how often it was started, and what it cannot reach. Exits with 3 if it does not."""
    folder, user = chosen_folder(state_dir), current_user()
    look = partial(_look, folder, user, load("agent", AgentConfig, {"state_dir": folder}).port)
    if watch:
        trio.run(_stay, look)
    found = trio.run(look)
    click.echo("\n".join(_lines(found)))
    if found["agent"].startswith(_IDLE):
        sys.exit(ExitCode.NOT_FOUND)


def chosen_folder(chosen: Path | None) -> Path:
    """Return the state directory that a command is about, which is ours."""
    folder = chosen.absolute() if chosen is not None else local_state_dir()
    check_state_dir(folder)
    return folder


def installed_job(user: User) -> tuple[bool, Path]:
    """Return whether the installed job is a daemon, and its file.

    Raises:
        CommandError: There is none.
    """
    agent, daemon = agent_job_files(user)
    if not (agent.exists() or daemon.exists()):
        raise CommandError(f"there is no {agent}: `llmkube agent install` writes it", ExitCode.NOT_FOUND)
    return daemon.exists(), daemon if daemon.exists() else agent


def lan_sentence(folder: Path) -> str:
    """Return whether the job reaches its own network; empty if that is not known."""
    found = read_lan_access(folder)
    if found == REFUSED:
        return (
            "macOS keeps this job from its own network (Local Network Privacy, errno 65): pods may not reach its "
            "engines. Allow it in System Settings, Privacy & Security, Local Network, or run: "
            "llmkube agent install --daemon"
        )
    return "this job reaches machines of its own network" if found == REACHED else ""


def admitted_sentence(folder: Path) -> str:
    """Return who reaches this host's engines without a key; empty if that is not known."""
    try:
        return AdmittedNetworks.load(networks_path(folder).read_text("utf-8")).summary
    except (OSError, ValueError):
        return ""


async def _stay(look: Callable[[], Awaitable[Mapping[str, str]]]) -> Never:
    if is_terminal():

        async def text() -> str:
            return "\n".join(_lines(await look()))

        await show_in_place(Mailbox(None), text)  # which looks again once a second
    clock, told = Mailbox(None), _News()

    async def news() -> Sequence[str]:
        return told.since(without_figures(await look()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tick, clock)
        await append_lines(clock, news)


async def _tick(clock: Mailbox[None]) -> Never:
    while True:
        await trio.sleep(TICK_SECONDS)
        clock.put_nowait(None)


async def _look(folder: Path, user: User, port: int) -> Mapping[str, str]:
    """Return what is to be said, by the word that begins its line; a line without a word of its own is left out."""
    said: dict[str, str] = {}
    known: JobState | None = None
    if launchctl_program() is not None and any(each.exists() for each in agent_job_files(user)):
        daemon, file = installed_job(user)
        known = await launchd_of(user, label=AGENT_LABEL, daemon=daemon, change=False).state()
        said["job"] = f"{file}{'' if known else ' (not loaded)'}"
        if known is not None:
            ended = f", ended last with {known.last_exit}" if known.last_exit else ""
            said["starts"] = f"{known.runs}{ended}"
    pid = holder_of(folder)
    said["agent"] = f"{f'runs (pid {pid})' if pid is not None else _IDLE} on {folder}"
    healthy = await probed_health(port) if pid is not None else ""
    said["healthz"] = healthy or (f"no answer that it is well at port {port}" if pid is not None and port else "")
    said["cordon"] = cordon_sentence(folder)
    said |= power_words(await probed_metrics(port)) if healthy else {}
    failed = read_failed_starts(folder, start_of(1))
    if pid is None and failed.count:
        said["failed"] = f"{failed.count} starts in a row: {failed.problem or 'see `llmkube agent logs`'}"
    said["network"] = lan_sentence(folder)
    said["no key"] = admitted_sentence(folder) if pid is not None else ""
    said["python"] = (interpreter_news(folder) or "") if known is not None else ""
    return {word: value for word, value in said.items() if value}


def _lines(said: Mapping[str, str]) -> list[str]:
    return [f"{word:<{_INDENT}}{value}".replace("\n", "\n" + " " * _INDENT) for word, value in said.items()]


@attrs.define(eq=False)
class _News:
    """What has changed since it was last asked: a line that is new or different, and `-` for one that is gone."""

    _said: Mapping[str, str] = attrs.field(factory=dict)

    def since(self, said: Mapping[str, str]) -> list[str]:
        """Return the lines; the first time, all of them."""
        gone = {word: "-" for word in self._said if word not in said}
        changed = {word: value for word, value in said.items() if self._said.get(word) != value}
        self._said = said
        return _lines(changed | gone)
