"""What facts of the machine mean. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.machine_facts import (
    Disk,
    FileVault,
    Firewall,
    GpuLimit,
    GuardedFolders,
    LinuxPower,
    MacPower,
    Memory,
    System,
)

MIB: Final = 1 << 20
GIB: Final = 1 << 30

DISK_FAILS_BYTES: Final = 1 * GIB
DISK_WARNS_BYTES: Final = 10 * GIB
"""A model of 8 billion weights in 4 bits takes half of that; logs, journal and a download beside it want some."""

SYSTEMS_SHARE: Final = 0.05
"""What the GPU's limit has to leave to macOS, which else stops answering; of 16 GiB that is what it takes at rest."""

FIREWALL: Final = "/usr/libexec/ApplicationFirewall/socketfilterfw"


def system(fact: System) -> Iterator[Finding]:
    """A Mac with Apple's chip and a Python for it, or Linux."""
    name, seen = "system", f"{fact.system} {fact.release}, {fact.machine}"
    programs = f"LLMKube {fact.llmkube}, Python {fact.python}"
    if fact.mac and fact.translated:
        yield failed(
            name,
            f"{seen}; Python {fact.python} is one for Intel",
            why="macOS translates it, and its engines: they reach no GPU",
            fix="install a Python for Apple silicon (/opt/homebrew/bin/python3), and LLMKube with that",
        )
    elif fact.mac and not fact.apple_silicon:
        verdict = failed if fact.wants_metal else warned
        yield verdict(
            name,
            f"{seen}: a Mac with an Intel processor",
            why="engines run on its processor alone: llama.cpp's Metal wants Apple's own chip",
            fix="`llmkube agent install --accelerator cpu`" if fact.wants_metal else "nothing, if that is fast enough",
        )
    elif fact.mac and _release(fact.release) < (13, 3):
        yield failed(
            name,
            f"{seen}; {programs}",
            why="the bundled engine needs macOS 13.3",
            fix="update macOS, or name an engine of your own: --llama-server PATH",
        )
    else:
        yield passed(name, f"{seen}; {programs}")


def memory(fact: Memory) -> Iterator[Finding]:
    """Engines may take what the host has, less what the system and other programs need."""
    name, budget = "memory", fact.budget
    most = int(budget.total_bytes * (1 - fact.critical_share))
    said = f"models may take {budget}"
    above = {model: size for model, size in fact.promised.items() if size > budget.total_bytes}
    if budget.limit_bytes > most:
        yield failed(
            name,
            said,
            why=f"above {format_bytes(most)} memory is critically short, and engines are ended for it",
            fix="set a smaller memory_fraction in config.toml (0 goes by this host's size), and restart",
        )
    elif above:
        model, size = max(above.items(), key=lambda item: item[1])
        yield failed(
            name,
            f"Model {model} has a memoryBudget of {format_bytes(size)}; this host has "
            f"{format_bytes(budget.total_bytes)}",
            why="what is promised above the host's memory is not there",
            fix=f"set spec.hardware.memoryBudget of {model} to {format_bytes(budget.limit_bytes)} or less",
        )
    elif fact.shortage:
        yield warned(
            name,
            f"{said}; {format_bytes(fact.available_bytes)} are available now",
            why=f"no engine is started while memory is short: {fact.shortage}",
            fix="end other programs; `llmkube ps` shows what engines take",
        )
    else:
        yield passed(name, f"{said}; {format_bytes(fact.available_bytes)} are available now")


def gpu_limit(fact: GpuLimit) -> Iterator[Finding]:
    """The GPU holds what models may take, and leaves the system enough."""
    name = "GPU limit"
    wanted = f"`sudo sysctl iogpu.wired_limit_mb={fact.budget_bytes // MIB}`"
    if fact.limit_bytes is None:
        yield passed(name, "none is known")
        return
    said = f"{format_bytes(fact.limit_bytes)} of {format_bytes(fact.total_bytes)} by {fact.source}"
    if fact.limit_bytes > fact.total_bytes * (1 - SYSTEMS_SHARE):
        yield failed(
            name,
            said,
            why="macOS is left with too little: it stops answering when a model fills that",
            fix=f"{wanted}, or 0 for its own limit; it lasts until the next start",
        )
    elif fact.guessed:
        yield warned(
            name,
            said,
            why="Metal tells its limit to no program of this session (ssh, tmux), so the share is a cautious one",
            fix=f"look in a terminal of the login, or set it: {wanted}; it lasts until the next start",
        )
    elif fact.limit_bytes < fact.budget_bytes:
        yield warned(
            name,
            said,
            why=f"models may take {format_bytes(fact.budget_bytes)} together, and one on the GPU not all of it",
            fix=f"{wanted}; it lasts until the next start",
        )
    else:
        yield passed(name, said)


def disk(fact: Disk) -> Iterator[Finding]:
    """There is room for a model where models are kept."""
    name, said = "disk", f"{format_bytes(fact.free_bytes)} free in {fact.folder}"
    fix = "`llmkube cache prune`, or another folder: --model-store"
    if fact.free_bytes < DISK_FAILS_BYTES:
        yield failed(name, said, why="there is no room for a model, and soon none for logs and the journal", fix=fix)
    elif fact.free_bytes < DISK_WARNS_BYTES:
        yield warned(name, said, why="the next model may not fit", fix=fix)
    else:
        yield passed(name, said)


def mac_power(fact: MacPower) -> Iterator[Finding]:
    """A Mac that serves others does not sleep, and comes back after a power cut."""
    if fact.sleep_minutes and not fact.kept_awake:
        yield warned(
            "sleep",
            f"this Mac falls asleep after {fact.sleep_minutes} min",
            why="asleep it answers no request, and its host is taken for dead",
            fix="`sudo pmset -a sleep 0`, or only while engines run: `llmkube agent install --keep-awake`",
        )
    elif fact.sleep_minutes is None:
        yield warned(
            "sleep",
            "pmset does not say when this Mac sleeps",
            why="asleep it answers no request",
            fix="`pmset -g` shows it",
        )
    else:
        never = "it never sleeps" if not fact.sleep_minutes else "it does not sleep while an engine runs"
        yield passed("sleep", never)
    if fact.on_battery:
        yield warned(
            "power",
            "this Mac runs on its battery",
            why="with a closed lid it sleeps whatever the settings say, and it computes slower",
            fix="connect it to mains",
        )
    elif fact.low_power:
        yield warned(
            "power", "low power mode is on", why="engines compute slower", fix="`sudo pmset -a lowpowermode 0`"
        )
    elif fact.restarts is False:
        yield warned(
            "power",
            "it stays off after a power cut",
            why="no model is served until a person presses its button",
            fix="`sudo pmset -a autorestart 1`",
        )
    else:
        yield passed("power", "on mains; it starts when power is back" if fact.restarts else "on mains")


def linux_power(fact: LinuxPower) -> Iterator[Finding]:
    """A machine with a battery is on mains."""
    if fact.plugged is False:
        yield warned("power", "on battery", why="it sleeps sooner, and computes slower", fix="connect it to mains")
    else:
        yield passed("power", "on mains" if fact.plugged else "no battery")


def file_vault(fact: FileVault) -> Iterator[Finding]:
    """After a start nothing runs on an encrypted Mac until a user has typed the password."""
    if fact.on:
        yield warned(
            "FileVault",
            "it is on",
            why="after a power cut or an update nothing runs, not even a daemon, until a person types the password",
            fix="for a planned restart: `sudo fdesetup authrestart`; to need no password: `sudo fdesetup disable`",
        )
    else:
        yield passed("FileVault", "it is off: this Mac starts by itself")


def firewall(fact: Firewall) -> Iterator[Finding]:
    """The application firewall lets pods reach engines."""
    name, allow = "firewall", f'`sudo {FIREWALL} --add "{fact.program}" --unblockapp "{fact.program}"`'
    if not fact.on:
        yield passed(name, "macOS's application firewall is off")
    elif fact.blocks_all:
        yield failed(
            name,
            "it blocks all incoming connections",
            why="no pod reaches an engine of this Mac",
            fix=f"`sudo {FIREWALL} --setblockall off`",
        )
    elif fact.permitted is False:
        yield failed(
            name, f"it keeps connections from {fact.program}", why="no pod reaches an engine of this Mac", fix=allow
        )
    elif fact.permitted is None:
        yield warned(
            name,
            f"it is on, and has no rule for {fact.program}",
            why="macOS asks on the screen when the first client comes; a daemon cannot show the question",
            fix=allow,
        )
    else:
        yield passed(name, f"it is on, and lets {fact.program} in")


def guarded_folders(fact: GuardedFolders) -> Iterator[Finding]:
    """Nothing that a job of launchd reads is in a folder that macOS keeps from it."""
    name = "Full Disk Access"
    if not fact.places:
        yield passed(name, "not needed: nothing of ours is in a folder that macOS guards")
        return
    places = ", ".join(f"{what} in {folder}" for what, folder in fact.places)
    verdict = failed if fact.denied else warned
    yield verdict(
        name,
        fact.denied or places,
        why="macOS keeps these folders from jobs of launchd, although a terminal may read them"
        + (f": {places}" if fact.denied else ""),
        fix=f"System Settings, Privacy & Security, Full Disk Access: add {fact.program}; or move it",
    )


def _release(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
