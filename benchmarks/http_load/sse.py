"""Streamed tokens: a backend that sends them at a steady pace, and a client that notes how late each one comes.

    python sse.py backend HOST PORT                      never ends; port 0 takes a free one, which is printed
    python sse.py client PORT STREAMS SECONDS MODEL      prints what it has measured, as JSON
    python sse.py large PORT BYTES PAUSE-SECONDS MODEL   sends large requests one after the other, until it is killed

Both ends are one loop over epoll or kqueue: each chunk has the moment at which it was sent by a clock that the
processes share, and a pause between two that is late by more than it was when they left has been made late on the way.
"""

import heapq
import json
import re
import selectors
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

PER_SECOND: Final = 50
WARM_SECONDS: Final = 1.0
_STAMP: Final = re.compile(rb'"sent":([0-9.]+)')
_LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_OK: Final = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'


def _chunk() -> bytes:
    event = (
        b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":'
        b'[{"index":0,"delta":{"content":" token"},"finish_reason":null}],"sent":%.6f}\n\n' % time.monotonic()
    )
    return b"%x\r\n%b\r\n" % (len(event), event)


class _Backend:
    """The connections of a backend, and when each stream's next token is due."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = selectors.DefaultSelector()
        self._poll.register(listener, selectors.EVENT_READ)
        self._received: dict[socket.socket, bytearray] = {}
        self._unsent: dict[socket.socket, bytes] = {}
        self._due: list[tuple[float, int, socket.socket]] = []
        self._streams = 0

    def step(self) -> None:
        """Wait for a client or the time of the next token, whichever comes first; serve clients and send due tokens."""
        wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
        for key, _ in self._poll.select(wait):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._receive(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
        while self._due and self._due[0][0] <= time.monotonic():
            moment, number, one = heapq.heappop(self._due)
            if one in self._received:
                self._send_token(one)
                heapq.heappush(self._due, (moment + 1 / PER_SECOND, number, one))

    def _accept(self) -> None:
        one, _ = self._listener.accept()
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll.register(one, selectors.EVENT_READ)
        self._received[one] = bytearray()

    def _receive(self, one: socket.socket) -> None:
        data, received = _received(one), self._received[one]
        if not data:
            self._poll.unregister(one)
            self._unsent.pop(one, None)
            del self._received[one]
            one.close()
            return
        received += data
        body = _whole_body(received)
        if body is None:
            return
        received.clear()
        if not re.search(rb'"stream": *true', body):
            one.sendall(_OK)
            return
        one.sendall(_HEAD)
        self._streams += 1  # they begin at different moments of the 20 ms
        begin = time.monotonic() + self._streams % PER_SECOND / PER_SECOND**2
        heapq.heappush(self._due, (begin, self._streams, one))

    def _send_token(self, one: socket.socket) -> None:
        data = self._unsent.pop(one, b"") or _chunk()
        with suppress(OSError):  # a client that reads too slowly gets fewer; one that is gone is seen by the poll
            data = data[one.send(data) :]
        if data:
            self._unsent[one] = data


def run_backend(host: str, port: int) -> None:
    """Answer 200 at once, or for a request with `"stream": true` a token each 20 ms until the client goes away."""
    with socket.create_server((host, port), backlog=4096) as listener:
        print(listener.getsockname()[1], flush=True)
        backend = _Backend(listener)
        while True:
            backend.step()


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(262144)
    except OSError:
        return b""


def _whole_body(received: bytearray) -> bytes | None:
    """Return the body of a request that has come to its end."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(received[: end + 2])
    size = int(length[1]) if length else 0
    return bytes(received[end + 4 :]) if len(received) - end - 4 >= size else None


def request(model: str, content: str, *, stream: bool) -> bytes:
    """Return a request to `/v1/chat/completions`."""
    body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    head += "Authorization: Bearer none\r\n"  # what a router asks for; others do not read it
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def run_client(port: int, streams: int, seconds: float, model: str) -> None:
    """Open so many streams; print how late their chunks came, and how much later than the one before it."""
    poll, rest, before = selectors.DefaultSelector(), dict[int, bytes](), dict[int, float]()
    asked = request(model, "Tell me a story. " * 20, stream=True)
    for _ in range(streams):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(asked)
        one.setblocking(False)
        poll.register(one, selectors.EVENT_READ)
        rest[one.fileno()] = b""
    begin = time.monotonic() + WARM_SECONDS
    late: list[float] = []
    later: list[float] = []
    while (now := time.monotonic()) < begin + seconds:
        for key, _ in poll.select(0.1):
            data = _received(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            moment = time.monotonic()
            if not data:
                raise SystemExit("a stream ended early")
            *whole, rest[key.fd] = (rest[key.fd] + data).split(b"\n\n")
            for event in whole:
                stamp = _STAMP.search(event)
                if stamp is None:
                    continue
                delay = moment - float(stamp[1])
                if now >= begin and key.fd in before:
                    late.append(delay)
                    later.append(abs(delay - before[key.fd]))
                before[key.fd] = delay
    if not later:
        raise SystemExit("no chunks came")
    print(json.dumps({"chunks": len(late), "late": _percentiles(late), "later": _percentiles(later)}))


def _percentiles(values: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    ranked = sorted(values)
    return {f"p{share}": 1000 * ranked[int(len(ranked) * share / 100)] for share in (50, 99)}


def run_large(port: int, size: int, pause_seconds: float, model: str) -> None:
    """Send large requests for ever."""
    asked: Any = request(model, "A long story, so far. " * (size // 22), stream=False)
    with socket.create_connection(("127.0.0.1", port)) as one:
        while True:
            one.sendall(asked)
            if not one.recv(65536):
                raise SystemExit("no answer to a large request")
            time.sleep(pause_seconds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["backend", host, port]:
            run_backend(host, int(port))
        case ["client", port, streams, seconds, model]:
            run_client(int(port), int(streams), float(seconds), model)
        case ["large", port, size, pause, model]:
            run_large(int(port), int(size), float(pause), model)
        case _:
            raise SystemExit(__doc__)
