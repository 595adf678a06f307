"""Property lists of launchd jobs (launchd.plist(5)), and that of `llmkube agent install`: pure functions."""

import os
import plistlib
import sys
import xml.parsers.expat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.settings import settings_of
from llmkube.programs.config import AgentConfig

AGENT_LABEL: Final = "com.llmkube.metal-agent"
UP_LABEL: Final = "com.llmkube.up"

DAEMONS: Final = Path("/Library/LaunchDaemons")

HOMEBREW: Final = "/opt/homebrew/bin:/opt/homebrew/sbin:/usr/local/bin"
SYSTEM_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"
THROTTLE_SECONDS: Final = 15
"""Minimum time between two starts; launchd's own default is 10."""

_GUARDED_NAMES: Final = ("Desktop", "Documents", "Downloads")
"""Folders of a home that macOS protects until the user allows a program to read them."""


@attrs.frozen(kw_only=True)
class Job:
    """A program that launchd keeps running.

    Attributes:
        label: Its name in launchd.
        argv: Absolute path of the program, and its arguments.
        home: The user's home, also the working directory.
        user: The user that it runs as.
        log: File to which standard output and error are appended.
        exit_seconds: Time between TERM and KILL; launchd's own default is 5.
        environ: Variables in addition to those that every job has.
        daemon: Whether it runs from boot, without a login session.
    """

    label: str
    argv: Sequence[str]
    home: Path
    user: str
    log: Path
    exit_seconds: int
    environ: Mapping[str, str] = attrs.field(factory=dict)
    daemon: bool = False

    @property
    def file(self) -> Path:
        """The job's file in the folder that launchd reads."""
        folder = DAEMONS if self.daemon else self.home / "Library" / "LaunchAgents"
        return folder / f"{self.label}.plist"


def plist_text(job: Job) -> bytes:
    """Return the property list of a job, as XML.

    * `KeepAlive`: the job is restarted unless it exits with 0. Either key is enough for a restart: `Crashed` alone
      would not cause one after a SIGKILL (macOS 26.4).
    * `ProcessType`: without it launchd throttles the I/O of the job, and permanently that of every engine it starts.
    * `AbandonProcessGroup`: engines outlive an agent that exits, and the next one adopts them.
    * No `SoftResourceLimits` (in a daemon it sets the limit of the whole machine), no `Nice`.
    """
    own = {"HOME": str(job.home), "USER": job.user, "LOGNAME": job.user}  # launchd sets none of them for a daemon
    content: dict[str, Any] = {
        "Label": job.label,
        "ProgramArguments": list(job.argv),
        "EnvironmentVariables": {"PATH": f"{HOMEBREW}:{SYSTEM_PATH}", **job.environ, **own},
        "WorkingDirectory": str(job.home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False, "Crashed": True},
        "ThrottleInterval": THROTTLE_SECONDS,
        "ExitTimeOut": job.exit_seconds,
        "ProcessType": "Interactive",
        "AbandonProcessGroup": True,
        "StandardOutPath": str(job.log),
        "StandardErrorPath": str(job.log),
    }
    if job.daemon:
        content["UserName"] = job.user
    return plistlib.dumps(content, sort_keys=False)


@attrs.frozen
class AddedSettings:
    """Settings that a user has added to an older job.

    Attributes:
        arguments: Flags with their values.
        environ: Environment variables.
        dropped: Flags that this agent does not have.
    """

    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = attrs.field(factory=dict)
    dropped: tuple[str, ...] = ()


def read_job(content: bytes) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the program arguments and the environment variables of a launchd job's file.

    Raises:
        ValueError: The file is not a property list of a job.
    """
    try:
        old = plistlib.loads(content)
        argv = [str(each) for each in old.get("ProgramArguments", [])]
        environ = {str(name): str(value) for name, value in old.get("EnvironmentVariables", {}).items()}
    except (plistlib.InvalidFileException, xml.parsers.expat.ExpatError, ValueError, AttributeError, TypeError) as exc:
        raise ValueError(f"not a property list of a job: {exc}") from exc
    return argv, environ


def _split_flags(
    words: Sequence[str], flags: Mapping[str, bool], replaced: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    added: list[str] = []
    dropped: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-m", "-"}:
            continue  # `-m llmkube agent`, and values of dropped flags
        name, equals, value = word.partition("=")
        name = f"--{name.lstrip('-')}"
        takes_value = flags.get(name)
        if takes_value is None:
            dropped.append(word)
            continue
        if not takes_value and value.lower() in {"false", "0", "f"}:  # false in Go's syntax
            name = f"--no-{name[2:]}"
        values = [value] if equals else [rest.pop(0)] if takes_value and rest else []
        if name not in replaced:
            added.append(f"{name}={values[0]}" if takes_value and values else name)
    return tuple(added), tuple(dropped)


def guarded_folder(path: Path, home: Path) -> Path | None:
    """Return the folder of a path that macOS does not let launchd jobs read, although a terminal may; else None."""
    for folder in (*(home / name for name in _GUARDED_NAMES), Path("/Volumes")):
        if path == folder or folder in path.parents:
            return folder
    return None


START_LIMIT: Final = 5
EXIT_MARGIN_SECONDS: Final = 60.0
"""Time to exit besides the drain: withdrawing endpoints, and the grace period of the engines."""

_LOG: Final = "metal-agent.log"


@attrs.frozen(kw_only=True)
class User:
    """The user that the agent runs as."""

    uid: int
    name: str
    home: Path


def agent_log(home: Path) -> Path:
    """Return the path of the agent's log, in the folder that Console shows and macOS does not clean up."""
    return home / "Library" / "Logs" / "llmkube" / _LOG


def agent_job_files(user: User) -> Sequence[Path]:
    """Return the paths of the job file of a LaunchAgent and of a LaunchDaemon; the files may not exist."""
    empty = Job(label=AGENT_LABEL, argv=(), home=user.home, user=user.name, log=Path(), exit_seconds=0)
    return (empty.file, attrs.evolve(empty, daemon=True).file)


def exit_seconds_of(config: AgentConfig) -> int:
    """Return how long the agent may take to exit."""
    return round(config.drain_seconds + EXIT_MARGIN_SECONDS)


def agent_job(user: User, state_dir: Path, config: AgentConfig, added: AddedSettings, *, daemon: bool) -> Job:
    """Return the job of the agent; flags that the user has added come last and take precedence."""
    log = agent_log(user.home)
    return Job(
        label=AGENT_LABEL,
        argv=[*own_arguments(state_dir, log), *added.arguments],
        home=user.home,
        user=user.name,
        log=log,
        exit_seconds=exit_seconds_of(config),
        environ=added.environ,
        daemon=daemon,
    )


def own_arguments(state_dir: Path, log: Path) -> list[str]:
    """Return the program and the flags that every agent under launchd has."""
    flags = [f"--state-dir={state_dir}", f"--log-file={log}", f"--start-limit={START_LIMIT}", "--on-exit=keep"]
    return [sys.executable, "-m", "llmkube", "agent", *flags]


def added_flags(content: bytes, given: Collection[str]) -> AddedSettings:
    """Return the flags and variables of an older job that the new one keeps.

    The job may be from another implementation's installer, which uses the same name; its flags have one dash or two.

    Args:
        content: Content of the job's file.
        given: Settings (`host_ip`) that are replaced.

    Raises:
        ValueError: The file is not a property list of a job.
    """
    argv, environ = read_job(content)
    own = {"HOME", "USER", "LOGNAME"}
    if environ.get("PATH") == f"{HOMEBREW}:{SYSTEM_PATH}":
        own |= {"PATH"}
    takes_value: dict[str, bool] = {}
    replaced = {word.partition("=")[0] for word in own_arguments(Path(), Path())}
    for each in settings_of(AgentConfig):
        flags = (each.flag, f"--no-{each.flag[2:]}") if each.type is bool else (each.flag,)
        takes_value |= dict.fromkeys(flags, each.type is not bool)
        if each.name in given:
            replaced |= set(flags)
    added, dropped = _split_flags(argv[1:], takes_value, replaced)
    return AddedSettings(added, {name: value for name, value in environ.items() if name not in own}, dropped)


def given_settings(config: AgentConfig, flags: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that flags and variables set, in the form of `config.toml`.

    A launchd job gets neither the flags nor the environment of the terminal.

    Args:
        config: The resulting settings.
        flags: Values by setting; None or an empty tuple for a flag that was not given.
        environ: Environment of the terminal.
    """
    given = [
        each
        for each in settings_of(AgentConfig)
        if each.in_file and (flags.get(each.name) not in {None, ()} or environ.get(each.variable, "").strip())
    ]
    found = {each.name: _toml_value(getattr(config, each.name)) for each in given}
    first = environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if first and config.kubeconfig is None:
        found["kubeconfig"] = str(Path(first).absolute())
    return found


def _toml_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value.absolute()) if isinstance(value, Path) else value
