"""Ask URLs in turns from inside a pod, with the standard library alone; prints JSON.

    python pod_client.py '{"body": …, "turns": [{"name": …, "url": …, "connections": …, "seconds": …}, …]}'

One loop over epoll: each connection stays open and sends its next request once it has the whole answer to the last. One
that an engine closes between two answers, as llama.cpp does now and then, is followed by another; that is in the time.
"""

import contextlib
import json
import selectors
import socket
import sys
import time
import urllib.parse
from typing import Any


def whole(received: bytearray) -> bool:
    """Whether a response with a length has come to its end.

    Raises:
        RuntimeError: It is no 200, or has no length: such a turn measures nothing.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    lines = bytes(received[:end]).lower().split(b"\r\n")
    if b" 200 " not in lines[0] + b" ":
        raise RuntimeError(bytes(received[:500]).decode(errors="replace"))
    length = next((line for line in lines if line.startswith(b"content-length:")), b"")
    return len(received) >= end + 4 + int(length.partition(b":")[2])


def receive(source: socket.socket) -> bytes:
    """Return what has come; nothing when the connection is closed."""
    try:
        return source.recv(65536)
    except ConnectionResetError:
        return b""


def ask(url: str, connections: int, seconds: float, body: bytes) -> list[float]:
    """Return how long each request took that was answered in that time, in seconds."""
    where = urllib.parse.urlparse(url)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    poll, took = selectors.DefaultSelector(), list[float]()
    state: dict[Any, tuple[bytearray, float]] = {}

    def connect(began: float) -> None:
        one = socket.create_connection((where.hostname or "", where.port or 80), timeout=30)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one, selectors.EVENT_READ)
        state[one] = bytearray(), began
        one.sendall(request)

    for _ in range(connections):
        connect(time.perf_counter())
    end = time.perf_counter() + seconds
    while True:
        for key, _ in poll.select(30):
            source = key.fileobj
            assert isinstance(source, socket.socket), "only sockets are registered"
            received, began = state[source]
            if not (piece := receive(source)):
                if received:
                    raise RuntimeError(f"{url} broke off an answer")
                poll.unregister(source)
                del state[source]
                source.close()
                connect(began)
                continue
            received += piece
            if whole(received):
                now = time.perf_counter()
                if now > end:
                    for each in state:
                        each.close()
                    return took
                took.append(now - began)
                state[source] = bytearray(), time.perf_counter()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is closed: the next read fails
                    source.sendall(request)


def main() -> None:
    """Play the turns."""
    wanted = json.loads(sys.argv[1])
    body, found = json.dumps(wanted["body"]).encode(), []
    for turn in wanted["turns"]:
        took = sorted(ask(turn["url"], turn["connections"], turn["seconds"], body))
        p50, p99 = (took[min(len(took) - 1, int(len(took) * part))] if took else 0.0 for part in (0.5, 0.99))
        found.append({"name": turn["name"], "connections": turn["connections"],
                      "per_second": len(took) / turn["seconds"], "p50": p50, "p99": p99})  # fmt: skip
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
