"""A backend that answers chats at once, and a client that always asks, on blocking sockets: what is between them works.

    python loopback.py backend                        prints its port when it listens
    python loopback.py load PORT CONNECTIONS COUNT KEY    asks so often over so many connections; ends when it has all

They take little enough processor time that what is measured between them is never idle.
"""

import json
import selectors
import socket
import sys
from typing import Final

RECEIVE_BYTES: Final = 1 << 16
_HEAD: Final = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def bodies() -> list[bytes]:
    """Return chats of 200 to 2,000 bytes."""
    found = []
    for number in range(10):
        content = "Tell me of the fox. " * (9 * number + 4)
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
        payload = {"model": "plain", "messages": turns, "max_tokens": 64, "temperature": 0.7}
        found.append(json.dumps(payload).encode())
    return found


def answers() -> list[bytes]:
    """Return whole answers of 300 to 1,200 bytes."""
    found = []
    for number in range(10):
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "The quick brown fox. " * (4 * number + 3)},
        }
        usage = {"prompt_tokens": 20, "completion_tokens": 16, "total_tokens": 36}
        payload = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "plain"}
        body = json.dumps({**payload, "choices": [choice], "usage": usage}).encode()
        found.append(_HEAD % len(body) + body)
    return found


def whole(data: bytes) -> bool:
    """Return whether a message with a Content-Length is there to its end."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    at = head.lower().find(b"content-length:")
    return at < 0 or len(body) >= int(head[at + 15 :].partition(b"\r\n")[0])


def run_backend() -> None:
    """Answer until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    waiting, payload, number = selectors.DefaultSelector(), answers(), 0
    waiting.register(listener, selectors.EVENT_READ)
    received: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in waiting.select():
            one = key.fileobj
            assert isinstance(one, socket.socket)
            if one is listener:
                fresh = listener.accept()[0]
                fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting.register(fresh, selectors.EVENT_READ)
                received[fresh] = b""
                continue
            try:
                piece = one.recv(RECEIVE_BYTES)
            except ConnectionResetError:
                piece = b""
            received[one] += piece
            if not piece:
                waiting.unregister(one)
                del received[one]
                one.close()
            elif whole(received[one]):
                received[one], number = b"", number + 1
                one.sendall(payload[number % len(payload)])


def run_load(port: int, connections: int, count: int, key: str) -> None:
    """Ask, and fail where an answer is none.

    Raises:
        RuntimeError: An answer has another status than 200, or a connection ended.
    """
    line = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n{line}"
    asked = [b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(each), each) for each in bodies()]
    waiting, number, answered = selectors.DefaultSelector(), 0, 0
    received: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(one, selectors.EVENT_READ)
        received[one], number = b"", number + 1
        one.sendall(asked[number % len(asked)])
    while answered < count:
        for ready, _ in waiting.select():
            peer = ready.fileobj
            assert isinstance(peer, socket.socket)
            piece = peer.recv(RECEIVE_BYTES)
            received[peer] += piece
            if not piece:
                raise RuntimeError("a connection ended")
            if not whole(received[peer]):
                continue
            if not received[peer].startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"not answered: {received[peer][:300]!r}")
            received[peer], answered = b"", answered + 1
            if number < count:
                number += 1
                peer.sendall(asked[number % len(asked)])


if __name__ == "__main__":
    if sys.argv[1] == "backend":
        run_backend()
    else:
        run_load(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
