"""Downloading a large file over loopback: ours, verified and synced to the disk, against curl with and without that.

The server is a process of its own that sends with `sendfile`, so that it costs the contenders as little as can be. Each
round begins with a synced disk. Ours is timed from the call of `fetch` to its return, in a process that is up already,
as the agent is; curl's times include its start, which takes some milliseconds.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness import Table, begin, in_child, interleaved, median

SIZE_BYTES, QUICK_BYTES = 1 << 30, 64 << 20
OURS = "llmkube"

SERVE = """
import os, socket, sys
path = sys.argv[1]
size = os.stat(path).st_size
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    with connection, open(path, "rb") as file:
        received = b""
        while not received.endswith(b"\\r\\n\\r\\n"):
            received += connection.recv(65536) or b"\\r\\n\\r\\n"
        head = f'HTTP/1.1 200 OK\\r\\nContent-Length: {size}\\r\\nETag: "1"\\r\\nAccept-Ranges: bytes\\r\\n\\r\\n'
        offset = 0
        try:
            connection.sendall(head.encode())
            while offset < size:
                offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)
        except OSError:
            pass
"""

FETCH = """
import datetime, json, random, resource, sys, time
from functools import partial
from pathlib import Path
import trio
from llmkube.weights.address_policy import Policy
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.source import parse_source
from llmkube.weights.store import open_store

async def main(url, folder, sha256):
    async with open_downloader(
        open_store(Path(folder)),
        limiter=trio.CapacityLimiter(4),
        utcnow=partial(datetime.datetime.now, datetime.UTC),
        rng=random.Random(1),
    ) as downloader:
        policy = Policy(from_operator=True)
        started, cpu = time.perf_counter(), time.process_time()
        found = await downloader.fetch(parse_source(url), sha256=sha256, policy=policy, progress=lambda _: None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert found.sha256 == sha256
    print(json.dumps(dict(seconds=seconds, cpu=cpu)))

trio.run(main, *sys.argv[1:])
"""


@contextmanager
def served(path: Path) -> Iterator[str]:
    """Serve a file; give its URL."""
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/model.gguf"
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def make_file(path: Path, size: int, rng: random.Random) -> str:
    """Write bytes that begin like a model and do not compress; return their digest."""
    digest, block = hashlib.sha256(), b"GGUF" + rng.randbytes((1 << 20) - 4)
    with path.open("wb") as file:
        for number in range(size >> 20):
            piece = block[:4] + number.to_bytes(4, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def ours(url: str, folder: Path, sha256: str) -> float:
    """Fetch into a fresh store; return the seconds."""
    return fresh(folder, lambda: float(in_child(FETCH, url, str(folder / "store"), sha256)["seconds"]))


def shell(url: str, folder: Path, sha256: str, command: str) -> float:
    """Run a command line; return the seconds."""

    def run() -> float:
        environment = os.environ | {"URL": url, "FILE": str(folder / "file"), "SHA256": sha256}
        started = time.perf_counter()
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, env=environment)
        return time.perf_counter() - started

    return fresh(folder, run)


def fresh(folder: Path, measure: Callable[[], float]) -> float:
    """Measure with an empty folder and nothing left to be written to the disk."""
    folder.mkdir()
    try:
        os.sync()
        return measure()
    finally:
        shutil.rmtree(folder)


COMMANDS = {
    "curl -o file": 'curl -s -o "$FILE" "$URL"',
    "curl | sha256sum": 'curl -s "$URL" | sha256sum | grep -q "$SHA256"',
    "curl | tee file | sha256sum": 'curl -s "$URL" | tee "$FILE" | sha256sum | grep -q "$SHA256"',
    "curl -o, sha256sum, sync": 'curl -s -o "$FILE" "$URL"; sha256sum "$FILE" | grep -q "$SHA256"; sync "$FILE"',
}


def main() -> None:
    """Measure, and hand in the report."""
    run = begin("download", "trio", "httptools")
    curl = shutil.which("curl")
    if curl is None:
        sys.exit("curl is missing; install it to compare with")
    size, rounds = (QUICK_BYTES, 2) if run.quick else (SIZE_BYTES, 5)
    with tempfile.TemporaryDirectory(prefix="llmkube-bench-") as name:
        folder, source = Path(name) / "round", Path(name) / "source"
        sha256 = make_file(source, size, run.rng)
        with served(source) as url:
            contenders: dict[str, Callable[[], float]] = {OURS: partial(ours, url, folder, sha256)}
            contenders |= {what: partial(shell, url, folder, sha256, line) for what, line in COMMANDS.items()}
            samples = interleaved(contenders, rounds, run.rng)
    rates = {what: [size / seconds / 1e6 for seconds in each] for what, each in samples.items()}
    best = median(rates[OURS])
    rows = [
        [what, f"{median(each):.0f}", f"{min(each):.0f}", f"{max(each):.0f}", f"{best / median(each):.2f}"]
        for what, each in rates.items()
    ]
    version = subprocess.run([curl, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    run.finish(
        "Downloading over loopback",
        f"""A file of {size >> 20} MiB from a server on the same machine, {rounds} rounds. Ours ends with a file of the
        right digest, synced to the disk under its final name; of the others only the last one does the same.""",
        [Table(["contender", "MB/s (median)", "slowest", "fastest", "llmkube is faster by"], rows)],
        rates,
        notes=[f"curl {version}; all of client, server and hashing share the cores that are listed below."],
    )


if __name__ == "__main__":
    main()
