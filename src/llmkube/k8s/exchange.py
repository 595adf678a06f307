"""Send requests and read answers: what is of another kind, breaks off or never ends is an `ApiError`.

What a client needs of HTTP is little: an address, headers that go with every request, and a transport.

`httpx.AsyncClient` offers that, and does more: it merges defaults, keeps cookies, follows redirects, runs hooks. API
servers use none of it, and it took a sixth of the processor time of a request. A `TransportSender` leaves it out.

A body is closed in every case, and by the task that has opened it: httpx nests generators, which the garbage collector
must not be left with.
"""

import contextlib
import errno
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.k8s.errors import ApiError, TransportError, error_from_response, root_cause_text
from llmkube.k8s.request import JSON, ApiRequest


@attrs.frozen
class TransportSender:
    """A transport with an address, and nothing between the two; the opener of the transport closes it."""

    transport: httpx.AsyncBaseTransport
    base_url: httpx.URL = attrs.field(converter=httpx.URL)
    headers: httpx.Headers = attrs.field(factory=httpx.Headers, converter=httpx.Headers)

    async def send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send a request as it is, and return the answer; with `stream` its body is still to be read."""
        response = await self.transport.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response


MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""A page of 500 objects of kube-apiserver's largest practical size; more is not an API server."""

DROPPED: Final = "ConnectionDropped"
"""The reason of a TransportError by a connection that broke after it was made."""


def expect_kind(request: ApiRequest, answer: Any, *kinds: str) -> dict[str, Any]:
    """Refuse an answer of another kind: a wrong server's `{}` must never read as an empty object, or as done."""
    got = answer.get("kind") if isinstance(answer, dict) else type(answer).__name__
    if got not in kinds:
        raise TransportError(f"{request.call}: expected a {' or a '.join(kinds)}, the answer is a {got}")
    checked: dict[str, Any] = answer
    return checked


def is_json(response: httpx.Response) -> bool:
    """Whether an answer says that it is JSON."""
    media_type: str = response.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == JSON


async def response_error(request: ApiRequest, response: httpx.Response) -> ApiError:
    """Return the error that an answer stands for, and close it."""
    body = await read_body(request, response)
    return error_from_response(
        request.call, response.status_code, body, retry_after=response.headers.get("retry-after", "")
    )


async def read_body(request: ApiRequest, response: httpx.Response) -> bytes:
    """Read a whole body and close the answer; TransportError when it breaks off or never ends."""
    if response.is_closed:
        return response.content  # a server in this process has handed it over in one piece
    if isinstance(response.stream, httpx.ByteStream) and "content-encoding" not in response.headers:
        return b"".join(response.stream)  # it came together with its head
    body = bytearray()
    async with contextlib.aclosing(response):
        chunks = _chunks_of(response)
        try:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    break
            else:
                return bytes(body)
        except httpx.HTTPError as error:
            raise to_transport_error(request, error) from error
        await _unwind(chunks)
    raise TransportError(f"{request.call}: the answer is larger than {MAX_BODY_BYTES} bytes")


def _chunks_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Iterate over a body; without an encoding as the transport hands it over, for httpx would only pass it on."""
    if "content-encoding" in response.headers:
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream.__aiter__()


async def _unwind(chunks: AsyncIterator[bytes]) -> None:
    """End a body that was not read to its end: the generators that httpx nests, from the innermost outwards.

    `aclose()` on the outermost would leave the inner ones to the garbage collector. A read under a cancelled scope ends
    all of them where they wait.
    """
    with trio.CancelScope() as unwinding, contextlib.suppress(httpx.HTTPError):  # noqa: ASYNC100 (reads block)
        unwinding.cancel()
        async for _ in chunks:
            pass


@asynccontextmanager
async def open_chunks(response: httpx.Response) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """Iterate over a body that may be left before its end."""
    chunks = _chunks_of(response)
    try:
        yield chunks
    finally:
        await _unwind(chunks)  # noqa: ASYNC102 (the scope in it is cancelled already: nothing waits here)


def to_transport_error(request: ApiRequest, error: httpx.HTTPError | httpx.InvalidURL) -> TransportError:
    """Say what httpx has raised while sending or reading."""
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return TransportError(f"{request.call}: the connection broke: {root_cause_text(error)}", reason=DROPPED)
    text = root_cause_text(error)
    if sys.platform == "darwin" and os.strerror(errno.EHOSTUNREACH) in text:
        text += (
            "; macOS keeps background programs from the local network unless they are allowed there (System Settings, "
            "Privacy & Security, Local Network); launch daemons always are"
        )
    return TransportError(f"{request.call}: {text}")
