"""`llmkube agent install`, `uninstall`, `start`, `restart`, `stop`, `logs` and `sudoers`."""

import os
import pwd
import signal
from pathlib import Path
from typing import Any, Final

import click
import psutil
import trio

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes
from llmkube.cli.commands.programs.background.agent_jobs import (
    AGENT_LABEL,
    AddedSettings,
    Job,
    User,
    added_flags,
    agent_job,
    agent_job_files,
    agent_log,
    exit_seconds_of,
    given_settings,
    guarded_folder,
)
from llmkube.cli.commands.programs.background.agent_status import (
    admitted_sentence,
    chosen_folder,
    installed_job,
    lan_sentence,
    probe_health,
    state_dir_option,
)
from llmkube.cli.commands.programs.background.lan_access import lan_access_path
from llmkube.cli.commands.programs.background.launchctl import (
    JobState,
    Launchd,
    current_user,
    is_daemon,
    launchctl_program,
    launchd_of,
    remove_plist,
    request_root,
    write_plist,
)
from llmkube.cli.commands.programs.background.log_file import GUIDE_LINK, last_lines, point_link, print_log
from llmkube.cli.commands.programs.background.start_limit import record_interpreter, reset_failed_starts
from llmkube.cli.config_edit import plan_settings
from llmkube.cli.target_cluster import find_config
from llmkube.programs.config import AgentConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.host_settings import find_llama_server
from llmkube.programs.options import NumberRange, command, settings_options
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import lock_holder, running_up_pid, wait_for_exit
from llmkube.supervisor.host.processes import OWNER_VARIABLE, end_all, find_marked
from llmkube.supervisor.power.powermetrics import sudoers_rule
from llmkube.supervisor.values.admitted_networks import networks_path
from llmkube.supervisor.values.settings import METAL_GRACE_SECONDS

POLL_SECONDS: Final = 0.25
_LAN_SECONDS: Final = 15.0
"""The agent tries four machines, for three seconds each."""
_ADMITTED_SECONDS: Final = 5.0
"""The agent lists the cluster's nodes after its start."""
_LINES: Final = 10

_seconds_option = click.option(
    "--timeout", type=NumberRange(min=0), default=60.0, help="Seconds to wait until it is healthy. Default: 60."
)


@command("install")
@click.option(
    "--daemon",
    is_flag=True,
    help="Run as this user from boot, without a login and exempt from Local Network Privacy; needs sudo.",
)
@_seconds_option
@settings_options(AgentConfig)
def install(*, daemon: bool, timeout: float, **flags: Any) -> None:
    """Install the agent as a launchd job and start it.

    Flags and variables are written into config.toml. Flags that an older job has are kept.
    """
    if flags.get("log_file"):
        raise UserError("--log-file does not apply: the log of the job is in ~/Library/Logs; leave the flag out")
    if launchctl_program() is None:
        raise UserError("this machine has no launchd; run `llmkube agent` with its service manager (systemd)")
    config = load("agent", AgentConfig, flags)
    user = current_user()
    _refuse_up(config.state_dir)
    find_config(config.kubeconfig, config.context, config.state_dir)  # errors at the agent's start are reported now
    find_llama_server(config.llama_server)
    _warn_of_guarded_folders(config, user)
    chosen = given_settings(config, flags, os.environ)
    additions = plan_settings(config.state_dir, "agent", chosen)
    added = _added(user, set(chosen))
    if daemon or any(is_daemon(each) for each in agent_job_files(user) if each.exists()):
        request_root()  # before anything changes
    with hold_state_dir(config.state_dir, "install.lock"):  # held by commands that edit its files
        additions.write()
    job = agent_job(user, config.state_dir, config, added, daemon=daemon)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    if not point_link(GUIDE_LINK, job.log):
        click.echo(f"{GUIDE_LINK} not created: another user's file has this name; the log is {job.log}", err=True)
    reset_failed_starts(config.state_dir)
    record_interpreter(config.state_dir)
    lan_access_path(config.state_dir).unlink(missing_ok=True)
    trio.run(_load, job, user, config, timeout)
    for flag in added.dropped:
        click.echo(f"{flag} of the older job ignored: this agent does not have the flag", err=True)


@command("uninstall")
@state_dir_option
def uninstall(state_dir: Path | None) -> None:
    """Stop the agent and its engines, and remove the job; models and settings are kept."""
    folder, user = chosen_folder(state_dir), current_user()
    files = [each for each in agent_job_files(user) if each.exists()]
    if not files:
        raise CommandError(f"job {AGENT_LABEL} not found", ExitCode.NOT_FOUND)
    _refuse_up(folder)
    if any(map(is_daemon, files)):
        request_root()
    exit_seconds = exit_seconds_of(load("agent", AgentConfig, {"state_dir": folder}))

    async def stop_and_unload() -> None:
        if (pid := lock_holder(folder)) is not None:
            os.kill(pid, signal.SIGINT)  # stops the engines as well, whatever --on-exit is
            await wait_for_exit(folder, pid, exit_seconds)
        for file in files:
            daemon = is_daemon(file)
            await launchd_of(user, label=AGENT_LABEL, daemon=daemon, exit_seconds=exit_seconds).unload()

    trio.run(stop_and_unload)
    end_all(find_marked(OWNER_VARIABLE, str(folder)), grace_seconds=METAL_GRACE_SECONDS)  # of an agent that was killed
    for file in files:
        remove_plist(file)
        click.echo(f"{file} removed, the agent and its engines stopped")
    if GUIDE_LINK.is_symlink() and GUIDE_LINK.lstat().st_uid == os.geteuid():
        GUIDE_LINK.unlink()
    click.echo(f"{folder} kept, with {format_bytes(_size_of(folder / 'store'))} of models; delete it to free the space")


@command("start")
@state_dir_option
@_seconds_option
def start(state_dir: Path | None, timeout: float) -> None:
    """Start the installed agent and reset its count of failed starts; do nothing if it is running."""
    folder = chosen_folder(state_dir)
    _refuse_up(folder)
    if (pid := lock_holder(folder)) is not None:
        click.echo(f"agent is already running (pid {pid})")
        return
    _start_job(state_dir, timeout)
    click.echo("agent started")


@command("restart")
@state_dir_option
@_seconds_option
def restart(state_dir: Path | None, timeout: float) -> None:
    """Restart the agent with the current config.toml and job file; engines keep running and are adopted."""
    _start_job(state_dir, timeout)
    click.echo("agent restarted; running engines were adopted")


@command("logs")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
def logs(follow: bool, lines: int | None) -> None:
    """Print the log of the installed agent; for an engine's log, use `llmkube logs NAME`."""
    written_by = "only an agent that `llmkube agent install` installed writes it"
    print_log(agent_log(current_user().home), lines, follow=follow, written_by=written_by)


@command("stop")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory of the agent.")
@click.option("--timeout", type=NumberRange(min=0), default=120.0, help="Seconds to wait for its exit. Default: 120.")
def stop_agent(state_dir: Path | None, timeout: float) -> None:
    """Stop the agent on this host and its engines, and wait until they have exited."""
    folder = chosen_folder(state_dir)
    pid = lock_holder(folder)
    if pid is None:
        raise CommandError(f"no agent is running with the state directory {folder}", ExitCode.NOT_FOUND)
    if running_up_pid(folder) == pid:
        raise CommandError(
            f"no agent is running with the state directory {folder}, but `llmkube up` is (pid {pid}); "
            "stop it with `llmkube up stop`"
        )
    os.kill(pid, signal.SIGINT)  # stops the engines as well, whatever --on-exit is
    trio.run(wait_for_exit, folder, pid, timeout)
    click.echo(f"agent stopped (pid {pid})")


@command("sudoers")
@click.option("--user", metavar="NAME", help="User that runs the agent. Default: the current user.")
def print_sudoers(user: str | None) -> None:
    """Print the sudoers line that --apple-power-enabled needs.

    The line allows the user to run powermetrics as root with exactly the agent's arguments.
    """
    try:
        uid = os.getuid() if user is None else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise UserError(f"--user {user}: no such user on this host") from error
    if uid == 0:
        raise UserError("root needs no sudoers line; specify the agent's user with --user")
    click.echo(sudoers_rule(uid), nl=False)


def _start_job(state_dir: Path | None, seconds: float) -> None:
    folder, user = chosen_folder(state_dir), current_user()
    daemon, file = installed_job(user)
    _refuse_up(folder)
    if daemon:
        request_root()
    config = load("agent", AgentConfig, {"state_dir": folder})
    reset_failed_starts(folder)

    async def begin() -> None:
        job = launchd_of(user, label=AGENT_LABEL, daemon=daemon, exit_seconds=exit_seconds_of(config))
        await job.load(str(file))  # TERM keeps the engines; launchd reads a job's file when it loads the job
        await _wait_healthy(job, folder, config.port, agent_log(user.home), seconds)

    trio.run(begin)


async def _load(job: Job, user: User, config: AgentConfig, seconds: float) -> None:
    folder = config.state_dir
    for file in agent_job_files(user):
        if file.exists() and file != job.file:
            other = launchd_of(user, label=AGENT_LABEL, daemon=is_daemon(file), exit_seconds=job.exit_seconds)
            await other.unload()
            await trio.to_thread.run_sync(remove_plist, file)
    launchd = launchd_of(user, label=AGENT_LABEL, daemon=job.daemon, exit_seconds=job.exit_seconds)
    await launchd.unload()  # before its file changes: the running agent exits under the settings of the old file
    admitted = _modified_at(networks_path(folder))
    await trio.to_thread.run_sync(write_plist, job)
    await launchd.load(str(job.file))
    click.echo(f"{job.file} loaded")
    health = await _wait_healthy(launchd, folder, config.port, job.log, seconds)
    click.echo(f"http://127.0.0.1:{config.port}/healthz  {health}" if config.port else "agent started")
    click.echo(f"log: {job.log}")
    with trio.move_on_after(_ADMITTED_SECONDS):
        while _modified_at(networks_path(folder)) == admitted:  # noqa: ASYNC110 - another program writes it
            await trio.sleep(POLL_SECONDS)
        click.echo(f"no key required from: {admitted_sentence(folder)}")
    if not job.daemon:
        await _print_lan_access(folder)


async def _print_lan_access(folder: Path) -> None:
    with trio.move_on_after(_LAN_SECONDS):
        while not lan_access_path(folder).exists():  # noqa: ASYNC110 - another program writes it
            await trio.sleep(POLL_SECONDS)
    sentence = lan_sentence(folder) or "not known yet whether this job can connect to machines on its own network"
    click.echo(sentence)
    click.echo(
        "the agent runs while its user is logged in; to run it from boot, exempt from Local Network Privacy: "
        "llmkube agent install --daemon"
    )


async def _wait_healthy(job: Launchd, folder: Path, port: int, log: Path, seconds: float) -> str:
    """Wait until the agent is healthy, and return its answer at /healthz; without a port, wait for its lock.

    Raises:
        CommandError: The agent exited repeatedly, or did not become healthy; the message has the log's last lines.
    """
    offset = log.stat().st_size if log.exists() else 0
    state: JobState | None = None
    with trio.move_on_after(seconds):
        while True:
            if lock_holder(folder) is not None and (not port or await probe_health(port)):
                return await probe_health(port)
            state = await job.state()
            if state is None or (state.pid is None and state.runs > 1 and state.last_exit):
                break
            await trio.sleep(POLL_SECONDS)
    cause = "no response"
    if state and state.last_exit:
        cause = f"started {state.runs} times, last exit {state.last_exit}"
    location = f"on port {port}" if port else f"on {folder}"
    tail = last_lines(log, min(offset, log.stat().st_size) if log.exists() else 0, _LINES)
    raise CommandError(f"agent is not healthy {location}: {cause}\n{tail}".rstrip(), ExitCode.TIMED_OUT)


def _modified_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _added(user: User, given: set[str]) -> AddedSettings:
    for file in agent_job_files(user):
        if not file.exists():
            continue
        try:
            return added_flags(file.read_bytes(), given)
        except (OSError, ValueError) as exc:
            raise UserError(f"{file} cannot be read: {exc}; move it away and run this again") from exc
    return AddedSettings()


def _refuse_up(folder: Path) -> None:
    """Raise an error if `llmkube up` is running on the folder: it must not get our signals, and no agent can start."""
    if (pid := running_up_pid(folder)) is not None:
        raise CommandError(
            f"{folder} is in use by `llmkube up` (pid {pid}), not by an agent; stop it with `llmkube up stop`, or "
            "choose another folder with --state-dir"
        )


def _warn_of_guarded_folders(config: AgentConfig, user: User) -> None:
    program = Path(psutil.Process().exe())  # not sys.executable: a framework build of Python starts Python.app instead
    places = (("this program", program), ("--state-dir", config.state_dir), ("--model-store", config.model_store))
    for label, path in places:
        if path is not None and (folder := guarded_folder(path, user.home)):
            click.echo(
                f"{label} is in {folder}, which macOS does not let launchd jobs read: allow {program} in System "
                "Settings, Privacy & Security, Full Disk Access, or move it",
                err=True,
            )


def _size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
