"""Requests of the page: which of them are allowed, and the answers.

| request | needs |
|---|---|
| `GET /` from a browser, files | nothing: they contain no data |
| `GET /page/events` | the access that the listener requires, a near host name, no other page |
| `GET /page/requests`, `/page/logs`, `POST /page/actions` | the same, and the page's token |

A page at another address cannot read or write: its `Origin` differs from `Host`. One that points its own name at this
machine (DNS rebinding) has a name that is not near. A frame is refused by `frame-ancestors`.
"""

import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import attrs
import orjson
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.base.log import RecentLog
from llmkube.programs.page.feed import KEEP_ALIVE_SECONDS, MAX_VIEWERS, UPDATE_SECONDS, Feed
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.tail import POLL_SECONDS, open_log
from llmkube.router.auth.client_key import is_read_only
from llmkube.router.client_models import client_of
from llmkube.router.dispatch.relay import refuse
from llmkube.router.origin_policy import names_near_host
from llmkube.router.refusals import RefusedError, refused

PREFIX: Final = "/page/"
TOKEN_HEADER: Final = "x-llmkube-page-token"  # noqa: S105 - a name
TOKEN_FILE: Final = "page-token"  # noqa: S105 - a name
"""Name in the state directory."""

LOG_LINES: Final = 500
MAX_ACTION_BYTES: Final = 16 << 10
_EVENTS: Final = Headers([("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")])
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_CONTENT: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY: Final = (
    ("Content-Security-Policy", _CONTENT),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)
"""Headers of the page and its files: they load nothing from elsewhere, and no other page can frame or read them."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()
Action = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Carries out an action, described by the members of the request, and returns the members of the answer."""
QUERIES: Final = frozenset({"body", "catalog", "fit"})
"""Actions that change nothing."""


@attrs.frozen
class Control:
    """The part of the page that needs its token.

    Attributes:
        token: The token.
        actions: The actions by name.
        log_path: Returns the log of a service's engine; None if there is none.
        recent: The log of the program.
    """

    token: str = attrs.field(repr=False)
    actions: Mapping[str, Action]
    log_path: Callable[[str], Path | None]
    recent: RecentLog


@attrs.frozen(eq=False)
class Page:
    """The `StreamHandler` of a listener that has a page; all other requests are passed on.

    Attributes:
        feed: The state that the page shows.
        files: The result of `load_files`.
        other: Handles the other requests.
        requests: The last requests.
        places: One for each viewer of this listener.
        control: Actions and logs; None for a page that only shows.
        needs_key: Whether requests have a client's key, which a page at a rebound name has not: any name is allowed.
    """

    feed: Feed
    files: Mapping[str, Response]
    other: StreamHandler
    requests: RecentRequests
    control: Control | None = None
    needs_key: Callable[[], bool] = lambda: False
    places: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(MAX_VIEWERS))

    async def __call__(self, exchange: StreamExchange) -> None:
        """Answer one request."""
        head = exchange.head
        if not is_page(head):
            self.requests.captures.watch(exchange)
            await self.other(exchange)
            return
        try:
            await self._answer(exchange, head.path.removeprefix(PREFIX))
        except RefusedError as refusal:
            await refuse(exchange, refusal.response, refusal.error)

    async def _answer(self, exchange: StreamExchange, name: str) -> None:
        head = exchange.head
        require_own_page(head, any_name=self.needs_key())
        if (file := self.files.get(name)) is not None and head.method in {"GET", "HEAD"}:
            is_known = head.lines.get("if-none-match") == file.headers.get("etag")
            await exchange.respond(attrs.evolve(file, status=304, body=b"") if is_known else file)
        elif (name, head.method) == ("events", "GET"):
            await self._send_events(exchange)
        elif (name, head.method) == ("requests", "GET"):
            self._authorized(head)
            await self._send_requests(exchange)
        elif (name, head.method) == ("logs", "GET"):
            await self._send_log(exchange, self._authorized(head))
        elif (name, head.method) == ("actions", "POST"):
            await exchange.respond(await _act(self._authorized(head), exchange.body))
        else:
            raise refused(404, f"the page has nothing at {head.path}", "not_found")

    def _authorized(self, head: RequestHead) -> Control:
        """Return the control of this page, if the request has its token."""
        if self.control is None:
            raise refused(403, "this page only shows: use the page or the command line of its owner", "read_only")
        if not hmac.compare_digest((head.lines.get(TOKEN_HEADER) or "").encode(), self.control.token.encode()):
            raise refused(403, "the page's token is needed: `llmkube page` opens the page with it", "token_required")
        return self.control

    async def _send_events(self, exchange: StreamExchange) -> None:
        if (client := client_of(exchange)) is not None and client.models:
            raise refused(403, "the page shows all models, and this key is limited to some", "model_not_allowed")
        try:
            self.places.acquire_nowait()
        except trio.WouldBlock:
            raise refused(503, f"{MAX_VIEWERS} pages are open", "too_many_pages", {"Retry-After": "30"}) from None
        last = exchange.head.lines.get("last-event-id") or ""
        with contextlib.ExitStack() as stack:
            stack.callback(self.places.release)
            viewer = stack.enter_context(self.feed.open_viewer(last))
            async with exchange.stream(200, _EVENTS) as send:
                while True:
                    await send(await viewer.next_events())

    async def _send_requests(self, exchange: StreamExchange) -> None:
        """Send the last requests after the one that the viewer has seen, and then each batch of new ones."""
        process, _, number = (exchange.head.lines.get("last-event-id") or "").partition("-")
        is_number = process == self.feed.name and number.isascii() and number.isdigit() and len(number) < 16
        name, seen = self.feed.name, int(number) if is_number else 0
        async with exchange.stream(200, _EVENTS) as send:
            while True:
                rows, seen = self.requests.after(seen), self.requests.changes.version
                await send(b"id: %b-%d\ndata: %b\n\n" % (name.encode(), seen, orjson.dumps(rows)))
                await trio.sleep(UPDATE_SECONDS)
                with trio.move_on_after(KEEP_ALIVE_SECONDS):  # an empty batch shows that the connection works
                    await self.requests.changes.wait_newer(seen)

    async def _send_log(self, exchange: StreamExchange, control: Control) -> None:
        """Send the last lines of a log, and then what is appended, as the data of events."""
        service = parse_qs(urlsplit(exchange.head.target).query).get("service", [""])[-1]
        if not service:
            await self._send_recent(exchange, control.recent)
            return
        path = control.log_path(service)
        if path is None:
            raise refused(404, f"there is no log of {service}", "not_found")
        try:
            async with open_log(path, LOG_LINES) as file, exchange.stream(200, _EVENTS) as send:
                while True:
                    piece = await trio.to_thread.run_sync(file.take)
                    if piece:
                        await send(b"data: %b\n\n" % orjson.dumps(piece.decode("utf-8", "replace")))
                    else:
                        await trio.sleep(POLL_SECONDS)
        except OSError as exc:
            if not exchange.begun:
                raise refused(404, f"no log yet ({exc.strerror or exc})", "not_found") from exc
            raise

    async def _send_recent(self, exchange: StreamExchange, recent: RecentLog) -> None:
        """Send the last lines of the program's log, and then new ones."""
        number = 0
        async with exchange.stream(200, _EVENTS) as send:
            while True:
                text, number = recent.after(number)
                if text:
                    await send(b"data: %b\n\n" % orjson.dumps(text))
                else:
                    await trio.sleep(POLL_SECONDS)


def is_page(head: RequestHead) -> bool:
    """Return whether a request is one of the page: below its prefix, or of a browser that opens the address."""
    accepts_html = "text/html" in (head.lines.get("accept") or "")
    return head.path.startswith(PREFIX) or (head.path == "/" and accepts_html and head.method in {"GET", "HEAD"})


def is_public(head: RequestHead) -> bool:
    """Return whether a request is for a file of the page, which has no data, and so needs no key of a client."""
    return is_page(head) and is_read_only(head) and (head.path == "/" or head.path.endswith(tuple(_TYPES)))


def require_own_page(head: RequestHead, *, any_name: bool = False) -> None:
    """Refuse a request under a foreign name unless any is allowed, or of a page at another address.

    Raises:
        RefusedError: The reason.
    """
    if not any_name and not names_near_host(head):
        message = f"the page is not available at the name {head.lines.get('host')}; use an address of this machine"
        raise refused(403, message, "host_refused")
    origin = head.lines.get("origin")
    if origin is not None and urlsplit(origin).netloc != head.lines.get("host"):
        raise refused(403, f"the web page {origin} may not use this page's interface", "origin_refused")


async def _act(control: Control, body: bytes) -> Response:
    """Carry out an action: `{"action": "load", "service": "default/chat"}`."""
    try:
        wanted: Any = orjson.loads(body[:MAX_ACTION_BYTES])
        name, service = wanted["action"], wanted["service"]
    except (orjson.JSONDecodeError, TypeError, KeyError) as exc:
        raise refused(400, 'the body must be {"action": NAME, "service": "NAMESPACE/NAME"}', "invalid_body") from exc
    action = control.actions.get(name) if isinstance(name, str) else None
    if action is None or not isinstance(service, str):
        raise refused(400, f"no such action; there are {', '.join(sorted(control.actions))}", "invalid_action")
    try:
        answer = await action(wanted)
    except LLMKubeError as exc:
        raise refused(409, str(exc), "action_failed") from exc
    if name not in QUERIES:
        log.info("page action carried out", action=name, service=service)
    return Response.json(200, dict(answer))


def load_files() -> Mapping[str, Response]:
    """Read the page's files, each as a response with the digest of its content; blocks."""
    found: dict[str, Response] = {}
    for file in files(__package__).joinpath("static").iterdir():
        content = file.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        lines = [("Content-Type", _TYPES[file.name.rpartition(".")[2]]), ("ETag", etag), *SECURITY]
        found[file.name] = Response(200, Headers(lines), content)
    return found | {"/": found["index.html"]}
