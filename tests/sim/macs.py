"""Simulated Macs: the agent reads their memory from a C library with xnu's structs, release by release."""

import ctypes
import functools
import tempfile
from functools import partial
from pathlib import Path

import attrs

from llmkube.supervisor.host.darwin import DarwinMemory
from llmkube.supervisor.host.sample import Level
from mac.macs import Mac, compiled
from sim.mac_exit import MacExit
from sim.machine import Machine
from sim.memory import GIB, SimMemory

METAL_GIB = 48.0
"""Metal's recommended limit of GPU memory on a Mac of 64 GiB."""

KERNELS_LEVELS = {Level.NORMAL: 1, Level.WARNING: 2, Level.CRITICAL: 4}


@functools.cache
def library():
    """The C library, compiled once for each process."""
    return compiled(Path(tempfile.mkdtemp(prefix="llmkube-mac-")))


@attrs.define(eq=False, kw_only=True)
class MacMemory(SimMemory):
    """The memory of a Mac.

    Attributes:
        release: Release of macOS.
        refuses: Whether its kernel refuses all calls about memory.
        darwin: The agent's reader of the kernel's values.
    """

    release: int = 27
    refuses: bool = False
    mac: Mac = attrs.field(init=False)
    darwin: DarwinMemory = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.mac = Mac.of(library(), self.release)
        self.darwin = DarwinMemory(self.mac.kernel(), working_set_bytes=int(METAL_GIB * GIB))

    async def sample(self):
        await super().sample()  # records the lowest free memory, which no kernel reports
        self.mac.library.set_release(self.release)  # all Macs of one process share the library
        numbers = {
            "memory_bytes": int(self.total * GIB),
            "wired_bytes": 3 * GIB + self.engines_bytes,
            "internal_bytes": int((self.other - 3) * GIB),
        }
        self.mac.set(ctypes.c_uint64, **numbers)
        self.mac.set(ctypes.c_int, refuses=int(self.refuses), level=KERNELS_LEVELS.get(self.level, 1))
        return await self.darwin.sample()


def mac_of(release, shapes, machine: Machine):
    """Make a machine a Mac, and return its memory."""
    machine.shapes.update(shapes)
    memory = MacMemory(machine, release=release)
    machine.mac_exit = partial(MacExit, machine.nursery)
    return memory


def is_mac(machine):
    """Return whether a machine is a Mac."""
    return isinstance(machine.memory, MacMemory)
