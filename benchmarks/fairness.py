"""Waiting time of an occasional user behind twelve busy clients: llama.cpp's server alone, and a router's queue.

A real llama-server with two slots and the demo's model. Twelve clients send one long request after the other, each from
an address of its own; a thirteenth sends a short one now and then. Every contender has the same conditions: the engine
alone, and a real `llmkube router` in front of it that knows of the two slots. The wait is the time to the first event,
minus the time that it takes while the others are silent. The shortest possible wait of a schedule that interrupts no
answer is the time until the next answer ends: it is computed from the ends of the answers in the same run, as their
clients see them, with an instant hand-over. The table also has the difference between the wait of each request and its
own shortest wait. If the system allows it, the engine, with one thread, has a core of its own, and router and clients
have the others.
"""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import psutil
import trio

from harness import Aim, Run, Table, begin, percentile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e.test_router import open_engine
from e2e.up_process import open_program
from free_ports import free_port
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.router.config.config_json import encode_config
from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule

FLOODERS, SLOTS = 12, 2
LONG_TOKENS, SHORT_TOKENS = 400, 8
SECONDS, QUICK_SECONDS, ROUNDS = 40.0, 4.0, 3
WAIT_TIMES, THROUGHPUT = 1.25, 0.95
ALONE, QUEUED = "llama-server", "llmkube router"


@attrs.frozen
class Answer:
    """One answer, by Trio's clock: when it was asked for, when its first event came, and when its last."""

    asked: float
    first: float
    ended: float


@attrs.define
class Round:
    """Measurements of one contender in one round.

    Attributes:
        alone_seconds: Time to the first event of the quiet user's request while the others are silent, the median.
        quiet: The quiet user's answers.
        flood: Those of the others.
        seconds: Duration of the round.
        router_cores: Share of a core that the router used.
    """

    alone_seconds: float = 0.0
    quiet: list[Answer] = attrs.field(factory=list)
    flood: list[Answer] = attrs.field(factory=list)
    seconds: float = 0.0
    router_cores: float = 0.0

    @property
    def waits(self) -> list[float]:
        """Seconds that each of the quiet user's requests waited."""
        return [max(each.first - each.asked - self.alone_seconds, 0.0) for each in self.quiet]

    @property
    def shortest(self) -> list[float]:
        """Seconds that each would have waited at least: until the next answer of the others ended."""
        return shortest_waits([each.asked for each in self.quiet], [each.ended for each in self.flood])

    @property
    def longer(self) -> list[float]:
        """Seconds that each waited longer than that: what the hand-over to it has taken."""
        pairs = zip(self.waits, self.shortest, strict=False)  # those after the last end have no shortest wait
        return [max(wait - least, 0.0) for wait, least in pairs]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the others' whole answers, for each second."""
        return LONG_TOKENS * len(self.flood) / self.seconds


def shortest_waits(asked: Sequence[float], ends: Sequence[float]) -> list[float]:
    """Return how long each request waits that is given the first slot that ends after it has come; pure.

    All slots are taken all the time, so that none is free before. A request after the last end is left out.
    """
    return [min(after) - at for at in asked if (after := [end for end in ends if end >= at])]


def client_of(number: int) -> contextlib.AbstractAsyncContextManager[HttpClient]:
    """Hold a client with an address of its own on this machine."""

    async def connect(host: str, port: int) -> trio.SocketStream:
        return await trio.open_tcp_stream(host, port, local_address=f"127.0.0.{10 + number}")

    return open_http_client(connect)


async def ask(http: HttpClient, url: str, tokens: int) -> Answer:
    """Ask for a stream of exactly so many tokens."""
    body: dict[str, Any] = {"model": "m", "prompt": "What is LLMKube?", "stream": True, "max_tokens": tokens}
    data = json.dumps(body | {"ignore_eos": True, "temperature": 0, "cache_prompt": False}).encode()
    asked, first, received = trio.current_time(), 0.0, b""
    async with http.open_stream("POST", f"{url}/v1/completions", body=data) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} instead of an answer: {await answer.receive_some()!r}")
        while piece := await answer.receive_some():
            received += piece
            if not first and b"data:" in received:  # comments of a router that lets one wait are none
                first = trio.current_time()
    if b"data: [DONE]" not in received[-64:]:
        raise RuntimeError(f"the answer broke off: {received[-200:]!r}")
    return Answer(asked, first, trio.current_time())


async def play(url: str, run: Run, seconds: float) -> Round:
    """Let them ask."""
    found = Round(seconds=seconds)
    async with contextlib.AsyncExitStack() as stack:
        quiet, *busy = [await stack.enter_async_context(client_of(number)) for number in range(FLOODERS + 1)]
        alone = [await ask(quiet, url, SHORT_TOKENS) for _ in range(5)]
        found.alone_seconds = percentile([each.first - each.asked for each in alone], 50)

        async def flood(http: HttpClient) -> None:
            while True:
                found.flood.append(await ask(http, url, LONG_TOKENS))

        async with trio.open_nursery() as nursery:
            for http in busy:
                nursery.start_soon(flood, http)
            await trio.sleep(1.0)
            found.flood.clear()
            until = trio.current_time() + seconds
            while trio.current_time() < until:
                found.quiet.append(await ask(quiet, url, SHORT_TOKENS))
                await trio.sleep(run.rng.uniform(0.05, 0.4))
            found.seconds = trio.current_time() - until + seconds
            nursery.cancel_scope.cancel(reason="the round is over")
    return found


@contextlib.asynccontextmanager
async def open_contenders(folder: Path) -> AsyncIterator[tuple[dict[str, str], psutil.Process]]:
    """Hold the engine and the router before it; yields their addresses, and the router's process."""
    port = free_port()
    backend = Backend(name="m", model_id="m", base_url=f"http://127.0.0.1:{port}/v1", local=True, slots=SLOTS)
    rule = Rule(name="all", match=Match(), backends=("m",))
    config = folder / "router.json"
    config.write_bytes(encode_config(RoutingConfig(name="bench", backends={"m": backend}, rules=(rule,))))
    args = ("router", "-f", str(config), "--port", "0", "--admin-port", "0", "--state-dir", str(folder / "state"))
    flags = ("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * 512), "--threads", "1", "--threads-batch", "1")
    async with open_engine(folder, port, flags=flags) as engine, open_program(folder, *args) as router:
        url = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
        with core_of_its_own(engine.pid, router.process.pid):
            yield {ALONE: f"http://127.0.0.1:{port}", QUEUED: url}, psutil.Process(router.process.pid)
        router.process.terminate()
        await router.process.wait()


@contextlib.contextmanager
def core_of_its_own(engine: int, router: int) -> Iterator[None]:
    """Let the engine compute on the first core, and router and clients on the others."""
    if sys.platform != "linux":
        yield
        return
    cores = psutil.Process().cpu_affinity()
    if len(cores) < 2:
        yield
        return
    for pid, chosen in ((engine, cores[:1]), (router, cores[1:]), (os.getpid(), cores[1:])):
        for thread in psutil.Process(pid).threads():
            psutil.Process(thread.id).cpu_affinity(chosen)
    yield
    psutil.Process().cpu_affinity(cores)


async def measure(run: Run) -> dict[str, list[Round]]:
    """Play every round of every contender, in turn."""
    found: dict[str, list[Round]] = {ALONE: [], QUEUED: []}
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        async with open_contenders(Path(name)) as (urls, router):
            for _ in range(1 if run.quick else ROUNDS):
                for contender, url in urls.items():
                    before = sum(router.cpu_times()[:2])
                    one = await play(url, run, QUICK_SECONDS if run.quick else SECONDS)
                    one.router_cores = (sum(router.cpu_times()[:2]) - before) / one.seconds
                    found[contender].append(one)
    return found


def report_results(run: Run, found: dict[str, list[Round]]) -> None:
    """Hand the figures over."""
    rows, waits, shortest, rates = [], {}, {}, {}
    for contender, rounds in found.items():
        waits[contender] = [wait for each in rounds for wait in each.waits]
        shortest[contender] = [wait for each in rounds for wait in each.shortest]
        rates[contender] = sum(each.tokens_per_second for each in rounds) / len(rounds)
        alone = percentile([each.alone_seconds for each in rounds], 50)
        row = [f"{1000 * alone:.1f} ms"]
        row += [f"{1000 * percentile(waits[contender], percent):.0f} ms" for percent in (50, 99)]
        row += [f"{1000 * percentile(shortest[contender], percent):.0f} ms" for percent in (50, 99)]
        longer = [more for each in rounds for more in each.longer]
        row += [f"{1000 * percentile(longer, percent):.1f} ms" for percent in (50, 90)]
        rows.append([contender, *row, f"{rates[contender]:.0f}", str(len(waits[contender]))])
    columns = ["contender", "first event when alone", "wait, p50", "p99", "shortest wait, p50", "p99"]
    columns += ["longer than that, each, p50", "p90"]
    times = percentile(waits[QUEUED], 99) / percentile(shortest[QUEUED], 99)
    share = rates[QUEUED] / rates[ALONE]
    cores = percentile([each.router_cores for each in found[QUEUED]], 50)
    note = f"The router, through which every token passes as an event, took {cores:.0%} of a core."
    run.finish(
        "An occasional user among twelve busy ones",
        __doc__ or "",
        [Table([*columns, "others' tokens per second", "requests"], rows)],
        {name: [attrs.asdict(each) for each in rounds] for name, rounds in found.items()},
        aims=[
            Aim(
                "the quiet user's wait, p99",
                f"at most {WAIT_TIMES} times the shortest",
                f"{times:.2f} times",
                met=times <= WAIT_TIMES,
            ),
            Aim(
                "throughput, as a share of the engine's alone",
                f"at least {THROUGHPUT:.0%}",
                f"{share:.1%}",
                met=share >= THROUGHPUT,
            ),
        ],
        notes=[note],
    )


def main() -> None:
    """Measure and print."""
    run = begin("fairness", "trio", "xllamacpp")
    report_results(run, trio.run(partial(measure, run)))


if __name__ == "__main__":
    main()
