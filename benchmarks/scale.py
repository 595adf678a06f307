"""The cost of many services for one agent: memory, processor time and wake-ups without requests, and the time to stop.

API server, controller and agent are separate processes; the engines are small fakes, one process each, that answer at
once and ignore TERM. The agent is configured to see eight times the machine's memory: engines are admitted by the
estimate for real ones, which 500 fakes do not need. Memory is the agent's own (USS: the memory that its exit would
free), above that of the same agent before the first service. A wake-up is a voluntary context switch of the agent's
process, summed over all of its threads. The stop is measured from SIGTERM to the agent until the last engine is gone:
one grace period and not the sum.
"""

import signal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import psutil
import trio

from adoption import no_engine_left, open_program
from fake import write_engine
from harness import Aim, Run, Table, begin
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.programs.server_side_apply import Applier, Manifest
from llmkube.supervisor.host.processes import OWNER_VARIABLE, find_marked

ROOMY = (str(Path(__file__).with_name("roomy.py")),)
FEW, MANY = 20, 500
IDLE_SECONDS, SETTLE_SECONDS, WATCH_SECONDS = 120.0, 300.0, 600.0
"""Engines at rest are asked more and more rarely, and every ten minutes the agent says everything once more."""

GRACE_SECONDS = 10.0  # the agent's default
STEP_SECONDS = 600.0  # a step that takes longer has gone wrong


@attrs.frozen
class Cost:
    """Cost of an agent with this number of services."""

    services: int
    memory_bytes: int
    processor_percent: float
    wakeups_per_second: float


def services(first: int, last: int) -> list[Manifest]:
    """Return the demo's Model and so many InferenceServices."""
    model, service = (manifest.body for manifest in demo_manifests())
    many = [{**service, "metadata": {"name": f"s{number:03}"}} for number in range(first, last)]
    return [Manifest("generated", body) for body in (model, *many)]


async def wait_ready(client: Client, count: int) -> None:
    """Return once so many services are Ready."""
    with trio.fail_after(STEP_SECONDS):
        while True:
            found = (await client.list(InferenceService)).items
            if sum(one.status.phase == "Ready" for one in found) >= count:
                return
            await trio.sleep(2)


async def observe(agent: psutil.Process, services: int, seconds: float) -> Cost:
    """Watch an agent that has nothing to do."""
    before, switches = agent.cpu_times(), agent.num_ctx_switches().voluntary
    await trio.sleep(seconds)
    after = agent.cpu_times()
    busy = after.user + after.system - before.user - before.system
    woken = agent.num_ctx_switches().voluntary - switches
    return Cost(services, agent.memory_full_info().uss, 100 * busy / seconds, woken / seconds)


async def measure(run: Run) -> None:
    """Stop a few stubborn engines, then watch an agent with none and with many."""
    few, many = (3, 5) if run.quick else (FEW, MANY)
    alone, settle, watch = (10.0, 10.0, 10.0) if run.quick else (IDLE_SECONDS, SETTLE_SECONDS, WATCH_SECONDS)
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        folder = Path(name)
        for part in ("server", "controller", "agent"):
            (folder / part).mkdir()
        # without proxies: 500 of them are 500 processes of Python, and not the agent's
        flags = ("agent", "--accelerator", "cpu", "--host-name", "bench", "--port", "0", "--insecure-lan")
        open_agent = partial(
            open_program,
            folder / "agent",
            *flags,
            "--llama-server",
            str(write_engine(folder, preamble="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")),
            ready='"agent started"',
            program=ROOMY,
        )
        async with (
            no_engine_left(folder / "agent"),
            open_program(folder / "server", "apiserver", "--port", "0", ready="Kubernetes API on"),
            open_program(folder / "controller", "controller", "--accelerator", "cpu", ready='"controller started"'),
            open_client(load_config(folder / "server" / "kubeconfig", None)) as client,
        ):
            async with open_agent() as agent:
                idle = await observe(psutil.Process(agent.process.pid), 0, alone)
                await Applier(client).apply_all(services(0, few), lambda _: None)
                await wait_ready(client, few)
                stop_seconds = await stop(agent.process, folder / "agent")
            async with open_agent() as agent:
                await Applier(client).apply_all(services(few, many), lambda _: None)
                await wait_ready(client, many)
                await trio.sleep(settle)
                busy = await observe(psutil.Process(agent.process.pid), many, watch)
                stop_many_seconds = await stop(agent.process, folder / "agent")
    report_results(run, idle, busy, {few: stop_seconds, many: stop_many_seconds})


async def stop(process: trio.Process, folder: Path) -> float:
    """Return how long SIGTERM takes to end the agent and every engine of it."""
    started_at = trio.current_time()
    process.send_signal(signal.SIGTERM)
    await process.wait()
    seconds = trio.current_time() - started_at
    left = await trio.to_thread.run_sync(find_marked, OWNER_VARIABLE, str(folder))
    if left:
        raise RuntimeError(f"{len(left)} engines have outlived their agent")
    return seconds


def report_results(run: Run, idle: Cost, busy: Cost, stops: dict[int, float]) -> None:
    """Hand the figures over."""
    mebi = 1024 * 1024
    columns = ["services", "memory, MiB", "processor, % of a core", "wake-ups per second"]
    rows = [
        [
            str(cost.services),
            f"{cost.memory_bytes / mebi:.1f}",
            f"{cost.processor_percent:.2f}",
            f"{cost.wakeups_per_second:.2f}",
        ]
        for cost in (idle, busy)
    ]
    above = (busy.memory_bytes - idle.memory_bytes) / mebi
    few, many = stops
    run.finish(
        "Many services on one agent",
        __doc__ or "",
        [
            Table(columns, rows),
            Table(
                ["engines that ignore TERM", "stopped in, s"],
                [[str(count), f"{seconds:.1f}"] for count, seconds in stops.items()],
            ),
        ],
        {"idle": attrs.asdict(idle), "busy": attrs.asdict(busy), "stops": stops},
        aims=[
            Aim(f"memory of {many} services", "under 60 MiB", f"{above:.1f} MiB", met=above < 60),
            Aim("processor", "under 1 %", f"{busy.processor_percent:.2f} %", met=busy.processor_percent < 1),
            Aim("wake-ups", "at most 1 per second", f"{busy.wakeups_per_second:.2f}", met=busy.wakeups_per_second <= 1),
            Aim(
                f"stop of {few} engines that ignore TERM",
                f"one grace period ({GRACE_SECONDS:g} s) and a little",
                f"{stops[few]:.1f} s",
                met=stops[few] < GRACE_SECONDS + 2,
            ),
        ],
    )


def main() -> None:
    """Measure and print."""
    trio.run(measure, begin("scale", "trio", "psutil"))


if __name__ == "__main__":
    main()
