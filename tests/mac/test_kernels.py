"""Readings of the kernels of macOS 14, 15, 26 and 27, through a C library with their structs."""

from types import SimpleNamespace

import pytest

from llmkube.supervisor.host import mach
from llmkube.supervisor.host.darwin import DarwinMemory
from llmkube.supervisor.host.mach import decode_footprint, decode_statistics
from llmkube.supervisor.host.sample import Level
from mac.macs import RELEASES

GIB = 1 << 30


def shows_memory_on(mac):
    """Fail unless the agent reads this Mac's memory, with as few calls and errors as the kernel allows."""
    memory = DarwinMemory(mac.kernel())
    samples = [memory.read_sample(float(second)) for second in range(3)]
    assert {sample.level for sample in samples} == {Level.NORMAL}
    assert abs(samples[-1].available_bytes - 114 * GIB) < GIB
    return memory


@pytest.mark.parametrize("release", RELEASES)
def test_the_memory_of_every_release_is_read(mac_of, release):
    """Level, memory and the GPU's limit are read on each; a refused count costs one call, once."""
    mac = mac_of(release)
    memory = shows_memory_on(mac)
    assert mac.calls == (4 if release == 27 else 3)
    assert mac.errors_logged == 0
    assert memory.device_limit(128 * GIB)[0] < 107.5 * GIB
    assert decode_footprint(mac.kernel().usage(1)) == 3 * GIB


@pytest.mark.parametrize("release", RELEASES)
def test_a_compilers_struct_is_read_by_name(mac_of, release):
    """The offsets are those of the C compiler."""
    pages = decode_statistics(mac_of(release).kernel().statistics())
    assert (pages.purgeable, pages.compressed, pages.swapped_out, pages.compressor) == (7, 11, 13, 17)


def test_a_kernel_that_wants_more_than_there_is_room_for_is_an_error(mac_of, monkeypatch):
    """A count beyond the buffer is not passed on: the kernel would write past its end."""
    monkeypatch.setattr(mach, "STATISTICS_WORDS", 50)
    with pytest.raises(OSError, match="returned -307 with count 62"):
        mac_of(27).kernel().statistics()


def test_other_errors_are_reported(mac_of):
    """A kernel that refuses for another reason is called once."""
    mac = mac_of(15)
    kernel = mac.kernel()
    kernel._library = SimpleNamespace(host_statistics64=lambda *_: 5)
    with pytest.raises(OSError, match="returned 5"):
        kernel.statistics()


@pytest.mark.soak
def test_mutant_a_count_that_is_not_asked_again(mac_of, monkeypatch):
    """Without the second call macOS 27 reports nothing."""
    monkeypatch.setattr(mach, "MIG_ARRAY_TOO_LARGE", 1)
    shows_memory_on(mac_of(26))
    with pytest.raises(OSError, match="-307"):
        shows_memory_on(mac_of(27))


@pytest.mark.soak
def test_mutant_a_large_count_from_the_start(mac_of):
    """A first count of 256 words makes macOS 26 log an error for each reading."""
    mac = mac_of(26)
    kernel = mac.kernel()
    kernel._count = 256
    kernel.statistics()
    assert mac.errors_logged == 1
