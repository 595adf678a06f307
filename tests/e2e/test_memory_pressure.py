"""Real memory pressure in a control group: which engine is evicted, which one stays, and which one returns."""

import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import psutil
import pytest
import trio

from e2e.control_groups import ControlGroup, open_control_group
from e2e.one_machine import open_up_with, served
from e2e.separate_programs import REAL_ENGINE, chat
from e2e.up_process import ANSWER, fake_engine
from llmkube.supervisor.host.this_machine import footprints_here
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")]

MIB = 1 << 20

WATCH = """
import json, trio
from llmkube.supervisor.host.this_machine import open_host_memory

async def report(memory):
    while True:
        await memory.wait_change()
        print(json.dumps({"woken": True}), flush=True)

async def main():
    async with open_host_memory() as memory, trio.open_nursery() as nursery:
        nursery.start_soon(report, memory)
        while True:
            sample = await memory.sample()
            figures = {"total": sample.total_bytes, "available": sample.available_bytes, "why": sample.why}
            print(json.dumps({"level": sample.level.name} | figures), flush=True)
            await trio.sleep(0.05)

trio.run(main)
"""
"""Prints the agent's memory samples as lines of JSON."""

HOLD = "import sys, time; held = bytearray(b'x') * int(sys.argv[1]); print('holding', flush=True); time.sleep(600)"
"""Another program, which holds memory."""

THRASH = """
import mmap, os, sys
with open(sys.argv[1], "w+b") as file:
    for _ in range(int(sys.argv[2])):
        file.write(os.urandom(1 << 20))
    file.flush()
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        print("thrashing", flush=True)
        while True:
            touched = sum(mapped[at] for at in range(0, len(mapped), mmap.PAGESIZE))
"""
"""Reads a file that exceeds the memory repeatedly, like an engine whose weights the kernel keeps dropping."""


@attrs.define(eq=False)
class Program:
    """A Python program in the group, and the lines that it prints."""

    process: trio.Process
    _rest: bytes = b""

    async def line(self) -> str:
        """Return the next line."""
        while b"\n" not in self._rest:
            chunk = await self.process.stdout.receive_some()
            assert chunk, f"ended with {await self.process.wait()}"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    async def until(self, condition: Callable[[dict], bool]) -> dict:
        """Return the next line of JSON for which the condition holds."""
        while not condition(line := json.loads(await self.line())):
            pass
        return line

    async def until_level(self, level: str) -> dict:
        """Return the next sample with this level."""
        return await self.until(lambda line: line.get("level") == level)


@asynccontextmanager
async def open_in(group: ControlGroup, code: str, *args: object) -> AsyncIterator[Program]:
    """Run a Python program in the group; it is killed at the end of the block, and its memory is then back."""
    argv = [*group.prefix, sys.executable, "-c", code, *map(str, args)]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, argv, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        try:
            yield Program(process)
        finally:
            process.kill()


async def test_the_groups_limit_is_the_hosts_memory():
    """A program in a group reads its limit as the total, CRITICAL when little is left, and NORMAL afterwards."""
    with open_control_group("signals", 512 * MIB) as group:
        async with open_in(group, WATCH) as watch:
            first = await watch.until_level("NORMAL")
            assert first["total"] == 512 * MIB
            async with open_in(group, HOLD, group.headroom.available_bytes - 20 * MIB) as other:
                assert await other.line() == "holding"
                short = await watch.until_level("CRITICAL")
                assert 0 <= short["available"] < 0.05 * 512 * MIB
                assert "of 512.0 MiB left" in short["why"]
            await watch.until(lambda line: line.get("available", 0) > first["available"] - 16 * MIB)


@pytest.mark.ci
async def test_the_kernel_wakes_the_agent(tmp_path):
    """Memory stalls wake the watcher between its samples, and mapped pages are not available memory."""
    with open_control_group("stalls", 160 * MIB) as group:
        async with open_in(group, WATCH) as watch:
            await watch.until_level("NORMAL")
            async with open_in(group, THRASH, tmp_path / "weights", 300) as other:
                assert await other.line() == "thrashing"
                await watch.until(lambda line: "woken" in line)
                await watch.until_level("CRITICAL")


def heavy_engine(folder):
    """Write a real engine whose child holds a larger model's memory: 300 MiB for `low`, 200 MiB otherwise."""
    hold = f"{shlex.quote(sys.executable)} -c {shlex.quote(HOLD)}"
    script = f'mib=200; for a; do [ "$a" = low ] && mib=300; done\n{hold} $((mib << 20)) &\nexec {REAL_ENGINE} "$@"'
    return fake_engine(folder, script)


def low_priority():
    return served("low").replace("  replicas: 1\n", "  replicas: 1\n  priority: low\n")


def holds(engine: psutil.Process) -> int:
    """Return the bytes that an engine and its child hold."""
    return footprints_here([engine.pid])[engine.pid]


async def keep_asking(gateway: str, answers: list[str]) -> None:
    """Query the demo continuously; anything but an answer fails the test."""
    while True:
        answers.append(await chat(gateway))


@pytest.mark.ci
async def test_the_low_priority_engine_is_evicted_and_returns(tmp_path):
    """`demo` answers while another program holds the memory, and `low` returns after it has exited."""
    program = heavy_engine(tmp_path)
    args = ("--llama-server", program, "--activation", "Always", "--eviction-return-seconds", "2")
    with open_control_group("eviction", 1536 * MIB) as group:
        async with open_up_with(tmp_path, *args, documents=[low_priority()], prefix=group.prefix) as up:
            await up.wait_loaded("demo", "Loaded")
            await up.wait_loaded("low", "Loaded")
            demo, low, answers = up.engine("demo"), up.engine("low"), []
            await until(lambda: holds(demo) >= 200 * MIB and holds(low) >= 300 * MIB)
            async with trio.open_nursery() as clients:
                clients.start_soon(keep_asking, up.gateway, answers)
                async with open_in(group, HOLD, group.headroom.available_bytes - 30 * MIB) as other:
                    assert await other.line() == "holding"
                    evicted = await up.wait_service("low", "MemoryPressure", lambda found: found.reason == "Evicted")
                    assert evicted.status == "True"
                    assert "of 1.5 GiB left" in evicted.message
                    await until(lambda: not low.is_running())
                    await until(lambda: group.headroom.available_bytes > 250 * MIB)  # its child has exited as well
                    await up.wait_loaded("low", "Evicted")
                await up.wait_loaded("low", "Loaded")
                before = len(answers)
                await until(lambda: len(answers) > before)
                clients.cancel_scope.cancel()
            assert set(answers) == {ANSWER}
            assert up.engine("demo") == demo
            assert up.engine("low") != low
            assert await chat(up.gateway, "low") == ANSWER
