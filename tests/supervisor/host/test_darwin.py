import os
import struct
import sys

import pytest
import trio

from llmkube.supervisor.host.darwin import CAUTIOUS_SHARE, GUESS, DarwinMemory, available, working_set_of, worse
from llmkube.supervisor.host.mach import MetalFramework, Pages, recommended_working_set
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.host.sample import Level
from supervisor.host.darwin_structs import GIB, PAGE, rusage, statistics

PAGES_PER_GIB = GIB // PAGE


class FakeKernel:
    """A Mac with 128 GiB that is mostly free."""

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


def test_available_memory_is_not_used_by_programs():
    """Neither purgeable pages (part of the programs') nor speculative ones (part of the free) are included twice."""
    pages = Pages(wired=10, internal=40, purgeable=5, compressor=15, swapped_out=0, compressed=0)
    assert available(pages, 100, 100 * 100) == (100 - 40 + 5 - 10 - 15) * 100


@pytest.mark.parametrize(
    ("kernels", "ours", "level", "why"),
    [
        (Level.NORMAL, Level.NORMAL, Level.NORMAL, ""),
        (Level.WARNING, Level.NORMAL, Level.WARNING, "the kernel reports memory pressure: warning"),
        (Level.CRITICAL, Level.WARNING, Level.CRITICAL, "the kernel reports memory pressure: critical"),
        (Level.CRITICAL, Level.CRITICAL, Level.CRITICAL, "the kernel reports memory pressure: critical"),
        (Level.NORMAL, Level.CRITICAL, Level.CRITICAL, "ours"),
        (Level.WARNING, Level.CRITICAL, Level.CRITICAL, "ours"),
        (Level.UNKNOWN, Level.CRITICAL, Level.UNKNOWN, "the kernel reports an unknown pressure level"),
    ],
)
def test_the_worse_level_applies(kernels, ours, level, why):
    """The worse of both levels is reported with its source; an unknown level stays unknown."""
    assert worse(kernels, ours, "" if ours is Level.NORMAL else "ours") == (level, why)


async def test_a_mac_is_sampled(kernel):
    """Total, available and level come from three calls, and the GPU's limit from a fourth."""
    sample = await DarwinMemory(kernel, working_set_bytes=100 * GIB).sample()
    assert (sample.total_bytes, sample.available_bytes) == (128 * GIB, 114 * GIB)
    assert (sample.level, sample.device_limit_bytes, sample.why) == (Level.NORMAL, 100 * GIB, "")


async def test_the_kernel_is_the_trigger(kernel):
    """Its level applies although much memory is available."""
    kernel.level(4)
    assert (await DarwinMemory(kernel).sample()).level is Level.CRITICAL


@pytest.mark.parametrize(
    ("wired", "level"), [(119, Level.NORMAL), (121, Level.WARNING), (123.75, Level.WARNING), (124.5, Level.CRITICAL)]
)
async def test_too_much_wired_memory_is_pressure(kernel, wired, level):
    """A Mac that has wired nearly everything is short of memory, whatever level its kernel reports."""
    kernel.gib = {"wire_count": wired}
    assert (await DarwinMemory(kernel).sample()).level is level


async def test_memory_that_programs_fill_is_no_pressure(kernel):
    """A Mac whose programs use nearly everything, little of it wired, has the kernel's level."""
    kernel.gib = {"wire_count": 8, "internal_page_count": 110, "compressor_page_count": 8}
    sample = await DarwinMemory(kernel).sample()
    assert (sample.available_bytes, sample.level) == (2 * GIB, Level.NORMAL)


async def test_limits_change_in_the_next_sample(kernel):
    """The GPU's limit is set, and removed again."""
    memory = DarwinMemory(kernel)
    kernel.sysctls["iogpu.wired_limit_mb"] = struct.pack("<i", 100_000)
    assert (await memory.sample()).device_limit_bytes == 100_000 << 20
    del kernel.sysctls["iogpu.wired_limit_mb"]
    sample = await memory.sample()
    assert (sample.device_limit_bytes, sample.level) == (None, Level.NORMAL)  # an Intel Mac


@pytest.mark.parametrize(
    ("set_mib", "metal", "limit"),
    [
        (0, 107 * GIB, 107 * GIB),
        (114_688, 107 * GIB, 112 * GIB),
        (None, 107 * GIB, 107 * GIB),
        (0, None, int(CAUTIOUS_SHARE * 128 * GIB)),
        (None, None, None),
    ],
)
def test_the_gpu_has_a_limit_when_none_is_set(kernel, set_mib, metal, limit):
    """Metal's recommendation applies until `iogpu.wired_limit_mb` is set; a GPU without one gets a lower limit."""
    del kernel.sysctls["iogpu.wired_limit_mb"]
    if set_mib is not None:
        kernel.sysctls["iogpu.wired_limit_mb"] = struct.pack("<i", set_mib)
    kernel.working_set_bytes = metal
    memory = DarwinMemory(kernel, working_set_bytes=working_set_of(kernel))
    assert memory.read_sample(0.0).device_limit_bytes == limit


def test_a_machine_without_metal_is_an_error():
    """Without Apple's frameworks the call raises an expected error."""
    if sys.platform == "darwin":
        pytest.skip("this machine has Metal")
    with pytest.raises(OSError, match="CoreGraphics"):
        recommended_working_set(MetalFramework())


class FakeMetal:
    """Metal in a user's session, or in a daemon, where the default device is nil."""

    def __init__(self, default, every):
        self.default, self.every = default, every

    def default_device(self):
        return self.default

    def all_devices(self):
        return self.every

    def working_set(self, device):
        return device * GIB


@pytest.mark.parametrize(("default", "every", "limit"), [(107, [], 107), (None, [107], 107), (None, [8, 107], 107)])
def test_a_daemon_finds_the_device_in_the_list_of_all(default, every, limit):
    """If the default device is nil the limit comes from the list of all devices."""
    assert recommended_working_set(FakeMetal(default, every)) == limit * GIB


def test_a_mac_without_a_device_is_an_error():
    """Without any device the call raises an error, and the limit is marked as a guess."""
    with pytest.raises(OSError, match="shows no device"):
        recommended_working_set(FakeMetal(None, []))
    limit, source = DarwinMemory(FakeKernel()).device_limit(128 * GIB)
    assert limit < 107.5 * GIB
    assert source == GUESS
    assert "66% of memory, as Metal shows this process no device" in source


async def test_swap_and_compressor_have_rates(kernel, autojump_clock):
    """Both page counters become bytes per second between two samples."""
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
async def test_a_missing_sysctl_is_unknown(kernel, name, data):
    """A sysctl that is missing or has another width makes the level UNKNOWN, and never an error."""
    if data is None:
        del kernel.sysctls[name]
    else:
        kernel.sysctls[name] = data
    assert (await DarwinMemory(kernel).sample()).level is Level.UNKNOWN


async def test_a_mac_that_refuses_its_statistics_is_unknown(kernel):
    """A struct that is too short is unknown as well."""
    kernel.statistics = lambda: b"\x00" * 60
    assert (await DarwinMemory(kernel).sample()).level is Level.UNKNOWN


async def test_footprints_of_a_mac(kernel):
    """The physical footprint is reported for each process that may be read, and for no other."""
    kernel.usages = {os.getpid(): rusage(ri_phys_footprint=3 * GIB, ri_resident_size=GIB)}
    assert await DarwinMemory(kernel).footprint([os.getpid(), 2**22 + 1]) == {os.getpid(): 3 * GIB}
