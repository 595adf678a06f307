"""A typed client for one API server; every failure is an `ApiError`.

Callers set deadlines (`trio.fail_after`); httpx's timeouts are off. Two exceptions, which no caller could set: a watch
must open within `OPEN_SECONDS`, and must not be silent for too long (`k8s.watch`).

Retried here, at most `ATTEMPTS` in all and never after more than `MAX_WAIT_SECONDS`:

* a 429 with Retry-After: the server has not acted;
* a 5xx with Retry-After in response to a GET;
* a GET whose connection was dropped, once and immediately: the server was closing the pooled connection.
"""

import contextlib
import functools
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube import __version__
from llmkube.base import json_text
from llmkube.base.http.client import UpgradedConnection
from llmkube.base.http.httpx_transport import UPGRADED
from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.codec import VersionDecoder, decode, encode, resource_version_of
from llmkube.k8s.errors import ApiError, GoneError, ServerError, TooManyRequestsError, TransportError, excerpt
from llmkube.k8s.exchange import (
    DROPPED,
    TransportSender,
    expect_kind,
    is_json,
    open_chunks,
    read_body,
    response_error,
    to_transport_error,
)
from llmkube.k8s.request import APPLY_PATCH, MERGE_PATCH, ApiRequest, make_request, object_path
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.watch import Watch, has_name

T = TypeVar("T", bound=Object)

PAGE_SIZE: Final = 500
ATTEMPTS: Final = 4
MAX_WAIT_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 30.0
URL_CACHE_SIZE: Final = 256
"""Parsed URLs that are cached: enough for Leases, watches and objects that change often.

httpx takes some 50 µs to parse a URL; a cached one takes 0.7 KiB. Without the bound, an agent with 500 idle services,
each reported every ten minutes, held 2.4 MiB.
"""

ANY_MEDIA_TYPE: Final = "*/*"
"""The Accept header for a kubelet's streams: it has no JSON there and answers 406 to a client that insists on it."""

_NOT_FOUND: Final = 404
_NO_DEADLINES: Final = {"timeout": httpx.Timeout(None).as_dict()}
_OWN_HEADERS: Final = frozenset({b"host", b"accept", b"content-type", b"content-length"})


@attrs.frozen
class Listing(Generic[T]):
    """A complete collection at one resourceVersion."""

    kind: type[T]
    raw: tuple[Mapping[str, Any], ...] = attrs.field(repr=False)
    resource_version: str

    @property
    def items(self) -> tuple[T, ...]:
        """The objects, decoded on each access; DecodeError when one is malformed."""
        return tuple(decode(self.kind, item) for item in self.raw)


class Client:
    """A client of one API server; `http` has its address and the credentials."""

    def __init__(self, http: TransportSender | httpx.AsyncClient) -> None:
        self._http = http
        self._server = str(http.base_url).rstrip("/")
        self._headers = [(name, value) for name, value in http.headers.raw if name.lower() not in _OWN_HEADERS]
        self._headers += [(b"Host", http.base_url.netloc)]
        self._decoder = VersionDecoder()
        self._url = functools.lru_cache(maxsize=URL_CACHE_SIZE)(self._resolve)

    async def get(self, kind: type[T], key: Key) -> T:
        """Read one object; NotFoundError only when a `Status` of the server states it."""
        return await self._send_for(kind, "GET", object_path(kind.RESOURCE, key))

    async def list(
        self, kind: type[T], *, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """Read a whole collection, page by page; in one piece when a page's token expires."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        try:
            return await self._list(kind, namespace, selectors, PAGE_SIZE)
        except GoneError:
            return await self._list(kind, namespace, selectors, 0)

    async def create(self, obj: T, *, field_manager: str = "") -> T:
        """Create an object in its namespace; AlreadyExistsError when the name is taken."""
        path, params = obj.RESOURCE.path(obj.metadata.namespace), {"fieldManager": field_manager}
        return await self._send_for(type(obj), "POST", path, params=params, body=encode(obj))

    async def patch(
        self, kind: type[T], key: Key, patch: Mapping[str, Any], *, subresource: str = "", field_manager: str = ""
    ) -> T:
        """Merge a patch into an object (RFC 7386: null removes); a resourceVersion inside makes it conditional."""
        path, params = object_path(kind.RESOURCE, key, subresource), {"fieldManager": field_manager}
        return await self._send_for(kind, "PATCH", path, params=params, body=patch, content_type=MERGE_PATCH)

    async def apply(
        self,
        kind: type[T],
        manifest: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> T:
        """Apply a manifest server-side; ConflictError when another manager owns a field, unless `force`.

        The manifest has every field that this manager wants to own; apiVersion and kind are filled in. The result has
        no managedFields and is the same Python object that a watch of this client yields.
        """
        resource = kind.RESOURCE
        body = {**resource.type_meta, **manifest}
        path = object_path(resource, Key.of(manifest), subresource)
        params = {"fieldManager": field_manager, "force": "true" if force else ""}
        request = make_request("PATCH", path, params=params, body=body, content_type=APPLY_PATCH)
        return self._decoder.decode(kind, expect_kind(request, await self._send(request), resource.kind))

    async def delete(
        self, kind: type[T], key: Key, *, uid: str = "", resource_version: str = "", propagation: str = ""
    ) -> None:
        """Delete an object; ConflictError when a precondition (uid, resourceVersion) does not hold."""
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        request = make_request("DELETE", object_path(kind.RESOURCE, key), body=options)
        expect_kind(request, await self._send(request), kind.RESOURCE.kind, "Status")  # the server chooses which

    async def request_json(self, method: str, path: str, **more: Any) -> Any:
        """Send a request and return the JSON of the response, for kinds without a class.

        Args:
            method: The HTTP method.
            path: The path, without the server's address.
            **more: Passed to `make_request`: params, body, content_type, accept.
        """
        return await self._send(make_request(method, path, **more))

    async def get_json(self, path: str, **more: Any) -> Any:
        """GET a path and return the JSON of the response; `more` is that of `request_json`."""
        return await self.request_json("GET", path, **more)

    async def served_kinds(self, group: str, version: str) -> frozenset[str]:
        """Return the plurals of the kinds of a group that are served, without those whose definition is being deleted.

        An API server then lists them without `create` (`customresource_discovery_controller.go`).
        """
        try:
            found = await self.get_json(f"/apis/{group}/{version}")
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise
            return frozenset()
        listed = found.get("resources", ()) if isinstance(found, dict) else ()
        return frozenset(
            str(each.get("name")) for each in listed if isinstance(each, dict) and "create" in each.get("verbs", ())
        )

    @asynccontextmanager
    async def open_watch(
        self,
        kind: type[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncGenerator[Watch[T], None]:
        """Watch a collection from a resourceVersion; the connection is closed on exit.

        Args:
            kind: The kind to watch.
            resource_version: Of a Listing or an earlier event; later changes are sent.
            namespace: None watches all namespaces.
            label_selector: In kubectl's syntax.
            timeout_seconds: The time after which the server ends the watch.

        Raises:
            GoneError: The resourceVersion is too old.
            ApiError: The watch could not be opened.
        """
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "labelSelector": label_selector,
        }
        request = make_request("GET", kind.RESOURCE.path(namespace), params=params)
        async with self._open_chunks(request, "the watch did not open", is_expected=is_json) as chunks:

            async def receive() -> bytes:
                try:
                    return await anext(chunks, b"")
                except httpx.HTTPError as error:
                    raise to_transport_error(request, error) from error

            yield Watch(kind, receive, self._decoder)

    @asynccontextmanager
    async def open_text(self, request: ApiRequest) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream a response that is text, such as a pod's log; the connection is closed on exit.

        Raises:
            ApiError: The server refuses, or the connection breaks, also while reading.
        """
        async with self._open_chunks(request, "no response") as chunks:
            try:
                yield chunks
            except httpx.HTTPError as error:
                raise to_transport_error(request, error) from error

    @asynccontextmanager
    async def _open_chunks(
        self, request: ApiRequest, failure: str, *, is_expected: Callable[[httpx.Response], bool] = lambda _: True
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        with trio.move_on_after(OPEN_SECONDS) as opening:
            response = await self._open(request)
            if response.status_code != 200 or not is_expected(response):
                raise await response_error(request, response)
        if opening.cancelled_caught:
            raise TransportError(f"{request.call}: {failure} within {OPEN_SECONDS:g} s")
        async with contextlib.aclosing(response), open_chunks(response) as chunks:
            yield chunks

    async def upgrade(self, request: ApiRequest, headers: Headers) -> UpgradedConnection:
        """Upgrade to the protocol that `headers` name; the caller closes the connection.

        Raises:
            ApiError: The server refuses, or does not support the protocol.
        """
        response = await self._open(attrs.evolve(request, accept=ANY_MEDIA_TYPE), headers)
        upgraded: UpgradedConnection | None = response.extensions.get(UPGRADED)
        if upgraded is None:
            raise await response_error(request, response)
        return attrs.evolve(upgraded, close=response.aclose)

    async def _list(self, kind: type[T], namespace: str | None, selectors: dict[str, str], limit: int) -> Listing[T]:
        items: list[Mapping[str, Any]] = []
        token = ""
        while True:
            # Without resourceVersion this is a quorum read: never older than an acknowledged write.
            params = {**selectors, "limit": str(limit or ""), "continue": token}
            request = make_request("GET", kind.RESOURCE.path(namespace), params=params)
            page = expect_kind(request, await self._send(request), kind.RESOURCE.list_kind)
            resource_version = resource_version_of(page)
            page_items = page.get("items", "absent") or []  # Go servers write an empty list as null
            if not resource_version or not isinstance(page_items, list) or not all(map(has_name, page_items)):
                raise TransportError(f"{request.call}: the {page['kind']} has no resourceVersion or no valid items")
            items += page_items
            next_token = page["metadata"].get("continue") or ""
            if not next_token:
                return Listing(kind, tuple(items), resource_version)
            if next_token == token:
                raise TransportError(f"{request.call}: the server returned the same continue token twice")
            token = next_token

    async def _send_for(self, kind: type[T], method: str, path: str, **more: Any) -> T:
        request = make_request(method, path, **more)
        return decode(kind, expect_kind(request, await self._send(request), kind.RESOURCE.kind))

    async def _send(self, request: ApiRequest) -> Any:
        attempt = 1
        while True:
            try:
                return await self._send_once(request)
            except ApiError as error:
                pause_seconds = pause_before_retry(request, error, attempt)
                if pause_seconds is None:
                    raise
            await trio.sleep(pause_seconds)
            attempt += 1

    async def _send_once(self, request: ApiRequest) -> Any:
        response = await self._open(request)
        if not response.is_success or not is_json(response):
            raise await response_error(request, response)
        body = await read_body(request, response)
        try:
            return json_text.loads(body)
        except (ValueError, RecursionError) as error:
            raise TransportError(f"{request.call}: the response is not JSON: {excerpt(body)}") from error

    async def _open(self, request: ApiRequest, more: Headers = NO_HEADERS) -> httpx.Response:
        headers = [*self._headers, (b"Accept", request.accept.encode())]
        headers += [(name.encode("ascii"), value.encode("ascii")) for name, value in more]
        if request.content_type:
            headers.append((b"Content-Type", request.content_type.encode()))
        if request.method != "GET":
            headers.append((b"Content-Length", b"%d" % len(request.body)))
        try:
            outgoing = httpx.Request(
                request.method,
                self._url(request.path, request.params),
                headers=headers,
                stream=httpx.ByteStream(request.body),
                extensions=_NO_DEADLINES,
            )
            return await self._http.send(outgoing, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise to_transport_error(request, error) from error

    def _resolve(self, path: str, params: tuple[tuple[str, str], ...]) -> httpx.URL:
        return httpx.URL(self._server + path + _query(params))


@functools.lru_cache(maxsize=256)
def _query(params: tuple[tuple[str, str], ...]) -> str:
    return f"?{urllib.parse.urlencode(params)}" if params else ""


def pause_before_retry(request: ApiRequest, error: ApiError, attempt: int) -> float | None:
    """Return the seconds after which the client retries, or None when the caller decides."""
    if attempt >= ATTEMPTS:
        return None
    if error.reason == DROPPED:
        return 0.0 if request.method == "GET" and attempt == 1 else None
    after = error.retry_after_seconds
    if after is None or after > MAX_WAIT_SECONDS:
        return None
    if isinstance(error, TooManyRequestsError) or (isinstance(error, ServerError) and request.method == "GET"):
        return after
    return None


@asynccontextmanager
async def open_client(config: ClusterConfig) -> AsyncGenerator[Client, None]:
    """Yield a client for the configured cluster; connections are pooled and closed on exit.

    Raises:
        ConfigError: A certificate or key of the configuration cannot be used.
    """
    headers = {"User-Agent": f"llmkube/{__version__}", "Accept-Encoding": "gzip"}
    async with AuthTransport(config) as transport:
        yield Client(TransportSender(transport, config.server, headers))
