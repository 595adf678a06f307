"""The effect of a flood on other clients: the real `llmkube up`, while some clients overload it.

Each flood has a separate program, which serves one model with an engine that answers at once. Meanwhile `/healthz` and
a small chat are each requested twenty times a second on new connections, without waiting for the previous answer, and
services are created and deleted one after the other, each timed until its engine is executed. A request without an
answer after ten seconds counts as ten; the measurement ends after twenty, and the program is killed. The floods come
from another address of the loopback network than the measured requests; those on the API server have its token, except
for idle connections.
"""

import itertools
import math
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

from adoption import no_engine_left
from harness import Aim, Run, Table, begin, percentile
from http_load import sse, tools
from http_load.attacks import ATTACKS
from http_load.processes import HERE, launch
from http_load.up_program import PLAIN, open_up
from llmkube.base.errors import LLMKubeError
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from reaction import service

NONE, ALL = "none", "all of them"
FLOODS: Final[Mapping[str, tuple[str, ...]]] = {
    NONE: (),
    "30 bodies of 60 MB that never end": ("held",),
    "1,100 idle connections to each server": ("idle",),
    "60 MB of empty arrays to the gateway": ("arrays",),
    "3 MB of empty arrays to the API server": ("api_arrays",),
    "a JSON patch that doubles 27 times": ("patch",),
    "120,000 duplicate keys": ("duplicates",),
    "an exponential pattern in a CRD": ("pattern",),
    ALL: tuple(ATTACKS),
}
SECONDS, EVERY_SECONDS, CAP_SECONDS, DELETE_SECONDS = 20.0, 0.05, 10.0, 1.0
LIMIT_MS: Final = 50.0
MODEL: Final = "demo"
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"


@attrs.define(eq=False)
class FloodSamples:
    """Measurements during one flood: milliseconds, and the program's memory in bytes."""

    healthz: list[float] = attrs.field(factory=list)
    chat: list[float] = attrs.field(factory=list)
    reaction: list[float] = attrs.field(factory=list)
    memory: int = 0


MEASURES: Final[Mapping[str, Callable[[FloodSamples], list[float]]]] = {
    "/healthz": lambda samples: samples.healthz,
    "a small chat": lambda samples: samples.chat,
    "create to exec": lambda samples: samples.reaction,
}


async def ask(port: int, request: bytes) -> None:
    """Return once the beginning of an answer 200 has come; without one, never."""
    with suppress(OSError, trio.BrokenResourceError):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            if (await stream.receive_some()).startswith(b"HTTP/1.1 200 "):
                return
    await trio.sleep_forever()


async def timed(step: Callable[[], Awaitable[None]], samples: list[float], ends_at: float) -> None:
    """Note how long a step takes, in milliseconds; one that the end cuts off counts with the time until then."""
    started_at = trio.current_time()
    with trio.move_on_at(min(started_at + CAP_SECONDS, ends_at)) as scope:
        await step()
    seconds = trio.current_time() - started_at
    if not scope.cancelled_caught or seconds >= LIMIT_MS / 1000:  # cut off earlier, it is no sample
        samples.append(1000 * seconds)


async def ask_steadily(port: int, request: bytes, samples: list[float], ends_at: float) -> None:
    """Ask at fixed moments, however long answers take."""
    async with trio.open_nursery() as nursery:
        for _ in range(math.floor((ends_at - trio.current_time()) / EVERY_SECONDS)):
            nursery.start_soon(timed, partial(ask, port, request), samples, ends_at)
            await trio.sleep(EVERY_SECONDS)


@attrs.define(eq=False)
class Reports:
    """The names of services whose engines have begun, as they write them into a pipe."""

    _stream: trio.lowlevel.FdStream
    _rest: bytes = b""

    async def wait(self, name: str) -> None:
        """Return when this one's has; those of others are passed over."""
        while True:
            *lines, self._rest = (self._rest + await self._stream.receive_some()).split(b"\n")
            if name.encode() in lines:
                return


async def create(client: Client, reports: Reports, name: str) -> None:
    """Create a service, and return once its engine has begun; after an error, never."""
    with suppress(LLMKubeError):
        await client.create(service(name, MODEL))
        await reports.wait(name)
        return
    await trio.sleep_forever()


async def react(client: Client, reports: Reports, samples: list[float], ends_at: float) -> None:
    """Create services, one after the other, and delete each."""
    for number in itertools.count():
        name = f"reaction-{number}"
        await timed(partial(create, client, reports, name), samples, ends_at)
        if trio.current_time() >= ends_at:
            return
        with trio.move_on_after(DELETE_SECONDS), suppress(LLMKubeError):
            await client.delete(InferenceService, Key("default", name))
        await trio.sleep(EVERY_SECONDS)


async def measure(
    seconds: float, attacks: Sequence[str], nginx: Sequence[str], *more: str, core: int | None = None
) -> FloodSamples:
    """Start a program with more services and, if given, on a core of its own; flood it, kill it."""
    samples = FloodSamples()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="llmkube-bench-")))
        pipe = folder / "reports"
        os.mkfifo(pipe)
        descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # RDWR: never at its end
        reports = Reports(await stack.enter_async_context(trio.lowlevel.FdStream(descriptor)))
        await stack.enter_async_context(no_engine_left(folder / "up"))
        up = await stack.enter_async_context(open_up(folder, nginx, PLAIN, *more, reports=pipe))
        if core is not None and sys.platform == "linux":
            up.process.cpu_affinity([core])
        stack.callback(up.process.kill)  # a program that hangs reacts to no other signal
        client = await stack.enter_async_context(open_client(load_config(up.kubeconfig, None)))
        await create(client, reports, "first")  # not counted: all that is done only once
        for attack in attacks:
            ports = (str(up.port("gateway")), str(up.port("API server")))
            script = [sys.executable, str(HERE / "attacks.py"), attack, *ports, str(up.kubeconfig)]
            await launch(stack, script, prints_port=False)
        ends_at = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            chat = sse.request(PLAIN, "hello", stream=False)
            nursery.start_soon(ask_steadily, up.port("probes"), HEALTHZ, samples.healthz, ends_at)
            nursery.start_soon(ask_steadily, up.port("gateway"), chat, samples.chat, ends_at)
            nursery.start_soon(react, client, reports, samples.reaction, ends_at)
        samples.memory = int(up.process.memory_full_info().uss)
    return samples


def report_results(run: Run, found: Mapping[str, FloodSamples], nginx: Sequence[str]) -> None:
    """Hand the figures over."""
    columns = ["flood", "/healthz, p99 ms", "chat, p99 ms", "create to exec, p50 ms", "p99 ms", "memory, MiB"]
    rows = []
    for flood, samples in found.items():
        figures = [(samples.healthz, 99), (samples.chat, 99), (samples.reaction, 50), (samples.reaction, 99)]
        cells = [f"{percentile(values, percent):,.1f}" for values, percent in figures]
        rows.append([flood, *cells, f"{samples.memory / (1 << 20):,.0f}"])
    aims = []
    for what, values_of in MEASURES.items():
        worst = max(percentile(values_of(samples), 99) for samples in found.values())
        aims.append(
            Aim(f"{what}, p99 in every flood", f"under {LIMIT_MS:.0f} ms", f"{worst:,.0f} ms", worst < LIMIT_MS)
        )
    run.finish(
        "Floods",
        __doc__ or "",
        [Table(columns, rows)],
        {flood: attrs.asdict(samples) for flood, samples in found.items()},
        aims=aims,
        notes=[] if nginx else ["nginx was not available here: the engine is a Python program."],
    )


def main() -> None:
    """Measure, print, keep."""
    run = begin("flood", "trio", "httptools")
    seconds, nginx = 3.0 if run.quick else SECONDS, tools.find_program("nginx")
    found = {}
    for flood, attacks in FLOODS.items():
        print(flood, file=sys.stderr, flush=True)
        found[flood] = trio.run(measure, seconds, attacks, nginx)
    report_results(run, found, nginx)


if __name__ == "__main__":
    main()
