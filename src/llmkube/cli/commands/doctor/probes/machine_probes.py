"""Looks at the machine, on any system."""

import platform

import psutil
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.doctor.machine_facts import Disk, LinuxPower, Memory, System
from llmkube.programs.host.memory_options import memory_settings
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host.this_machine import sample_here
from llmkube.supervisor.memory.budget import host_budget, own_cap
from llmkube.weights.store.disk import free_bytes


async def linux_system() -> System:
    """Look at what is not a Mac."""
    await trio.lowlevel.checkpoint()
    return System(
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        llmkube=__version__,
    )


async def memory(here: Installation) -> Memory:
    """Look at the memory, and at what models of this host were promised."""
    sample = await trio.to_thread.run_sync(sample_here, abandon_on_cancel=True)
    settings = memory_settings(here.config)
    entries = await trio.to_thread.run_sync(here.journal, abandon_on_cancel=True)
    promised = {}
    for entry in entries.values():
        model = entry.wish.model
        try:
            cap = own_cap(model.spec.hardware, sample.total_bytes)
        except UserError:  # its service says so itself
            continue
        if cap is not None:
            promised[str(model.key)] = cap.limit_bytes
    return Memory(
        budget=host_budget(sample.total_bytes, settings["memory_fraction"], sample.device_limit_bytes),
        available_bytes=sample.available_bytes,
        critical_share=settings["memory_policy"].thresholds.critical_share,
        shortage="" if sample.level is Level.NORMAL else sample.why or sample.level.name.lower(),
        promised=promised,
    )


async def disk(here: Installation) -> Disk:
    """Look at the disk of the store, or of the folder in which it will be made."""
    folder = here.store
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return Disk(folder, await trio.to_thread.run_sync(free_bytes, folder, abandon_on_cancel=True))


async def linux_power() -> LinuxPower:
    """Look for a battery."""
    await trio.lowlevel.checkpoint()
    battery = psutil.sensors_battery()
    return LinuxPower(battery.power_plugged if battery is not None else None)
