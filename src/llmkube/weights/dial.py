"""Connections for downloads: a host is resolved once, every address it has is judged, and a judged address is dialled.

Between the check and the dial there is nothing that could change the answer, on any hop. TLS and the Host header go by
name. Proxies of the environment are not used: through one, nobody here would see what is dialled.
"""

import contextlib
import ipaddress
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import attrs
import httpcore
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.weights.addresses import Address, Policy, judge
from llmkube.weights.errors import BlockedAddressError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Return the addresses of a host name, in the order in which to try them; OSError when there are none."""

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connect to an address (never to a name); OSError when nobody answers."""

OpenTransport = Callable[[Policy], AbstractAsyncContextManager[httpx.AsyncBaseTransport]]
"""Open what carries one chain of requests under a policy."""

_DIAL_SECONDS: Final = 10.0  # an address that does not answer must not hide the next one behind its silence
_RECEIVE_BYTES: Final = 128 * 1024  # httpcore asks for 64 KiB, which costs more CPU time per byte
_ADVICE_ALLOW: Final = "use another source, or let the operator allow the network with --allow-private-sources"
_ADVICE_NEVER: Final = "no setting allows it; use another source"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def dial(address: str, port: int) -> trio.abc.Stream:
    """Connect to an address over TCP."""
    return await trio.open_tcp_stream(address, port)


def open_transport_with(
    *, resolve: Resolve = resolve, dial: Dial = dial, ssl_context: ssl.SSLContext | None = None
) -> OpenTransport:
    """Return the way to open guarded transports over this resolver, these sockets and these trusted certificates."""
    context: list[ssl.SSLContext] = [] if ssl_context is None else [ssl_context]

    @asynccontextmanager
    async def open_transport(policy: Policy) -> AsyncGenerator[httpx.AsyncBaseTransport, None]:
        if not context:
            context.append(httpx.create_ssl_context())  # reads a file of certificates: once, and only when needed
        backend = _GuardedBackend(policy, resolve, dial)
        # A connection serves one request: there are few, and a kept one may have died unnoticed.
        async with httpcore.AsyncConnectionPool(
            ssl_context=context[0], max_keepalive_connections=0, network_backend=backend
        ) as pool:
            yield _Transport(pool)

    return open_transport


@attrs.define(eq=False)
class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dial for one chain of hops; once it has been outside, nothing leads it back in."""

    policy: Policy
    resolve: Resolve
    dial: Dial
    been_outside: bool = False

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        for address in addresses:
            self._check(host, address)
        self.been_outside = self.been_outside or any(judge(address) is None for address in addresses)
        return _Stream(await self._first_that_answers(host, port, addresses))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.UnsupportedProtocol("downloads go over TCP")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        try:
            texts = await self.resolve(host, port)
        except OSError as exc:
            raise httpcore.ConnectError(f"the name {host} cannot be resolved ({exc.strerror or exc})") from exc
        try:
            found = [ipaddress.ip_address(text) for text in texts]
        except ValueError as exc:
            # fe80::1%eth0, for one; what cannot be judged is not dialled
            raise BlockedAddressError(host, ", ".join(texts), "not a plain address", advice=_ADVICE_NEVER) from exc
        if not found:
            raise httpcore.ConnectError(f"the name {host} has no address")
        return found

    def _check(self, host: str, address: Address) -> None:
        rule = self.policy.refusal(address)
        if rule is not None:
            advice = _ADVICE_NEVER if rule.always else _ADVICE_ALLOW
            raise BlockedAddressError(host, str(address), rule.name, advice=advice)
        inside = judge(address)
        if inside is not None and self.been_outside and not self.policy.from_operator:
            name = f"{inside.name}, behind a redirect from a public server"
            raise BlockedAddressError(host, str(address), name, advice="name the file's own URL as the source")

    async def _first_that_answers(self, host: str, port: int, addresses: Sequence[Address]) -> trio.abc.Stream:
        problems = []
        for address in addresses:
            try:
                with trio.move_on_after(_DIAL_SECONDS):
                    return await self.dial(str(address), port)
                problems.append(f"{address}: no answer in {_DIAL_SECONDS:g} s")
            except OSError as exc:
                problems.append(f"{address}: {_words(exc)}")
        raise httpcore.ConnectError(f"cannot connect to {host} port {port} ({'; '.join(problems[:4])})")


@attrs.define(eq=False)
class _Stream(httpcore.AsyncNetworkStream):
    """A Trio stream as httpcore wants it; deadlines are the caller's."""

    stream: trio.abc.Stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (httpcore's)
        try:
            return bytes(await self.stream.receive_some(max(max_bytes, _RECEIVE_BYTES)))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore.ReadError(_words(exc)) from exc

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 (httpcore's)
        try:
            await self.stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore.WriteError(_words(exc)) from exc

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)  # nothing is owed to a server that has been read, or given up on

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
    ) -> httpcore.AsyncNetworkStream:
        tls = trio.SSLStream(self.stream, ssl_context, server_hostname=server_hostname, https_compatible=True)
        try:
            await tls.do_handshake()
        except (trio.BrokenResourceError, ssl.CertificateError) as exc:
            await self.aclose()
            raise httpcore.ConnectError(f"no TLS with {server_hostname}: {_words(exc)}") from exc
        return _Stream(tls)

    def get_extra_info(self, info: str) -> Any:
        return None


@attrs.define(eq=False)
class _Transport(httpx.AsyncBaseTransport):
    """httpx's door to our pool; httpx's own transport has no place for a network backend."""

    pool: httpcore.AsyncConnectionPool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        outgoing = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _translated():
            answer = await self.pool.handle_async_request(outgoing)
        assert isinstance(answer.stream, AsyncIterable)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream))


@attrs.define(eq=False)
class _Body(httpx.AsyncByteStream):
    """A body as httpx wants it; no generator, so that there is one less to unwind."""

    chunks: Any  # httpcore types it as an iterable; it can be closed too
    _iterator: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._iterator = aiter(self.chunks)
        return self

    async def __anext__(self) -> bytes:
        assert self._iterator is not None
        with _translated():
            return await anext(self._iterator)

    async def aclose(self) -> None:
        await self.chunks.aclose()


@contextlib.contextmanager
def _translated() -> Generator[None, None, None]:
    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProxyError) as exc:
        kind = httpx.ConnectError if isinstance(exc, httpcore.ConnectError) else httpx.ReadError
        raise kind(str(exc)) from exc
    except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as exc:
        raise httpx.RemoteProtocolError(str(exc)) from exc


def _words(exc: BaseException) -> str:
    """What went wrong at the bottom: Trio's own words only point there."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__
