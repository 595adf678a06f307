"""Requests at a fixed rate, whether those before are answered or not: each counts from the moment at which it was due.

    python open_loop.py PORT RATE SECONDS CONNECTIONS MODEL HEADER…     prints what it has measured, as JSON

One loop over epoll or kqueue. A request whose moment has come takes a connection that is free; while none is, it waits,
and its wait counts: a server that stalls is charged for all that it kept waiting, which a client that waits for each
answer never sees (coordinated omission).
"""

import json
import math
import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

WARM_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 10.0


def requests(model: str, headers: Sequence[str], rng: random.Random) -> list[bytes]:
    """Return requests of 200 to 2,000 bytes, with further header lines (`Name: value`) if a contender needs any."""
    found = []
    for _ in range(64):
        content = "hello wörld " * rng.randint(8, 150)
        fields = {"model": model, "stream": False, "messages": [{"role": "user", "content": content}]}
        body = json.dumps(fields, ensure_ascii=False).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        head += "".join(f"{line}\r\n" for line in headers)
        head += f"Authorization: Bearer none\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append(head.encode() + body)
    return found


def answer_end(data: bytes) -> int:
    """Return how many bytes an answer has, 0 while it is not all there; an answer that is none ends the run."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    if not data.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"no answer: {data[:80]!r}")
    length = data[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    if not length:
        raise SystemExit("an answer without a length")
    whole = end + 4 + int(length)
    return whole if len(data) >= whole else 0


def run(asked: Sequence[bytes], port: int, rate: float, seconds: float, connections: int) -> dict[str, Any]:
    """Ask at this rate; return percentiles in microseconds, and how many were due and how many were answered."""
    poll = selectors.DefaultSelector()
    free: deque[socket.socket] = deque()
    received: dict[socket.socket, bytes] = {}
    due_at: dict[socket.socket, float] = {}
    for _ in range(connections):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one, selectors.EVENT_READ)
        received[one] = b""
        free.append(one)
    begin = time.monotonic()
    count, sent, took = int(rate * (seconds + WARM_SECONDS)), 0, list[float]()
    while sent < count or due_at:
        now = time.monotonic()
        while free and sent < count and begin + sent / rate <= now:
            one = free.popleft()
            due_at[one] = begin + sent / rate
            one.sendall(asked[sent % len(asked)])
            sent += 1
        wait = max(0.0, begin + sent / rate - time.monotonic()) if free and sent < count else 1.0
        for key, _ in poll.select(wait):
            one = key.fileobj  # type: ignore[assignment]  # only sockets are registered
            data = one.recv(65536)
            if not data:
                raise SystemExit("a connection ended")
            received[one] += data
            if (end := answer_end(received[one])) and one in due_at:
                received[one] = received[one][end:]
                due = due_at.pop(one)
                if due >= begin + WARM_SECONDS:
                    took.append(time.monotonic() - due)
                free.append(one)
        if time.monotonic() > begin + seconds + WARM_SECONDS + _PATIENCE_SECONDS:
            break
    ranked = sorted([*took, *[math.inf] * (int(rate * seconds) - len(took))])
    shares = {f"p{share}": 1e6 * ranked[int(len(ranked) * share / 100)] for share in (50, 99)}
    return {"due": int(rate * seconds), "answered": len(took), **shares}


if __name__ == "__main__":
    port, rate, seconds, connections, model, *headers = sys.argv[1:]
    asked = requests(model, headers, random.Random(1))
    print(json.dumps(run(asked, int(port), float(rate), float(seconds), int(connections))))
