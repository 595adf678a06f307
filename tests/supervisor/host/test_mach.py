import struct

import pytest

from llmkube.supervisor.host.mach import (
    HOST_VM_INFO64_COUNT,
    Pages,
    decode_footprint,
    decode_integer,
    decode_level,
    decode_statistics,
)
from llmkube.supervisor.host.sample import Level
from supervisor.host.darwin_structs import GIB, STATISTICS, rusage, statistics


def test_the_statistics_struct_has_no_holes():
    """A C compiler's layout is as long as the count passed to the kernel, in 32-bit words."""
    assert len(statistics()) == 4 * HOST_VM_INFO64_COUNT == sum(width for _, width in STATISTICS)


def test_statistics_are_decoded_by_name():
    """Each field that is used is at its own offset among narrow and wide ones."""
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
    """Fields that the kernel did not fill in are not read."""
    with pytest.raises(ValueError, match="152 bytes, not 60"):
        decode_statistics(statistics()[:60])
    with pytest.raises(ValueError, match="96 bytes, not 95"):
        decode_footprint(rusage()[:95])


def test_the_footprint_is_not_the_resident_size():
    """The physical footprint is taken, not one of its neighbours."""
    assert decode_footprint(rusage(ri_wired_size=1, ri_resident_size=2, ri_phys_footprint=3 * GIB)) == 3 * GIB


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x04\x00\x00\x00", 4), (b"\xff\xff\xff\xff", -1), (struct.pack("<Q", 128 * GIB), 128 * GIB)],
)
def test_numbers_of_both_widths_are_read(data, number):
    """A sysctl may be an int or a 64-bit number."""
    assert decode_integer(data) == number


@pytest.mark.parametrize("data", [b"", b"\x01", b"123456789"])
def test_another_width_is_an_error(data):
    """A width other than 4 or 8 bytes is an error."""
    with pytest.raises(ValueError, match="4 or 8 bytes"):
        decode_integer(data)


@pytest.mark.parametrize(
    ("number", "level"),
    [(1, Level.NORMAL), (2, Level.WARNING), (4, Level.CRITICAL), (0, Level.UNKNOWN), (3, Level.UNKNOWN)],
)
def test_the_kernels_level(number, level):
    """1, 2 and 4 are normal, warning and critical, and nothing else is a level."""
    assert decode_level(struct.pack("<i", number)) is level
