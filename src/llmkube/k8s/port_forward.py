"""A connection to a port of a pod through the API server; the pod's network need not be reachable.

The `portforward` subresource is opened as a WebSocket with the subprotocol `v4.channel.k8s.io`, which the API server
passes unchanged to the kubelet's streaming server; it translates only another subprotocol (SPDY in WebSocket).

* Each binary message begins with a channel: 0 has the port's bytes in both directions, 1 the kubelet's error text.
* The first message of each channel is the port number: two bytes, little-endian.
* There is no half-close: when either side closes, the connection ends.
* One WebSocket carries one connection: the kubelet dials the port once for each.

Requires the verb `get` on `pods/portforward`, and since Kubernetes 1.35 also `create`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import trio

from llmkube.base.http.errors import HttpError
from llmkube.base.http.websocket import WebSocket, connect_websocket
from llmkube.k8s import request as build
from llmkube.k8s.client import Client
from llmkube.k8s.errors import TransportError, printable_line
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Pod

PROTOCOL: Final = "v4.channel.k8s.io"

_DATA: Final = 0
_ERROR: Final = 1
_PIECE_BYTES: Final = 32 * 1024
_ERROR_CHARACTERS: Final = 500


class PortForwardError(TransportError):
    """The kubelet could not connect to the port, or lost the connection; the message is the kubelet's."""


class PodStream(trio.abc.Stream):
    """The bytes of one connection to a port of a pod.

    A failure is a `trio.BrokenResourceError` whose cause is a `TransportError` with the message for the user.
    """

    def __init__(self, websocket: WebSocket, call: str, port: int) -> None:
        self._websocket = websocket
        self._call = call
        self._announcement = port.to_bytes(2, "little")
        self._announced: set[int] = set()
        self._rest = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the pod; wait while the pod does not read."""
        await trio.lowlevel.checkpoint()
        try:
            for piece in _pieces(memoryview(data)):
                await self._websocket.send(bytes([_DATA]) + piece)
        except HttpError as error:
            raise trio.BrokenResourceError from TransportError(f"{self._call}: {error}")

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until more can be sent."""
        await self._websocket.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes from the pod, or b"" at the end of the connection."""
        if self._rest:
            await trio.lowlevel.checkpoint()
        try:
            while not self._rest:
                self._rest = self._take(await self._websocket.receive())
        except trio.EndOfChannel:
            if len(self._announced) == 2:
                return b""
            error = PortForwardError(f"{self._call}: the kubelet closed the connection before the first data")
            raise trio.BrokenResourceError from error
        except TransportError as error:
            raise trio.BrokenResourceError from error
        except HttpError as error:
            raise trio.BrokenResourceError from TransportError(f"{self._call}: {error}")
        piece = self._rest if max_bytes is None else self._rest[:max_bytes]
        self._rest = self._rest[len(piece) :]
        return piece

    async def aclose(self) -> None:
        """Close the connection to the pod."""
        await self._websocket.aclose()

    def _take(self, message: bytes | str) -> bytes:
        """Return the pod's bytes in a message.

        Raises:
            TransportError: The message is an error of the kubelet, or violates the protocol.
        """
        channel, payload = (message[0], message[1:]) if message and isinstance(message, bytes) else (None, b"")
        if channel not in {_DATA, _ERROR}:
            raise TransportError(f"{self._call}: the response does not follow {PROTOCOL}")
        if channel not in self._announced:
            if payload != self._announcement:
                raise TransportError(f"{self._call}: the response is for another port")
            self._announced.add(channel)
            return b""
        if channel == _ERROR and payload:
            raise PortForwardError(f"{self._call}: {printable_line(payload, _ERROR_CHARACTERS)}")
        return payload


async def connect_to_pod(client: Client, pod: Key, port: int) -> PodStream:
    """Open a connection to a port of a pod; the caller closes it.

    Success means that the kubelet has agreed to dial; whether a process listens on the port shows with the first bytes.

    Raises:
        ApiError: The pod does not exist or has no node yet, access is denied, or the connection failed.
    """
    request = build.connect(Pod.RESOURCE, pod, "portforward", ports=str(port))
    try:
        websocket = await connect_websocket(partial(client.upgrade, request), PROTOCOL)
    except HttpError as error:
        raise TransportError(f"{request.call}: {error}") from error
    return PodStream(websocket, request.call, port)


def _pieces(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
