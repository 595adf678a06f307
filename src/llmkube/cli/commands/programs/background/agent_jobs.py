"""The agent as a job of launchd: what `llmkube agent install` writes, from settings and what an older job had; pure."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.settings import settings_of
from llmkube.cli.commands.programs.background.launchctl import User
from llmkube.cli.commands.programs.background.launchd_job import AGENT_LABEL, Job, Kept, kept_from
from llmkube.programs.config.host_config import AgentConfig

START_LIMIT: Final = 5
EXIT_MARGIN_SECONDS: Final = 60.0
"""Beyond the time that requests get to end: withdrawing endpoints, and the engines' own grace."""

_LOG: Final = "metal-agent.log"


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


def agent_job(user: User, state_dir: Path, config: AgentConfig, kept: Kept, *, daemon: bool) -> Job:
    """Return the job; flags that its owner has added come last, so that they win."""
    log = agent_log(user.home)
    return Job(
        label=AGENT_LABEL,
        argv=[*own_arguments(state_dir, log), *kept.arguments],
        home=user.home,
        user=user.name,
        log=log,
        exit_seconds=exit_seconds_of(config),
        environ=kept.environ,
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


def kept_flags(content: bytes, given: Collection[str]) -> Kept:
    """Return what stays of an older job.

    Args:
        content: Its file.
        given: Settings (`host_ip`) that were given anew.

    Raises:
        ValueError: The file is no job's.
    """
    takes = dict.fromkeys(_names(), True) | {
        flag: False
        for each in settings_of(AgentConfig)
        if each.type is bool
        for flag in (each.flag, f"--no-{each.flag[2:]}")
    }
    own = {word.partition("=")[0] for word in own_arguments(Path(), Path())}
    anew = {
        flag for each in settings_of(AgentConfig) if each.name in given for flag in (each.flag, f"--no-{each.flag[2:]}")
    }
    return kept_from(content, takes, own | anew)


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
    found = {each.name: _written(getattr(config, each.name)) for each in given}
    first = environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if first and config.kubeconfig is None:
        found["kubeconfig"] = str(Path(first).absolute())
    return found


def _names() -> Sequence[str]:
    return [each.flag for each in settings_of(AgentConfig)]


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value.absolute()) if isinstance(value, Path) else value
