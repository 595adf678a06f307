"""The one way from a router to a backend: it dials with a `Permit`, and nothing else tells it where to.

Where the services of this machine are in a directory, an engine is dialled where that says that it is.

No redirect is followed: what wants a request elsewhere is a fault of the backend. https is verified.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.errors import UserError
from llmkube.base.http.client import HttpClient, OnSent
from llmkube.base.http.dial import Connect, TlsDialer, dial
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Origin, netloc
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.router.backends import Backend as Engine
from llmkube.router.backends import ModelDirectory
from llmkube.router.config.routing_config import Backend
from llmkube.router.policy.permits import Permit

CONNECT_SECONDS: Final = 10.0
"""For a name, a connection and a handshake; an address that drops what is sent to it costs no more."""

MAX_IDLE_PER_ORIGIN: Final = 128
"""Idle connections kept to one host and port: a router has few backends, and many requests for each."""

MAX_IDLE: Final = 512

_PORTS: Final = {"http": 80, "https": 443}


class CertificateFileError(UserError):
    """A file of certificates cannot be used."""


@attrs.frozen
class Address:
    """Where a base URL leads.

    Attributes:
        secure: Whether TLS is spoken there.
        origin: Host and port.
        host: What stands in the Host header.
        path: Before the path of a request.
    """

    secure: bool
    origin: Origin
    host: str
    path: str

    @classmethod
    def of(cls, base_url: str) -> "Address":
        """Read a base URL.

        Raises:
            ValueError: It is none of http or https, or carries credentials, a query or a fragment.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.query:
            raise ValueError(f"not a base URL: {base_url!r}")
        default_port = _PORTS[parts.scheme]
        origin = (parts.hostname, parts.port or default_port)
        host = netloc(origin)
        if origin[1] == default_port:
            host = host.rpartition(":")[0]
        return cls(parts.scheme == "https", origin, host, parts.path.rstrip("/"))


def trusted_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return whom to trust: the system's authorities, and those of a file.

    Raises:
        CertificateFileError: The file has no certificates that can be read.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as exc:
            message = f"cannot read certificates from {ca_file}: {exc}; it takes a file of PEM certificates"
            raise CertificateFileError(message, field="--ca-file") from exc
    return context


@attrs.define(eq=False)
class Transport:
    """Sends requests to backends.

    Attributes:
        plain: For http.
        secure: For https.
        directory: Says where the engines of services are; None dials the address of each backend.
    """

    plain: HttpClient
    secure: HttpClient
    directory: ModelDirectory | None = None
    _addresses: dict[str, Address] = attrs.field(factory=dict)

    async def start(
        self, permit: Permit, path: str, lines: bytes, body: bytes, on_sent: OnSent | None = None
    ) -> StreamedResponse:
        """Send a request, and return when the head of its answer has come; `release` has to follow.

        Args:
            permit: Leave to send this request there.
            path: Below the backend's base URL.
            lines: Header lines.
            body: All of it.
            on_sent: Told once all of the request is sent.

        Raises:
            ConnectError: No connection; its cause is a TimeoutError if that took too long.
            ConnectionLostError: The backend broke off.
            ProtocolError: It does not speak HTTP/1.1.
            TypeError: There is no leave.
            ValueError: The backend's base URL is none.
        """
        address, client = self._route(permit)
        target, host = f"{address.path}{path}".encode("ascii"), address.host.encode("ascii")
        head = b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n" % (target, host, lines, len(body))
        return await client.start(address.origin, "POST", head, body, on_sent=on_sent)

    async def ask(self, permit: Permit, path: str, lines: bytes) -> StreamedResponse:
        """Get a path from the root of the backend's host, with nothing of a client's in it; `release` has to follow.

        Raises:
            As `start`.
        """
        address, client = self._route(permit)
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path.encode("ascii"), address.host.encode("ascii"), lines)
        return await client.start(address.origin, "GET", head, b"")

    def _route(self, permit: Permit) -> tuple[Address, HttpClient]:
        if type(permit) is not Permit:
            raise TypeError(f"a request is sent with a Permit, not with {type(permit).__name__}")
        if (directory := self.directory_of(permit.backend)) is not None:
            return _address_in(directory, permit.backend.model), self.plain
        base_url = permit.backend.base_url
        address = self._addresses.get(base_url)
        if address is None:
            address = self._addresses[base_url] = Address.of(base_url)
        return address, self.secure if address.secure else self.plain

    def directory_of(self, backend: Backend) -> ModelDirectory | None:
        """Return what says where a backend is; None of one that is dialled at its own address."""
        return None if backend.provider else self.directory

    async def release(self, permit: Permit, answer: StreamedResponse) -> None:
        """Keep the connection of an answer for the next request, or close it, which tells the backend to stop."""
        backend = permit.backend
        secure = self.directory_of(backend) is None and self._addresses[backend.base_url].secure
        client = self.secure if secure else self.plain
        if not client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)


def _address_in(directory: ModelDirectory, service: str) -> Address:
    engine = directory.lookup(service)
    if not isinstance(engine, Engine):
        raise ConnectError(f"no engine of {service} answers now")
    origin = (engine.host, engine.port)
    return Address(False, origin, netloc(origin), "/v1")


@asynccontextmanager
async def open_transport(
    connect: Connect = dial, *, ca_file: Path | None = None, directory: ModelDirectory | None = None
) -> AsyncIterator[Transport]:
    """Hold a transport; its idle connections are closed at the end.

    Args:
        connect: Opens plain connections, below TLS too.
        ca_file: Certificates to trust beside the system's.
        directory: As `Transport.directory`.

    Raises:
        CertificateFileError: The file has no certificates that can be read.
    """
    secured = TlsDialer(trusted_context(ca_file), connect=connect)
    limits = {"max_idle_per_origin": MAX_IDLE_PER_ORIGIN, "max_idle": MAX_IDLE}
    plain, secure = HttpClient(_with_timeout(connect), **limits), HttpClient(_with_timeout(secured), **limits)
    transport = Transport(plain, secure, directory)
    try:
        yield transport
    finally:
        await plain.aclose()
        await secure.aclose()


def _with_timeout(connect: Connect) -> Connect:
    async def connect_in_time(host: str, port: int) -> trio.abc.Stream:
        with trio.move_on_after(CONNECT_SECONDS):
            return await connect(host, port)
        raise TimeoutError(f"no connection within {CONNECT_SECONDS:g} seconds")

    return connect_in_time
