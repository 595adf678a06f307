"""The only connection from a router to its backends: the address comes from a `Permit`, and from nothing else.

With a model directory, an engine of this machine is dialled at the address that the directory has for it. Providers
and token issuers are reached through the proxies of the program's `Egress`, engines directly.

Redirects are not followed: they are faults of the backend. TLS certificates are verified.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.http.client import HttpClient, OnSent
from llmkube.base.http.dial import Connect, TlsDialer, dial
from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Origin, netloc
from llmkube.base.http.outbound import OutboundClient, OutboundDialer, trusted_context
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.router.backends import Backend as Engine
from llmkube.router.backends import ModelDirectory
from llmkube.router.config.routing_config import Backend
from llmkube.router.policy.permits import Permit

CONNECT_SECONDS: Final = 10.0
"""Timeout for DNS, connection and TLS handshake together, if an address drops packets for instance."""

MAX_IDLE_PER_ORIGIN: Final = 128
"""Idle connections per host and port: a router has few backends, with many requests each."""

MAX_IDLE: Final = 512

_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen
class Address:
    """Parsed base URL.

    Attributes:
        secure: Whether it uses TLS.
        origin: Host and port.
        host: Value of the Host header.
        path: Prefix of request paths.
    """

    secure: bool
    origin: Origin
    host: str
    path: str

    @classmethod
    def of(cls, base_url: str) -> "Address":
        """Parse a base URL.

        Raises:
            ValueError: It is not an http or https URL, or has a user name or a query.
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


@attrs.define(eq=False)
class Transport:
    """Sends requests to backends.

    Attributes:
        plain: Client for http to engines.
        secure: Client for https to engines.
        outside: Clients for http and https to other servers.
        directory: Resolves services to engines; None dials the address of each backend.
    """

    plain: HttpClient
    secure: HttpClient
    outside: tuple[HttpClient, HttpClient]
    directory: ModelDirectory | None = None
    _addresses: dict[str, Address] = attrs.field(factory=dict)

    async def start(
        self, permit: Permit, path: str, lines: bytes, body: bytes, on_sent: OnSent | None = None
    ) -> StreamedResponse:
        """Send a request, and return once the head of the answer has been received; the caller must `release` it.

        Args:
            permit: Permission for this backend.
            path: Path below the backend's base URL.
            lines: Header lines.
            body: Complete body.
            on_sent: Called once the whole request has been sent.

        Raises:
            ConnectError: There is no connection; its cause is a TimeoutError after `CONNECT_SECONDS`.
            ConnectionLostError: The backend closed the connection.
            ProtocolError: The backend does not speak HTTP/1.1.
            TypeError: `permit` is not a Permit.
            ValueError: The backend's base URL is invalid.
        """
        address, client = self._route(permit)
        target, host = f"{address.path}{path}".encode("ascii"), address.host.encode("ascii")
        head = b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n" % (target, host, lines, len(body))
        return await client.start(address.origin, "POST", head, body, on_sent=on_sent)

    async def ask(self, permit: Permit, path: str, lines: bytes) -> StreamedResponse:
        """GET a path from the root of the backend's host, without client data; the caller must `release` the answer.

        Raises:
            As `start`.
        """
        address, client = self._route(permit)
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path.encode("ascii"), address.host.encode("ascii"), lines)
        return await client.start(address.origin, "GET", head, b"")

    def _route(self, permit: Permit) -> tuple[Address, HttpClient]:
        if type(permit) is not Permit:
            raise TypeError(f"a request needs a Permit, not a {type(permit).__name__}")
        if (directory := self.directory_of(permit.backend)) is not None:
            return _address_in(directory, permit.backend.directory_id), self.plain
        base_url = permit.backend.base_url
        address = self._addresses.get(base_url)
        if address is None:
            address = self._addresses[base_url] = Address.of(base_url)
        return address, self._client(permit.backend, secure=address.secure)

    def _client(self, backend: Backend, *, secure: bool) -> HttpClient:
        return (self.outside if backend.provider else (self.plain, self.secure))[secure]

    def directory_of(self, backend: Backend) -> ModelDirectory | None:
        """Return the directory that resolves a backend; None if it is dialled at its own address."""
        return None if backend.provider else self.directory

    def engine_address(self, backend: Backend) -> Origin | None:
        """Return the address of a backend's running engine; None if it does not change when the engine restarts."""
        directory = self.directory_of(backend)
        found = directory.lookup(backend.directory_id) if directory is not None else None
        return (found.host, found.port) if isinstance(found, Engine) else None

    async def release(self, permit: Permit, answer: StreamedResponse) -> None:
        """Return the connection of an answer to the pool, or close it, which makes the backend stop generating."""
        backend = permit.backend
        secure = self.directory_of(backend) is None and self._addresses[backend.base_url].secure
        if not self._client(backend, secure=secure).release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)


def _address_in(directory: ModelDirectory, service: str) -> Address:
    engine = directory.lookup(service)
    if not isinstance(engine, Engine):
        raise ConnectError(f"service {service} has no ready engine")
    origin = (engine.host, engine.port)
    return Address(False, origin, netloc(origin), "/v1")


@asynccontextmanager
async def open_transport(
    connect: Connect = dial, *, egress: Egress = DIRECTLY, directory: ModelDirectory | None = None
) -> AsyncIterator[Transport]:
    """Open a transport; its idle connections are closed at the end.

    Args:
        connect: Opens plain connections, also below TLS.
        egress: Proxies, and certificates to trust in addition to the system's.
        directory: As `Transport.directory`.

    Raises:
        CertificateFileError: The file of certificates is unusable.
    """
    context = await trio.to_thread.run_sync(trusted_context, egress.ca_file)
    limits = {"max_idle_per_origin": MAX_IDLE_PER_ORIGIN, "max_idle": MAX_IDLE}
    plain = HttpClient(_with_timeout(connect), **limits)
    secure = HttpClient(_with_timeout(TlsDialer(context, connect=connect)), **limits)
    to_proxy, tunnel = (OutboundDialer(egress, each, connect, lambda: context) for each in ("http", "https"))
    outside = (
        OutboundClient(egress, _with_timeout(to_proxy), **limits),
        HttpClient(_with_timeout(TlsDialer(context, connect=tunnel)), **limits),
    )
    transport = Transport(plain, secure, outside, directory)
    try:
        yield transport
    finally:
        for client in (plain, secure, *outside):
            await client.aclose()


def _with_timeout(connect: Connect) -> Connect:
    async def connect_in_time(host: str, port: int) -> trio.abc.Stream:
        with trio.move_on_after(CONNECT_SECONDS):
            return await connect(host, port)
        raise TimeoutError(f"no connection within {CONNECT_SECONDS:g} seconds")

    return connect_in_time
