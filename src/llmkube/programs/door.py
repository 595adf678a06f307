"""The program that accepts the requests of a host's services on request, and holds them until their models are loaded.

python -m llmkube.programs.door FILE

Each service has a port of its own. The door keeps no state on disk: its agent, also one that follows a killed agent,
sends it the state of each service, and reads from it which services requests need (`supervisor.values.door_state`).
While no agent runs, requests are held, and those for loaded models are forwarded until their engine exits.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.hold import Hold
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.hub import Hub, TrioSockets, open_sockets
from llmkube.base.http.listen import ListenError, PortTakenError, open_listeners
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import make_private_folder
from llmkube.base.times import utcnow
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.programs.engine_proxy import AdmittedPeers, run_companion
from llmkube.programs.found_models import lookup_result
from llmkube.programs.program import Stop, freeze_heap, open_service_nursery
from llmkube.router.auth.client_key import digest_of_key, is_read_only, presented_credential, presents_key
from llmkube.router.backends import HELD_HEADER, Backend, Found, UnavailableModel, not_ready
from llmkube.router.dialects.inbound import in_dialect, unread_refusal
from llmkube.router.dispatch.holds import Holds
from llmkube.router.engine_proxy import OPEN_PATHS, key_or_peer_filter, proxy_handler
from llmkube.router.front_door import STATE_PATHS, PassThrough, computes, passing_door
from llmkube.supervisor.engine.door import LineReader, check_socket_folder
from llmkube.supervisor.host import processes
from llmkube.supervisor.values.door_state import DoorConfig, DoorEntry, DoorReport, dump_line, load_line, port_of
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.supervisor.values.proxy_config import ProxyConfig

log = structlog.get_logger()

LOADED_ONLY: Final = STATE_PATHS | {"/api/show"}
"""Paths of llama.cpp's server that exist only while it runs, whatever the method."""

MOVED: Final = UnavailableModel(Reason.RELEASED, "another host serves it now; retry")

LISTEN_RETRY_SECONDS: Final = 1.0
"""Time between attempts to listen on an address that this machine does not have now."""


@attrs.define(eq=False)
class Doorway:
    """One service at the door: the directory of its only model, and what wakes it.

    Attributes:
        key: The service.
        entry: Its newest state.
        reports: Its version grows whenever a report may have changed.
        changed: Its version grows whenever the state has changed.
        report: The requests for it.
        scope: Cancelling it stops the listener, which answers the requests that it has.
        exited: The last engine that has exited: its pid and port.
    """

    key: Key
    entry: DoorEntry
    reports: Mailbox[None]
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    report: DoorReport = DoorReport()
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    exited: tuple[int | None, int] = (None, 0)

    def model_ids(self) -> Sequence[str]:
        """Return its only model."""
        return (self.key.name,)

    def aliases(self) -> Sequence[str]:
        """Return none: any name leads to its model, as in an engine."""
        return ()

    def lookup(self, model_id: str) -> Found:
        """Return its engine, or why it is not ready; a request may repeat a failed load once the back-off has ended."""
        del model_id
        if self.entry.moved_to:
            return Backend(*self.entry.moved_to, self.key.name, service=str(self.key))
        found = lookup_result(self.key, self.entry.view)
        if isinstance(found, UnavailableModel) and found.failed:
            is_due = trio.current_time() >= self.entry.retry_at > -math.inf
            return attrs.evolve(found, wakes=found.wakes or is_due)
        return found

    def credentials(self, exchange: StreamExchange, engine: Backend) -> bytes:
        """Return the header lines that replace the client's credentials; another host gets the client's own key.

        Raises:
            RefusedError: Another host has forwarded the request, and the service has moved again.
        """
        if (engine.host, engine.port) != self.entry.moved_to:
            return engine.credentials
        if HELD_HEADER in exchange.head.lines:
            raise not_ready(self.key.name, MOVED)
        key, waited = presented_credential(exchange.head.lines), trio.current_time() - exchange.arrived_at
        is_known = presents_key(exchange.head, {*map(digest_of_key, self.entry.keys)})  # compares digests
        known = f"Authorization: Bearer {key}\r\n" if is_known else ""
        return f"{HELD_HEADER}: {waited:.3f}\r\n{known}".encode("latin-1")

    @contextmanager
    def using(self, service: str, tenant: str) -> Iterator[Hold]:
        """Have its agent keep it loaded, or load it; requests that do not wait may be in its engine (`running`)."""
        del service, tenant  # behind an address is a cluster's router or network, with any number of tenants
        self.add(requests=1, arrived=1, running=1)
        try:
            yield self._holding
        finally:
            self.add(requests=-1, running=-1)

    async def wait_changed(self, service: str) -> None:
        """Return once its state has changed."""
        del service
        await self.changed.wait_newer(self.changed.version)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        self.add(running=-1)
        try:
            yield
        finally:
            self.add(running=1)

    def add(self, **more: int) -> None:
        """Change numbers of the report."""
        self.update(**{name: getattr(self.report, name) + count for name, count in more.items()})

    def update(self, **changes: Any) -> None:
        """Change the report."""
        self.report = attrs.evolve(self.report, **changes)
        self.reports.put_nowait(None)

    def set_entry(self, entry: DoorEntry) -> None:
        """Set a newer state."""
        if entry.view.ready and _engine_of(entry) == self.exited:
            view = attrs.evolve(entry.view, reason=Reason.ENGINE_EXITED, message="the engine has exited")
            entry = attrs.evolve(entry, view=view)
        self.entry = entry
        self.update(engine=entry.view.port if entry.view.ready else 0)
        self.changed.put_nowait(None)

    async def watch_engine(self, pid: int, port: int) -> None:
        """Hold requests once an engine has exited: another user of the machine may listen on its port next."""
        with suppress(ProcessLookupError):
            async with processes.open_exit_watch(pid) as wait:
                await wait()
        self.exited = (pid, port)
        self.set_entry(self.entry)


def _engine_of(entry: DoorEntry) -> tuple[int | None, int]:
    return (entry.view.pid, entry.view.port)


@attrs.define(eq=False)
class DoorServer:
    """All services at the door.

    Attributes:
        admission: Networks whose requests need no key.
        sockets: Opens connections and listeners.
        nursery: Runs a task for each service, and one for each engine.
    """

    admission: AdmittedPeers
    sockets: Hub | TrioSockets
    client: HttpClient
    nursery: trio.Nursery
    reports: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    doorways: dict[Key, Doorway] = attrs.field(factory=dict)

    async def serve_agent(self, stream: trio.abc.Stream) -> None:
        """Exchange states and reports with an agent until it disconnects."""
        try:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send_reports, stream)
                reader = LineReader(stream)
                while lines := await reader.read_lines():
                    for line in lines:
                        self._set(*load_line(DoorEntry, line))
                nursery.cancel_scope.cancel(reason="the agent has disconnected")
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the agent was killed; the next one connects

    def close(self) -> None:
        """Answer all requests that wait: the door stops."""
        for doorway in self.doorways.values():
            doorway.set_entry(_released(doorway.entry))

    async def _send_reports(self, stream: trio.abc.SendStream) -> Never:
        sent: dict[Key, DoorReport] = {}
        while True:
            version = self.reports.version
            now = {key: each.report for key, each in self.doorways.items()}
            lines = [dump_line(key, None) for key in sent.keys() - now.keys()]
            lines += [dump_line(key, report) for key, report in now.items() if report != sent.get(key)]
            sent = now
            await stream.send_all(b"".join(lines))
            await self.reports.wait_newer(version)

    def _set(self, key: Key, entry: DoorEntry | None) -> None:
        known = self.doorways.get(key)
        if entry is None:
            if known is not None:
                del self.doorways[key]
                known.set_entry(_released(known.entry))
                known.scope.cancel(reason="its host no longer serves it")
            return
        entry = entry.shifted(trio.current_time())
        if known is None:
            known = self.doorways[key] = Doorway(key, entry, self.reports)
            self.nursery.start_soon(self._listen, known)
        before, view = known.entry, entry.view
        entry = attrs.evolve(before, moved_to=entry.moved_to) if entry.moved_to else entry
        is_watched = known.report.engine and _engine_of(before) == _engine_of(entry)
        known.set_entry(entry)
        if entry.host != before.host:
            known.scope.cancel(reason="its host has another address")
        if view.ready and view.pid is not None and not is_watched:
            self.nursery.start_soon(known.watch_engine, view.pid, view.port)

    async def _listen(self, doorway: Doorway) -> None:
        """Accept the requests of a service, until it is removed."""
        handler, tries = doorway_handler(doorway, self.client), 0
        while self.doorways.get(doorway.key) is doorway:
            with trio.CancelScope() as doorway.scope:
                try:
                    listeners = await open_listeners(doorway.entry.host, port_of(doorway.key, tries))
                except PortTakenError:
                    tries += 1
                    continue
                except ListenError as error:
                    log.warning("door not open; retrying", service=str(doorway.key), error=str(error))
                    await trio.sleep(LISTEN_RETRY_SECONDS)
                    continue
                doorway.update(listen=listeners[0].socket.getsockname()[:2])
                judge = in_dialect(partial(self._judge, doorway))
                await run_server(handler, self.sockets.listen(listeners), judge=judge, unread=unread_refusal)
            doorway.update(listen=())

    def _judge(self, doorway: Doorway, head: RequestHead, peer: str) -> Response | None:
        """Admit a request by the keys of the clients; without any, by network, or with the engine's key."""
        keys = doorway.entry.keys
        admits = self.admission.admits if not keys else (lambda _: False)
        return key_or_peer_filter(doorway.entry.view.api_key, admits, keys)(head, peer)


def _released(entry: DoorEntry) -> DoorEntry:
    return attrs.evolve(entry, view=ServiceView(Reason.RELEASED, "this host stops serving it"))


def doorway_handler(doorway: Doorway, client: HttpClient) -> StreamHandler:
    """Return the handler of one service: other requests than those that compute reach a loaded engine unchanged."""
    holds = Holds(doorway, waker=doorway)
    computing = passing_door(PassThrough(doorway, client, holds=holds, credentials=doorway.credentials), utcnow)

    async def handle(exchange: StreamExchange) -> None:
        head = exchange.head
        found = MOVED if doorway.entry.moved_to and not computes(head) else doorway.lookup("")
        needs_engine = (is_read_only(head) and head.path not in OPEN_PATHS) or head.path in LOADED_ONLY
        if isinstance(found, Backend) and not computes(head):
            await proxy_handler((found.host, found.port), doorway.entry.view.api_key, client)(exchange)
        elif isinstance(found, UnavailableModel) and needs_engine:
            await exchange.respond(not_ready(doorway.key.name, found).response)
        else:
            await computing(exchange)

    return handle


async def open_agent_listener(path: Path) -> trio.SocketListener:
    """Listen on a Unix socket that only this user can connect to, in place of one that a killed door has left.

    Raises:
        ListenError: Another user has its folder.
    """
    make_private_folder(path.parent)
    try:
        check_socket_folder(path.parent)
    except PermissionError as error:
        raise ListenError(str(error)) from error
    path.unlink(missing_ok=True)
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen()
    return trio.SocketListener(listening)


async def serve(config: DoorConfig, stop: Stop) -> None:
    """Serve until a stop; then answer the requests that wait, and drain those in flight."""
    admission = AdmittedPeers(ProxyConfig(("127.0.0.1", 0), ("", 0), "", config.allowed, networks=config.networks))
    await trio.to_thread.run_sync(admission.reload)
    async with (
        await open_agent_listener(Path(config.socket)) as listener,
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256) as client,
        open_service_nursery() as servers,
    ):
        door = DoorServer(admission, sockets, client, servers)
        with stop.scope():
            async with trio.open_nursery() as support:
                if config.networks:
                    support.start_soon(admission.run)
                freeze_heap()
                await trio.serve_listeners(door.serve_agent, [listener])
        door.close()


def main() -> None:
    """Run the door that a file describes."""
    run_companion("door", lambda text: DoorConfig(**json.loads(text)), serve)


if __name__ == "__main__":
    main()
