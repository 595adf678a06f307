"""Looks at the machine, on any system; what that means is decided by pure functions beside."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.programs.host_settings import memory_settings
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host.this_machine import sample_here
from llmkube.supervisor.memory.budget import Budget, host_budget, own_cap
from llmkube.weights.store.disk import free_bytes

GIB: Final = 1 << 30

DISK_FAILS_BYTES: Final = 1 * GIB
DISK_WARNS_BYTES: Final = 10 * GIB
"""A model of 8 billion weights in 4 bits takes half of that; logs, journal and a download beside it want some."""


async def linux_system() -> Finding:
    """Look at what is not a Mac."""
    await trio.lowlevel.checkpoint()
    return assess_system(platform.system(), platform.release(), platform.machine())


def assess_system(
    system: str,
    release: str,
    machine: str,
    *,
    python: str = platform.python_version(),
    mac: bool = False,
    apple_silicon: bool = False,
    translated: bool = False,
    wants_metal: bool = False,
) -> Finding:
    """A Mac with Apple's chip and a Python for it, or Linux. Pure.

    Args:
        system: `macOS` or `Linux`.
        release: Its version.
        machine: Of the processor, as the kernel says.
        python: Python's version.
        mac: Whether it is a Mac.
        apple_silicon: Whether it is one with Apple's own chip.
        translated: Whether this Python is one for Intel, which macOS translates.
        wants_metal: Whether the settings have it serve Models for Metal, and none for its processor.
    """
    platform_text = f"{system} {release}, {machine}"
    programs = f"LLMKube {__version__}, Python {python}"
    if mac and translated:
        return failed(
            f"{platform_text}; Python {python} is one for Intel",
            why="macOS translates it, and its engines: they reach no GPU",
            fix="install a Python for Apple silicon (/opt/homebrew/bin/python3), and LLMKube with that",
        )
    if mac and not apple_silicon:
        verdict = failed if wants_metal else warned
        return verdict(
            f"{platform_text}: a Mac with an Intel processor",
            why="engines run on its processor alone: llama.cpp's Metal wants Apple's own chip",
            fix="`llmkube agent install --accelerator cpu`" if wants_metal else "nothing, if that is fast enough",
        )
    if mac and tuple(map(int, re.findall(r"\d+", release)[:2])) < (13, 3):
        return failed(
            f"{platform_text}; {programs}",
            why="the bundled engine needs macOS 13.3",
            fix="update macOS, or name an engine of your own: --llama-server PATH",
        )
    return passed(f"{platform_text}; {programs}")


async def memory(here: Installation) -> Finding:
    """Look at the memory, and at what models of this host were promised."""
    sample = await trio.to_thread.run_sync(sample_here, abandon_on_cancel=True)
    settings = memory_settings(here.config)
    entries = await trio.to_thread.run_sync(here.journal, abandon_on_cancel=True)
    promised = {}
    for entry in entries.values():
        model = entry.desired.model
        try:
            cap = own_cap(model.spec.hardware, sample.total_bytes)
        except UserError:  # its service says so itself
            continue
        if cap is not None:
            promised[str(model.key)] = cap.limit_bytes
    return assess_memory(
        budget=host_budget(sample.total_bytes, settings["memory_fraction"], sample.device_limit_bytes),
        available_bytes=sample.available_bytes,
        critical_share=settings["memory_policy"].thresholds.critical_share,
        shortage="" if sample.level is Level.NORMAL else sample.why or sample.level.name.lower(),
        promised=promised,
    )


def assess_memory(
    *, budget: Budget, available_bytes: int, critical_share: float, shortage: str, promised: Mapping[str, int]
) -> Finding:
    """Engines may take what the host has, less what the system and other programs need. Pure.

    Args:
        budget: By the settings.
        available_bytes: What programs could take now.
        critical_share: Of the memory; below it memory is critically short.
        shortage: What makes memory short now; empty when it is not.
        promised: The largest `memoryBudget` of a Model that this host has run, in bytes by its name.
    """
    most = int(budget.total_bytes * (1 - critical_share))
    message = f"models may take {budget}"
    available = f"{message}; {format_bytes(available_bytes)} are available now"
    above = {model: size for model, size in promised.items() if size > budget.total_bytes}
    if budget.limit_bytes > most:
        return failed(
            message,
            why=f"above {format_bytes(most)} memory is critically short, and engines are ended for it",
            fix="set a smaller memory_fraction in config.toml (0 goes by this host's size), and restart",
        )
    if above:
        model, size = max(above.items(), key=lambda item: item[1])
        return failed(
            f"Model {model} has a memoryBudget of {format_bytes(size)}; this host has "
            f"{format_bytes(budget.total_bytes)}",
            why="what is promised above the host's memory is not there",
            fix=f"set spec.hardware.memoryBudget of {model} to {format_bytes(budget.limit_bytes)} or less",
        )
    if shortage:
        return warned(
            available,
            why=f"no engine is started while memory is short: {shortage}",
            fix="end other programs; `llmkube ps` shows what engines take",
        )
    return passed(available)


async def disk(here: Installation) -> Finding:
    """Look at the disk of the store, or of the folder in which it will be made."""
    folder = here.store
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return assess_disk(folder, await trio.to_thread.run_sync(free_bytes, folder, abandon_on_cancel=True))


def assess_disk(folder: Path, free: int) -> Finding:
    """There is room for a model where models are kept; `free` is in bytes. Pure."""
    message = f"{format_bytes(free)} free in {folder}"
    fix = "`llmkube cache prune`, or another folder: --model-store"
    if free < DISK_FAILS_BYTES:
        return failed(message, why="there is no room for a model, and soon none for logs and the journal", fix=fix)
    if free < DISK_WARNS_BYTES:
        return warned(message, why="the next model may not fit", fix=fix)
    return passed(message)


async def linux_power() -> Finding:
    """Look for a battery."""
    await trio.lowlevel.checkpoint()
    battery = psutil.sensors_battery()
    return assess_linux_power(battery.power_plugged if battery is not None else None)


def assess_linux_power(plugged: bool | None) -> Finding:
    """A machine with a battery is on mains; without one `plugged` is None. Pure."""
    if plugged is False:
        return warned("on battery", why="it sleeps sooner, and computes slower", fix="connect it to mains")
    return passed("on mains" if plugged else "no battery")
