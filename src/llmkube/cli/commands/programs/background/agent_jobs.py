"""Jobs of launchd as property lists, and the agent's: what `llmkube agent install` writes; pure (launchd.plist(5))."""

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
"""Between two starts; launchd's own least is 10."""

_GUARDED_NAMES: Final = ("Desktop", "Documents", "Downloads")
"""Folders of a home that macOS keeps from programs until their user allows them."""


@attrs.frozen(kw_only=True)
class Job:
    """One program that launchd keeps running.

    Attributes:
        label: Its name in launchd.
        argv: The program, absolute, and its arguments.
        home: The home of the user as whom it runs, and where it starts.
        user: That user.
        log: The file that both outputs are appended to.
        exit_seconds: How long it may take to end after TERM before launchd kills it; launchd's own is 5.
        environ: Variables besides those that each of our jobs has.
        daemon: Whether it runs from boot on, without a login, and in no session.
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
        """Where launchd looks for it."""
        folder = DAEMONS if self.daemon else self.home / "Library" / "LaunchAgents"
        return folder / f"{self.label}.plist"


def plist_text(job: Job) -> bytes:
    """Return the property list of a job, as XML.

    * `KeepAlive`: it is started again unless it ended with 0. The keys are alternatives: `Crashed` alone would not
      start it again after a SIGKILL (macOS 26.4).
    * `ProcessType`: without it launchd slows its input and output, and that of every engine that it starts, for life.
    * `AbandonProcessGroup`: engines are to outlive an agent that ends, and the next one adopts them.
    * No `SoftResourceLimits` (in a daemon it sets the limit of the whole machine), no `Nice`.
    """
    own = {"HOME": str(job.home), "USER": job.user, "LOGNAME": job.user}  # a daemon has none of the three
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
    """What an older job's owner has added to it.

    Attributes:
        arguments: Flags, with their values.
        environ: Variables.
        dropped: Flags that this program does not have.
    """

    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = attrs.field(factory=dict)
    dropped: tuple[str, ...] = ()


def read_job(content: bytes) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the program arguments and the environment variables of a launchd job's file.

    Raises:
        ValueError: The file is no property list of a job.
    """
    try:
        old = plistlib.loads(content)
        argv = [str(each) for each in old.get("ProgramArguments", [])]
        environ = {str(name): str(value) for name, value in old.get("EnvironmentVariables", {}).items()}
    except (plistlib.InvalidFileException, xml.parsers.expat.ExpatError, ValueError, AttributeError, TypeError) as exc:
        raise ValueError(f"it is no property list of a job: {exc}") from exc
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
            continue  # `-m llmkube agent`, and the values of flags that are dropped
        name, equals, value = word.partition("=")
        name = f"--{name.lstrip('-')}"
        takes_value = flags.get(name)
        if takes_value is None:
            dropped.append(word)
            continue
        if not takes_value and value.lower() in {"false", "0", "f"}:  # as Go writes it
            name = f"--no-{name[2:]}"
        values = [value] if equals else [rest.pop(0)] if takes_value and rest else []
        if name not in replaced:
            added.append(f"{name}={values[0]}" if takes_value and values else name)
    return tuple(added), tuple(dropped)


def guarded_folder(path: Path, home: Path) -> Path | None:
    """Return the folder around a path that macOS keeps from jobs of launchd, although a terminal may read it."""
    for folder in (*(home / name for name in _GUARDED_NAMES), Path("/Volumes")):
        if path == folder or folder in path.parents:
            return folder
    return None


START_LIMIT: Final = 5
EXIT_MARGIN_SECONDS: Final = 60.0
"""Beyond the time that requests get to end: withdrawing endpoints, and the engines' own grace."""

_LOG: Final = "metal-agent.log"


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


def agent_log(home: Path) -> Path:
    """Return the log: in the user's own folder of logs, which Console shows and macOS never empties."""
    return home / "Library" / "Logs" / "llmkube" / _LOG


def agent_job_files(user: User) -> Sequence[Path]:
    """Return where the job of a login's agent is written, and that of a daemon; neither need be there."""
    empty = Job(label=AGENT_LABEL, argv=(), home=user.home, user=user.name, log=Path(), exit_seconds=0)
    return (empty.file, attrs.evolve(empty, daemon=True).file)


def exit_seconds_of(config: AgentConfig) -> int:
    """Return how long the agent may take to end."""
    return round(config.drain_seconds + EXIT_MARGIN_SECONDS)


def agent_job(user: User, state_dir: Path, config: AgentConfig, added: AddedSettings, *, daemon: bool) -> Job:
    """Return the job; flags that its owner has added come last, so that they win."""
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
    """Return the program and what an agent under launchd is always told."""
    return [
        sys.executable,
        "-m",
        "llmkube",
        "agent",
        f"--state-dir={state_dir}",
        f"--log-file={log}",
        f"--start-limit={START_LIMIT}",
        "--on-exit=keep",
    ]


def added_flags(content: bytes, given: Collection[str]) -> AddedSettings:
    """Return what stays of an older job.

    A job of the same name that another implementation's installer wrote is read alike: its flags have one dash or two.

    Args:
        content: Its file.
        given: Settings (`host_ip`) that were given anew.

    Raises:
        ValueError: The file is no job's.
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
    """Return what flags and variables say, as `config.toml` writes it: launchd's jobs get neither from a terminal.

    Args:
        config: The settings that they have made.
        flags: By setting; None or an empty tuple where none was given.
        environ: The terminal's.
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
