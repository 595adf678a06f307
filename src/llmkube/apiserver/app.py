"""A handler that answers as kube-apiserver does, from a store in memory.

```
request ── path ──── catalog ─┬─ server_info   health, version, discovery, OpenAPI
                              ├─ get, list     list_query, from the store
                              ├─ watch         watch_stream, from the store's log
                              └─ the rest      rest_handlers decide ─ the log makes it durable ─ the store shows it
```

Each write is decided based on the state after all earlier writes, then made durable, then visible to readers
(`storage/committer`).
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn

import structlog
import trio

from llmkube.apiserver.heavy_work import Work, inline
from llmkube.apiserver.kinds.catalog import CRDS, NAMESPACES, Catalog, ref_of
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, KindInfo
from llmkube.apiserver.protocol import server_info
from llmkube.apiserver.protocol.list_query import ListQuery, check_revision, read_page
from llmkube.apiserver.protocol.negotiation import negotiate
from llmkube.apiserver.protocol.responses import JSON_HEADERS, EventLines, View, answer, answer_encoded, with_warnings
from llmkube.apiserver.protocol.server_info import Route, parse_path
from llmkube.apiserver.protocol.watch_stream import ChangeSignal, WatchStream
from llmkube.apiserver.storage.committer import Committer
from llmkube.apiserver.storage.revisions import Change, Ref, Store, Transaction, fields_of
from llmkube.apiserver.storage.write_ahead_log import Persist
from llmkube.apiserver.values.api_errors import (
    RequestRefusedError,
    attach_warnings,
    bad_request,
    no_such_path,
    no_such_resource,
    not_found,
)
from llmkube.apiserver.values.json_text import write
from llmkube.apiserver.values.selectors import Predicate, both, field_selector, label_selector, unknown_field_message
from llmkube.apiserver.writes.garbage_collector import EVENTS, GarbageCollector, expire, seconds_to_next
from llmkube.apiserver.writes.request_target import Outcome, PlannedWrite, Target
from llmkube.apiserver.writes.rest_handlers import RestHandlers
from llmkube.apiserver.writes.write_options import MAX_MANAGER, WriteOptions
from llmkube.base.http.exchange import Exchange, StreamExchange
from llmkube.base.http.message import Headers, Request, Response
from llmkube.k8s.resource import Key

SYSTEM_NAMESPACES: Final = ("default", "kube-system", "llmkube-system")
"""Namespaces that exist from the start."""

MANAGER: Final = "llmkube-apiserver"
"""Field manager of the objects that the server itself creates."""

_UNLOGGED: Final = frozenset({"leases", "events"})
"""Kinds whose changes are too frequent to log."""

_MAX_PATH: Final = 1024
_log: structlog.stdlib.BoundLogger = structlog.get_logger()
_OWN: Final = WriteOptions(manager=MANAGER, force=True)
_RETRY_SECONDS: Final = 1.0
_EXPIRY_SECONDS: Final = 60.0  # an expired or surplus Event may stay this much longer
_WATCH_SECONDS: Final = 1800.0  # a watch without timeoutSeconds ends after one to two times this, as in kube-apiserver


class ApiServer:
    """One API server over one store.

    Args:
        store: The initial state.
        persist: Makes writes durable before they are shown; None keeps everything in memory.
        work: Runs the parsing, deciding and validating of writes.
        kinds: The kinds that are served before any CRD exists.
        utcnow: The wall clock, for timestamps.
        rng: Draws uids, generated names and the length of watches.
    """

    def __init__(
        self,
        store: Store,
        *,
        persist: Persist | None = None,
        work: Work = inline,
        kinds: Iterable[KindInfo] = BUILTIN_KINDS,
        utcnow: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._store = store
        self._utcnow = utcnow
        self._rng = rng
        self._catalog = Catalog(kinds)
        for _, crd in store.list(CRDS):
            self._catalog.add_crd(crd)
        self._rest = RestHandlers(self._catalog, utcnow, rng)
        self._collector = GarbageCollector(self._catalog)
        self._collector.enqueue_all(store)
        self._garbage_found = trio.Event()
        self._signal = ChangeSignal()
        self._committer = Committer(store, persist, self._publish, work)
        self._work = work
        self._serving = True

    @property
    def store(self) -> Store:
        """The current state, read-only."""
        return self._store

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        try:
            await self._answer(exchange)
        except RequestRefusedError as exc:
            await exchange.respond(refusal(exc))
        finally:
            if isinstance(exchange, StreamExchange) and exchange.head.method not in {"GET", "HEAD"}:
                _log_change(exchange)

    async def run_housekeeping(self) -> None:
        """Finish pending deletions (dependents, contents of namespaces, instances of CRDs) and expire Events.

        Never returns unless cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_collection)
            nursery.start_soon(self._run_expiry)

    async def _run_collection(self) -> NoReturn:
        while True:
            if self._collector.idle:
                await self._garbage_found.wait()
                self._garbage_found = trio.Event()
                continue
            try:
                await self._committer.write(lambda tx: self._collector.step(tx, self._rest.timestamp()))
            except RequestRefusedError:  # the disk is full: nothing was written, so the batch is still to be processed
                self._collector.enqueue_all(self._store)
                await trio.sleep(_RETRY_SECONDS)

    async def _run_expiry(self) -> NoReturn:
        while True:
            seconds = await self._work(partial(seconds_to_next, self._store.list(EVENTS), self._utcnow()))
            if seconds == 0:
                with contextlib.suppress(RequestRefusedError):  # the disk is full: the next check retries
                    await self._committer.write(lambda tx: expire(tx, self._utcnow()))
                    continue
            with trio.move_on_after(seconds):
                await self._signal.wait(EVENTS)
            await trio.sleep(_EXPIRY_SECONDS)  # at most one check in this time, however fast Events arrive

    async def ensure(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Create or update objects by server-side apply, in order, with the server's own field manager.

        Raises:
            RequestRefusedError: One of them is invalid, or of a kind that is not served.
        """
        for manifest in manifests:
            kind = self._catalog.find_kind(manifest["apiVersion"], manifest["kind"])
            if kind is None:
                raise no_such_path()
            metadata = manifest["metadata"]
            ref = ref_of(kind, metadata.get("namespace", "default"), metadata["name"])
            apply = partial(self._rest.apply_planner.apply, target=Target(kind, ref), manifest=manifest, options=_OWN)
            await self._committer.write(apply)

    async def ensure_namespaces(self) -> None:
        """Create the namespaces that every cluster has."""
        missing = [name for name in SYSTEM_NAMESPACES if self._store.get(Ref(NAMESPACES, Key("", name))) is None]
        await self.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in missing)

    def end_watches(self) -> None:
        """End all watches cleanly, and new ones after their initial events: the server is about to stop."""
        self._serving = False
        self._signal.notify_all()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        route = parse_path(request.raw_path)
        if route is None:
            await exchange.respond(await self._server_info(request))
            return
        kind = self._catalog.find(route.group, route.version, route.plural)
        if kind is None:
            await exchange.respond(server_info.review(request, route))
            return
        _check_route(kind, route)
        if request.method in {"GET", "HEAD"}:
            await self._read(exchange, kind, route)
        else:
            await exchange.respond(await self._change(exchange, kind, route))

    async def _server_info(self, request: Request) -> Response:
        if request.raw_path.startswith("/openapi"):  # a document about all kinds, built on each request
            response: Response = await self._work(partial(server_info.respond, request, self._catalog))
            return response
        return server_info.respond(request, self._catalog)

    async def _read(self, exchange: Exchange, kind: KindInfo, route: Route) -> None:
        request = exchange.request
        query = ListQuery.parse(request.param, is_get=bool(route.name))
        view = self._view(request, kind)
        if route.name:
            check_revision(self._store, query.revision)
            found = self._rest.read(self._store, _target(kind, route))
            await exchange.respond(answer_encoded(200, _encode_outcome(view, found), _deprecation(kind)))
            return
        selector = self._predicate(kind, route, query)
        if query.watch:
            await self._watch(exchange, view, route, query, selector)
            return
        page = await read_page(self._store, kind.resource.full_name, route.namespace, query, selector)
        await _respond_in_pieces(exchange, with_warnings(JSON_HEADERS, _deprecation(kind)), view.pieces(page))

    async def _watch(self, exchange: Exchange, view: View, route: Route, query: ListQuery, selector: Predicate) -> None:
        lines = EventLines(view)
        kind = view.kind.resource
        watch = WatchStream(
            store=self._store,
            signal=self._signal,
            kind=kind.full_name,
            namespace=route.namespace,
            query=query,
            selector=selector,
            is_served=lambda: self._serving and self._catalog.find(kind.group, kind.version, kind.plural) is not None,
            render=lines.render,
            bookmark=lines.bookmark,
        )
        seconds = query.timeout_seconds or _WATCH_SECONDS * (1 + self._rng.random())
        async with exchange.stream(200, JSON_HEADERS) as send:
            await watch.run(send, seconds)

    async def _change(self, exchange: Exchange, kind: KindInfo, route: Route) -> Response:
        request = exchange.request
        view, target = self._view(request, kind), _target(kind, route)
        plan = partial(
            self._rest.plan, request, target, lambda: self._predicate(kind, route, ListQuery.parse(request.param))
        )
        with attach_warnings(_deprecation(kind)):
            planned = await self._work(plan)
            decide = partial(self._run_decision, planned, view)
            outcome, body = await self._committer.write(decide, dry_run=planned.dry_run)
        if isinstance(exchange, StreamExchange) and outcome.is_object:
            exchange.about = outcome.object["metadata"].get("name", "")
        return answer_encoded(outcome.status, body, [*_deprecation(kind), *outcome.warnings])

    def _run_decision(self, planned: PlannedWrite, view: View, tx: Transaction) -> tuple[Outcome, bytes]:
        """Return the outcome and its JSON; encode changed objects and read CRDs here, still in the thread."""
        outcome = planned.decide(tx)
        for change in tx.changes:
            fields_of(change.after)
            if change.ref.kind == CRDS and not change.removed:
                self._catalog.read(change.after)
        return outcome, _encode_outcome(view, outcome)

    def _publish(self, changes: Sequence[Change]) -> None:
        """Update the catalog, and notify the garbage collector and watches, after changes to the store."""
        for change in changes:
            if change.ref.kind != CRDS:
                continue
            if change.removed:
                self._catalog.remove_crd(change.ref.key.name)
            else:
                self._catalog.add_crd(change.after)
            self._signal.notify(change.ref.key.name)  # watches of its instances check whether it is still served
        self._collector.observe(changes, self._store)
        if not self._collector.idle:
            self._garbage_found.set()
        for kind in {change.ref.kind for change in changes}:
            self._signal.notify(kind)

    def _view(self, request: Request, kind: KindInfo) -> View:
        shape = negotiate(request.headers.get("accept") or "")
        include = request.param("includeObject") or "Metadata"
        if shape == "Table" and include not in {"Metadata", "Object", "None"}:
            why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        return View(kind, shape, include, self._utcnow)

    def _predicate(self, kind: KindInfo, route: Route, query: ListQuery) -> Predicate:
        selectable = {path: path for path in ("metadata.name", "metadata.namespace", *kind.selectable_fields)}
        terms = ",".join(filter(None, [query.field_selector, f"metadata.name={route.name}" if route.name else ""]))
        unknown = {"unknown": unknown_field_message} if kind.builtin and not kind.selectable_fields else {}
        return both(field_selector(terms, selectable, **unknown), label_selector(query.label_selector))


def refusal(exc: RequestRefusedError) -> Response:
    """Return the response to a request that was refused."""
    if exc.code == 404 and exc.details is None:
        return Response.text(404, "404 page not found\n")  # as kube-apiserver answers where it has no handler
    headers = Headers.of({"Retry-After": "1"}) if exc.code in {429, 504} else Headers()
    response = answer(exc.code, exc.to_status(), exc.warnings)
    return Response(response.status, Headers([*response.headers, *headers]), response.body)


async def _respond_in_pieces(exchange: Exchange, headers: Headers, pieces: Iterator[bytes]) -> None:
    """Send a single piece at once; stream several as they are made, so that other tasks run in between."""
    first, second = next(pieces), next(pieces, None)
    if second is None:
        await exchange.respond(Response(200, headers, first))
        return
    async with exchange.stream(200, headers) as send:
        await send(first)
        await send(second)
        for piece in pieces:
            await send(piece)


def _log_change(exchange: StreamExchange) -> None:
    """Log who has requested a change, of what, and the result: no field of the object."""
    request, (path, _, query) = exchange.request, exchange.head.target.partition("?")
    if path.rpartition("/")[2] != "status" and not _UNLOGGED & set(path.split("/")):
        by = request.param("fieldManager") or (request.headers.get("user-agent") or "").partition("/")[0]
        dry, named = {"dry_run": True} if "dryRun=" in query else {}, {"name": exchange.about} if exchange.about else {}
        by, path = by[:MAX_MANAGER], path[:_MAX_PATH]
        _log.info("change requested", by=by, verb=request.method, path=path, **named, **dry, status=exchange.status)


def _encode_outcome(view: View, outcome: Outcome) -> bytes:
    return view.encoded(outcome.object) if outcome.is_object else write(outcome.object)


def _target(kind: KindInfo, route: Route) -> Target:
    return Target(kind, ref_of(kind, route.namespace, route.name), route.subresource)


def _check_route(kind: KindInfo, route: Route) -> None:
    """Refuse a path that the kind does not have."""
    if route.namespace and not kind.resource.namespaced:
        raise no_such_path()
    if route.name and kind.resource.namespaced and not route.namespace:
        raise no_such_path()
    if (
        route.subresource
        and route.subresource not in kind.resource.subresources
        and not (route.subresource == "finalize" and kind.resource.full_name == "namespaces")
    ):
        raise no_such_resource() if kind.builtin else not_found(_target(kind, route).subject)


def _deprecation(kind: KindInfo) -> list[str]:
    return [kind.deprecation_warning] if kind.deprecation_warning else []
