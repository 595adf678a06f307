"""`llmkube router` compared with proxies, as the lower limit, and with other routers.

All forward chats of 200 to 2,000 bytes to one backend, nginx, which answers at once; wrk is the client. "Bare" is a
router with one backend and nothing else. "All on" has keys for its clients, twelve rules of which the last one matches,
a sensitive class, prices, budgets in a file, an audit log in another, metrics, and a circuit breaker for each backend.
LiteLLM runs with as many workers as there are cores, without a database and without its logs; Portkey's gateway as one
process of Node.js, nginx and Envoy as one thread each. Contenders take turns in random order; the first second of each
round is not counted. If a contender loses requests, the table shows it. At a fixed rate the time of each request starts
at the moment at which it was due, and a round in which the direct connection had twice its best p99 is not counted.
Streams are those of a backend that sends 50 tokens per second in each, with large requests at the same time. The wrong
keys arrive over 32 connections as fast as they are refused, at the same time as requests with a right one.
"""

import json
import math
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

from harness import Aim, Run, Table, begin, median
from http_load import sse, tools, wrk
from http_load.processes import BARE, DIRECT, HERE, NGINX, Contender
from http_load.routers import ENVOY, FULL, LITELLM, PORTKEY, ROUTER, Family, open_contenders

ROUNDS, SECONDS, CONNECTIONS = 3, 1, (1, 10, 32, 64, 256)
NAMES: Final[Mapping[str, str]] = {
    DIRECT: "no proxy",
    NGINX: "nginx",
    BARE: "our server and client",
    ROUTER: "router, bare",
    FULL: "router, all on",
    ENVOY: "Envoy",
    LITELLM: "LiteLLM",
    PORTKEY: "Portkey",
}
RATES, PACED_CONNECTIONS, PACED_SECONDS = (500, 1000, 3000), 64, 3
STREAM_COUNT, STREAM_SECONDS, LARGE_BYTES, LARGE_PAUSE_SECONDS = 200, 4, 400_000, 1.0
"""Streams of 50 tokens per second, during requests of about 100,000 tokens one after the other."""

OF_NGINX, OF_LITELLM, ADDED_MICROSECONDS, ADDED_P99_MICROSECONDS, MEMORY_MIB = 0.25, 60.0, 150.0, 500.0, 64.0
PACED_AT: Final = 1000
SIZES, SIZED_CONNECTIONS = (1_000, 100_000, 400_000), 10
WRONG_KEYS_AT, WRONG_KEY_CONNECTIONS = 100, 32
AT: Final = 32
LOST: Final = "lost requests"
ALONE, FLOODED = "nothing else", f"wrong keys, {WRONG_KEY_CONNECTIONS} connections"


@attrs.frozen
class Round:
    """One contender's requests; microseconds, and bytes."""

    per_second: float
    p50: float
    p99: float
    processor: float
    memory: int


@attrs.frozen
class Paced:
    """Times at a fixed rate, of requests or of tokens; microseconds."""

    p50: float
    p99: float


@attrs.define(eq=False)
class Results:
    """All samples: rounds by connections and contender, None for a round that lost requests; seconds to start.

    `sized` has rounds by bytes of a request. `paced` has requests at fixed rates, round by round, and `streamed` how
    late tokens come behind the one before. `flooded` has requests with a right key, with and without wrong ones.
    """

    rounds: dict[int, dict[str, list[Round | None]]]
    starts: dict[str, float]
    idle: dict[str, int]
    sized: dict[int, dict[str, list[Round | None]]] = attrs.field(factory=dict)
    flooded: dict[str, list[Paced | None]] = attrs.field(factory=dict)
    paced: dict[int, list[dict[str, Paced | None]]] = attrs.field(factory=dict)
    streamed: dict[str, list[Paced | None]] = attrs.field(factory=dict)


async def measure(run: Run, wrk_command: Sequence[str], nginx_command: Sequence[str]) -> Results:
    """Measure all, in turns."""
    rounds, seconds = (1, 1) if run.quick else (ROUNDS, SECONDS)
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        script = Path(name) / "chats.lua"
        wrk.write_script(script, "plain", run.rng)
        async with open_contenders(nginx_command) as (contenders, starts):
            idle = {who: each.memory for who, each in contenders.items()}
            found = Results({count: {who: [] for who in contenders} for count in CONNECTIONS}, starts, idle)
            for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
                for count, samples in found.rounds.items():
                    samples[who].append(await one_round(wrk_command, script, contenders[who], count, seconds))
            for size in SIZES:
                wrk.write_script(script, "plain", run.rng, [size] * 8)
                found.sized[size] = samples = {who: [] for who in contenders}
                for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
                    samples[who].append(
                        await one_round(wrk_command, script, contenders[who], SIZED_CONNECTIONS, seconds)
                    )
            wrk.write_script(script, "plain", run.rng)
            paced_seconds = seconds if run.quick else PACED_SECONDS
            found.flooded = {ALONE: [], FLOODED: []}
            for _ in range(rounds):
                found.flooded[ALONE].append(await at_rate(contenders[FULL], WRONG_KEYS_AT, paced_seconds))
                async with wrong_keys(wrk_command, script, contenders[FULL].port):
                    found.flooded[FLOODED].append(await at_rate(contenders[FULL], WRONG_KEYS_AT, paced_seconds))
            for rate in RATES:
                found.paced[rate] = [
                    {
                        who: await at_rate(contenders[who], rate, paced_seconds)
                        for who in run.rng.sample(list(contenders), len(contenders))
                    }
                    for _ in range(rounds)
                ]
        async with open_contenders(nginx_command, streams=True) as (contenders, _):
            found.streamed = {who: [] for who in contenders}
            for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
                found.streamed[who].append(await streams_of(contenders[who]))
        return found


@asynccontextmanager
async def wrong_keys(command: Sequence[str], script: Path, port: int) -> AsyncIterator[None]:
    """Flood a router with keys that it does not know, until the block ends."""
    flags = ["-t1", f"-c{WRONG_KEY_CONNECTIONS}", "-d600s", "-s", str(script), f"http://127.0.0.1:{port}"]
    async with trio.open_nursery() as nursery:
        flood = partial(trio.run_process, [*command, *flags, "--", "Authorization: Bearer wrong"], stdout=DEVNULL)
        await nursery.start(flood)
        yield
        nursery.cancel_scope.cancel()


async def at_rate(contender: Contender | Family, rate: int, seconds: int) -> Paced | None:
    """Return requests at a fixed rate; None where some had no answer."""
    command = [sys.executable, str(HERE / "open_loop.py"), str(contender.port)]
    command += [str(rate), str(seconds), str(PACED_CONNECTIONS), "plain", *contender.headers]
    done = await trio.run_process(command, capture_stdout=True, check=False)
    if done.returncode:
        return None
    measured = json.loads(done.stdout)
    return Paced(measured["p50"], measured["p99"]) if measured["answered"] == measured["due"] else None


async def streams_of(contender: Contender | Family) -> Paced | None:
    """Return the delays of tokens of many streams during large requests; None if a stream broke."""
    client = [sys.executable, str(HERE / "sse.py")]
    large = ["large", str(contender.port), str(LARGE_BYTES), str(LARGE_PAUSE_SECONDS), contender.model]
    async with trio.open_nursery() as nursery:
        beside = partial(trio.run_process, [*client, *large], check=False, stderr=DEVNULL)
        await nursery.start(beside)
        asked = ["client", str(contender.port), str(STREAM_COUNT), str(STREAM_SECONDS), contender.model]
        done = await trio.run_process([*client, *asked], capture_stdout=True, check=False)
        nursery.cancel_scope.cancel()
    if done.returncode:
        return None
    later = json.loads(done.stdout)["later"]
    return Paced(1000 * later["p50"], 1000 * later["p99"])


async def one_round(
    command: Sequence[str], script: Path, contender: Contender | Family, count: int, seconds: float
) -> Round | None:
    """Return one round; None if requests were lost, or none was answered."""
    try:
        asked = partial(wrk.load, command, script, contender.port, connections=count, headers=contender.headers)
        await asked(seconds=1)
        before = contender.processor
        seen = await asked(seconds=seconds)
    except RuntimeError as error:
        print(f"not counted: {error}", file=sys.stderr)
        return None
    if not seen.requests:
        return None  # it has answered none within the round
    used = 1e6 * (contender.processor - before) / seen.requests
    return Round(seen.per_second, seen.p50, seen.p99, used, contender.memory)


def middle(rounds: Sequence[Round | None], field: str) -> float | None:
    """Return the median of one figure; None where a round is missing."""
    whole = [each for each in rounds if each is not None]
    return median([getattr(each, field) for each in whole]) if len(whole) == len(rounds) else None


def table(samples: Mapping[str, Sequence[Round | None]], caption: str) -> Table:
    """Return requests as fast as they are answered."""
    columns = ["proxy", "requests/s", "of nginx", "added p50, µs", "added p99, µs", "processor, µs", "memory, MiB"]
    rows = []
    floor = middle(samples[NGINX], "per_second") or float("nan")
    for who, name in NAMES.items():
        if who not in samples:
            rows.append([name, "not available here", *[""] * (len(columns) - 2)])
            continue
        rate = middle(samples[who], "per_second")
        if rate is None:
            rows.append([name, LOST, *[""] * (len(columns) - 2)])
            continue
        added = []
        for field in ("p50", "p99"):
            mine, least = middle(samples[who], field), middle(samples[DIRECT], field)
            added.append(f"{mine - least:.0f}" if mine is not None and least is not None else "")
        used, memory = middle(samples[who], "processor") or 0.0, (middle(samples[who], "memory") or 0.0) / (1 << 20)
        rows.append([name, f"{rate:.0f}", f"{rate / floor:.3f}", *added, f"{used:.0f}", f"{memory:.0f}"])
    return Table(columns, rows, caption)


def quiet(rounds: Sequence[Mapping[str, Paced | None]]) -> list[Mapping[str, Paced | None]]:
    """Return the rounds in which the way without a proxy was no slower than twice its best p99."""
    direct = [each[DIRECT].p99 if each[DIRECT] else math.inf for each in rounds]  # type: ignore[union-attr]
    return [each for each, p99 in zip(rounds, direct, strict=True) if p99 <= 2 * min(direct) < math.inf]


def added(rounds: Sequence[Mapping[str, Paced | None]], who: str, field: str) -> float | None:
    """Return by how much a contender exceeds no proxy, the median; None if a round of either is missing."""
    pairs = [(each[who], each[DIRECT]) for each in rounds]
    if not pairs or not all(mine and least for mine, least in pairs):
        return None
    return median([getattr(mine, field) - getattr(least, field) for mine, least in pairs])


def paced_table(rate: int, found: Results) -> Table:
    """Return requests at a fixed rate."""
    rounds = quiet(found.paced[rate])
    rows = []
    for who, name in NAMES.items():
        if who not in found.idle:
            rows.append([name, "not available here", ""])
            continue
        values = [added(rounds, who, field) for field in ("p50", "p99")]
        rows.append([name, *(LOST if each is None else f"{each:.0f}" for each in values)])
    left = len(found.paced[rate]) - len(rounds)
    dropped = f", {left} of {len(found.paced[rate])} rounds not counted" if left else ""
    caption = f"{rate} requests per second at {PACED_CONNECTIONS} connections, each from when it was due{dropped}:"
    return Table(["proxy", "added p50, µs", "added p99, µs"], rows, caption)


def stream_table(found: Results) -> Table:
    """Return how late tokens come behind the one before."""
    rows = []
    for who, name in NAMES.items():
        whole = [each for each in found.streamed.get(who, []) if each is not None]
        if who in found.streamed and len(whole) == len(found.streamed[who]):
            rows.append(
                [name, *(f"{median([getattr(each, field) for each in whole]):.0f}" for field in ("p50", "p99"))]
            )
        elif who in found.streamed:
            rows.append([name, "streams broke", ""])
    caption = f"{STREAM_COUNT} streams of {sse.PER_SECOND} tokens per second, during requests of {LARGE_BYTES} bytes:"
    return Table(["proxy", "later than the one before, p50, µs", "p99, µs"], rows, caption)


def flood_table(found: Results) -> Table:
    """Return the times of requests with a right key, with and without wrong ones."""
    rows = []
    for name, rounds in found.flooded.items():
        whole = [each for each in rounds if each is not None]
        if not whole or len(whole) != len(rounds):
            rows.append([name, LOST, ""])
            continue
        rows.append([name, *(f"{median([getattr(each, field) for each in whole]):.0f}" for field in ("p50", "p99"))])
    caption = f"Router, all on: {WRONG_KEYS_AT} requests per second with a right key, each from when it was due:"
    return Table(["at the same time", "p50, µs", "p99, µs"], rows, caption)


def aims(found: Results) -> list[Aim]:
    """Return what was wanted of a router with everything on."""
    many, single = found.rounds[AT], found.rounds[1]
    rate = middle(many[FULL], "per_second") or 0.0
    ratio = rate / (middle(many[NGINX], "per_second") or float("nan"))
    added = (middle(single[FULL], "p50") or float("nan")) - (middle(single[DIRECT], "p50") or 0.0)
    memory = max((each.memory for rounds in found.rounds.values() for each in rounds[FULL] if each), default=0)
    peak = memory / (1 << 20)
    wanted = [
        Aim(
            f"all on, times nginx's requests/s, {AT} connections", f"{OF_NGINX:.2f}", f"{ratio:.2f}", ratio >= OF_NGINX
        ),
        Aim(
            "all on, added p50, 1 connection",
            f"under {ADDED_MICROSECONDS:.0f} µs",
            f"{added:.0f} µs",
            added < ADDED_MICROSECONDS,
        ),
        *paced_aims(found),
        Aim("all on, most memory", f"under {MEMORY_MIB:.0f} MiB", f"{peak:.0f} MiB", peak < MEMORY_MIB),
    ]
    if LITELLM in many and (peer := middle(many[LITELLM], "per_second")):
        times = rate / peer
        wanted.insert(
            1,
            Aim("all on, times LiteLLM's requests/s", f"{OF_LITELLM:.0f}", f"{times:.0f}", times >= OF_LITELLM),
        )
    return wanted


def paced_aims(found: Results) -> list[Aim]:
    """Return what was wanted of a router with everything on at a fixed rate."""
    wanted = []
    for field, most in (("p50", ADDED_MICROSECONDS), ("p99", ADDED_P99_MICROSECONDS)):
        value = added(quiet(found.paced[PACED_AT]), FULL, field)
        measured = "lost requests" if value is None else f"{value:.0f} µs"
        what = f"all on, added {field}, {PACED_AT} requests/s"
        wanted.append(Aim(what, f"under {most:.0f} µs", measured, value is not None and value < most))
    return wanted


def main() -> None:
    """Measure, print, keep."""
    run = begin("router", "trio", "httptools")
    wrk_command, nginx_command = tools.find_program("wrk"), tools.find_program("nginx")
    if not wrk_command or not nginx_command:
        raise SystemExit("wrk or nginx is missing, and apt-get could not download it; install both")
    found = trio.run(measure, run, wrk_command, nginx_command)
    idle = ", ".join(f"{NAMES[who]} {size / (1 << 20):.0f} MiB" for who, size in found.idle.items())
    starts = ", ".join(f"{NAMES[who]} {seconds:.1f} s" for who, seconds in found.starts.items())
    run.finish(
        "The router as a proxy",
        __doc__ or "",
        [
            *(table(found.rounds[count], f"{count} connection{'s' * (count > 1)}:") for count in CONNECTIONS),
            *(
                table(found.sized[size], f"Requests of {size:,} bytes, {SIZED_CONNECTIONS} connections:")
                for size in SIZES
            ),
            *(paced_table(rate, found) for rate in RATES),
            stream_table(found),
            flood_table(found),
        ],
        attrs.asdict(found),
        aims=aims(found),
        notes=[
            f"Medians of {ROUNDS} rounds of {SECONDS} s.",
            "Processor time and memory (USS) are the proxy's own, of all its processes.",
            f"Memory before the first request: {idle}.",
            f"From the start of the program to the first connection: {starts}.",
            f"Other programs: {tools.peer_versions()}{tools.router_versions()}.",
        ],
    )


if __name__ == "__main__":
    main()
