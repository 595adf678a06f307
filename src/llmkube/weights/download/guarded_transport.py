"""Requests for downloads: a host is resolved once, every address it has is judged, and a judged address is dialled.

Everything else of a connection is `base/http`'s. Between the check and the dial there is nothing that could change the
answer, on any hop. TLS and the Host header go by name. Proxies of the environment are not used: through one, the
dialled address cannot be checked here.
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
"""Return the addresses of a host name, in the order in which to try them; OSError when there are none."""


_DIAL_SECONDS: Final = 10.0  # an address that does not answer must not hide the next one behind its silence
_ADVICE_ALLOW: Final = "use another source, or let the operator allow the network with --allow-private-sources"
_ADVICE_NEVER: Final = "no setting allows it; use another source"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@attrs.define(eq=False)
class GuardedTransport:
    """Carry one chain of requests under a policy; once it has been outside, nothing leads it back in.

    Attributes:
        tls: Shakes hands, for all transports: a session of one shortens the handshakes of the next ones.
    """

    policy: AddressPolicy
    resolve: Resolve
    dial: Connect
    tls: Callable[[], TlsDialer]
    reached_public: bool = False

    async def get(self, url: WebUrl, headers: Mapping[str, str]) -> StreamedResponse:
        """Ask for a URL over a fresh connection; the caller closes the answer's stream.

        Raises:
            BlockedAddressError: The policy refuses an address of its host.
            HttpError: Nothing answers there, its certificate is wrong, or what answers is no HTTP/1.1.
        """
        # One connection for each request: an earlier one was judged by where the chain had been by then.
        client = HttpClient(self._connect if url.scheme == "http" else self._connect_tls, max_idle=0)
        head = encode_request_head("GET", url.target, Headers.of({**headers, "Connection": "close"}))
        return await client.start((url.host, url.port), "GET", head, b"")

    async def _connect_tls(self, host: str, port: int) -> trio.abc.Stream:
        stream = await self._connect(host, port)
        try:
            return await self.tls().wrap(stream, host, port)
        except (ssl.SSLError, trio.BrokenResourceError) as exc:
            raise ConnectError(f"no TLS with {host}: {_describe(exc)}") from exc

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
            # fe80::1%eth0, for one; what cannot be judged is not dialled
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
            raise BlockedAddressError(host, str(address), name, advice="name the file's own URL as the source")

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
"""Return what carries one chain of requests under a policy."""


def open_transport_with(
    *, resolve: Resolve = resolve, dial: Connect = dial, ssl_context: ssl.SSLContext | None = None
) -> OpenTransport:
    """Return the way to make guarded transports over this resolver, these sockets and these trusted certificates.

    `dial` gets addresses, never names.
    """

    @functools.cache
    def tls() -> TlsDialer:
        # The certificates are read when they are needed, which takes long.
        return TlsDialer(ssl_context or httpx.create_ssl_context())

    return lambda policy: GuardedTransport(policy, resolve, dial, tls)


def _describe(exc: BaseException) -> str:
    """Return what went wrong at the bottom: Trio's own words only point there."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__
