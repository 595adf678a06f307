"""Connections for downloads: a host is resolved once, every address it has is judged, and a judged address is dialled.

Between the check and the dial there is nothing that could change the answer, on any hop. TLS and the Host header go by
name. Proxies of the environment are not used: through one, the dialled address cannot be checked here.
"""

import contextlib
import ipaddress
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import attrs
import httpx  # noqa: ASYNC127 (only for the certificates that it trusts)
import trio

from llmkube.base.http.dial import dial
from llmkube.base.http.errors import ConnectError
from llmkube.weights.address_policy import Address, AddressPolicy, matching_rule
from llmkube.weights.download.http_get import describe_error
from llmkube.weights.errors import BlockedAddressError
from llmkube.weights.urls import WebUrl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Return the addresses of a host name, in the order in which to try them; OSError when there are none."""

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connect to an address (never to a name); OSError when nothing answers."""


class Transport(Protocol):
    """What carries one chain of requests."""

    async def connect(self, url: WebUrl) -> trio.abc.Stream:
        """Return a fresh connection to a URL's host, TLS and all; the caller closes it.

        Raises:
            BlockedAddressError: The policy refuses an address of it.
            ConnectError: Nothing answers there, or its certificate is wrong.
        """
        ...


OpenTransport = Callable[[AddressPolicy], AbstractAsyncContextManager[Transport]]
"""Open what carries one chain of requests under a policy."""

_DIAL_SECONDS: Final = 10.0  # an address that does not answer must not hide the next one behind its silence
_ADVICE_ALLOW: Final = "use another source, or let the operator allow the network with --allow-private-sources"
_ADVICE_NEVER: Final = "no setting allows it; use another source"


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def open_transport_with(
    *, resolve: Resolve = resolve, dial: Dial = dial, ssl_context: ssl.SSLContext | None = None
) -> OpenTransport:
    """Return the way to open guarded transports over this resolver, these sockets and these trusted certificates."""
    context: list[ssl.SSLContext] = [] if ssl_context is None else [ssl_context]

    @asynccontextmanager
    async def open_transport(policy: AddressPolicy) -> AsyncGenerator[Transport, None]:
        await trio.lowlevel.checkpoint()
        yield _GuardedTransport(policy, resolve, dial, context)

    return open_transport


@attrs.define(eq=False)
class _GuardedTransport:
    """Dial for one chain of hops; once it has been outside, nothing leads it back in."""

    policy: AddressPolicy
    resolve: Resolve
    dial: Dial
    context: list[ssl.SSLContext]  # empty until one is needed: reading the certificates takes long
    been_outside: bool = False

    async def connect(self, url: WebUrl) -> trio.abc.Stream:
        """See `Transport`."""
        addresses = await self._addresses(url.host, url.port)
        for address in addresses:
            self._check(url.host, address)
        self.been_outside = self.been_outside or any(matching_rule(address) is None for address in addresses)
        stream = await self._first_that_answers(url.host, url.port, addresses)
        return stream if url.scheme == "http" else await self._with_tls(stream, url.host)

    async def _with_tls(self, stream: trio.abc.Stream, host: str) -> trio.abc.Stream:
        if not self.context:
            self.context.append(httpx.create_ssl_context())
        tls = trio.SSLStream(stream, self.context[0], server_hostname=host, https_compatible=True)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(trio.aclose_forcefully, tls)
            try:
                await tls.do_handshake()
            except (trio.BrokenResourceError, ssl.CertificateError) as exc:
                raise ConnectError(f"no TLS with {host}: {describe_error(exc)}") from exc
            on_failure.pop_all()
        return tls

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
        inside = matching_rule(address)
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
                problems.append(f"{address}: {describe_error(exc)}")
        raise ConnectError(f"cannot connect to {host} port {port} ({'; '.join(problems[:4])})")
