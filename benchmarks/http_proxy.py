"""The gateway as a reverse proxy, compared with other programs that forward requests to an engine.

The gateway is that of a running `llmkube up`: JSON, the choice of the engine, all features. "Our server and client" is
the layer below it, without JSON. nginx is the reference; "raw sockets" is one Trio task per connection that parses
nothing; aiohttp, and uvicorn with httpx, are the usual alternatives in Python. Each has one process. The backend of
plain requests is nginx as well, and answers at once; wrk sends chats of 200 to 2,000 bytes, with hundreds of different
lengths in turn, so that few heads are identical to the one before. Streams come from a backend that sends 50 tokens a
second to each of 200 clients, while one more client sends a request of 400 KB every half second.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio

from harness import Aim, Run, Table, begin, median
from http_load import sse, tools, wrk
from http_load.processes import BARE, DIRECT, GATEWAY, HERE, NAMES, NGINX, RAW, Contender, launch, open_contenders
from http_load.up_program import PLAIN, STREAMS, Up, open_up

ROUNDS, SECONDS, CONNECTIONS = 5, 2, (1, 32)
STREAM_ROUNDS, STREAM_SECONDS, STREAM_COUNT = 3, 8.0, 200
LARGE_BYTES, LARGE_PAUSE_SECONDS = 400_000, 0.5
GROWTH_REQUESTS, GROWTH_MILLION, WARM_REQUESTS = 50_000, 1_000_000, 10_000
MISSING: Final = "not available here"
MILLION: Final = "million"
RATIO, ADDED_MICROSECONDS, GAP_MILLISECONDS, GROWTH_MIB = 0.40, 100.0, 1.0, 1.0


@attrs.frozen
class Round:
    """One contender's plain requests; microseconds, and bytes."""

    per_second: float
    p50: float
    p99: float
    processor: float
    memory: int


@attrs.frozen
class Streamed:
    """One contender's streams: milliseconds by which chunks were late, and later than those before them."""

    chunks_per_second: float
    late_p50: float
    late_p99: float
    later_p99: float
    processor_microseconds: float


@attrs.define(eq=False)
class Results:
    """All samples."""

    plain: dict[int, dict[str, list[Round]]]
    streamed: dict[str, list[Streamed]]
    growth: dict[str, int]


@attrs.frozen
class Commands:
    """Command lines of the two programs."""

    wrk: Sequence[str]
    nginx: Sequence[str]


async def measure_plain(
    run: Run, commands: Commands, up: Up, folder: Path
) -> tuple[dict[int, dict[str, list[Round]]], dict[str, int]]:
    """Return rounds by number of connections and contender, and by how much memory grew over many requests."""
    rounds, seconds = (1, 1) if run.quick else (ROUNDS, SECONDS)
    script = folder / "chats.lua"
    wrk.write_script(script, PLAIN, run.rng)
    async with open_contenders(commands.nginx, up, streams=False) as contenders:
        samples: dict[int, dict[str, list[Round]]] = {count: {who: [] for who in contenders} for count in CONNECTIONS}
        for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
            for count, found in samples.items():
                contender = contenders[who]
                await wrk.load(commands.wrk, script, contender.port, connections=count, seconds=1)  # to warm it up
                before = contender.processor
                seen = await wrk.load(commands.wrk, script, contender.port, connections=count, seconds=seconds)
                used = 1e6 * (contender.processor - before) / seen.requests
                found[who].append(Round(seen.per_second, seen.p50, seen.p99, used, contender.memory))
        growth = {}
        for who in (GATEWAY, BARE):
            growth[who] = await measure_growth(commands, contenders[who], script, growth_requests(run))
    return samples, growth


def growth_requests(run: Run) -> int:
    """Return over how many requests memory is compared."""
    return 2_000 if run.quick else GROWTH_MILLION if MILLION in run.options else GROWTH_REQUESTS


async def measure_growth(commands: Commands, contender: Contender, script: Path, requests: int) -> int:
    """Return the bytes that a proxy holds more after so many requests; it has answered thousands before."""
    before, done = contender.memory, 0
    while done < requests:
        seen = await wrk.load(commands.wrk, script, contender.port, connections=CONNECTIONS[-1], seconds=SECONDS)
        done += seen.requests
    return contender.memory - before


async def measure_streams(run: Run, commands: Commands, up: Up) -> dict[str, list[Streamed]]:
    """Return rounds of streams during large requests."""
    rounds, seconds = (1, 2.0) if run.quick else (STREAM_ROUNDS, STREAM_SECONDS)
    async with open_contenders(commands.nginx, up, streams=True) as contenders:
        samples: dict[str, list[Streamed]] = {who: [] for who in contenders}
        for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
            samples[who].append(await stream(contenders[who], seconds))
        return samples


async def stream(contender: Contender, seconds: float) -> Streamed:
    """Time one round; processor time and chunks include the time before the measurement."""
    client = [sys.executable, str(HERE / "sse.py")]
    beside = ["large", str(contender.port), str(LARGE_BYTES), str(LARGE_PAUSE_SECONDS), contender.model]
    asks = ["client", str(contender.port), str(STREAM_COUNT), str(seconds), contender.model]
    before = contender.processor
    async with AsyncExitStack() as stack:
        await launch(stack, [*client, *beside], prints_port=False)
        done = await trio.run_process([*client, *asks], capture_stdout=True)
    found: dict[str, Any] = json.loads(done.stdout)
    chunks = found["chunks"] * (seconds + sse.WARM_SECONDS) / seconds
    return Streamed(
        found["chunks"] / seconds,
        found["late"]["p50"],
        found["late"]["p99"],
        found["later"]["p99"],
        1e6 * (contender.processor - before) / chunks,
    )


async def measure(run: Run, commands: Commands) -> Results:
    """Measure plain requests and streams on one running `llmkube up`."""
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        async with open_up(Path(name), commands.nginx, PLAIN, STREAMS) as up:
            plain, growth = await measure_plain(run, commands, up, Path(name))
            return Results(plain, await measure_streams(run, commands, up), growth)


def middle(rounds: Sequence[Any], field: str) -> float:
    """Return the median of one figure."""
    return median([getattr(each, field) for each in rounds])


def plain_table(count: int, found: Mapping[str, Sequence[Round]]) -> Table:
    """Return requests at so many connections."""
    columns = ["proxy", "requests/s", "of nginx", "added p50, µs", "added p99, µs", "processor, µs", "memory, MiB"]
    direct, rows = found[DIRECT], []
    for who, name in NAMES.items():
        if who not in found:
            rows.append([name, MISSING, *[""] * (len(columns) - 2)])
            continue
        rate, memory = middle(found[who], "per_second"), middle(found[who], "memory") / (1 << 20)
        added = [f"{middle(found[who], each) - middle(direct, each):.0f}" for each in ("p50", "p99")]
        of_nginx = f"{rate / middle(found[NGINX], 'per_second'):.2f}" if NGINX in found else ""
        processor = f"{middle(found[who], 'processor'):.0f}"
        rows.append([name, f"{rate:.0f}", of_nginx, *added, processor, f"{memory:.0f}"])
    return Table(columns, rows, f"{count} connection{'s' * (count > 1)}:")


def stream_table(found: Mapping[str, Sequence[Streamed]]) -> Table:
    """Return the table of the streams."""
    columns = ["proxy", "chunks/s", "late, p50 ms", "late, p99 ms", "pause, p99 ms off", "processor per chunk, µs"]
    rows = []
    for who, name in NAMES.items():
        if who not in found:
            rows += [] if who == RAW else [[name, MISSING, *[""] * (len(columns) - 2)]]
            continue
        figures = [f"{middle(found[who], each):.2f}" for each in ("late_p50", "late_p99", "later_p99")]
        rate, used = middle(found[who], "chunks_per_second"), middle(found[who], "processor_microseconds")
        rows.append([name, f"{rate:.0f}", *figures, f"{used:.1f}"])
    return Table(columns, rows, f"{STREAM_COUNT} streams of {sse.PER_SECOND} tokens per second, during large requests:")


def aims(run: Run, found: Results) -> list[Aim]:
    """Return what was wanted of the gateway."""
    single, many = (found.plain[count] for count in CONNECTIONS)
    ratio = middle(many[GATEWAY], "per_second") / middle(many[NGINX], "per_second")
    added = middle(single[GATEWAY], "p50") - middle(single[DIRECT], "p50")
    off = middle(found.streamed[GATEWAY], "later_p99") - middle(found.streamed[DIRECT], "later_p99")
    growth = found.growth[GATEWAY] / (1 << 20)
    return [
        Aim("gateway, times nginx's requests/s, 32 connections", f"{RATIO:.2f}", f"{ratio:.2f}", ratio >= RATIO),
        Aim(
            "gateway, added p50, 1 connection",
            f"under {ADDED_MICROSECONDS:.0f} µs",
            f"{added:.0f} µs",
            added < ADDED_MICROSECONDS,
        ),
        Aim(
            "gateway, pause between chunks, added p99",
            f"under {GAP_MILLISECONDS:.0f} ms",
            f"{off:.2f} ms",
            off < GAP_MILLISECONDS,
        ),
        Aim(
            f"gateway, memory after {growth_requests(run):,} more requests",
            f"no growth (under {GROWTH_MIB:.0f} MiB)",
            f"{growth:+.2f} MiB",
            growth < GROWTH_MIB,
        ),
    ]


def main() -> None:
    """Measure, print, keep."""
    million = f"look at the growth of memory over {GROWTH_MILLION:,} requests; takes a quarter of an hour or more"
    run = begin("http_proxy", "trio", "httptools", options={MILLION: million})
    commands = Commands(tools.find_program("wrk"), tools.find_program("nginx"))
    if not commands.wrk or not commands.nginx:
        raise SystemExit("wrk or nginx is missing, and apt-get could not download it; install both")
    found = trio.run(measure, run, commands)
    tables = [*(plain_table(count, each) for count, each in found.plain.items()), stream_table(found.streamed)]
    grown = [f"{NAMES[who]}: {growth / 1024:+.0f} KiB" for who, growth in found.growth.items()]
    run.finish(
        "The gateway as a proxy",
        __doc__ or "",
        tables,
        attrs.asdict(found),
        aims=aims(run, found),
        notes=[
            f"Medians of {ROUNDS} rounds, of {STREAM_ROUNDS} for streams.",
            "Processor time and memory (USS) are the proxy's own; the gateway's memory is that of all of `llmkube up`.",
            "The pause deviation is the difference between the delays of a chunk and of the one before it.",
            f"Memory after {growth_requests(run):,} more requests: {'; '.join(grown)}.",
            f"Other programs: {tools.peer_versions()}.",
        ],
    )


if __name__ == "__main__":
    main()
