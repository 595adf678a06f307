"""Looks at a Mac: its kernel, and the programs of macOS that say how it is set.

What each program prints was recorded by others (docs/doctor.md says what was verified where); a text that is not
understood is told as not known, and never as well.
"""

import json
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Final

import psutil
import trio

from llmkube import __version__
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.doctor.machine_facts import FileVault, Firewall, GpuLimit, GuardedFolders, MacPower, System
from llmkube.cli.commands.doctor.machine_verdicts import FIREWALL
from llmkube.cli.commands.programs.background.agent_jobs import agent_log
from llmkube.cli.commands.programs.background.launchd_job import SYSTEM_PATH, guarded_folder
from llmkube.cli.commands.programs.background.log_file import last_lines
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.host.memory_options import memory_settings
from llmkube.supervisor.host.mach import LibSystem, decode_integer
from llmkube.supervisor.host.this_machine import gpu_limit_of
from llmkube.supervisor.memory.budget import host_budget

REPORTS: Final = Path("/Library/Logs/DiagnosticReports")
RECENT_SECONDS: Final = 7 * 86_400.0
"""An older report says little about the settings of now."""

_REPORT_BYTES: Final = 8 << 20
_LOG_LINES: Final = 50
_DENIED: Final = "Operation not permitted"


class NotUnderstoodError(ValueError):
    """A program of macOS printed something else than is known."""


async def system(here: Installation) -> System:
    """Ask the kernel: an Intel Python under Rosetta is told that the machine is one of Intel's."""
    await trio.lowlevel.checkpoint()
    kernel = LibSystem()
    apple = bool(_number(kernel, "hw.optional.arm64"))
    return System(
        system="macOS",
        release=_text(kernel, "kern.osproductversion") or platform.mac_ver()[0],
        machine="Apple silicon" if apple else "Intel",
        python=platform.python_version(),
        llmkube=__version__,
        mac=True,
        apple_silicon=apple,
        translated=bool(_number(kernel, "sysctl.proc_translated")),
        wants_metal="metal" in here.config.accelerator and "cpu" not in here.config.accelerator,
    )


async def gpu_limit(here: Installation) -> GpuLimit:
    """Ask the kernel and Metal; a driver that hangs is left behind."""
    kernel = LibSystem()
    total_bytes = decode_integer(kernel.sysctl("hw.memsize"))
    limit = await trio.to_thread.run_sync(gpu_limit_of, kernel, total_bytes, abandon_on_cancel=True)
    budget = host_budget(total_bytes, memory_settings(here.config)["memory_fraction"])
    return GpuLimit(
        total_bytes=total_bytes,
        limit_bytes=limit.limit_bytes,
        source=limit.source,
        guessed=limit.guessed,
        budget_bytes=budget.limit_bytes,
    )


async def power(here: Installation) -> MacPower:
    """Ask pmset."""
    settings, source = await _says("pmset", "-g"), await _says("pmset", "-g", "batt")

    def value(name: str) -> int | None:
        found = re.search(rf"^\s*{name}\s+(\d+)", settings, re.MULTILINE)
        return int(found[1]) if found else None

    restarts = value("autorestart")
    return MacPower(
        sleep_minutes=value("sleep"),
        kept_awake=isinstance(here.config, AgentConfig) and here.config.keep_awake,
        on_battery="'Battery Power'" in source,
        low_power=bool(value("lowpowermode")),
        restarts=None if restarts is None else bool(restarts),
    )


async def file_vault() -> FileVault:
    """Ask fdesetup."""
    text = await _says("fdesetup", "status")
    found = re.search(r"FileVault is (On|Off)", text)
    if found is None:
        raise NotUnderstoodError(f"fdesetup says {text[:100]!r}")
    return FileVault(found[1] == "On")


async def firewall(here: Installation) -> Firewall:
    """Ask socketfilterfw about the program that takes engines' connections: the agent's own, as their proxy."""
    program = str(Path(here.job_program).resolve())
    state = await _says(FIREWALL, "--getglobalstate")
    found = re.search(r"State = ([012])", state)
    if found is None:
        raise NotUnderstoodError(f"socketfilterfw says {state[:100]!r}")
    if found[1] == "0":
        return Firewall(on=False, blocks_all=False, program=program)
    everything = await _says(FIREWALL, "--getblockall")
    rule = (await _says(FIREWALL, "--getappblocked", program)).lower()
    permitted = False if "is blocked" in rule else True if "permitted" in rule else None
    blocks_all = found[1] == "2" or bool(re.search(r"enabled", everything, re.IGNORECASE))
    return Firewall(on=True, blocks_all=blocks_all, program=program, permitted=permitted)


async def guarded_folders(here: Installation) -> GuardedFolders:
    """Look where a job's files are, and whether its log says that macOS kept them from it."""
    await trio.lowlevel.checkpoint()
    program = _executable_of(here.pid) or str(Path(here.job_program).resolve())
    if here.job is None:
        return GuardedFolders(places=(), program=program)
    known = (("the program", Path(here.job_program)), ("--state-dir", here.folder), ("--model-store", here.store))
    places = [(what, folder) for what, path in known if (folder := guarded_folder(path, here.user.home)) is not None]
    log = agent_log(here.user.home)
    denied = places and _DENIED in last_lines(log, 0, _LOG_LINES)
    return GuardedFolders(places=tuple(places), program=program, denied=f"{log} says: {_DENIED}" if denied else "")


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


async def _says(program: str, *words: str) -> str:
    """Return what a program of macOS prints.

    Raises:
        OSError: It is not there.
    """
    path = shutil.which(Path(program).name, path=os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_PATH])) or program
    done = await trio.run_process([path, *words], check=False, capture_stdout=True, capture_stderr=True)
    text: str = (done.stdout + done.stderr).decode("utf-8", "replace")
    return text.strip()
