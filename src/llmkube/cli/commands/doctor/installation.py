"""The LLMKube program on this machine: the running one, else the installed one, and its settings."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import click
import psutil
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.settings import settings_of
from llmkube.cli.commands.programs.background.agent_jobs import UP_LABEL, User, agent_job_files, read_job
from llmkube.cli.commands.programs.background.launchctl import current_user, launchctl_program
from llmkube.cli.commands.programs.background.systemd import unit_path
from llmkube.k8s.resource import Key
from llmkube.programs.config import AgentConfig, UpConfig, load
from llmkube.programs.options import settings_options
from llmkube.programs.state_location import check_state_dir, local_state_dir, lock_holder, running_up_pid
from llmkube.supervisor.values.journal import Entry, FileJournal

Name = Literal["up", "agent"]

_SETTINGS: Final[dict[Name, type[Any]]] = {"up": UpConfig, "agent": AgentConfig}


@attrs.frozen(kw_only=True)
class Installation:
    """The LLMKube program on this machine.

    Attributes:
        folder: Its state directory.
        user: The user that the program runs as.
        program: The program that runs or would be started.
        pid: Its process; None if it is not running.
        config: Its settings, including the flags of its process or job.
        problem: Why the settings cannot be read; `config` then has the defaults.
        job: File of its launchd job; None without one.
        daemon: Whether the job is a LaunchDaemon.
        unit: File of its systemd unit; None without one.
        job_program: Executable that launchd starts; this process's executable without a job.
        mac: Whether this machine has launchd.
    """

    folder: Path
    user: User
    program: Name
    pid: int | None
    config: AgentConfig | UpConfig
    problem: str
    job: Path | None
    daemon: bool
    unit: Path | None
    job_program: str
    mac: bool

    @property
    def store(self) -> Path:
        """The folder of the model store."""
        chosen = self.config.model_store if isinstance(self.config, AgentConfig) else None
        return chosen or self.folder / "store"

    @property
    def serves_a_cluster(self) -> bool:
        """Whether an agent runs or is installed: its settings then name a cluster."""
        return self.program == "agent"

    def journal(self) -> dict[Key, Entry]:
        """Read the journal of engines; blocks.

        Raises:
            JournalError: No file descriptor is free.
        """
        return FileJournal(self.folder / "journal", trio.CapacityLimiter(1)).read_all()


def find_installation(chosen: Path | None) -> Installation:
    """Inspect the state directory, the process that locks it, and the user's jobs; blocks for milliseconds."""
    folder = chosen.absolute() if chosen is not None else local_state_dir()
    user, problem = current_user(), ""
    try:
        check_state_dir(folder)
    except LLMKubeError as exc:
        problem = str(exc)
    pid, up_pid = lock_holder(folder), running_up_pid(folder)
    mac = sys.platform == "darwin" or launchctl_program() is not None
    login_job, daemon_job = agent_job_files(user)
    agent_file = next((each for each in (daemon_job, login_job) if mac and each.exists()), None)
    up_file = login_job.with_name(f"{UP_LABEL}.plist")
    program: Name = "up" if up_pid is not None else "agent" if pid is not None or agent_file is not None else "up"
    job = agent_file if program == "agent" else up_file if mac and up_file.exists() else None
    job_argv = _job_argv(job)
    config, config_problem = _settings(program, folder, _argv_of(pid) or job_argv)
    return Installation(
        folder=folder,
        user=user,
        program=program,
        pid=pid,
        config=config,
        problem=problem or config_problem,
        job=job,
        daemon=job == daemon_job,
        unit=unit_path() if not mac and program == "up" and unit_path().exists() else None,
        job_program=job_argv[0] if job_argv else psutil.Process().exe(),
        mac=mac,
    )


def given_flags(program: Name, argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a command line gives after the program's name."""
    kind = _SETTINGS[program]
    # Only the settings are options: the commands themselves import the programs, which takes a second.
    ignoring = {"ignore_unknown_options": True, "allow_extra_args": True}
    command = click.command(program, context_settings=ignoring)(settings_options(kind)(lambda **_: None))
    words = list(argv[argv.index(program) + 1 :]) if program in argv else list(argv[1:])
    try:
        context = command.make_context(program, words, resilient_parsing=True)
    except click.ClickException:
        return {}  # flags of another version: only config.toml is known then
    names = {each.name for each in settings_of(kind)}
    return {name: value for name, value in context.params.items() if name in names and value not in {None, ()}}


def _settings(program: Name, folder: Path, argv: Sequence[str]) -> tuple[AgentConfig | UpConfig, str]:
    kind = _SETTINGS[program]
    flags = {**given_flags(program, argv), "state_dir": folder}
    try:
        return load(program, kind, flags), ""
    except LLMKubeError as exc:
        return kind(state_dir=folder), str(exc)


def _argv_of(pid: int | None) -> Sequence[str]:
    if pid is None:
        return ()
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return ()


def _job_argv(job: Path | None) -> Sequence[str]:
    if job is None:
        return ()
    try:
        return read_job(job.read_bytes())[0]
    except (OSError, ValueError):
        return ()
