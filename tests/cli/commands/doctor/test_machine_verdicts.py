"""What facts of the machine mean: a table, with the words of the fix."""

from pathlib import Path

import attrs
import pytest

from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.machine_facts import (
    Disk,
    FileVault,
    Firewall,
    GpuLimit,
    GuardedFolders,
    LinuxPower,
    MacPower,
    Memory,
    System,
)
from llmkube.supervisor.memory.budget import host_budget

GIB = 1 << 30
MAC = System(
    system="macOS",
    release="26.1",
    machine="Apple silicon",
    python="3.13.1",
    llmkube="0.1.0",
    mac=True,
    apple_silicon=True,
)
INTEL = attrs.evolve(MAC, machine="Intel", apple_silicon=False)
MEMORY = Memory(budget=host_budget(64 * GIB), available_bytes=40 * GIB, critical_share=0.05)
GPU = GpuLimit(total_bytes=64 * GIB, limit_bytes=48 * GIB, source="Metal", guessed=False, budget_bytes=48 * GIB)
AWAKE = MacPower(sleep_minutes=0, kept_awake=False, restarts=True)
WALL = Firewall(on=True, blocks_all=False, program="/py", permitted=True)
DOCUMENTS = (("--model-store", Path("/Users/ada/Documents")),)


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (MAC, "pass", "macOS 26.1"),
        (attrs.evolve(MAC, translated=True), "fail", "one for Intel"),
        (INTEL, "warn", "Intel processor"),
        (attrs.evolve(INTEL, wants_metal=True), "fail", "`llmkube agent install --accelerator cpu`"),
        (attrs.evolve(MAC, release="13.2.1"), "fail", "macOS 13.3"),
        (attrs.evolve(MAC, release="13.3"), "pass", "13.3"),
        (attrs.evolve(MAC, mac=False, system="Linux", release="6.1", apple_silicon=False), "pass", "Linux 6.1"),
        (MEMORY, "pass", "48.0 GiB (75 % of 64.0 GiB by default)"),
        (attrs.evolve(MEMORY, budget=host_budget(64 * GIB, 0.95)), "pass", "95 % of"),
        (attrs.evolve(MEMORY, budget=host_budget(64 * GIB, 0.96)), "fail", "memory_fraction in config.toml"),
        (attrs.evolve(MEMORY, promised={"default/m": 64 * GIB}), "pass", ""),
        (attrs.evolve(MEMORY, promised={"default/m": 65 * GIB}), "fail", "spec.hardware.memoryBudget of default/m"),
        (attrs.evolve(MEMORY, shortage="swapping"), "warn", "swapping"),
        (GPU, "pass", "48.0 GiB of 64.0 GiB by Metal"),
        (attrs.evolve(GPU, limit_bytes=None), "pass", "none"),
        (attrs.evolve(GPU, limit_bytes=62 * GIB), "fail", "`sudo sysctl iogpu.wired_limit_mb=49152`, or 0"),
        (attrs.evolve(GPU, guessed=True), "warn", "ssh"),
        (attrs.evolve(GPU, limit_bytes=40 * GIB), "warn", "`sudo sysctl iogpu.wired_limit_mb=49152`"),
        (Disk(Path("/m"), 10 * GIB), "pass", "10.0 GiB free in /m"),
        (Disk(Path("/m"), 10 * GIB - 1), "warn", "`llmkube cache prune`"),
        (Disk(Path("/m"), GIB), "warn", ""),
        (Disk(Path("/m"), GIB - 1), "fail", "--model-store"),
        (LinuxPower(None), "pass", "no battery"),
        (LinuxPower(True), "pass", "on mains"),
        (LinuxPower(False), "warn", "connect it to mains"),
        (FileVault(False), "pass", "off"),
        (FileVault(True), "warn", "`sudo fdesetup authrestart`"),
        (WALL, "pass", "lets /py in"),
        (attrs.evolve(WALL, on=False, blocks_all=True), "pass", "is off"),
        (attrs.evolve(WALL, blocks_all=True), "fail", "--setblockall off"),
        (attrs.evolve(WALL, permitted=False), "fail", '--unblockapp "/py"'),
        (attrs.evolve(WALL, permitted=None), "warn", "cannot show the question"),
        (GuardedFolders(places=(), program="/py"), "pass", "not needed"),
        (GuardedFolders(places=DOCUMENTS, program="/py"), "warn", "--model-store in /Users/ada/Documents"),
        (GuardedFolders(places=DOCUMENTS, program="/py", denied="the log"), "fail", "add /py"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """And one that is well has nothing to mend."""
    (found,) = judge([fact])
    assert found.verdict.value == verdict
    assert words in f"{found.found} {found.why} {found.fix}"
    assert bool(found.fix) == bool(found.why) == (found.verdict is not Verdict.PASS)


@pytest.mark.parametrize(
    ("fact", "verdicts", "words"),
    [
        (AWAKE, {"sleep": "pass", "power": "pass"}, "it never sleeps"),
        (attrs.evolve(AWAKE, sleep_minutes=1), {"sleep": "warn", "power": "pass"}, "`sudo pmset -a sleep 0`"),
        (attrs.evolve(AWAKE, sleep_minutes=1, kept_awake=True), {"sleep": "pass", "power": "pass"}, "engine runs"),
        (attrs.evolve(AWAKE, sleep_minutes=None), {"sleep": "warn", "power": "pass"}, "`pmset -g`"),
        (attrs.evolve(AWAKE, on_battery=True), {"sleep": "pass", "power": "warn"}, "battery"),
        (attrs.evolve(AWAKE, low_power=True), {"sleep": "pass", "power": "warn"}, "lowpowermode 0"),
        (attrs.evolve(AWAKE, restarts=False), {"sleep": "pass", "power": "warn"}, "autorestart 1"),
        (attrs.evolve(AWAKE, restarts=None), {"sleep": "pass", "power": "pass"}, "on mains"),
    ],
)
def test_power_is_two_lines(fact, verdicts, words):
    """Whether it sleeps, and whether it comes back."""
    found = judge([fact])
    assert {each.name: each.verdict.value for each in found} == verdicts
    assert any(words in f"{each.found} {each.fix}" for each in found)
