"""Send requests and read responses; a response of another kind, an interrupted or an endless one is an `ApiError`.

A body is always closed, by the task that opened it: httpx nests generators, which must not be left to the garbage
collector.
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
    """A transport with a base address and default headers; the opener of the transport closes it."""

    # httpx.AsyncClient would do, but it also merges defaults, stores cookies, follows redirects and runs hooks. API
    # servers need none of these, and they took a sixth of the processor time of a request.
    transport: httpx.AsyncBaseTransport
    base_url: httpx.URL = attrs.field(converter=httpx.URL)
    headers: httpx.Headers = attrs.field(factory=httpx.Headers, converter=httpx.Headers)

    async def send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send a request unchanged and return the response; with `stream`, its body is not read yet."""
        response = await self.transport.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response


MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""More than a page of 500 objects of kube-apiserver's largest practical size; no API server sends more."""

DROPPED: Final = "ConnectionDropped"
"""The reason of a TransportError when an established connection broke."""


def expect_kind(request: ApiRequest, answer: Any, *kinds: str) -> dict[str, Any]:
    """Return the response if it has an expected kind: a wrong server's `{}` must not pass for an empty object."""
    got = answer.get("kind") if isinstance(answer, dict) else type(answer).__name__
    if got not in kinds:
        raise TransportError(f"{request.call}: expected a {' or a '.join(kinds)}, got a {got}")
    checked: dict[str, Any] = answer
    return checked


def is_json(response: httpx.Response) -> bool:
    """Return whether a response is declared as JSON."""
    media_type: str = response.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == JSON


async def response_error(request: ApiRequest, response: httpx.Response) -> ApiError:
    """Return the error that a response reports, and close it."""
    body = await read_body(request, response)
    return error_from_response(
        request.call, response.status_code, body, retry_after=response.headers.get("retry-after", "")
    )


async def read_body(request: ApiRequest, response: httpx.Response) -> bytes:
    """Read a whole body and close the response; TransportError when it is interrupted or too large."""
    if response.is_closed:
        return response.content  # from a server in this process, in one piece
    if isinstance(response.stream, httpx.ByteStream) and "content-encoding" not in response.headers:
        return b"".join(response.stream)  # it arrived together with its head
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
    raise TransportError(f"{request.call}: the response is larger than {MAX_BODY_BYTES} bytes")


def _chunks_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Iterate over a body; unless it is encoded, directly over the transport's stream: httpx would only pass it on."""
    if "content-encoding" in response.headers:
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream.__aiter__()


async def _unwind(chunks: AsyncIterator[bytes]) -> None:
    """Close the generators that httpx nests around a partly read body, from the innermost outwards.

    `aclose()` on the outermost would leave the inner ones to the garbage collector. A read in a cancelled scope ends
    all of them.
    """
    with trio.CancelScope() as unwinding, contextlib.suppress(httpx.HTTPError):  # noqa: ASYNC100 (reads block)
        unwinding.cancel()
        async for _ in chunks:
            pass


@asynccontextmanager
async def open_chunks(response: httpx.Response) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """Yield an iterator over a body that need not be read to its end."""
    chunks = _chunks_of(response)
    try:
        yield chunks
    finally:
        await _unwind(chunks)  # noqa: ASYNC102 (its scope is already cancelled, so it does not block)


def to_transport_error(request: ApiRequest, error: httpx.HTTPError | httpx.InvalidURL) -> TransportError:
    """Return the error for an exception that httpx raised while sending or reading."""
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return TransportError(f"{request.call}: the connection broke: {root_cause_text(error)}", reason=DROPPED)
    text = root_cause_text(error)
    if sys.platform == "darwin" and os.strerror(errno.EHOSTUNREACH) in text:
        text += (
            "; macOS blocks background programs from the local network unless they are allowed there (System Settings, "
            "Privacy & Security, Local Network); launch daemons always are"
        )
    return TransportError(f"{request.call}: {text}")
