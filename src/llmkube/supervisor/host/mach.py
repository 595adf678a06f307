"""macOS's memory statistics: raw bytes and their decoding. The decoders are pure; only `LibSystem` calls the system.

The layouts are those of Apple's open source kernel, xnu: osfmk/mach/vm_statistics.h, bsd/sys/resource.h and
bsd/sys/event.h. They are tested on hand-made bytes that follow these files, and on a C library that answers like the
releases of macOS; nothing here has run on a Mac yet.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

import attrs

from llmkube.supervisor.host.sample import Level

HOST_VM_INFO64: Final = 4
HOST_VM_INFO64_COUNT: Final = 38
"""The struct's size in 32-bit words before later systems extended it; they still fill in this much on request."""

MIG_ARRAY_TOO_LARGE: Final = -307
"""The answer of macOS 27 to a count below its own, instead of filling in that much (osfmk/mach/mig_errors.h; macmon
issue 66, psutil's fix fdb53fd77)."""

STATISTICS_WORDS: Final = 256
"""Buffer size, enough for any kernel: macOS 26 has 62 words. It is not requested at first, since macOS 26 would log an
error each time (oMLX issue 2983)."""

RUSAGE_INFO_V0: Final = 0

EVFILT_MEMORYSTATUS: Final = -14
NOTE_MEMORYSTATUS_PRESSURE_NORMAL: Final = 0x01
NOTE_MEMORYSTATUS_PRESSURE_WARN: Final = 0x02
NOTE_MEMORYSTATUS_PRESSURE_CRITICAL: Final = 0x04

# natural_t has 32 bits and comes in groups of even size between 64-bit counters, so that nothing is padded:
# 4 natural_t, 9 counters, 2 natural_t, 4 counters, 4 natural_t, 1 counter.
_STATISTICS: Final = struct.Struct("<4I9Q2I4Q4IQ")
# A uuid, then ten 64-bit numbers of which ri_phys_footprint is the eighth.
_RUSAGE: Final = struct.Struct("<16s10Q")

_FRAMEWORK: Final = "/System/Library/Frameworks/{0}.framework/{0}"

_LEVELS: Final = {1: Level.NORMAL, 2: Level.WARNING, 4: Level.CRITICAL}


@attrs.frozen
class Pages:
    """The pages of a Mac by use, and the numbers of pages ever swapped out or compressed.

    `internal` are those of programs, `purgeable` those of them that may be discarded. The rest of the total is free, or
    backed by a file and not wired.
    """

    wired: int
    internal: int
    purgeable: int
    compressor: int
    swapped_out: int
    compressed: int


def decode_integer(data: bytes) -> int:
    """Decode a sysctl's number of 4 or 8 bytes.

    Raises:
        ValueError: It has another size, and so is something else.
    """
    if len(data) not in {4, 8}:
        raise ValueError(f"a number has 4 or 8 bytes, not {len(data)}")
    return int.from_bytes(data, "little", signed=True)


def decode_level(data: bytes) -> Level:
    """Decode `kern.memorystatus_vm_pressure_level`; UNKNOWN for a number that is none of the three."""
    return _LEVELS.get(decode_integer(data), Level.UNKNOWN)


def decode_statistics(data: bytes) -> Pages:
    """Decode a `vm_statistics64`.

    Raises:
        ValueError: The kernel has filled in less than the struct.
    """
    if len(data) < _STATISTICS.size:
        raise ValueError(f"vm_statistics64 has {_STATISTICS.size} bytes, not {len(data)}")
    numbers = _STATISTICS.unpack_from(data)
    _free, _active, _inactive, wired = numbers[:4]
    purgeable, _speculative = numbers[13:15]
    _decompressed, compressed, _swapped_in, swapped_out = numbers[15:19]
    compressor, _throttled, _external, internal = numbers[19:23]
    return Pages(
        wired=wired,
        internal=internal,
        purgeable=purgeable,
        compressor=compressor,
        swapped_out=swapped_out,
        compressed=compressed,
    )


def decode_footprint(data: bytes) -> int:
    """Decode `ri_phys_footprint` in bytes: the memory that jetsam limits, with GPU memory and without clean file pages.

    Raises:
        ValueError: The data is shorter than the struct.
    """
    if len(data) < _RUSAGE.size:
        raise ValueError(f"rusage_info_v0 has {_RUSAGE.size} bytes, not {len(data)}")
    return int(_RUSAGE.unpack_from(data)[8])


def recommended_working_set(metal: "MetalFramework") -> int:
    """Return `recommendedMaxWorkingSetSize`: 107.5 GiB on a Mac with 128 GiB (measured by others, macOS 26).

    More than that fails with kIOGPUCommandBufferCallbackErrorOutOfMemory. In a daemon the default device is nil (candle
    issue 3449; macOS's log then says "use MTLCopyAllDevices"), but the list of all devices has it.

    Raises:
        OSError: There is no device.
    """
    device = metal.default_device()
    devices = [device] if device else metal.all_devices()
    if not devices:
        raise OSError("Metal shows no device, neither a default one nor in the list of all devices")
    return max(metal.working_set(each) for each in devices)


class MetalFramework:
    """Metal through the Objective-C runtime.

    Raises:
        OSError: This machine has no Metal.
    """

    def __init__(self) -> None:
        # Without CoreGraphics a command line program has no default device (Apple's documentation).
        ctypes.CDLL(_FRAMEWORK.format("CoreGraphics"))
        self._metal, self._runtime = ctypes.CDLL(_FRAMEWORK.format("Metal")), ctypes.CDLL("/usr/lib/libobjc.A.dylib")
        for function in (self._metal.MTLCreateSystemDefaultDevice, self._metal.MTLCopyAllDevices):
            function.restype, function.argtypes = ctypes.c_void_p, []
        self._runtime.sel_registerName.restype = ctypes.c_void_p
        self._runtime.sel_registerName.argtypes = [ctypes.c_char_p]

    def default_device(self) -> int | None:
        """Call `MTLCreateSystemDefaultDevice`; it is None (nil) in daemons, and in programs under ssh and tmux."""
        device: int | None = self._metal.MTLCreateSystemDefaultDevice()
        return device

    def all_devices(self) -> Sequence[int]:
        """Call `MTLCopyAllDevices`, which needs no user session."""
        array = self._metal.MTLCopyAllDevices()
        if not array:
            return ()
        count = self._message(ctypes.c_uint64)(array, self._name(b"count"))
        at = self._message(ctypes.c_void_p, ctypes.c_uint64)
        found = [at(array, self._name(b"objectAtIndex:"), index) for index in range(count)]
        return [each for each in found if each]

    def working_set(self, device: int) -> int:
        """Return a device's `recommendedMaxWorkingSetSize`, in bytes."""
        return int(self._message(ctypes.c_uint64)(device, self._name(b"recommendedMaxWorkingSetSize")))

    def _name(self, name: bytes) -> int:
        return int(self._runtime.sel_registerName(name))

    def _message(self, result: Any, *arguments: Any) -> Any:
        """Return `objc_msgSend` with a method's signature: on arm64 it must be called with the method's own."""
        form = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p, *arguments)
        return form(("objc_msgSend", self._runtime))


@attrs.define(eq=False)
class LibSystem:
    """The kernel of this Mac, through the C library of this process."""

    _library: Any = attrs.field(factory=lambda: ctypes.CDLL(None, use_errno=True))
    _host: int = attrs.field(init=False)
    _count: int = attrs.field(default=HOST_VM_INFO64_COUNT, init=False)  # what this kernel takes

    def __attrs_post_init__(self) -> None:
        # Each call creates a new send right to the host port, so it is called once.
        self._host = self._library.mach_host_self()

    def sysctl(self, name: str) -> bytes:
        """Return a raw value of `sysctlbyname`; raises `OSError` if there is no such name."""
        buffer, size = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
        if self._library.sysctlbyname(name.encode("ascii"), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)):
            raise OSError(ctypes.get_errno(), f"sysctl {name} cannot be read")
        return buffer.raw[: size.value]

    def statistics(self) -> bytes:
        """Call `host_statistics64`; if it requires a larger count, repeat with that one, and remember it."""
        code, count, data = self._statistics(self._count)
        if code == MIG_ARRAY_TOO_LARGE and self._count < count <= STATISTICS_WORDS:
            self._count = count
            code, count, data = self._statistics(count)
        if code:
            raise OSError(f"host_statistics64 returned {code} with count {count}")
        return data[: 4 * count]

    def _statistics(self, words: int) -> tuple[int, int, bytes]:
        buffer, count = ctypes.create_string_buffer(4 * STATISTICS_WORDS), ctypes.c_uint32(words)
        code: int = self._library.host_statistics64(self._host, HOST_VM_INFO64, buffer, ctypes.byref(count))
        return code, count.value, buffer.raw

    def page_bytes(self) -> int:
        """Return `vm_kernel_page_size`, as vm_stat does: for an Intel Python under Rosetta, `hw.pagesize` is 4096."""
        return ctypes.c_size_t.in_dll(self._library, "vm_kernel_page_size").value

    def usage(self, pid: int) -> bytes:
        """Return the `rusage_info_v0` of a process.

        Raises:
            OSError: There is no such process, or it belongs to another user.
        """
        buffer = ctypes.create_string_buffer(_RUSAGE.size)
        if self._library.proc_pid_rusage(pid, RUSAGE_INFO_V0, buffer):
            raise OSError(ctypes.get_errno(), f"the memory of process {pid} cannot be read")
        return buffer.raw

    def working_set(self) -> int:
        """Return the limit of the GPU in bytes while none is set; may block for a tenth of a second.

        Raises:
            OSError: This machine has no Metal, or Metal shows this process no device.
        """
        return recommended_working_set(MetalFramework())
