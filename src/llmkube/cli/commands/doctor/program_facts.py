"""What the probes of our programs find."""

from pathlib import Path

import attrs

from llmkube.cli.commands.programs.background.launchctl import JobState
from llmkube.cli.commands.programs.background.start_limit import FailedStarts


@attrs.frozen
class Settings:
    """Whether the settings can be read; `problem` says why not."""

    folder: Path
    program: str
    pid: int | None
    problem: str = ""


@attrs.frozen(kw_only=True)
class Engine:
    """The llama-server that would run.

    Attributes:
        program: Its path; empty when there is none.
        version: What it says of itself.
        problem: Why it cannot be used.
        starts: Whether our programs start; they do not where a setting names another engine that is not there.
        devices: GPUs that it lists; None when it was not asked.
    """

    program: str = ""
    version: str = ""
    problem: str = ""
    starts: bool = True
    devices: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class LaunchdJob:
    """A job of ours and how launchd sees it.

    Attributes:
        what: `agent` or `up`.
        file: Its file.
        daemon: Whether it is one of the machine, and not of a login.
        state: What launchd knows; None when it is not loaded.
        holds: Whether a program holds the state directory now.
        healthy: Whether it answers at its port.
        failed: Failed starts in a row.
    """

    what: str
    file: Path
    daemon: bool
    state: JobState | None
    holds: bool
    healthy: bool
    failed: FailedStarts


@attrs.frozen
class SystemdUnit:
    """The unit of `llmkube up install`, and its state in systemd's words."""

    file: Path
    state: str


@attrs.frozen
class NoJob:
    """Nothing of ours begins by itself on this machine."""


@attrs.frozen
class Port:
    """A port that a program of ours wants.

    Attributes:
        flag: The flag that chooses it.
        number: The port.
        taken: Whether another program has it.
        holder: That program, where it is known.
        silent: Whether ours runs, and does not answer there.
    """

    flag: str
    number: int
    taken: bool = False
    holder: str = ""
    silent: bool = False


@attrs.frozen
class Ports:
    """All ports of the program."""

    program: str
    ports: tuple[Port, ...]


@attrs.frozen
class Listener:
    """An engine that answers every machine that reaches it."""

    what: str
    address: str
    ours: bool


@attrs.frozen
class Listeners:
    """Engines without a key that more than this machine reaches, and the setting that lets everyone in."""

    open: tuple[Listener, ...]
    insecure_lan: bool = False


@attrs.frozen(kw_only=True)
class LastEnds:
    """Engines that ended without our saying so, and what macOS noted about memory.

    Attributes:
        lost: Services whose engine is gone while no program of ours ran to end it.
        rebooted: Whether the machine was started anew meanwhile.
        largest: The service that needed most memory.
        largest_bytes: How much.
        jetsam: The newest report of macOS on ended programs, of the last days; empty without one.
        jetsam_largest: The largest process by that report.
    """

    lost: tuple[str, ...] = ()
    rebooted: bool = False
    largest: str = ""
    largest_bytes: int = 0
    jetsam: str = ""
    jetsam_largest: str = ""
