"""Time in which a host frees memory, and restarts its services: the real agent, with simulated memory.

Two services run, one of them with low priority. Then "another program" takes memory until the level is CRITICAL: the
low one has to go. When the other program has ended, it has to come back. The host's memory is a stand-in, which counts
8 GiB for each engine that is alive, and tells the agent of a change as a kernel does; everything else is as under
`llmkube up`, with the API server and the controller in the same process. An engine notes the moment at which it gets
SIGTERM by the clock that this process uses.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import structlog
import trio

from harness import Aim, Run, Table, begin, median, percentile
from llmkube.base.units import format_duration
from llmkube.k8s.resource import Key
from llmkube.programs.program import freeze_heap
from llmkube.supervisor.host.pressure_level import Signals, Thresholds, assess_pressure
from llmkube.supervisor.host.sample import Sample
from llmkube.supervisor.memory.policy import Policy
from llmkube.supervisor.values.lifecycle import ServiceView
from reaction import Host, model, open_host, service, step, wait_gone

TRIALS, DWELT = 200, 3
GIB = 1 << 30
TOTAL_BYTES, ENGINE_BYTES, SCARCE_BYTES = 64 * GIB, 8 * GIB, 62 * GIB - 16 * GIB
RETURN_SECONDS = 120.0  # a return that takes longer has gone wrong
PAUSE_SECONDS = (0.5, 1.5)  # between two signals, as between a kernel's; drawn, to meet the agent's own looks anywhere
AIM_MS, AIM_RETURN_SECONDS = 100.0, 60.0
ORIGINAL_MS = 10_000.0

AT_ONCE = Policy(clear_seconds=0.0, return_seconds=0.0, cooldown_seconds=0.0, relapse_seconds=0.0)
"""Nobody dwells: what is left is the time that the machinery takes."""

DWELLING = Policy(relapse_seconds=0.0)
"""The defaults, except that it does not count as a relapse that one trial follows another."""

TERMINATED = "signal to SIGTERM"
GONE = "signal to victim gone"
RETURNED = "Normal to exec"
STEPS: Mapping[str, str] = {TERMINATED: f"{ORIGINAL_MS / 1000:.0f} s (a poll)", GONE: "", RETURNED: "never"}
"""The measured reactions, with known figures of the Go implementation."""


@attrs.define(eq=False)
class Scarcity:
    """A host's memory: what engines hold, what another program takes, and the listener that is notified of changes."""

    others_bytes: int = 0
    pids: set[int] = attrs.field(factory=set)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def take(self, others_bytes: int) -> float:
        """Set the memory of the other program; return the current time."""
        self.others_bytes = others_bytes
        self._changed.set()
        return time.perf_counter()

    async def sample(self) -> Sample:
        """Return the memory that is left, counted from the engines that run."""
        await trio.lowlevel.checkpoint()
        engines = sum(map(_is_alive, self.pids)) * ENGINE_BYTES
        left = max(0, TOTAL_BYTES - self.others_bytes - engines)
        level, why = assess_pressure(Signals(TOTAL_BYTES, left), Thresholds())
        return Sample(TOTAL_BYTES, left, level, why=why)

    async def wait_change(self) -> None:
        """Tell."""
        await self._changed.wait()
        self._changed = trio.Event()

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Every engine is as large."""
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(filter(_is_alive, pids), ENGINE_BYTES)


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def preamble(pipe: Path) -> str:
    """Return Python code that reports SIGTERM, with the time, and exits."""
    return (
        "import os, signal, time\n"
        f"ends = os.open({str(pipe)!r}, os.O_WRONLY)\n"
        "def end(*_):\n"
        "    os.write(ends, b'%d %.9f\\n' % (os.getpid(), time.perf_counter()))\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
    )


@attrs.define(eq=False)
class Ends:
    """When engines got SIGTERM, by pid."""

    _stream: trio.lowlevel.FdStream
    _rest: bytes = b""

    async def wait(self, pid: int) -> float:
        """Return the moment at which this one did; others are passed over."""
        while True:
            *lines, self._rest = (self._rest + await self._stream.receive_some()).split(b"\n")
            for line in lines:
                found, moment = line.split()
                if int(found) == pid:
                    return float(moment)


async def trial(host: Host, memory: Scarcity, ends: Ends, pid: int) -> tuple[int, dict[str, float]]:
    """Evict the victim and let it return; return its new pid, and how many milliseconds each step took."""
    taken = memory.take(SCARCE_BYTES)
    with step(TERMINATED, host, "low"):
        terminated = await ends.wait(pid)
    with step(GONE, host, "low"):
        gone = await wait_gone(pid)
    with step("seen to be gone", host, "low"):
        await wait_view(host, "low", lambda view: view.pid is None)
    given = memory.take(0)
    with step(RETURNED, host, "low", RETURN_SECONDS):
        again, returned = await host.starts.wait("low")
    memory.pids.add(again)
    with step("loaded again", host, "low"):
        await wait_view(host, "low", lambda view: view.ready)
    moments = (terminated - taken, gone - taken, returned - given)
    return again, {name: 1000 * seconds for name, seconds in zip(STEPS, moments, strict=True)}


async def wait_view(host: Host, name: str, accept: Callable[[ServiceView], bool]) -> None:
    """Return once what the agent says of a service is as wanted."""
    while True:
        version = host.view.changed.version
        view = host.view.services().get(Key("default", name))
        if view is not None and accept(view):
            return
        await host.view.changed.wait_newer(version)


async def trials(run: Run, count: int, policy: Policy, progress: Callable[[str], None]) -> list[dict[str, float]]:
    """Bring up a host, and run the trials one after the other."""
    samples, memory, rng = [], Scarcity(), run.rng
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        pipe = Path(name) / "ends"
        os.mkfifo(pipe)
        descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # RDWR: never at its end
        async with (
            trio.lowlevel.FdStream(descriptor) as stream,
            open_host(Path(name), run, memory=memory, preamble=preamble(pipe), memory_policy=policy) as host,
        ):
            await host.client.create(model("mine", "cpu"))
            pid = 0
            for who, priority in (("high", "high"), ("low", "low")):
                await host.client.create(service(who, "mine", priority=priority))
                with step("the first start", host, who):
                    pid, _ = await host.starts.wait(who)
                memory.pids.add(pid)
                with step("the first load", host, who):
                    await wait_view(host, who, lambda view: view.ready)
            freeze_heap()  # as the programs do when they have started
            pid, _ = await trial(host, memory, ends := Ends(stream), pid)  # not counted: all that is done only once
            for number in range(1, count + 1):
                await trio.sleep(rng.uniform(*PAUSE_SECONDS))
                pid, sample = await trial(host, memory, ends, pid)
                samples.append(sample)
                if number % 50 == 0:
                    progress(f"{number} of {count} trials")
    return samples


async def measure(run: Run, progress: Callable[[str], None]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Measure without dwelling, then some times with it."""
    count, dwelt = (5, 1) if run.quick else (TRIALS, DWELT)
    swift = await trials(run, count, AT_ONCE, progress)
    progress("now with the default dwells")
    return swift, await trials(run, dwelt, DWELLING, progress)


def main() -> None:
    """Measure, print, keep."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # logs would be measured too
    run = begin("pressure", "trio")
    swift, dwelling = trio.run(measure, run, lambda line: print(line, file=sys.stderr, flush=True))
    rows = []
    for what, original in STEPS.items():
        values = [each[what] for each in swift]
        figures = [f"{value:.1f} ms" for value in (median(values), percentile(values, 99), max(values))]
        rows.append([what, *figures, original])
    p99 = percentile([each[TERMINATED] for each in swift], 99)
    slowest = max(each[RETURNED] for each in dwelling) / 1000
    back = [format_duration(value / 1000) for value in sorted(each[RETURNED] for each in dwelling)]
    run.finish(
        "Reaction to memory pressure",
        f"""Memory becomes critically short {len(swift)} times: the service with low priority is evicted, and
        returns when memory is free. This memory is simulated and signals the agent as a kernel does, so this is the
        time from that signal; the kernel's own delay is not included. The waiting times are switched off, and the
        engine is a fake that starts at once. According to its sources, the Go implementation polls every
        {ORIGINAL_MS / 1000:.0f} s by default, and never restarts an evicted engine.""",
        [Table(["reaction", "p50", "p99", "slowest", "Go implementation"], rows)],
        {"swift": swift, "dwelling": dwelling},
        aims=[
            Aim(f"{TERMINATED}, p99", f"under {AIM_MS:.0f} ms", f"{p99:.1f} ms", p99 < AIM_MS),
            Aim(
                "Normal to exec with the default dwells, slowest",
                f"at most {AIM_RETURN_SECONDS:.0f} s",
                f"{slowest:.1f} s",
                slowest <= AIM_RETURN_SECONDS,
            ),
        ],
        notes=[f"With the default waiting times an evicted service was restarted after {', '.join(back)} of Normal."],
    )


if __name__ == "__main__":
    main()
