"""What the probes of the machine find. Pure."""

from collections.abc import Mapping
from pathlib import Path

import attrs

from llmkube.supervisor.memory.budget import Budget


@attrs.frozen(kw_only=True)
class System:
    """What runs here.

    Attributes:
        system: `macOS` or `Linux`.
        release: Its version.
        machine: Of the processor, as the kernel says.
        python: Python's version.
        llmkube: Ours.
        mac: Whether it is a Mac.
        apple_silicon: Whether it is one with Apple's own chip.
        translated: Whether this Python is one for Intel, which macOS translates.
        wants_metal: Whether the settings have it serve Models for Metal, and none for its processor.
    """

    system: str
    release: str
    machine: str
    python: str
    llmkube: str
    mac: bool = False
    apple_silicon: bool = False
    translated: bool = False
    wants_metal: bool = False


@attrs.frozen(kw_only=True)
class Memory:
    """What engines may take.

    Attributes:
        budget: By the settings.
        available_bytes: What programs could take now.
        critical_share: Of the memory; below it memory is critically short.
        shortage: What makes memory short now; empty when it is not.
        promised: The largest `memoryBudget` of a Model that this host has run, in bytes by its name.
    """

    budget: Budget
    available_bytes: int
    critical_share: float
    shortage: str = ""
    promised: Mapping[str, int] = {}


@attrs.frozen(kw_only=True)
class GpuLimit:
    """How much of a Mac's memory its GPU may hold.

    Attributes:
        total_bytes: The memory.
        limit_bytes: The limit; None on a Mac that has none.
        source: Who says so.
        guessed: Whether it is our own cautious share.
        budget_bytes: What engines may take together.
    """

    total_bytes: int
    limit_bytes: int | None
    source: str
    guessed: bool
    budget_bytes: int


@attrs.frozen
class Disk:
    """What may still be written where models are kept."""

    folder: Path
    free_bytes: int


@attrs.frozen(kw_only=True)
class MacPower:
    """What `pmset` says.

    Attributes:
        sleep_minutes: After how long this Mac falls asleep; 0 is never, None not known.
        kept_awake: Whether the agent keeps it awake while an engine runs.
        on_battery: Whether it runs on its battery.
        low_power: Whether it is in low power mode.
        restarts: Whether it starts by itself when power is back; None not known.
    """

    sleep_minutes: int | None
    kept_awake: bool
    on_battery: bool = False
    low_power: bool = False
    restarts: bool | None = None


@attrs.frozen
class LinuxPower:
    """Whether a machine with a battery is on mains; None without one."""

    plugged: bool | None


@attrs.frozen
class FileVault:
    """What `fdesetup status` says."""

    on: bool


@attrs.frozen(kw_only=True)
class Firewall:
    """macOS's application firewall.

    Attributes:
        on: Whether it is on.
        blocks_all: Whether it lets no program in.
        program: The program that engines' clients talk to.
        permitted: Whether that one is let in; None when the firewall has no rule for it.
    """

    on: bool
    blocks_all: bool
    program: str
    permitted: bool | None = None


@attrs.frozen(kw_only=True)
class GuardedFolders:
    """Folders that macOS keeps from launchd's jobs, and what of ours is in them.

    Attributes:
        places: What (`--model-store`), and the guarded folder around it.
        program: The program that would have to be allowed.
        denied: What the job's log says of it; empty when it says nothing.
    """

    places: tuple[tuple[str, Path], ...]
    program: str
    denied: str = ""
