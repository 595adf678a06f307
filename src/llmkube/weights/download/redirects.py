"""One question to a web server, through at most five redirects, each judged like the first address.

Nothing is remembered between questions: no cookies, no netrc, no proxy. Credentials go to the origin they belong to.
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
    """An Authorization header, and the only origin that ever sees it."""

    origin: tuple[str, str, int]
    authorization: str = attrs.field(repr=False)

    @classmethod
    def bearer(cls, url: WebUrl, token: str) -> "Credential":
        """A token for the origin of a URL."""
        return cls(url.origin, f"Bearer {token}")

    @classmethod
    def basic(cls, url: WebUrl, user_info: UserInfo) -> "Credential":
        """A user and password for the origin of a URL."""
        pair = f"{user_info.user}:{user_info.password}".encode()
        return cls(url.origin, f"Basic {base64.b64encode(pair).decode('ascii')}")

    def headers(self, url: WebUrl, headers: Mapping[str, str]) -> dict[str, str]:
        """Return what goes along with a GET of its origin: the same with each."""
        return {"Authorization": self.authorization}


@attrs.frozen
class FileRequest:
    """A file on a server, and who asks for it.

    Attributes:
        shown: The source, for messages.
        url: Where it can be had.
        policy: What it may lead to.
        credential: For its origin, if it needs one.
        server: What the server is.
    """

    shown: str
    url: WebUrl
    policy: AddressPolicy
    credential: Credential | Signer | None = None
    server: Server = "web"

    def asked(
        self,
        offset: int = 0,
        validator: Validator = Validator(),  # noqa: B008 (a frozen value)
        total_bytes: int | None = None,
    ) -> RangeRequest:
        """Return what is known of the file when bytes are asked for, to judge the answer by; see `RangeRequest`."""
        return RangeRequest(self.shown, offset, validator, total_bytes, self.server, self.credential is not None)


@attrs.frozen
class FileResponse:
    """The first answer that is no redirect; its body is still to be read.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name; lines of the same name are joined by commas.
        redirected: Whether it comes from somewhere else than the question's URL.
        linked_sha256: The digest that the hub promised on the way, if it did.
        linked_size: The size that the hub promised on the way, if it did.
        body: What it says is to be received from there; HttpError when it breaks off.
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
    """Ask, with these headers besides the usual ones, and follow redirects; on exit the connection is closed.

    Raises:
        RedirectError: The redirects lead nowhere that we go.
        BlockedAddressError: A host leads to an address that the policy refuses.
        FetchError: The connection cannot be made, or broke before the answer.
    """
    url, sha256, size = request.url, None, None
    for hops in range(MAX_REDIRECTS + 1):
        async with AsyncExitStack() as stack:
            with as_fetch_errors(request.url):
                answer = await transport.get(url, _headers(url, request, headers))
            # Nothing is owed to a server that has been read, or given up on.
            stack.push_async_callback(trio.aclose_forcefully, answer.stream)
            answer_headers = answer.headers.joined()
            if url.origin == request.url.origin:
                # Only what the source's own server says: further hops are content networks.
                sha256 = sha256 or linked_digest(answer_headers)
                size = linked_size(answer_headers) if size is None else size
            if answer.status not in _REDIRECTS:
                yield FileResponse(answer.status, answer_headers, hops > 0, sha256, size, answer)
                return
        url = _redirect_target(request, url, answer_headers)
    raise RedirectError(
        f"{request.url.shown} leads through more than {MAX_REDIRECTS} redirects; name the file's own URL instead"
    )


@contextlib.contextmanager
def as_fetch_errors(url: WebUrl) -> Generator[None, None, None]:
    """Translate what goes wrong between two HTTP peers while asking and reading."""
    try:
        yield
    except HttpError as exc:
        raise FetchError(f"{url.shown}: {exc}") from exc


def _headers(url: WebUrl, request: FileRequest, wanted: Mapping[str, str]) -> dict[str, str]:
    headers = {
        "Host": url.netloc,
        "User-Agent": f"llmkube/{__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",  # the digest, the size and ranges are those of the file itself
        **wanted,
    }
    if request.credential is not None and request.credential.origin == url.origin:
        headers |= request.credential.headers(url, wanted)
    return headers


def _redirect_target(request: FileRequest, url: WebUrl, headers: Mapping[str, str]) -> WebUrl:
    shown, location = request.url.shown, headers.get("location", "")
    region = other_region(headers)
    # Only a signature is good for one region alone: an unsigned request may follow the redirect.
    if region and (isinstance(request.credential, Signer) or not location):
        raise RedirectError(f"{shown}: the bucket is in {region}; set AWS_REGION to that")
    if not location:
        raise RedirectError(f"{shown}: the server redirects, but does not say where to")
    try:
        target = resolve_location(url, location)
    except BadUrlError as exc:
        raise RedirectError(f"{shown}: the server redirects to something that cannot be used: {exc}") from exc
    if target.scheme == "http" and (url.scheme == "https" or not request.policy.from_operator):
        raise RedirectError(
            f"{shown} redirects to http://{target.netloc}, where every host on the way could change the file; "
            "name a source that stays on https"
        )
    return target
