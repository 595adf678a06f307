"""Findings about the machine, with their fixes."""

from functools import partial
from pathlib import Path

import pytest

from cli.commands.doctor.places import check_finding
from llmkube.cli.commands.doctor.machine import assess_disk, assess_linux_power, assess_memory, assess_system
from llmkube.supervisor.memory.budget import host_budget

GIB = 1 << 30
MAC = partial(assess_system, "macOS", "26.1", "Apple silicon", mac=True, apple_silicon=True)
INTEL = partial(assess_system, "macOS", "26.1", "Intel", mac=True)
OLD = partial(assess_system, "macOS", machine="Apple silicon", mac=True, apple_silicon=True)
MEMORY = partial(
    assess_memory, budget=host_budget(64 * GIB), available_bytes=40 * GIB, critical_share=0.05, shortage="", promised={}
)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (MAC(), "pass", "macOS 26.1"),
        (MAC(translated=True), "fail", "is for Intel"),
        (INTEL(), "warn", "Intel processor"),
        (INTEL(wants_metal=True), "fail", "`llmkube agent install --accelerator cpu`"),
        (OLD(release="13.2.1"), "fail", "macOS 13.3"),
        (OLD(release="13.3"), "pass", "13.3"),
        (assess_system("Linux", "6.1", "x86_64"), "pass", "Linux 6.1"),
        (MEMORY(), "pass", "48.0 GiB (75 % of 64.0 GiB by default)"),
        (MEMORY(budget=host_budget(64 * GIB, 0.95)), "pass", "95 % of"),
        (MEMORY(budget=host_budget(64 * GIB, 0.96)), "fail", "memory_fraction in config.toml"),
        (MEMORY(promised={"default/m": 64 * GIB}), "pass", ""),
        (MEMORY(promised={"default/m": 65 * GIB}), "fail", "spec.hardware.memoryBudget of default/m"),
        (MEMORY(shortage="swapping"), "warn", "swapping"),
        (assess_disk(Path("/m"), 10 * GIB), "pass", "10.0 GiB free in /m"),
        (assess_disk(Path("/m"), 10 * GIB - 1), "warn", "`llmkube cache prune`"),
        (assess_disk(Path("/m"), GIB), "warn", ""),
        (assess_disk(Path("/m"), GIB - 1), "fail", "--model-store"),
        (assess_linux_power(None), "pass", "no battery"),
        (assess_linux_power(True), "pass", "on mains"),
        (assess_linux_power(False), "warn", "connect it to mains"),
    ],
)
def test_each_check_is_one_finding_with_its_fix(found, verdict, words):
    check_finding(found, verdict, words)
