"""One request to a web server, through at most five redirects, each checked like the first address.

Requests share no state: no cookies, no netrc. Credentials are sent only to their origin.
"""

import base64
import contextlib
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import attrs
import trio

from llmkube import __version__
from llmkube.base.http.errors import HttpError
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.buckets import Signer
from llmkube.weights.download.guarded_transport import GuardedTransport
from llmkube.weights.errors import FetchError, RedirectError
from llmkube.weights.http_responses import RangeRequest, Server, Validator, linked_digest, linked_size, other_region
from llmkube.weights.urls import BadUrlError, UserInfo, WebUrl, resolve_location

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@attrs.frozen
class Credential:
    """An Authorization header, and the only origin to which it is sent."""

    origin: tuple[str, str, int]
    authorization: str = attrs.field(repr=False)

    @classmethod
    def bearer(cls, url: WebUrl, token: str) -> "Credential":
        """Return a token for the origin of a URL."""
        return cls(url.origin, f"Bearer {token}")

    @classmethod
    def basic(cls, url: WebUrl, user_info: UserInfo) -> "Credential":
        """Return a user and password for the origin of a URL."""
        pair = f"{user_info.user}:{user_info.password}".encode()
        return cls(url.origin, f"Basic {base64.b64encode(pair).decode('ascii')}")

    def headers(self, url: WebUrl, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the header for a GET of its origin; the same for every request."""
        return {"Authorization": self.authorization}


@attrs.frozen
class FileRequest:
    """A request for a file on a server.

    Attributes:
        shown: The source, for messages.
        url: The URL of the file.
        policy: The allowed addresses.
        credential: For its origin, if needed.
        server: The kind of server.
    """

    shown: str
    url: WebUrl
    policy: AddressPolicy
    credential: Credential | Signer | None = None
    server: Server = "web"

    def ranged(
        self,
        offset: int = 0,
        validator: Validator = Validator(),  # noqa: B008 (a frozen value)
        total_bytes: int | None = None,
    ) -> RangeRequest:
        """Return the facts of a range request that are needed to interpret its response."""
        return RangeRequest(self.shown, offset, validator, total_bytes, self.server, self.credential is not None)


@attrs.frozen
class FileResponse:
    """The first response that is not a redirect; its body is not read yet.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name; lines of the same name are joined by commas.
        redirected: Whether it is from another URL than the request's.
        linked_sha256: The hub's digest from a redirect, if any.
        linked_size: The hub's size from a redirect, if any.
        body: The body to receive; HttpError when it is interrupted.
    """

    status: int
    headers: Mapping[str, str]
    redirected: bool
    linked_sha256: str | None
    linked_size: int | None
    body: StreamedResponse


@asynccontextmanager
async def open_response(
    transport: GuardedTransport, request: FileRequest, headers: Mapping[str, str]
) -> AsyncGenerator[FileResponse, None]:
    """Send a request with additional headers and follow redirects; on exit the connection is closed.

    Raises:
        RedirectError: A redirect is not followed.
        BlockedAddressError: A host has an address that the policy refuses.
        FetchError: The connection failed, or broke before the response.
    """
    url, sha256, size = request.url, None, None
    for hops in range(MAX_REDIRECTS + 1):
        async with AsyncExitStack() as stack:
            with as_fetch_errors(request.url):
                answer = await transport.get(url, _headers(url, request, headers))
            # No orderly close is needed after the body was read, or abandoned.
            stack.push_async_callback(trio.aclose_forcefully, answer.stream)
            answer_headers = answer.headers.joined()
            if url.origin == request.url.origin:
                # Only from the source's own server: further hops are content networks.
                sha256 = sha256 or linked_digest(answer_headers)
                size = linked_size(answer_headers) if size is None else size
            if answer.status not in _REDIRECTS:
                yield FileResponse(answer.status, answer_headers, hops > 0, sha256, size, answer)
                return
        url = _redirect_target(request, url, answer_headers)
    raise RedirectError(f"{request.url.shown} has more than {MAX_REDIRECTS} redirects; use the file's own URL instead")


@contextlib.contextmanager
def as_fetch_errors(url: WebUrl) -> Generator[None, None, None]:
    """Convert HttpError to FetchError while sending and reading."""
    try:
        yield
    except HttpError as exc:
        raise FetchError(f"{url.shown}: {exc}") from exc


def _headers(url: WebUrl, request: FileRequest, extra: Mapping[str, str]) -> dict[str, str]:
    headers = {
        "Host": url.netloc,
        "User-Agent": f"llmkube/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",  # the digest, the size and ranges are those of the file itself
        **extra,
    }
    if request.credential is not None and request.credential.origin == url.origin:
        headers |= request.credential.headers(url, extra)
    return headers


def _redirect_target(request: FileRequest, url: WebUrl, headers: Mapping[str, str]) -> WebUrl:
    shown, location = request.url.shown, headers.get("location", "")
    region = other_region(headers)
    # Only a signature is bound to one region: an unsigned request may follow the redirect.
    if region and (isinstance(request.credential, Signer) or not location):
        raise RedirectError(f"{shown}: the bucket is in {region}; set AWS_REGION to {region}")
    if not location:
        raise RedirectError(f"{shown}: the server redirects without a Location")
    try:
        target = resolve_location(url, location)
    except BadUrlError as exc:
        raise RedirectError(f"{shown}: the server redirects to an invalid URL: {exc}") from exc
    if target.scheme == "http" and (url.scheme == "https" or not request.policy.from_operator):
        raise RedirectError(
            f"{shown} redirects to http://{target.netloc}, where every host on the way could change the file; "
            "use a source that stays on https"
        )
    return target
