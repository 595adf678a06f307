"""`llmkube agent status`, `cordon` and `uncordon`, and requests to the agent's probe port.

With `--watch`, the status is redrawn in place on a terminal, and printed as one line per change elsewhere.
"""

import datetime
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Never

import click
import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import write_private
from llmkube.base.times import utcnow
from llmkube.base.units import parse_duration
from llmkube.cli.commands.programs.background.agent_jobs import AGENT_LABEL, User, agent_job_files
from llmkube.cli.commands.programs.background.lan_access import REACHED, REFUSED, read_lan_access
from llmkube.cli.commands.programs.background.launchctl import JobState, current_user, launchctl_program, launchd_of
from llmkube.cli.commands.programs.background.start_limit import interpreter_problem, read_failed_starts
from llmkube.cli.options import watch_option
from llmkube.cli.view.live_view import TICK_SECONDS, Changes, is_terminal, show_in_place
from llmkube.programs.config import AgentConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import NumberRange, command
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import check_state_dir, local_state_dir, lock_holder
from llmkube.supervisor.host.processes import OWNER_VARIABLE, find_marked, start_of
from llmkube.supervisor.power.sample import COMBINED
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks, networks_path
from llmkube.supervisor.values.cordon import Cordon, cordon_path, cordon_text, parse_cordon

_STOPPED = "not running"
_INDENT = 12

state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory.  [LLMKUBE_STATE_DIR]"
)

NOT_MEASURED: Final = "not measured"
POLL_SECONDS = 0.5
_SHORTEST_SECONDS, _LONGEST_SECONDS = 60.0, 366 * 86400.0


@command("status")
@state_dir_option
@watch_option
def status(state_dir: Path | None, watch: bool) -> None:
    """Show whether the agent is running, how often it was started, and what it cannot reach.

    Exits with 3 if it is not running.
    """
    folder, user = chosen_folder(state_dir), current_user()
    read_state = partial(_read_state, folder, user, load("agent", AgentConfig, {"state_dir": folder}).port)
    if watch:
        trio.run(_watch, read_state)
    found = trio.run(read_state)
    click.echo("\n".join(_lines(found)))
    if found["agent"].startswith(_STOPPED):
        sys.exit(ExitCode.NOT_FOUND)


def chosen_folder(chosen: Path | None) -> Path:
    """Return the state directory of a command, after checking that it belongs to this user."""
    folder = chosen.absolute() if chosen is not None else local_state_dir()
    check_state_dir(folder)
    return folder


def installed_job(user: User) -> tuple[bool, Path]:
    """Return whether the installed job is a daemon, and its file.

    Raises:
        CommandError: No job is installed.
    """
    agent, daemon = agent_job_files(user)
    if not (agent.exists() or daemon.exists()):
        raise CommandError(f"{agent} not found: install the agent with `llmkube agent install`", ExitCode.NOT_FOUND)
    return daemon.exists(), daemon if daemon.exists() else agent


def lan_sentence(folder: Path) -> str:
    """Return whether the job can connect to its own network; empty if that is not known."""
    found = read_lan_access(folder)
    if found == REFUSED:
        return (
            "macOS blocks this job's access to its own network (Local Network Privacy, errno 65): pods may be unable "
            "to reach its engines. Allow it in System Settings, Privacy & Security, Local Network, or run: "
            "llmkube agent install --daemon"
        )
    return "this job can connect to machines on its own network" if found == REACHED else ""


def admitted_sentence(folder: Path) -> str:
    """Return a description of the clients that need no key for this host's engines; empty if it is not known."""
    try:
        return AdmittedNetworks.load(networks_path(folder).read_text("utf-8")).summary
    except (OSError, ValueError):
        return ""


async def _watch(read_state: Callable[[], Awaitable[Mapping[str, str]]]) -> Never:
    if is_terminal():

        async def text() -> str:
            return "\n".join(_lines(await read_state()))

        await show_in_place(Mailbox(None), text)  # updates once a second
    changes = Changes[str, str]()
    while True:
        changed, gone = changes.since(without_figures(await read_state()))
        for line in _lines(changed | dict.fromkeys(gone, "-")):
            click.echo(line)
        await trio.sleep(TICK_SECONDS)


async def _read_state(folder: Path, user: User, port: int) -> Mapping[str, str]:
    """Return the lines of the status by label; empty lines are left out."""
    state: dict[str, str] = {}
    job_state: JobState | None = None
    if launchctl_program() is not None and any(each.exists() for each in agent_job_files(user)):
        daemon, file = installed_job(user)
        job_state = await launchd_of(user, label=AGENT_LABEL, daemon=daemon, change=False).state()
        state["job"] = f"{file}{'' if job_state else ' (not loaded)'}"
        if job_state is not None:
            exited = f", last exit {job_state.last_exit}" if job_state.last_exit else ""
            state["starts"] = f"{job_state.runs}{exited}"
    pid = lock_holder(folder)
    state["agent"] = f"{f'running (pid {pid})' if pid is not None else _STOPPED} on {folder}"
    healthy = await probe_health(port) if pid is not None else ""
    state["healthz"] = healthy or (f"not healthy on port {port}" if pid is not None and port else "")
    state["cordon"] = cordon_sentence(folder)
    state |= power_lines(await _probe(port, "/metrics")) if healthy else {}
    failed = read_failed_starts(folder, start_of(1))
    if pid is None and failed.count:
        state["failed"] = f"{failed.count} consecutive starts: {failed.problem or 'see `llmkube agent logs`'}"
    state["network"] = lan_sentence(folder)
    state["admitted"] = admitted_sentence(folder) if pid is not None else ""
    state["python"] = (interpreter_problem(folder) or "") if job_state is not None else ""
    return {label: value for label, value in state.items() if value}


def _lines(state: Mapping[str, str]) -> list[str]:
    return [f"{label:<{_INDENT}}{value}".replace("\n", "\n" + " " * _INDENT) for label, value in state.items()]


def power_lines(exposition: str) -> dict[str, str]:
    """Return the lines about power by label; empty if power is not measured.

    Each service has a line with its name at the end, so that a narrow terminal does not cut a figure.
    """
    domains: dict[str, float] = {}
    services: dict[str, list[str]] = {}
    problem = ""
    for each in _power_samples(exposition):
        name = f"{each.labels.get('namespace')}/{each.labels.get('name')}"
        metric = each.name.removeprefix("llmkube_metal_agent_")
        if metric == "power_problem":
            problem = each.labels.get("reason", "")
        elif metric == "power_watts":
            domains[each.labels.get("domain", "")] = each.value
        elif found := re.fullmatch(r"apple_power_(\w+)_watts", metric):
            domains[found[1]] = each.value
        elif metric == "service_power_watts":
            services.setdefault(name, []).insert(0, f"{each.value:.1f} W")
        elif metric == "service_joules_per_token":
            services.setdefault(name, []).append(f"{_figure(each.value)} J per token")
    host = _host_power(domains, problem)
    state = {"power": host} if host else {}
    if services:
        shown = [(", ".join(words), name) for name, words in sorted(services.items())]
        width = max(len(figures) for figures, _ in shown)
        state["by service"] = "\n".join(f"{figures:<{width}}  {name}" for figures, name in shown)
    return state


def _host_power(domains: Mapping[str, float], problem: str) -> str:
    parts = ", ".join(f"{domain} {watts:.1f}" for domain, watts in sorted(domains.items()) if domain != COMBINED)
    if COMBINED in domains:
        return f"{domains[COMBINED]:.1f} W ({parts})"
    if parts:
        return f"{parts} W; other domains are {NOT_MEASURED}: {problem}"
    return f"{NOT_MEASURED}: {problem}; see `llmkube agent logs`" if problem else ""


def _figure(value: float) -> str:
    """Format a number with two significant digits, and a large one without an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def without_figures(state: Mapping[str, str]) -> dict[str, str]:
    """Return the state without power figures: they change every two seconds, and each change would print a line."""
    figures = {label for label in ("power", "by service") if not state.get(label, "").startswith(NOT_MEASURED)}
    return {label: value for label, value in state.items() if label not in figures}


def _power_samples(exposition: str) -> list[Sample]:
    """Return the samples of an exposition; none if it cannot be parsed."""
    try:
        families = list(text_string_to_metric_families(exposition))
    except ValueError:
        return []
    return [sample for family in families for sample in family.samples]


@command("cordon")
@click.option("--for", "duration", metavar="DURATION", help="Resume serving after this time: 90m, 2h, 1d.")
@state_dir_option
@click.option(
    "--timeout", type=NumberRange(min=0), default=120.0, help="Seconds to wait for engines to exit. Default: 120."
)
def cordon(duration: str | None, state_dir: Path | None, timeout: float) -> None:
    """Stop serving on this host until `uncordon` or the end of --for, so that other hosts serve.

    Requests in flight are finished, then the engines exit. The cordon stays in effect when the agent is restarted.
    """
    until = None if duration is None else _end_time(parse_duration(duration, field="--for"))
    folder = (state_dir or local_state_dir()).absolute()
    with hold_state_dir(folder, "install.lock"):
        write_private(cordon_path(folder), cordon_text(state := Cordon(until)))
    trio.run(_wait_free, folder, timeout)
    click.echo(f"this host serves nothing {state.end}")


@command("uncordon")
@state_dir_option
def uncordon(state_dir: Path | None) -> None:
    """Resume serving on this host."""
    cordon_path(chosen_folder(state_dir)).unlink(missing_ok=True)
    click.echo("this host serves again")


def cordon_sentence(folder: Path) -> str:
    """Return the duration of the host's cordon; empty if it is not cordoned."""
    try:
        found = parse_cordon(cordon_path(folder).read_bytes())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as exc:
        return f"{cordon_path(folder)} cannot be read ({exc}): `llmkube agent uncordon` removes it"
    return f"serves nothing {found.end}" if found.is_active(utcnow()) else ""


def _end_time(seconds: float) -> datetime.datetime:
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise UserError("use a time from 1m to 366d, or leave it out for an unlimited cordon", field="--for")
    return utcnow() + datetime.timedelta(seconds=seconds)


async def _wait_free(folder: Path, seconds: float) -> None:
    """Wait until no engine runs.

    Raises:
        CommandError: An engine still runs after the time, no agent is running to stop it, or the cordon has ended.
    """
    deadline = trio.current_time() + (seconds if lock_holder(folder) is not None else 0.0)
    while remaining := await trio.to_thread.run_sync(find_marked, OWNER_VARIABLE, str(folder)):
        count = f"{len(remaining)} process{'es' if len(remaining) > 1 else ''} of engines"
        if not cordon_sentence(folder):
            raise CommandError(f"the cordon has ended, and {count} still run: this host serves again", ExitCode.FAILED)
        if trio.current_time() >= deadline:
            if lock_holder(folder) is not None:
                raise CommandError(f"{count} still run after {seconds:g} s", ExitCode.TIMED_OUT)
            pids = " ".join(str(each.pid) for each in remaining)
            raise CommandError(
                f"{count} still run, and no agent is running: start it to stop them, or run `kill {pids}`",
                ExitCode.FAILED,
            )
        await trio.sleep(POLL_SECONDS)


async def probe_health(port: int) -> str:
    """Return the answer of `/healthz`; "" without a port, or if it is not 200 within two seconds."""
    return (await _probe(port, "/healthz")).strip()


async def _probe(port: int, path: str) -> str:
    if not port:
        return ""
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.HTTPError:
            return ""
    return answer.text if answer.status_code == httpx.codes.OK else ""
