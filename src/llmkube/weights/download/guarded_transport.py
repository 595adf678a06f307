"""Requests for downloads: a host is resolved once, all its addresses are checked, and a checked address is dialled.

`base/http` does the rest of a connection. Between the check and the dial nothing can change the address, on any hop.
TLS and the Host header use the name. Behind a proxy, which the owner of the host has chosen, the addresses of the
target are checked in the same way, and its name if it cannot be resolved here; then the proxy gets the name, and may
resolve it differently. The proxy's own address is not checked.
"""

import contextlib
import functools
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import Connect, TlsDialer, dial
from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Headers, encode_request_head
from llmkube.base.http.outbound import OutboundClient, OutboundDialer, trusted_context
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.address_policy import Address, AddressPolicy, matching_rule
from llmkube.weights.errors import BlockedAddressError
from llmkube.weights.urls import WebUrl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name, in the order in which to try them; OSError if there are none."""


_DIAL_SECONDS: Final = 10.0  # an address that does not answer must not prevent attempts of the others
_RESOLVE_SECONDS: Final = 5.0  # behind a proxy there may be no name server for public names
_ADVICE_ALLOW: Final = "use another source, or let the operator allow the network with --allow-private-sources"
_ADVICE_RESOLVE: Final = "add the name to NO_PROXY, so that this host resolves it and checks its addresses"
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
        egress: Has the proxies.
    """

    policy: AddressPolicy
    resolve: Resolve
    dial: Connect
    tls: Callable[[], Awaitable[TlsDialer]]
    egress: Egress = DIRECTLY
    reached_public: bool = False

    async def get(self, url: WebUrl, headers: Mapping[str, str]) -> StreamedResponse:
        """GET a URL over a new connection; the caller closes the response's stream.

        Raises:
            BlockedAddressError: The policy refuses an address of its host.
            HttpError: The connection fails, the certificate is invalid, or the response is not HTTP/1.1.
        """
        # One connection per request: the check of an earlier one was based on the state of the chain at that time.
        plain = OutboundClient(self.egress, functools.partial(self._connect, "http"), max_idle=0)
        client = plain if url.scheme == "http" else HttpClient(self._connect_tls, max_idle=0)
        head = encode_request_head("GET", url.target, Headers.of({**headers, "Connection": "close"}))
        return await client.start((url.host, url.port), "GET", head, b"")

    async def _connect_tls(self, host: str, port: int) -> trio.abc.Stream:
        tls = await self.tls()
        stream = await self._connect("https", host, port)
        try:
            return await tls.wrap(stream, host, port)
        except (ssl.SSLError, trio.BrokenResourceError) as exc:
            raise ConnectError(f"TLS handshake with {host} failed: {_describe(exc)}") from exc

    async def _connect(self, scheme: str, host: str, port: int) -> trio.abc.Stream:
        behind_proxy = bool(self.egress.proxy_of(scheme, host, port))
        addresses = await (self._addresses_or_none if behind_proxy else self._addresses)(host, port)
        for address in addresses:
            self._check(host, address)
        public = not addresses or any(matching_rule(address) is None for address in addresses)
        self.reached_public = self.reached_public or public
        if not behind_proxy:
            return await self._dial_first_reachable(host, port, addresses)
        context = (await self.tls()).context
        return await OutboundDialer(self.egress, scheme, self._dial_proxy, lambda: context)(host, port)

    async def _dial_proxy(self, host: str, port: int) -> trio.abc.Stream:
        return await self._dial_first_reachable(f"the proxy {host}", port, await self._addresses(host, port))

    async def _addresses_or_none(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host behind a proxy; none if only the proxy can resolve its name."""
        with trio.move_on_after(_RESOLVE_SECONDS), contextlib.suppress(ConnectError):
            return await self._addresses(host, port)
        if (rule := self.policy.refusal_of_name(host)) is not None:
            advice = _ADVICE_NEVER if rule.always else _ADVICE_RESOLVE
            raise BlockedAddressError(host, host, rule.name, advice=advice)
        return []

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
    *,
    resolve: Resolve = resolve,
    dial: Connect = dial,
    ssl_context: ssl.SSLContext | None = None,
    egress: Egress = DIRECTLY,
) -> OpenTransport:
    """Return a factory of guarded transports with a resolver, a dialer, trusted certificates and proxies.

    `dial` receives addresses, never names. Without `ssl_context`, the certificates are the system's and the egress's.
    """
    shared = [TlsDialer(ssl_context)] if ssl_context else []

    async def tls() -> TlsDialer:
        if not shared:  # the certificates are read on first use, since that takes long
            shared.append(TlsDialer(await trio.to_thread.run_sync(trusted_context, egress.ca_file)))
        return shared[0]

    return lambda policy: GuardedTransport(policy, resolve, dial, tls, egress)


def _describe(exc: BaseException) -> str:
    """Return the text of the root cause; Trio's own texts only refer to it."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__
