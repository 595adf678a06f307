"""Reading the header of a model with a large vocabulary, against the reference and the engine's own; and at worst.

Each sample is a fresh interpreter, so that peak memory is one reading's own. Times are CPU times: the file is cached,
so nothing else takes any, and a busy machine distorts them less.
"""

import datetime
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from harness import Aim, Table, begin, in_child, interleaved, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import gguf_bytes as g
from gguf_hostile import hostile_files
from llmkube.base.http.exchange import Exchange
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.remote_header import REQUEST_BYTES, read_remote_header
from llmkube.weights.source import WebFile, parse_source

TOKENS, MERGES, TENSORS = 151_936, 151_387, 707

MEASURE = """
import json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
def peak():
    # VmHWM and not ru_maxrss, which a child inherits from the process that it was forked from
    lines = Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else []
    kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return kib[0] * 1024 if kib else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{setup}
before, started = peak(), time.process_time()
try:
    {read}
except Exception as error:
    said = str(error)
else:
    said = ""
print(json.dumps(dict(seconds=time.process_time() - started, peak=peak(), added=peak() - before, said=said)))
"""
ENGINE_SETUP = """
sys.path.insert(0, {folder!r})
from gguf_oracle import InitParameters, load_library
engine = load_library()
"""
READERS = {
    "llmkube": ("from llmkube.weights.formats.gguf import read_header", "read_header(path)"),
    "gguf.GGUFReader": ("from gguf import GGUFReader", "GGUFReader(path)"),
    "llama.cpp (C++)": (
        ENGINE_SETUP.format(folder=str(Path(g.__file__).parent)),
        "engine.gguf_init_from_file(str(path).encode(), InitParameters(no_alloc=True))",
    ),
}


def reading(path: Path, setup: str, read: str) -> Callable[[], dict[str, Any]]:
    """Return a contender: one reading in an interpreter of its own."""
    return lambda: in_child(MEASURE.format(setup=setup, read=read), str(path))


def large_header() -> bytes:
    """Make the header of a model with the vocabulary and the tensors of a 32-billion-parameter Qwen."""
    keys = [
        g.key("general.architecture", g.STRING, "qwen2"),
        g.key("general.name", g.STRING, "benchmark"),
        g.key("qwen2.block_count", g.U32, 64),
        g.key("qwen2.context_length", g.U32, 131072),
        g.key("qwen2.embedding_length", g.U32, 5120),
        g.key("qwen2.attention.head_count", g.U32, 40),
        g.key("qwen2.attention.head_count_kv", g.U32, 8),
        g.key("tokenizer.ggml.model", g.STRING, "gpt2"),
        g.array("tokenizer.ggml.tokens", g.STRING, [f"token{number}" for number in range(TOKENS)]),
        g.array("tokenizer.ggml.token_type", g.I32, [1] * TOKENS),
        g.array("tokenizer.ggml.merges", g.STRING, [f"to ken{number}" for number in range(MERGES)]),
    ]
    tensors = [g.tensor(f"blk.{number}.weight", [64, 1], offset=number * 256) for number in range(TENSORS)]
    data = g.header(*keys, tensors=tensors)
    padded: bytes = data + bytes(-len(data) % 32)
    return padded


def requests_for(path: Path) -> tuple[int, int]:
    """Return how many Range requests the header takes from a web server on loopback, and how many bytes they bring."""
    made: list[int] = []
    size = path.stat().st_size

    async def serve(exchange: Exchange) -> None:
        first, _, last = (exchange.request.headers.get("Range") or "").removeprefix("bytes=").partition("-")
        with path.open("rb") as file:
            file.seek(int(first))
            body = file.read(int(last) + 1 - int(first))
        made.append(len(body))
        where = f"bytes {first}-{int(first) + len(body) - 1}/{size}"
        await exchange.respond(Response(206, Headers([("Content-Range", where)]), body))

    async def read() -> None:
        listeners = await open_listeners("127.0.0.1", 0)
        port = listeners[0].socket.getsockname()[1]
        source = parse_source(f"http://127.0.0.1:{port}/large.gguf")
        assert isinstance(source, WebFile)
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, serve, listeners)
            policy = AddressPolicy(from_operator=True)
            await read_remote_header(source, policy=policy, utcnow=lambda: datetime.datetime.now(datetime.UTC))
            nursery.cancel_scope.cancel()

    trio.run(read)
    return len(made), sum(made)


def main() -> None:
    """Measure, print, keep."""
    run = begin("gguf_header", "gguf", "xllamacpp")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "large.gguf"
        header = large_header()
        path.write_bytes(header)
        with path.open("r+b") as file:
            file.truncate(len(header) + TENSORS * 256)
        contenders = {title: reading(path, *how) for title, how in READERS.items()}
        samples = interleaved(contenders, 2 if run.quick else 9, run.rng)
        hostile = {title: reading(bad, *READERS["llmkube"]) for title, bad in hostile_files(folder).items()}
        worst = interleaved(hostile, 1 if run.quick else 5, run.rng)
        count, fetched = requests_for(path)
    ours = samples["llmkube"]
    seconds = {title: median([each["seconds"] for each in found]) for title, found in samples.items()}
    peaks = {title: median([each["peak"] for each in found]) for title, found in samples.items()}
    added = {title: median([each["added"] for each in found]) for title, found in samples.items()}
    assert not any(each["said"] for each in ours), ours
    rows = [
        [
            title,
            f"{seconds[title] * 1000:.1f} ms",
            f"{seconds[title] / seconds['llmkube']:.3g}",
            f"{added[title] / 2**20:.1f} MiB",
            f"{peaks[title] / 2**20:.0f} MiB",
            f"{peaks[title] / peaks['llmkube']:.2g}",
        ]
        for title in READERS
    ]
    package = "gguf.GGUFReader"
    faster = seconds[package] / seconds["llmkube"]
    share = peaks["llmkube"] / peaks[package]
    slowest = max(each["seconds"] for found in worst.values() for each in found)
    largest = max(each["peak"] for found in worst.values() for each in found)
    aims = [
        Aim("times as fast as the gguf package", "100", f"{faster:.0f}", faster >= 100),
        Aim("memory of the whole process, against the package's", "at most 1/10", f"1/{1 / share:.1f}", share <= 0.1),
        Aim("CPU time for any file", "under 1 s", f"{slowest:.2f} s", slowest < 1),
        Aim("process at its peak for any file", "under 64 MiB", f"{largest / 2**20:.0f} MiB", largest < 64 << 20),
        Aim(
            "Range requests for a remote header",
            f"at most {len(REQUEST_BYTES)}",
            str(count),
            count <= len(REQUEST_BYTES),
        ),
    ]
    columns = ["reader", "CPU time, median", "times ours", "memory added", "process at its peak", "times ours"]
    bad_rows = [
        [
            title,
            f"{max(each['seconds'] for each in found) * 1000:.1f} ms",
            f"{max(each['peak'] for each in found) / 2**20:.0f} MiB",
            "refused" if found[0]["said"] else "read",
        ]
        for title, found in worst.items()
    ]
    run.finish(
        "Reading a GGUF header",
        f"""A file with {TOKENS} tokens, {MERGES} merges and {TENSORS} tensors: {len(header) / 2**20:.1f} MiB of header.
        The gguf package's reader creates an object for every string; llama.cpp stores them too, in C++.""",
        [
            Table(columns, rows),
            Table(
                ["hostile file", "CPU time at most", "process at its peak", "verdict"],
                bad_rows,
                "LLMKube's reader at its limits:",
            ),
        ],
        {"readers": samples, "hostile": worst, "requests": count, "fetched_bytes": fetched},
        aims=aims,
        notes=[
            f"Over HTTP the same header takes {count} Range requests and {fetched / 2**20:.0f} MiB; "  # noqa: ISC004 - one
            f"no header takes more than {len(REQUEST_BYTES)}.",
        ],
    )


if __name__ == "__main__":
    main()
