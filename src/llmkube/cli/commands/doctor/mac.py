"""Checks of a Mac, by its kernel and the configuration programs of macOS.

The formats of their output are from third parties' records (docs/guides/doctor.md states what was verified
where). Output that cannot be parsed is reported as unknown, never as a pass.
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
"""Share of the memory that the GPU limit has to leave to macOS; of 16 GiB, it is what an idle macOS takes."""

FIREWALL: Final = "/usr/libexec/ApplicationFirewall/socketfilterfw"
REPORTS: Final = Path("/Library/Logs/DiagnosticReports")
RECENT_SECONDS: Final = 7 * 86_400.0
"""Age limit of reports: an older one says little about the current settings."""

_REPORT_BYTES: Final = 8 << 20
_LOG_LINES: Final = 50
_DENIED: Final = "Operation not permitted"


class NotUnderstoodError(ValueError):
    """The output of a program of macOS has an unknown format."""


async def check_system(here: Installation) -> Finding:
    """Check the system by the kernel's variables: an Intel Python under Rosetta gets "Intel" from `platform`."""
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


async def check_gpu_limit(here: Installation) -> Finding:
    """Check the GPU's memory limit, by the kernel and Metal; a hanging driver is abandoned."""
    kernel = LibSystem()
    total_bytes = decode_integer(kernel.sysctl("hw.memsize"))
    limit = await trio.to_thread.run_sync(gpu_limit_of, kernel, total_bytes, abandon_on_cancel=True)
    budget = host_budget(total_bytes, memory_settings(here.config)["memory_fraction"])
    return assess_gpu_limit(total_bytes, limit, budget.limit_bytes)


def assess_gpu_limit(total_bytes: int, limit: GpuLimit, budget_bytes: int) -> Finding:
    """Check that the GPU limit covers `budget_bytes`, the budget of models, and leaves enough for the system. Pure."""
    wanted = f"`sudo sysctl iogpu.wired_limit_mb={budget_bytes // MIB}`"
    if limit.limit_bytes is None:
        return passed("no limit is known")
    limit_text = f"{format_bytes(limit.limit_bytes)} of {format_bytes(total_bytes)} by {limit.source}"
    if limit.limit_bytes > total_bytes * (1 - SYSTEM_SHARE):
        return failed(
            limit_text,
            why="too little is left for macOS: it hangs when a model reaches the limit",
            fix=f"{wanted}, or 0 for the default of macOS; it lasts until the next reboot",
        )
    if limit.guessed:
        return warned(
            limit_text,
            why="Metal does not report its limit in this session (ssh, tmux): a cautious estimate is used",
            fix=f"check in a terminal of the desktop, or set it: {wanted}; it lasts until the next reboot",
        )
    if limit.limit_bytes < budget_bytes:
        return warned(
            limit_text,
            why=f"models may use {format_bytes(budget_bytes)} in total, but the GPU's limit is lower",
            fix=f"{wanted}; it lasts until the next reboot",
        )
    return passed(limit_text)


async def check_power(here: Installation) -> tuple[Finding, Finding]:
    """Check sleep and power with pmset."""
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
    """Check that the Mac does not sleep while it serves. Pure.

    Args:
        minutes: Idle time until it sleeps; 0 means never, None unknown.
        kept_awake: Whether the agent keeps it awake while an engine runs.
    """
    if minutes is None:
        return warned("pmset does not show when this Mac sleeps", why="asleep, it is unavailable", fix="run `pmset -g`")
    if minutes and not kept_awake:
        return warned(
            f"this Mac sleeps after {minutes} min",
            why="asleep, it answers no request and its host lease expires",
            fix="`sudo pmset -a sleep 0`, or only while engines run: `llmkube agent install --keep-awake`",
        )
    return passed("it does not sleep while an engine runs" if minutes else "it never sleeps")


def assess_power(*, on_battery: bool, low_power: bool, restarts: int | None) -> Finding:
    """Check that the Mac is on mains power and restarts after a power cut; `restarts` may be unknown. Pure."""
    if on_battery:
        return warned(
            "this Mac runs on battery",
            why="with a closed lid it sleeps regardless of the settings, and it computes more slowly",
            fix="connect it to mains power",
            name="power",
        )
    if low_power:
        return warned(
            "low power mode is on", why="engines are slower", fix="`sudo pmset -a lowpowermode 0`", name="power"
        )
    if restarts == 0:
        return warned(
            "it stays off after a power cut",
            why="no model is served until someone presses the power button",
            fix="`sudo pmset -a autorestart 1`",
            name="power",
        )
    return passed("on mains power; it restarts after a power cut" if restarts else "on mains power", name="power")


async def check_file_vault() -> Finding:
    """Check FileVault with fdesetup: an encrypted Mac runs nothing after a restart until a user enters the password."""
    text = await _output_of("fdesetup", "status")
    found = re.search(r"FileVault is (On|Off)", text)
    if found is None:
        raise NotUnderstoodError(f"the output of fdesetup is not understood: {text[:100]!r}")
    if found[1] == "Off":
        return passed("off: this Mac restarts unattended")
    return warned(
        "on",
        why="after a power cut or an update nothing runs, not even a daemon, until someone enters the password",
        fix="for a planned restart: `sudo fdesetup authrestart`; to need no password: `sudo fdesetup disable`",
    )


async def check_firewall(here: Installation) -> Finding:
    """Check the firewall with socketfilterfw, for the agent's program: it accepts the connections to engines."""
    program = str(Path(here.job_program).resolve())
    state = await _output_of(FIREWALL, "--getglobalstate")
    found = re.search(r"State = ([012])", state)
    if found is None:
        raise NotUnderstoodError(f"the output of socketfilterfw is not understood: {state[:100]!r}")
    if found[1] == "0":
        return passed("macOS's application firewall is off")
    everything = await _output_of(FIREWALL, "--getblockall")
    rule = (await _output_of(FIREWALL, "--getappblocked", program)).lower()
    permitted = False if "is blocked" in rule else True if "permitted" in rule else None
    blocks_all = found[1] == "2" or bool(re.search(r"enabled", everything, re.IGNORECASE))
    return assess_firewall(program, permitted, blocks_all=blocks_all)


def assess_firewall(program: str, permitted: bool | None, *, blocks_all: bool) -> Finding:
    """Check that the application firewall, which is on, allows connections to engines. Pure.

    Args:
        program: Program that accepts the connections.
        permitted: Whether the firewall allows them; None if it has no rule for the program.
        blocks_all: Whether it blocks all incoming connections.
    """
    allow = f'`sudo {FIREWALL} --add "{program}" --unblockapp "{program}"`'
    if blocks_all:
        return failed(
            "it blocks all incoming connections",
            why="no pod can reach an engine on this Mac",
            fix=f"`sudo {FIREWALL} --setblockall off`",
        )
    if permitted is False:
        return failed(f"it blocks connections to {program}", why="no pod can reach an engine on this Mac", fix=allow)
    if permitted is None:
        return warned(
            f"it is on and has no rule for {program}",
            why="macOS shows a prompt at the first connection; a daemon cannot show it",
            fix=allow,
        )
    return passed(f"it is on and allows connections to {program}")


async def check_guarded_folders(here: Installation) -> Finding:
    """Check whether files of the job are in guarded folders, and whether its log shows that macOS denied access."""
    await trio.lowlevel.checkpoint()
    known = (("the program", Path(here.job_program)), ("--state-dir", here.folder), ("--model-store", here.store))
    locations = [
        f"{label} in {folder}"
        for label, path in known
        if here.job is not None and (folder := guarded_folder(path, here.user.home)) is not None
    ]
    log = agent_log(here.user.home)
    denied = bool(locations) and _DENIED in last_lines(log, 0, _LOG_LINES)
    program = _executable_of(here.pid) or str(Path(here.job_program).resolve())
    return assess_guarded_folders(locations, program, f"{log} has: {_DENIED}" if denied else "")


def assess_guarded_folders(locations: Sequence[str], program: str, denied: str = "") -> Finding:
    """Check that no file of a launchd job is in a folder that macOS guards. Pure.

    Args:
        locations: Files in such folders: `--model-store in /Users/ada/Documents`.
        program: Program that needs Full Disk Access for them.
        denied: Evidence in the job's log that access was denied; empty without it.
    """
    if not locations:
        return passed("not needed: no file of LLMKube is in a folder that macOS guards")
    verdict, where = failed if denied else warned, ", ".join(locations)
    return verdict(
        denied or where,
        why="macOS does not let launchd jobs read these folders, although a terminal may"
        + (f": {where}" if denied else ""),
        fix=f"System Settings, Privacy & Security, Full Disk Access: add {program}; or move the files",
    )


def newest_jetsam(now: float, folder: Path = REPORTS) -> tuple[str, str]:
    """Return the name and the largest process of the newest recent JetsamEvent report of macOS.

    macOS writes one when it kills programs because memory is short. Both are "" without a report; the process is "" if
    the report cannot be read. Blocks.

    Args:
        now: The time in seconds since 1970.
        folder: Folder of the reports.
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
    """Return the executable of a process: of a framework's Python, it is the one in Python.app."""
    try:
        return psutil.Process(pid).exe() if pid is not None else ""
    except psutil.Error:
        return ""


async def _output_of(program: str, *words: str) -> str:
    """Run a program of macOS and return its output.

    Raises:
        OSError: The program cannot be run.
    """
    path = shutil.which(Path(program).name, path=os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_PATH])) or program
    done = await trio.run_process([path, *words], check=False, capture_stdout=True, capture_stderr=True)
    text: str = (done.stdout + done.stderr).decode("utf-8", "replace")
    return text.strip()
