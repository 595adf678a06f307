"""`llmkube agent install`, `uninstall`, `start`, `restart`, `stop`, `logs` and `sudoers`: the agent as a job."""

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
"""The agent tries four machines, three seconds each."""
_ADMITTED_SECONDS: Final = 5.0
"""The agent lists the cluster's nodes once it has started."""
_LINES: Final = 10

_seconds_option = click.option(
    "--timeout", type=NumberRange(min=0), default=60.0, help="Seconds to wait until it answers. Default: 60."
)


@command("install")
@click.option(
    "--daemon",
    is_flag=True,
    help="Run from boot on, without a login and free of Local Network Privacy, as this user; asks for sudo.",
)
@_seconds_option
@settings_options(AgentConfig)
def install(*, daemon: bool, timeout: float, **flags: Any) -> None:
    """Have launchd run the agent now and from now on; settings go into config.toml, and flags of an older job stay."""
    if flags.get("log_file"):
        raise UserError("--log-file: the job's log is where macOS keeps logs; leave the flag out")
    if launchctl_program() is None:
        raise UserError("this machine has no launchd; run `llmkube agent` by its own service manager (systemd)")
    config = load("agent", AgentConfig, flags)
    user = current_user()
    _refuse_up(config.state_dir)
    find_config(config.kubeconfig, config.context, config.state_dir)  # what would end the agent ends this, unchanged
    find_llama_server(config.llama_server)
    _warn_of_guarded_folders(config, user)
    chosen = given_settings(config, flags, os.environ)
    additions = plan_settings(config.state_dir, "agent", chosen)
    added = _added(user, set(chosen))
    if daemon or any(is_daemon(each) for each in agent_job_files(user) if each.exists()):
        request_root()  # before anything changes: without it, what runs goes on as it is
    with hold_state_dir(config.state_dir, "install.lock"):  # of what edits its files
        additions.write()
    job = agent_job(user, config.state_dir, config, added, daemon=daemon)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    if not point_link(GUIDE_LINK, job.log):
        click.echo(f"another user's file is called {GUIDE_LINK}; the log is {job.log} alone", err=True)
    reset_failed_starts(config.state_dir)
    record_interpreter(config.state_dir)
    lan_access_path(config.state_dir).unlink(missing_ok=True)
    trio.run(_load, job, user, config, timeout)
    for flag in added.dropped:
        click.echo(f"{flag} of the older job is no flag of this agent; it is left out", err=True)


@command("uninstall")
@state_dir_option
def uninstall(state_dir: Path | None) -> None:
    """Stop the agent and its engines, and take the job away; models and settings stay."""
    folder, user = chosen_folder(state_dir), current_user()
    files = [each for each in agent_job_files(user) if each.exists()]
    if not files:
        raise CommandError(f"there is no job {AGENT_LABEL}", ExitCode.NOT_FOUND)
    _refuse_up(folder)
    if any(map(is_daemon, files)):
        request_root()
    exit_seconds = exit_seconds_of(load("agent", AgentConfig, {"state_dir": folder}))

    async def end() -> None:
        if (pid := lock_holder(folder)) is not None:
            os.kill(pid, signal.SIGINT)  # which stops the engines too, whatever --on-exit says
            await wait_for_exit(folder, pid, exit_seconds)
        for file in files:
            daemon = is_daemon(file)
            await launchd_of(user, label=AGENT_LABEL, daemon=daemon, exit_seconds=exit_seconds).unload()

    trio.run(end)
    end_all(find_marked(OWNER_VARIABLE, str(folder)), grace_seconds=METAL_GRACE_SECONDS)  # of an agent that was killed
    for file in files:
        remove_plist(file)
        click.echo(f"{file} is gone, and what it ran has stopped")
    if GUIDE_LINK.is_symlink() and GUIDE_LINK.lstat().st_uid == os.geteuid():
        GUIDE_LINK.unlink()
    click.echo(f"{folder} stays, with {format_bytes(_size_of(folder / 'store'))} of models; remove it if you want")


@command("start")
@state_dir_option
@_seconds_option
def start(state_dir: Path | None, timeout: float) -> None:
    """Start the installed agent, also one that has given up after failed starts; one that runs goes on."""
    folder = chosen_folder(state_dir)
    _refuse_up(folder)
    if (pid := lock_holder(folder)) is not None:
        click.echo(f"the agent runs already (pid {pid})")
        return
    _start_job(state_dir, timeout)
    click.echo("the agent runs")


@command("restart")
@state_dir_option
@_seconds_option
def restart(state_dir: Path | None, timeout: float) -> None:
    """Start the agent anew, with what config.toml and the job's file say now; engines go on and are adopted."""
    _start_job(state_dir, timeout)
    click.echo("the agent runs anew, and has what still ran")


@command("logs")
@click.option("-f", "--follow", is_flag=True, help="Stay, and print what is written from now on, until Ctrl-C.")
@click.option("--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
def logs(follow: bool, lines: int | None) -> None:
    """Print what the installed agent wrote; `llmkube logs NAME` has what an engine writes."""
    print_log(agent_log(current_user().home), lines, follow=follow, written_by="`llmkube agent install` has it written")


@command("stop")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="The agent's state directory.")
@click.option("--timeout", type=NumberRange(min=0), default=120.0, help="Seconds to wait for its end. Default: 120.")
def stop_agent(state_dir: Path | None, timeout: float) -> None:
    """Stop the agent on this host and every engine of it, and wait until they have ended."""
    folder = chosen_folder(state_dir)
    pid = lock_holder(folder)
    if pid is None:
        raise CommandError(f"no agent runs on the state directory {folder}", ExitCode.NOT_FOUND)
    if running_up_pid(folder) == pid:
        raise CommandError(
            f"no agent runs on the state directory {folder}, but `llmkube up` does (pid {pid}); "
            "`llmkube up stop` stops it"
        )
    os.kill(pid, signal.SIGINT)  # which always stops the engines, whatever --on-exit says
    trio.run(wait_for_exit, folder, pid, timeout)
    click.echo(f"agent with pid {pid} has stopped")


@command("sudoers")
@click.option("--user", metavar="NAME", help="User that runs the agent. Default: the user of this command.")
def print_sudoers(user: str | None) -> None:
    """Print the line of sudoers that --apple-power-enabled needs.

    It lets the user run powermetrics as root with exactly the agent's arguments, and nothing else.
    """
    try:
        uid = os.getuid() if user is None else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise UserError(f"--user {user}: this host knows no such user") from error
    if uid == 0:
        raise UserError("root needs no line in sudoers; name the agent's user with --user")
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
        await job.load(str(file))  # TERM keeps the engines; a job's file is read when it is loaded, not when it starts
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
    await launchd.unload()  # before its file changes: what runs ends by the old one's terms
    admitted = _modified_at(networks_path(folder))
    await trio.to_thread.run_sync(write_plist, job)
    await launchd.load(str(job.file))
    click.echo(f"{job.file} is loaded")
    health = await _wait_healthy(launchd, folder, config.port, job.log, seconds)
    click.echo(f"http://127.0.0.1:{config.port}/healthz  {health}" if config.port else "the agent runs")
    click.echo(f"log: {job.log}")
    with trio.move_on_after(_ADMITTED_SECONDS):
        while _modified_at(networks_path(folder)) == admitted:  # noqa: ASYNC110 - another program writes it
            await trio.sleep(POLL_SECONDS)
        click.echo(f"without a key its engines answer: {admitted_sentence(folder)}")
    if not job.daemon:
        await _print_lan_access(folder)


async def _print_lan_access(folder: Path) -> None:
    with trio.move_on_after(_LAN_SECONDS):
        while not lan_access_path(folder).exists():  # noqa: ASYNC110 - another program writes it
            await trio.sleep(POLL_SECONDS)
    sentence = lan_sentence(folder) or "whether this job reaches machines of its own network is not known yet"
    click.echo(sentence)
    click.echo(
        "it runs while its user is logged in; from boot on, and free of Local Network Privacy: "
        "llmkube agent install --daemon"
    )


async def _wait_healthy(job: Launchd, folder: Path, port: int, log: Path, seconds: float) -> str:
    """Return what the agent answers at /healthz; without a port, return "" once it holds its state directory.

    Raises:
        CommandError: It has ended again and again, or says nothing; the sentence has the log's last lines.
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
    ended = (
        f"it has ended with {state.last_exit}, {state.runs} times" if state and state.last_exit else "it says nothing"
    )
    location = f"on port {port}" if port else f"on {folder}"
    tail = last_lines(log, min(offset, log.stat().st_size) if log.exists() else 0, _LINES)
    raise CommandError(f"the agent does not answer {location}: {ended}\n{tail}".rstrip(), ExitCode.TIMED_OUT)


def _modified_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _added(user: User, given: set[str]) -> AddedSettings:
    for file in agent_job_files(user):
        if not file.exists():
            continue
        try:
            return added_flags(file.read_bytes(), given)
        except (OSError, ValueError) as exc:
            raise UserError(f"{file}: {exc}; move it away, and repeat this") from exc
    return AddedSettings()


def _refuse_up(folder: Path) -> None:
    """Leave a `llmkube up` alone that works on the folder: no signal of ours is for it, and no agent can start."""
    if (pid := running_up_pid(folder)) is not None:
        raise CommandError(
            f"on {folder} runs no agent, but `llmkube up` (pid {pid}); `llmkube up stop` stops it, or choose another "
            "folder with --state-dir"
        )


def _warn_of_guarded_folders(config: AgentConfig, user: User) -> None:
    program = Path(psutil.Process().exe())  # a framework build of Python starts Python.app in sys.executable's place
    places = (("this program", program), ("--state-dir", config.state_dir), ("--model-store", config.model_store))
    for label, path in places:
        if path is not None and (folder := guarded_folder(path, user.home)):
            click.echo(
                f"{label} is in {folder}, which macOS keeps from launchd's jobs: allow {program} in System "
                "Settings, Privacy & Security, Full Disk Access, or move it",
                err=True,
            )


def _size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
