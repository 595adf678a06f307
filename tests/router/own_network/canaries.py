"""Providers in a network namespace of their own that record every byte they receive, by request.

A program: `python canaries.py REPORT`, in a namespace that its parent has made. It waits for a line on stdin, answers
on every address of the namespace, and writes its report when stdin ends.
"""

import json
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import trio

PORT: Final = 8080
NAME: Final = b"\r\nx-request-id: "
SLOW: Final = (10, 20, 30)
"""Of all answers, these are late enough for the router to check the health of the backend meanwhile."""
SLOW_SECONDS: Final = 2.5
LENGTH: Final = b"\r\ncontent-length: "
ELSEWHERE: Final = [f"10.{tier}.0.{host}" for tier in (1, 2) for host in range(2, 8)]
SAID: Final = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}
PIECE: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}\n\n'
SSE: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
HEALTHY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def _answer(status: int, content: object, line: str = "X: y") -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{line}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def drawn_answer(dice: random.Random, streams: bool) -> tuple[bytes, bool]:
    """Return the answer of a canary, and whether the connection stays open: half of the answers are failures."""
    error = {"error": {"message": "no", "code": "no"}}
    away = f"Location: http://{dice.choice(ELSEWHERE)}:{PORT}/v1/chat/completions"
    kind = dice.randrange(14)
    if kind < 7:
        return (SSE + PIECE + b"data: [DONE]\n\n", False) if streams else (_answer(200, SAID), True)
    found = {
        7: _answer(500, error),
        8: _answer(429, error, "Retry-After: 0"),
        9: _answer(dice.choice((301, 302, 307, 308)), {}, away),
        10: _answer(200, {"error": {"message": "boom", "code": 500}}),
        11: _answer(400, {"error": {"message": "no", "code": "content_filter"}}),
        12: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        13: b"",
    }[kind]
    return found, kind < 12


class Canaries:
    """Received bytes by request and address, whole health checks by address, and bytes that belong to neither."""

    def __init__(self) -> None:
        self.seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.checks: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.stray: Counter[str] = Counter()
        self.dice = random.Random(3)
        self.answered = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer requests of one connection."""
        address = stream.socket.getsockname()[0]
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    if not (some := await stream.receive_some()):
                        return
                    data += some
                head, _, rest = data.partition(b"\r\n\r\n")
                lines = head.lower()
                if head.startswith(b"GET ") and LENGTH not in lines:  # what it says is compared in the session
                    self.checks[address][head.decode("latin-1")] += 1
                    data = rest
                    await stream.send_all(HEALTHY)
                    continue
                if LENGTH not in lines:
                    return  # all of it is stray
                length = int(lines.partition(LENGTH)[2].partition(b"\r\n")[0])
                while len(rest) < length:
                    if not (some := await stream.receive_some()):
                        return
                    rest += some
                    data += some
                whole = len(head) + 4 + length
                self.seen[lines.partition(NAME)[2].partition(b"\r\n")[0].decode()][address] += whole
                data = data[whole:]
                if not await self._answer(stream, b'"stream":true' in rest):
                    data = b""
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            self.stray[address] += len(data)
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SocketStream, streams: bool) -> bool:
        """Answer a request; return whether the connection stays open."""
        self.answered += 1
        if self.answered in SLOW:
            await trio.sleep(SLOW_SECONDS)
        answer, goes_on = drawn_answer(self.dice, streams)
        await stream.send_all(answer)
        return goes_on


def received() -> dict[str, int]:
    """Return the bytes that each interface of this namespace has received, from the kernel's counters."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


async def main(report: Path) -> None:
    canaries = Canaries()
    stdin = trio.lowlevel.FdStream(0)
    await stdin.receive_some()
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, canaries.serve, PORT)
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()
    stray = {address: count for address, count in canaries.stray.items() if count}
    report.write_text(
        json.dumps({"seen": canaries.seen, "checks": canaries.checks, "stray": stray, "received": received()})
    )


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
