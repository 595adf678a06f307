"""Requests for downloads: a host is resolved once, all its addresses are checked, and a checked address is dialled.

`base/http` does the rest of a connection. Between the check and the dial nothing can change the address, on any hop.
TLS and the Host header use the name. Proxies of the environment are not used, since the address that a proxy dials
cannot be checked here.
"""

import contextlib
import functools
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs
import httpx  # noqa: ASYNC127 (only for the certificates that it trusts)
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import Connect, TlsDialer, dial
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Headers, encode_request_head
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.address_policy import Address, AddressPolicy, matching_rule
from llmkube.weights.errors import BlockedAddressError
from llmkube.weights.urls import WebUrl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name, in the order in which to try them; OSError if there are none."""


_DIAL_SECONDS: Final = 10.0  # an address that does not answer must not prevent attempts of the others
_ADVICE_ALLOW: Final = "use another source, or let the operator allow the network with --allow-private-sources"
_ADVICE_NEVER: Final = "no setting allows it; use another source"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve with the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@attrs.define(eq=False)
class GuardedTransport:
    """The transport of one chain of requests under a policy; a redirect from a public server to a private one fails.

    Attributes:
        tls: Returns the dialer for TLS, shared by all transports, so that sessions shorten later handshakes.
    """

    policy: AddressPolicy
    resolve: Resolve
    dial: Connect
    tls: Callable[[], TlsDialer]
    reached_public: bool = False

    async def get(self, url: WebUrl, headers: Mapping[str, str]) -> StreamedResponse:
        """GET a URL over a new connection; the caller closes the response's stream.

        Raises:
            BlockedAddressError: The policy refuses an address of its host.
            HttpError: The connection fails, the certificate is invalid, or the response is not HTTP/1.1.
        """
        # One connection per request: the check of an earlier one was based on the state of the chain at that time.
        client = HttpClient(self._connect if url.scheme == "http" else self._connect_tls, max_idle=0)
        head = encode_request_head("GET", url.target, Headers.of({**headers, "Connection": "close"}))
        return await client.start((url.host, url.port), "GET", head, b"")

    async def _connect_tls(self, host: str, port: int) -> trio.abc.Stream:
        stream = await self._connect(host, port)
        try:
            return await self.tls().wrap(stream, host, port)
        except (ssl.SSLError, trio.BrokenResourceError) as exc:
            raise ConnectError(f"TLS handshake with {host} failed: {_describe(exc)}") from exc

    async def _connect(self, host: str, port: int) -> trio.abc.Stream:
        addresses = await self._addresses(host, port)
        for address in addresses:
            self._check(host, address)
        self.reached_public = self.reached_public or any(matching_rule(address) is None for address in addresses)
        return await self._dial_first_reachable(host, port, addresses)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        try:
            texts = await self.resolve(host, port)
        except OSError as exc:
            raise ConnectError(f"the name {host} cannot be resolved ({exc.strerror or exc})") from exc
        try:
            found = [ipaddress.ip_address(text) for text in texts]
        except ValueError as exc:
            # for example fe80::1%eth0; an address that cannot be checked is not dialled
            raise BlockedAddressError(host, ", ".join(texts), "not a plain address", advice=_ADVICE_NEVER) from exc
        if not found:
            raise ConnectError(f"the name {host} has no address")
        return found

    def _check(self, host: str, address: Address) -> None:
        rule = self.policy.refusal(address)
        if rule is not None:
            advice = _ADVICE_NEVER if rule.always else _ADVICE_ALLOW
            raise BlockedAddressError(host, str(address), rule.name, advice=advice)
        private_rule = matching_rule(address)
        if private_rule is not None and self.reached_public and not self.policy.from_operator:
            name = f"{private_rule.name}, behind a redirect from a public server"
            raise BlockedAddressError(host, str(address), name, advice="use the file's own URL as the source")

    async def _dial_first_reachable(self, host: str, port: int, addresses: Sequence[Address]) -> trio.abc.Stream:
        problems = []
        for address in addresses:
            try:
                with trio.move_on_after(_DIAL_SECONDS):
                    return await self.dial(str(address), port)
                problems.append(f"{address}: no answer in {_DIAL_SECONDS:g} s")
            except OSError as exc:
                message = _describe(exc)
                problems.append(message if message.startswith(f"{address}: ") else f"{address}: {message}")
        raise ConnectError(f"cannot connect to {host} port {port} ({'; '.join(problems[:4])})")


OpenTransport = Callable[[AddressPolicy], GuardedTransport]
"""Returns the transport of one chain of requests under a policy."""


def open_transport_with(
    *, resolve: Resolve = resolve, dial: Connect = dial, ssl_context: ssl.SSLContext | None = None
) -> OpenTransport:
    """Return a factory of guarded transports with a resolver, a dialer and trusted certificates.

    `dial` receives addresses, never names.
    """

    @functools.cache
    def tls() -> TlsDialer:
        # The certificates are read on first use, since that takes long.
        return TlsDialer(ssl_context or httpx.create_ssl_context())

    return lambda policy: GuardedTransport(policy, resolve, dial, tls)


def _describe(exc: BaseException) -> str:
    """Return the text of the root cause; Trio's own texts only refer to it."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__
