"""A real router with engines that are killed at random, and clients that check every answer.

An answer is complete, or the client gets an error: an error status, or in a stream an error event, no `[DONE]` and no
clean end. Everything else is wrong, including an unexpected word.
"""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import psutil
import trio

from e2e.up_process import open_program
from free_ports import free_port
from router.killed_engines import engine
from router.killed_engines.engine import words_of

ENGINES, CLIENTS, ODDS = 3, 12, 8000
LOOKS: Final = 200
WHOLE, BROKEN, REFUSED = "whole", "ended with an error event", "refused with an error"


@attrs.define(eq=False)
class Results:
    """Results of the requests.

    Attributes:
        answers: Number of each kind.
        wrong: Descriptions of wrong answers, with the request's number.
        deaths: Number of killed engines.
        memory: Bytes of the router (RSS), after equal shares of the requests.
        seconds: Total duration.
    """

    answers: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)
    deaths: int = 0
    memory: list[int] = attrs.field(factory=list)
    seconds: float = 0.0


def written_router(ports: list[int]) -> dict[str, Any]:
    """Return a router whose one rule has all engines, the least loaded first; a circuit opens for a second."""
    backends = [{"name": f"e{number}", "inferenceServiceRef": {"name": f"e{number}"}} for number in range(len(ports))]
    route = {"backends": [each["name"] for each in backends], "strategy": "least-loaded"}
    budget = {"name": "all", "scope": "router", "windowSeconds": 3600, "maxTokens": 10**12}
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "ModelRouter",
        "metadata": {"name": "soak", "namespace": "default"},
        "spec": {
            "backends": backends,
            "rules": [{"name": "all", "route": route}],
            "proxy": {"quarantineDuration": "1s"},
            "policy": {"auditLog": {"sink": "file", "filePath": "/dev/null"}, "budgets": [budget]},
        },
    }


async def keep_alive(port: int, number: int, found: Results) -> None:
    """Start an engine, and restart it whenever it was killed."""
    while True:
        seed = number + ENGINES * (found.deaths + 1)
        command = [sys.executable, engine.__file__, str(port), str(seed), str(ODDS)]
        await trio.run_process(command, check=False, stderr=subprocess.DEVNULL)
        found.deaths += 1


async def ask(stream: trio.SocketStream, number: int) -> tuple[int, bytes, bool]:
    """Send one request; return status, body, and whether its end was clean."""
    body = json.dumps({"model": "m", "stream": number % 3 > 0, "messages": [{"role": "user", "content": str(number)}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {len(body)}\r\n\r\n"
    await stream.send_all(head.encode() + body.encode())
    data = b""
    while b"\r\n\r\n" not in data:
        if not (some := await stream.receive_some()):
            return 0, data, False
        data += some
    head_, _, data = data.partition(b"\r\n\r\n")
    status, lines = int(head_.split()[1]), head_.lower()
    length = lines.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
    while len(data) < int(length) if length else not data.endswith(b"0\r\n\r\n"):
        if not (some := await stream.receive_some()):
            return status, data, False
        data += some
    return status, data, True


def judge(number: int, status: int, data: bytes, clean: bool) -> str:
    """Return the kind of an answer; a wrong one's starts with `wrong`."""
    answer = "".join(words_of(number))
    # A request that was alone in two engines is taken for the cause, although both were killed.
    if status >= 429 or (status == 400 and b'"ended_engines"' in data):
        return REFUSED if clean and b'"error"' in data else f"wrong: {status} {data!r}"
    if status != 200:
        return f"wrong: status {status} {data[:200]!r}"
    if number % 3 == 0:
        chunks = json.loads(data) if clean else {}
        return WHOLE if chunks and chunks["choices"][0]["message"]["content"] == answer else f"wrong: {data!r}"
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: ")]
    done = events[-1:] == [b"[DONE]"]
    chunks = [json.loads(each) for each in events[: -1 if done else None]]
    text = "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each.get("choices"))
    failed = bool(chunks) and "error" in chunks[-1]
    if done and clean and not failed and text == answer:
        return WHOLE
    if failed and not done and not clean and answer.startswith(text):
        return BROKEN
    return f"wrong: {'clean' if clean else 'broken'} end, done {done}, error {failed}, {text!r} of {answer!r}"


async def client(port: int, numbers: Callable[[], int | None], found: Results) -> None:
    """Send one request after another; reopen a connection that ends."""
    stream = None
    while (number := numbers()) is not None:
        if stream is None:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        try:
            status, data, clean = await ask(stream, number)
        except trio.BrokenResourceError:
            status, data, clean = 0, b"", False
        kind = judge(number, status, data, clean)
        found.answers[kind.partition(":")[0]] += 1
        if kind.startswith("wrong"):
            found.wrong.append(f"request {number}: {kind}")
        if not clean:
            await stream.aclose()
            stream = None
    if stream is not None:
        await stream.aclose()


@asynccontextmanager
async def open_router(folder: Path, ports: list[int]) -> AsyncIterator[tuple[int, psutil.Process]]:
    """Run `llmkube router`; yield its port and process."""
    (folder / "router.json").write_text(json.dumps(written_router(ports)))
    args = ["router", "-f", str(folder / "router.json"), "--port", "0", "--admin-port", "0"]
    args += ["--state-dir", str(folder / "state")]
    for number, port in enumerate(ports):
        args += ["--service", f"e{number}=http://127.0.0.1:{port}/v1"]
    async with open_program(folder, *args) as router:
        url = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
        yield int(url.rpartition(":")[2]), psutil.Process(router.process.pid)
        assert router.process.returncode is None


async def play(
    count: int, folder: Path, report: Callable[[str], None] = lambda text: None, *, seconds: float = math.inf
) -> Results:
    """Send this many requests, or as many as are answered in time, while engines are killed."""
    found, ports = Results(), [free_port() for _ in range(ENGINES)]
    asked = 0
    async with open_router(folder, ports) as (port, process), trio.open_nursery() as nursery:
        for number, each in enumerate(ports):
            nursery.start_soon(keep_alive, each, number, found)
        for each in ports:
            await until_open(each)

        def numbers() -> int | None:
            nonlocal asked
            if asked % max(1, count // LOOKS) == 0 and len(found.memory) <= LOOKS:
                found.memory.append(process.memory_info().rss)
                report(f"{asked} asked, {dict(found.answers)}, {found.deaths} deaths, {found.memory[-1] >> 20} MiB")
            asked += 1
            return asked if asked <= count and trio.current_time() < began + seconds else None

        began = trio.current_time()
        async with trio.open_nursery() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(partial(client, port, numbers, found))
        found.seconds = trio.current_time() - began
        found.memory.append(process.memory_info().rss)
        nursery.cancel_scope.cancel()
    return found


async def until_open(port: int) -> None:
    """Wait for a server."""
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.05)
        else:
            await stream.aclose()
            return
