import os
import sys
from types import SimpleNamespace

import pytest

from llmkube.weights.store import disk

TIB = 1 << 40


@pytest.fixture
def on_a_mac(monkeypatch):
    """A Mac whose disk the test describes: what statvfs says, and what Core Foundation does."""

    def describe(free_bytes, important_bytes, blocks_modulo=None):
        blocks = free_bytes // 4096
        blocks = blocks % blocks_modulo if blocks_modulo else blocks
        monkeypatch.setattr(disk, "sys", SimpleNamespace(platform="darwin"))
        monkeypatch.setattr(disk.os, "statvfs", lambda _: SimpleNamespace(f_bavail=blocks, f_frsize=4096))
        monkeypatch.setattr(disk, "important_capacity", lambda _: important_bytes)

    return describe


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ((TIB, 2 * TIB, None), 2 * TIB),  # APFS would purge the other half
        ((TIB, None, None), TIB),  # no Core Foundation
        ((TIB, 0, None), TIB),  # a volume for which the key says nothing
        ((20 * TIB, 20 * TIB, 1 << 32), 20 * TIB),  # 2^32 blocks are 16 TiB
    ],
)
def test_on_a_mac_the_larger_of_two_figures_is_used(on_a_mac, tmp_path, figures, shown):
    """Purgeable space counts as free, and a number of blocks that has wrapped does not make a large disk a full one."""
    on_a_mac(*figures)
    assert disk.free_bytes(tmp_path) == shown


def test_elsewhere_statvfs_alone_is_used(tmp_path, monkeypatch):
    """Linux counts what an ordinary user may write, and is asked nothing else."""
    monkeypatch.setattr(disk, "important_capacity", lambda _: 1 << 60)
    found = os.statvfs(tmp_path)
    assert disk.free_bytes(tmp_path) <= found.f_blocks * found.f_frsize


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has it")
def test_without_core_foundation_nothing_is_known(tmp_path):
    """Where the framework is missing the question has no answer, and is no error."""
    assert disk.important_capacity(tmp_path) is None
