"""Looks at a Mac: its kernel, and the programs of macOS that say how it is set.

What each program prints was recorded by others (docs/doctor.md says what was verified where); a text that is not
understood is told as not known, and never as well.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
import trio

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.doctor.machine import assess_system
from llmkube.cli.commands.programs.background.agent_jobs import SYSTEM_PATH, agent_log, guarded_folder
from llmkube.cli.commands.programs.background.log_file import last_lines
from llmkube.programs.config import AgentConfig
from llmkube.programs.host_settings import memory_settings
from llmkube.supervisor.host.mach import LibSystem, decode_integer
from llmkube.supervisor.host.this_machine import GpuLimit, gpu_limit_of
from llmkube.supervisor.memory.budget import host_budget

MIB: Final = 1 << 20

SYSTEM_SHARE: Final = 0.05
"""What the GPU's limit has to leave to macOS, which else stops answering; of 16 GiB that is what it takes at rest."""

FIREWALL: Final = "/usr/libexec/ApplicationFirewall/socketfilterfw"
REPORTS: Final = Path("/Library/Logs/DiagnosticReports")
RECENT_SECONDS: Final = 7 * 86_400.0
"""An older report says little about the settings of now."""

_REPORT_BYTES: Final = 8 << 20
_LOG_LINES: Final = 50
_DENIED: Final = "Operation not permitted"


class NotUnderstoodError(ValueError):
    """A program of macOS printed something else than is known."""


async def system(here: Installation) -> Finding:
    """Ask the kernel: an Intel Python under Rosetta is told that the machine is one of Intel's."""
    await trio.lowlevel.checkpoint()
    kernel = LibSystem()
    apple = bool(_number(kernel, "hw.optional.arm64"))
    return assess_system(
        "macOS",
        _text(kernel, "kern.osproductversion") or platform.mac_ver()[0],
        "Apple silicon" if apple else "Intel",
        mac=True,
        apple_silicon=apple,
        translated=bool(_number(kernel, "sysctl.proc_translated")),
        wants_metal="metal" in here.config.accelerator and "cpu" not in here.config.accelerator,
    )


async def gpu_limit(here: Installation) -> Finding:
    """Ask the kernel and Metal; a driver that hangs is left behind."""
    kernel = LibSystem()
    total_bytes = decode_integer(kernel.sysctl("hw.memsize"))
    limit = await trio.to_thread.run_sync(gpu_limit_of, kernel, total_bytes, abandon_on_cancel=True)
    budget = host_budget(total_bytes, memory_settings(here.config)["memory_fraction"])
    return assess_gpu_limit(total_bytes, limit, budget.limit_bytes)


def assess_gpu_limit(total_bytes: int, limit: GpuLimit, budget_bytes: int) -> Finding:
    """The GPU holds what models may take together, `budget_bytes`, and leaves the system enough. Pure."""
    wanted = f"`sudo sysctl iogpu.wired_limit_mb={budget_bytes // MIB}`"
    if limit.limit_bytes is None:
        return passed("none is known")
    limit_text = f"{format_bytes(limit.limit_bytes)} of {format_bytes(total_bytes)} by {limit.source}"
    if limit.limit_bytes > total_bytes * (1 - SYSTEM_SHARE):
        return failed(
            limit_text,
            why="macOS is left with too little: it stops answering when a model fills that",
            fix=f"{wanted}, or 0 for its own limit; it lasts until the next start",
        )
    if limit.guessed:
        return warned(
            limit_text,
            why="Metal tells its limit to no program of this session (ssh, tmux), so the share is a cautious one",
            fix=f"look in a terminal of the login, or set it: {wanted}; it lasts until the next start",
        )
    if limit.limit_bytes < budget_bytes:
        return warned(
            limit_text,
            why=f"models may take {format_bytes(budget_bytes)} together, and one on the GPU not all of it",
            fix=f"{wanted}; it lasts until the next start",
        )
    return passed(limit_text)


async def power(here: Installation) -> tuple[Finding, Finding]:
    """Ask pmset."""
    settings, source = await _output_of("pmset", "-g"), await _output_of("pmset", "-g", "batt")

    def value(name: str) -> int | None:
        found = re.search(rf"^\s*{name}\s+(\d+)", settings, re.MULTILINE)
        return int(found[1]) if found else None

    kept_awake = isinstance(here.config, AgentConfig) and here.config.keep_awake
    on_battery, low_power = "'Battery Power'" in source, bool(value("lowpowermode"))
    return (
        assess_sleep(value("sleep"), kept_awake=kept_awake),
        assess_power(on_battery=on_battery, low_power=low_power, restarts=value("autorestart")),
    )


def assess_sleep(minutes: int | None, *, kept_awake: bool) -> Finding:
    """A Mac that serves others does not sleep. Pure.

    Args:
        minutes: After how long it falls asleep; 0 is never, None not known.
        kept_awake: Whether the agent keeps it awake while an engine runs.
    """
    if minutes is None:
        return warned(
            "pmset does not say when this Mac sleeps",
            why="asleep it answers no request",
            fix="`pmset -g` shows it",
        )
    if minutes and not kept_awake:
        return warned(
            f"this Mac falls asleep after {minutes} min",
            why="asleep it answers no request, and its host is taken for dead",
            fix="`sudo pmset -a sleep 0`, or only while engines run: `llmkube agent install --keep-awake`",
        )
    return passed("it does not sleep while an engine runs" if minutes else "it never sleeps")


def assess_power(*, on_battery: bool, low_power: bool, restarts: int | None) -> Finding:
    """A Mac that serves others comes back after a power cut; whether it `restarts` may not be known. Pure."""
    if on_battery:
        return warned(
            "this Mac runs on its battery",
            why="with a closed lid it sleeps whatever the settings say, and it computes slower",
            fix="connect it to mains",
            name="power",
        )
    if low_power:
        return warned(
            "low power mode is on", why="engines compute slower", fix="`sudo pmset -a lowpowermode 0`", name="power"
        )
    if restarts == 0:
        return warned(
            "it stays off after a power cut",
            why="no model is served until a person presses its button",
            fix="`sudo pmset -a autorestart 1`",
            name="power",
        )
    return passed("on mains; it starts when power is back" if restarts else "on mains", name="power")


async def file_vault() -> Finding:
    """Ask fdesetup: after a start nothing runs on an encrypted Mac until a user has typed the password."""
    text = await _output_of("fdesetup", "status")
    found = re.search(r"FileVault is (On|Off)", text)
    if found is None:
        raise NotUnderstoodError(f"fdesetup says {text[:100]!r}")
    if found[1] == "Off":
        return passed("it is off: this Mac starts by itself")
    return warned(
        "it is on",
        why="after a power cut or an update nothing runs, not even a daemon, until a person types the password",
        fix="for a planned restart: `sudo fdesetup authrestart`; to need no password: `sudo fdesetup disable`",
    )


async def firewall(here: Installation) -> Finding:
    """Ask socketfilterfw about the program that takes engines' connections: the agent's own, as their proxy."""
    program = str(Path(here.job_program).resolve())
    state = await _output_of(FIREWALL, "--getglobalstate")
    found = re.search(r"State = ([012])", state)
    if found is None:
        raise NotUnderstoodError(f"socketfilterfw says {state[:100]!r}")
    if found[1] == "0":
        return passed("macOS's application firewall is off")
    everything = await _output_of(FIREWALL, "--getblockall")
    rule = (await _output_of(FIREWALL, "--getappblocked", program)).lower()
    permitted = False if "is blocked" in rule else True if "permitted" in rule else None
    blocks_all = found[1] == "2" or bool(re.search(r"enabled", everything, re.IGNORECASE))
    return assess_firewall(program, permitted, blocks_all=blocks_all)


def assess_firewall(program: str, permitted: bool | None, *, blocks_all: bool) -> Finding:
    """The application firewall, which is on, lets pods reach engines. Pure.

    Args:
        program: The program that engines' clients talk to.
        permitted: Whether that one is let in; None when the firewall has no rule for it.
        blocks_all: Whether it lets no program in.
    """
    allow = f'`sudo {FIREWALL} --add "{program}" --unblockapp "{program}"`'
    if blocks_all:
        return failed(
            "it blocks all incoming connections",
            why="no pod reaches an engine of this Mac",
            fix=f"`sudo {FIREWALL} --setblockall off`",
        )
    if permitted is False:
        return failed(f"it keeps connections from {program}", why="no pod reaches an engine of this Mac", fix=allow)
    if permitted is None:
        return warned(
            f"it is on, and has no rule for {program}",
            why="macOS asks on the screen when the first client comes; a daemon cannot show the question",
            fix=allow,
        )
    return passed(f"it is on, and lets {program} in")


async def guarded_folders(here: Installation) -> Finding:
    """Look where a job's files are, and whether its log says that macOS kept them from it."""
    await trio.lowlevel.checkpoint()
    known = (("the program", Path(here.job_program)), ("--state-dir", here.folder), ("--model-store", here.store))
    places = [
        f"{label} in {folder}"
        for label, path in known
        if here.job is not None and (folder := guarded_folder(path, here.user.home)) is not None
    ]
    log = agent_log(here.user.home)
    denied = bool(places) and _DENIED in last_lines(log, 0, _LOG_LINES)
    program = _executable_of(here.pid) or str(Path(here.job_program).resolve())
    return assess_guarded_folders(places, program, f"{log} says: {_DENIED}" if denied else "")


def assess_guarded_folders(places: Sequence[str], program: str, denied: str = "") -> Finding:
    """Nothing that a job of launchd reads is in a folder that macOS keeps from it. Pure.

    Args:
        places: What is in one, and where: `--model-store in /Users/ada/Documents`.
        program: The program that would have to be allowed.
        denied: What the job's log says of it; empty when it says nothing.
    """
    if not places:
        return passed("not needed: nothing of ours is in a folder that macOS guards")
    verdict, where = failed if denied else warned, ", ".join(places)
    return verdict(
        denied or where,
        why="macOS keeps these folders from jobs of launchd, although a terminal may read them"
        + (f": {where}" if denied else ""),
        fix=f"System Settings, Privacy & Security, Full Disk Access: add {program}; or move it",
    )


def newest_jetsam(now: float, folder: Path = REPORTS) -> tuple[str, str]:
    """Return the name of macOS's newest report on programs that it ended for want of memory, and the largest process.

    Both are "" without one of the last days; the process is where the report cannot be read. Blocks.

    Args:
        now: The time as files have it, in seconds since 1970.
        folder: Where macOS keeps them.
    """
    try:
        known = [(path.stat().st_mtime, path) for path in folder.glob("JetsamEvent-*.ips")]
    except OSError:
        return "", ""
    reports = [path for at, path in sorted(known) if at > now - RECENT_SECONDS]
    if not reports:
        return "", ""
    try:
        with reports[-1].open("rb") as file:
            _, _, body = file.read(_REPORT_BYTES).partition(b"\n")
        return reports[-1].name, str(json.loads(body).get("largestProcess", ""))
    except (OSError, ValueError, AttributeError):
        return reports[-1].name, ""


def _number(kernel: LibSystem, name: str) -> int:
    try:
        return decode_integer(kernel.sysctl(name))
    except (OSError, ValueError):  # an Intel Mac has no such name
        return 0


def _text(kernel: LibSystem, name: str) -> str:
    try:
        return kernel.sysctl(name).rstrip(b"\0").decode("ascii")
    except (OSError, ValueError):
        return ""


def _executable_of(pid: int | None) -> str:
    """Return the file that really runs: a framework's Python becomes the one in its Python.app."""
    try:
        return psutil.Process(pid).exe() if pid is not None else ""
    except psutil.Error:
        return ""


async def _output_of(program: str, *words: str) -> str:
    """Return what a program of macOS prints.

    Raises:
        OSError: It is not there.
    """
    path = shutil.which(Path(program).name, path=os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_PATH])) or program
    done = await trio.run_process([path, *words], check=False, capture_stdout=True, capture_stderr=True)
    text: str = (done.stdout + done.stderr).decode("utf-8", "replace")
    return text.strip()
