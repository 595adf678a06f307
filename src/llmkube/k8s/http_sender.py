"""What a client needs of HTTP is little: an address, headers that go with every request, and a transport.

`httpx.AsyncClient` offers that, and does more: it merges defaults, keeps cookies, follows redirects, runs hooks. API
servers use none of it, and it took a sixth of the processor time of a request. A `TransportSender` leaves it out.
"""

from typing import Protocol

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)


class HttpSender(Protocol):
    """Sends requests; an `httpx.AsyncClient` is one."""

    @property
    def base_url(self) -> httpx.URL:
        """The server's address; its path comes before that of every request."""

    @property
    def headers(self) -> httpx.Headers:
        """Headers that every request has."""

    async def send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send a request that is complete, and return the answer; with `stream` its body is still to be read."""


@attrs.frozen
class TransportSender:
    """A transport with an address, and nothing between the two; the opener of the transport closes it."""

    transport: httpx.AsyncBaseTransport
    base_url: httpx.URL = attrs.field(converter=httpx.URL)
    headers: httpx.Headers = attrs.field(factory=httpx.Headers, converter=httpx.Headers)

    async def send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send a request as it is."""
        response = await self.transport.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response
