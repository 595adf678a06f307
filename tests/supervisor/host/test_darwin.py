import os
import struct
import sys

import pytest
import trio

from llmkube.supervisor.host.darwin import DarwinMemory, available, working_set_of, worse
from llmkube.supervisor.host.mach import (
    HOST_VM_INFO64_COUNT,
    Pages,
    decode_footprint,
    decode_integer,
    decode_level,
    decode_statistics,
    recommended_working_set,
)
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.host.sample import Level

GIB, PAGE = 1 << 30, 16384
PAGES_PER_GIB = GIB // PAGE

# The fields of vm_statistics64 in the order of osfmk/mach/vm_statistics.h, with their widths in bytes.
STATISTICS = [
    ("free_count", 4),
    ("active_count", 4),
    ("inactive_count", 4),
    ("wire_count", 4),
    ("zero_fill_count", 8),
    ("reactivations", 8),
    ("pageins", 8),
    ("pageouts", 8),
    ("faults", 8),
    ("cow_faults", 8),
    ("lookups", 8),
    ("hits", 8),
    ("purges", 8),
    ("purgeable_count", 4),
    ("speculative_count", 4),
    ("decompressions", 8),
    ("compressions", 8),
    ("swapins", 8),
    ("swapouts", 8),
    ("compressor_page_count", 4),
    ("throttled_count", 4),
    ("external_page_count", 4),
    ("internal_page_count", 4),
    ("total_uncompressed_pages_in_compressor", 8),
]

# The fields of rusage_info_v0 after its uuid, in the order of bsd/sys/resource.h; all are 64 bits wide.
RUSAGE = [
    "ri_user_time",
    "ri_system_time",
    "ri_pkg_idle_wkups",
    "ri_interrupt_wkups",
    "ri_pageins",
    "ri_wired_size",
    "ri_resident_size",
    "ri_phys_footprint",
    "ri_proc_start_abstime",
    "ri_proc_exit_abstime",
]


def statistics(**fields):
    """Lay out a struct as a C compiler does: each field at a multiple of its own width."""
    data = b""
    for name, width in STATISTICS:
        data += bytes(-len(data) % width)
        data += fields.get(name, 0).to_bytes(width, "little")
    return data + bytes(-len(data) % 8)


def rusage(**fields):
    return b"u" * 16 + b"".join(fields.get(name, 0).to_bytes(8, "little") for name in RUSAGE)


class FakeKernel:
    """A Mac with 128 GiB, of which programs use a little."""

    def __init__(self):
        self.sysctls = {
            "hw.pagesize": struct.pack("<q", 4096),  # as it is under Rosetta
            "hw.memsize": struct.pack("<Q", 128 * GIB),
            "kern.memorystatus_vm_pressure_level": struct.pack("<i", 1),
            "iogpu.wired_limit_mb": struct.pack("<i", 0),
        }
        self.gib = {"wire_count": 4, "internal_page_count": 10}
        self.counters = {}
        self.usages = {}
        self.working_set_bytes = None

    def working_set(self):
        if self.working_set_bytes is None:
            raise OSError("this machine has no Metal device")
        return self.working_set_bytes

    def level(self, number):
        self.sysctls["kern.memorystatus_vm_pressure_level"] = struct.pack("<i", number)

    def sysctl(self, name):
        if name not in self.sysctls:
            raise OSError(2, f"sysctl {name} cannot be read")
        return self.sysctls[name]

    def page_bytes(self):
        return PAGE

    def statistics(self):
        sizes = {name: int(size * PAGES_PER_GIB) for name, size in self.gib.items()}
        return statistics(**sizes, **self.counters)

    def usage(self, pid):
        if pid not in self.usages:
            raise OSError(3, "no such process")
        return self.usages[pid]


@pytest.fixture
def kernel():
    return FakeKernel()


def test_the_statistics_struct_has_no_holes():
    """What a compiler lays out is as long as the count that the kernel is told, in 32-bit words."""
    assert len(statistics()) == 4 * HOST_VM_INFO64_COUNT == sum(width for _, width in STATISTICS)


def test_statistics_are_decoded_by_name():
    """Every field that is used comes from its own place among narrow and wide ones."""
    numbered = {name: number + 1 for number, (name, _) in enumerate(STATISTICS)}
    assert decode_statistics(statistics(**numbered)) == Pages(
        wired=numbered["wire_count"],
        internal=numbered["internal_page_count"],
        purgeable=numbered["purgeable_count"],
        compressor=numbered["compressor_page_count"],
        swapped_out=numbered["swapouts"],
        compressed=numbered["compressions"],
    )


def test_a_longer_struct_is_read_like_the_old_one():
    """Later systems add fields at the end, which change nothing."""
    assert decode_statistics(statistics(wire_count=7) + b"\xff" * 96) == decode_statistics(statistics(wire_count=7))


def test_half_a_struct_is_an_error():
    """What the kernel did not fill in is not read."""
    with pytest.raises(ValueError, match="152 bytes, not 60"):
        decode_statistics(statistics()[:60])
    with pytest.raises(ValueError, match="96 bytes, not 95"):
        decode_footprint(rusage()[:95])


def test_the_footprint_is_not_the_resident_size():
    """Of the sizes that stand side by side, the physical footprint is taken."""
    assert decode_footprint(rusage(ri_wired_size=1, ri_resident_size=2, ri_phys_footprint=3 * GIB)) == 3 * GIB


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x04\x00\x00\x00", 4), (b"\xff\xff\xff\xff", -1), (struct.pack("<Q", 128 * GIB), 128 * GIB)],
)
def test_numbers_of_both_widths_are_read(data, number):
    """A sysctl may be an int or a 64-bit number."""
    assert decode_integer(data) == number


@pytest.mark.parametrize("data", [b"", b"\x01", b"123456789"])
def test_what_has_another_width_is_no_number(data):
    """Anything else than 4 or 8 bytes is an error."""
    with pytest.raises(ValueError, match="4 or 8 bytes"):
        decode_integer(data)


@pytest.mark.parametrize(
    ("number", "level"),
    [(1, Level.NORMAL), (2, Level.WARNING), (4, Level.CRITICAL), (0, Level.UNKNOWN), (3, Level.UNKNOWN)],
)
def test_the_kernels_level(number, level):
    """1, 2 and 4 are normal, warning and critical, and nothing else is a level."""
    assert decode_level(struct.pack("<i", number)) is level


def test_available_is_what_programs_do_not_use():
    """Neither purgeable pages (part of the programs') nor speculative ones (part of the free) count twice."""
    pages = Pages(wired=10, internal=40, purgeable=5, compressor=15, swapped_out=0, compressed=0)
    assert available(pages, 100, 100 * 100) == (100 - 40 + 5 - 10 - 15) * 100


@pytest.mark.parametrize(
    ("kernels", "ours", "level", "why"),
    [
        (Level.NORMAL, Level.NORMAL, Level.NORMAL, ""),
        (Level.WARNING, Level.NORMAL, Level.WARNING, "the kernel says warning"),
        (Level.CRITICAL, Level.WARNING, Level.CRITICAL, "the kernel says critical"),
        (Level.CRITICAL, Level.CRITICAL, Level.CRITICAL, "the kernel says critical"),
        (Level.NORMAL, Level.CRITICAL, Level.CRITICAL, "ours"),
        (Level.WARNING, Level.CRITICAL, Level.CRITICAL, "ours"),
        (Level.UNKNOWN, Level.CRITICAL, Level.UNKNOWN, "the kernel names a pressure level that is none"),
    ],
)
def test_the_worse_level_counts(kernels, ours, level, why):
    """Whoever sees more pressure is believed, and named; an unknown level stays unknown."""
    assert worse(kernels, ours, "" if ours is Level.NORMAL else "ours") == (level, why)


async def test_a_mac_is_sampled(kernel):
    """Total, available and level come from three calls; the default GPU limit is no limit."""
    sample = await DarwinMemory(kernel).sample()
    assert (sample.total_bytes, sample.available_bytes) == (128 * GIB, 114 * GIB)
    assert (sample.level, sample.device_limit_bytes, sample.why) == (Level.NORMAL, None, "")


async def test_the_kernel_is_the_trigger(kernel):
    """Its level counts although plenty is left."""
    kernel.level(4)
    assert (await DarwinMemory(kernel).sample()).level is Level.CRITICAL


@pytest.mark.parametrize(
    ("wired", "level"), [(119, Level.NORMAL), (121, Level.WARNING), (123.75, Level.WARNING), (124.5, Level.CRITICAL)]
)
async def test_too_much_wired_memory_is_pressure(kernel, wired, level):
    """A Mac that has wired nearly everything is short of memory, whatever its kernel says of compression."""
    kernel.gib = {"wire_count": wired}
    assert (await DarwinMemory(kernel).sample()).level is level


async def test_memory_that_programs_fill_is_no_pressure(kernel):
    """A Mac whose programs use nearly everything, little of it wired, is as well as its kernel says."""
    kernel.gib = {"wire_count": 8, "internal_page_count": 110, "compressor_page_count": 8}
    sample = await DarwinMemory(kernel).sample()
    assert (sample.available_bytes, sample.level) == (2 * GIB, Level.NORMAL)


async def test_limits_change_in_the_next_sample(kernel):
    """Somebody sets the GPU's limit, and lifts it again."""
    memory = DarwinMemory(kernel)
    kernel.sysctls["iogpu.wired_limit_mb"] = struct.pack("<i", 100_000)
    assert (await memory.sample()).device_limit_bytes == 100_000 << 20
    del kernel.sysctls["iogpu.wired_limit_mb"]
    sample = await memory.sample()
    assert (sample.device_limit_bytes, sample.level) == (None, Level.NORMAL)


@pytest.mark.parametrize(
    ("set_mib", "metal", "limit"),
    [(0, 107 * GIB, 107 * GIB), (114_688, 107 * GIB, 112 * GIB), (None, 107 * GIB, 107 * GIB), (0, None, None)],
)
def test_the_gpu_has_a_limit_also_when_nobody_has_set_one(kernel, set_mib, metal, limit):
    """What Metal recommends counts until somebody sets `iogpu.wired_limit_mb`; without Metal nobody knows."""
    del kernel.sysctls["iogpu.wired_limit_mb"]
    if set_mib is not None:
        kernel.sysctls["iogpu.wired_limit_mb"] = struct.pack("<i", set_mib)
    kernel.working_set_bytes = metal
    memory = DarwinMemory(kernel, working_set_bytes=working_set_of(kernel))
    assert memory.look(0.0).device_limit_bytes == limit


def test_a_machine_without_metal_says_so():
    """Where Apple's frameworks are missing the question is an error that is expected."""
    if sys.platform == "darwin":
        pytest.skip("this machine has Metal")
    with pytest.raises(OSError, match="CoreGraphics"):
        recommended_working_set()


async def test_swap_and_compressor_have_rates(kernel, autojump_clock):
    """Both counters of pages become bytes per second between two looks."""
    memory = DarwinMemory(kernel, Thresholds())
    kernel.counters = {"swapouts": 100, "compressions": 1000}
    first = await memory.sample()
    await trio.sleep(2)
    kernel.counters = {"swapouts": 300, "compressions": 5000}
    second = await memory.sample()
    assert (first.swap_out_bytes_per_second, first.compress_bytes_per_second) == (0.0, 0.0)
    assert (second.swap_out_bytes_per_second, second.compress_bytes_per_second) == (100.0 * PAGE, 2000.0 * PAGE)


@pytest.mark.parametrize("name", ["hw.memsize", "kern.memorystatus_vm_pressure_level"])
@pytest.mark.parametrize("data", [None, b"", b"\x00" * 3])
async def test_what_a_mac_does_not_say_is_unknown(kernel, name, data):
    """A sysctl that is gone or of another width makes the level UNKNOWN, and never an error."""
    if data is None:
        del kernel.sysctls[name]
    else:
        kernel.sysctls[name] = data
    assert (await DarwinMemory(kernel).sample()).level is Level.UNKNOWN


async def test_a_mac_that_refuses_its_statistics_is_unknown(kernel):
    """So does a struct that is too short."""
    kernel.statistics = lambda: b"\x00" * 60
    assert (await DarwinMemory(kernel).sample()).level is Level.UNKNOWN


async def test_footprints_of_a_mac(kernel):
    """The physical footprint of each process that may be looked at is told, and of no other."""
    kernel.usages = {os.getpid(): rusage(ri_phys_footprint=3 * GIB, ri_resident_size=GIB)}
    assert await DarwinMemory(kernel).footprint([os.getpid(), 2**22 + 1]) == {os.getpid(): 3 * GIB}
