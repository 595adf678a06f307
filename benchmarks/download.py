"""Downloading a large file over loopback: ours, verified and synced to the disk, against curl with and without that.

The server is a process of its own that sends with `sendfile`, so that it costs the contenders as little as can be. Each
round begins with a synced disk. Ours is timed from the call of `fetch` to its return, in a process that is up already,
as the agent is; curl's times include its start, which takes some milliseconds.

Two floors have nothing of ours in them: receiving into one buffer with plain blocking sockets, and hashing that buffer.
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

import attrs

from harness import Aim, Table, begin, in_child, interleaved, median

SIZE_BYTES, QUICK_BYTES = 1 << 30, 64 << 20
OURS = "llmkube"
FLOORS = ("receiving alone", "sha256 alone")

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
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import open_store

async def main(url, folder, sha256):
    async with open_downloader(
        open_store(Path(folder)),
        limiter=trio.CapacityLimiter(4),
        utcnow=partial(datetime.datetime.now, datetime.UTC),
        rng=random.Random(1),
    ) as downloader:
        policy = AddressPolicy(from_operator=True)
        started, cpu = time.perf_counter(), time.process_time()
        found = await downloader.fetch(parse_source(url), sha256=sha256, policy=policy, progress=lambda _: None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert found.sha256 == sha256
    print(json.dumps(dict(seconds=seconds, cpu=cpu)))

trio.run(main, *sys.argv[1:])
"""

RECEIVE = """
import json, socket, sys, time
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
room = memoryview(bytearray(8 << 20))
started, cpu = time.perf_counter(), time.process_time()
with socket.create_connection((url.hostname, url.port)) as connection:
    connection.sendall(f"GET {url.path} HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n".encode())
    while connection.recv_into(room):
        pass
print(json.dumps(dict(seconds=time.perf_counter() - started, cpu=time.process_time() - cpu)))
"""

HASH = """
import hashlib, json, random, sys, time

size, block = int(sys.argv[1]), random.Random(1).randbytes(1 << 20) * 8
started, cpu = time.perf_counter(), time.process_time()
digest = hashlib.sha256()
for _ in range(0, size, len(block)):
    digest.update(block)
print(json.dumps(dict(seconds=time.perf_counter() - started, cpu=time.process_time() - cpu)))
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


@attrs.frozen
class Cost:
    """Seconds of one download: of the clock, and of the processors without the server's."""

    seconds: float
    cpu: float


def child(folder: Path, script: str, *arguments: str) -> Cost:
    """Run a script that measures itself."""

    def run() -> Cost:
        found = in_child(script, *arguments)
        return Cost(float(found["seconds"]), float(found["cpu"]))

    return fresh(folder, run)


def shell(url: str, folder: Path, sha256: str, command: str) -> Cost:
    """Run a command line."""

    def run() -> Cost:
        environment = os.environ | {"URL": url, "FILE": str(folder / "file"), "SHA256": sha256}
        before, started = os.times(), time.perf_counter()
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, env=environment)
        seconds, after = time.perf_counter() - started, os.times()
        cpu = after.children_user - before.children_user + after.children_system - before.children_system
        return Cost(seconds, cpu)

    return fresh(folder, run)


def fresh(folder: Path, measure: Callable[[], Cost]) -> Cost:
    """Measure with an empty folder and nothing left to be written to the disk."""
    folder.mkdir()
    try:
        os.sync()
        return measure()
    finally:
        shutil.rmtree(folder)


SYNCED = "curl -o file, sync"
COMMANDS = {
    "curl -o file": 'curl -s -o "$FILE" "$URL"',
    SYNCED: 'curl -s -o "$FILE" "$URL"; sync "$FILE"',
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
            contenders: dict[str, Callable[[], Cost]] = {
                OURS: partial(child, folder, FETCH, url, str(folder / "store"), sha256),
                FLOORS[0]: partial(child, folder, RECEIVE, url),
                FLOORS[1]: partial(child, folder, HASH, str(size)),
            }
            contenders |= {what: partial(shell, url, folder, sha256, line) for what, line in COMMANDS.items()}
            samples = interleaved(contenders, rounds, run.rng)
    rates = {what: [size / cost.seconds / 1e6 for cost in each] for what, each in samples.items()}
    middle = {what: median(each) for what, each in rates.items()}
    rows = [
        [
            what,
            f"{middle[what]:.0f}",
            f"{min(each):.0f}",
            f"{max(each):.0f}",
            f"{median([cost.cpu for cost in samples[what]]):.2f}",
            f"{middle[OURS] / middle[what]:.2f}",
        ]
        for what, each in rates.items()
    ]
    floor = min(FLOORS, key=middle.__getitem__)
    aims = [
        Aim(f"rate of {OURS}, times that of {what}", f"at least {least}", f"{middle[OURS] / middle[what]:.2f}", met)
        for what, least in ((SYNCED, 1.0), (floor, 0.9))
        for met in (middle[OURS] / middle[what] >= least,)
    ]
    version = subprocess.run([curl, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    run.finish(
        "Downloading over loopback",
        f"""A file of {size >> 20} MiB from a server on the same machine, {rounds} rounds. LLMKube's result is a
        file with the right digest, synced to the disk under its final name; of the others only the last one does the
        same. Receiving alone, and hashing alone, are limits that no downloader can exceed.""",
        [Table(["contender", "MB/s (median)", "slowest", "fastest", "processor s", "llmkube is faster by"], rows)],
        rates,
        aims=aims,
        notes=[f"curl {version}; client, server and hashing share the cores that are listed below."],
    )


if __name__ == "__main__":
    main()
