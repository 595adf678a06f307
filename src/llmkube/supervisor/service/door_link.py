"""The agent's connection to the door: sends the states of services, and keeps those in use that requests need.

```
 agent ── state of each service, its engine, its keys ──▶ door ◀── requests
       ◀── requests that wait and run, by service ───────
```

Both sides send what has changed, and everything on a new connection: an agent that follows a killed one learns from the
door which services to load, and a new door learns from its agent where to listen.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Never

import attrs
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.resource import Key
from llmkube.supervisor.engine.door import LineReader
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.gate import Gate
from llmkube.supervisor.values.door_state import DoorEntry, DoorReport, Listen, dump_line, load_line
from llmkube.supervisor.values.ports import Door, Shutdown

CONNECT_SECONDS: Final = 0.1
"""Time between attempts to connect to a door that starts."""

FOLLOW_SECONDS: Final = 1.0
"""Interval of looking up where a service is that requests wait for, and that this host no longer serves."""

REPORT_SECONDS: Final = 10.0
"""Longest wait for the first report of a door that starts, or that an earlier agent has left."""


@attrs.define(eq=False)
class DoorLink:
    """The agent's side of the door.

    Attributes:
        door: The door's process and files.
        entries: Returns the services whose requests pass through the door; None for one that the door keeps as it is.
        gate_of: Returns the gate of a service; None if this host does not serve it.
        changed: Its version grows whenever an entry may have changed.
        shutdown: Whether the door keeps running after the agent.
        find: Returns where another host accepts the requests of a service; empty if that is not known.
    """

    door: Door
    entries: Callable[[], Mapping[Key, DoorEntry | None]]
    gate_of: Callable[[Key], Gate | None]
    changed: Mailbox[None]
    shutdown: Shutdown
    find: Callable[[Key], Awaitable[Listen]]
    _is_complete: bool = False  # whether `entries` has every service; until then, the door keeps others
    _reports: Mailbox[Mapping[Key, DoorReport]] = attrs.field(factory=lambda: Mailbox({}))
    _moved: Mapping[Key, Listen] = {}
    _used: dict[Key, tuple[Gate, int, bool]] = attrs.field(factory=dict)

    async def run(self) -> Never:
        """Keep the door running while a service needs it; never return."""
        while True:
            if not (self.entries() or (self.door.is_left and not self._is_complete)):
                await self.changed.wait_newer(self.changed.version)
                continue
            async with self.door.running(self.shutdown), trio.open_nursery() as connecting:
                connecting.start_soon(self._stay_connected)
                connecting.start_soon(self._follow)
                while self.entries() or not self._is_complete:
                    await self.changed.wait_newer(self.changed.version)
                connecting.cancel_scope.cancel(reason="no service needs the door")
            self._apply()

    @property
    def left(self) -> Mapping[Key, Listen]:
        """The services that requests need, and that this host no longer serves: where another one accepts them."""
        needed = (key for key, report in self._reports.value.items() if report.requests)
        return {key: self._moved.get(key, ()) for key in needed if self.gate_of(key) is None}

    def set_complete(self) -> None:
        """Record that `entries` has all services of this host: the door forgets others."""
        self._is_complete = True
        self.changed.put_nowait(None)

    async def wait_unused(self, key: Key, engine: int) -> None:
        """Return when the door sends no requests of a service to the engine on this port, and those that it sent ended.

        A door that is not connected yet may have some. If it sends them to another engine by now, those of the old one
        cannot be distinguished, and are not waited for.
        """
        with trio.move_on_after(REPORT_SECONDS):
            while key not in self._reports.value and self.entries().get(key) is not None:
                await self._reports.wait_newer(self._reports.version)
        while (report := self._reports.value.get(key)) is not None:
            if report.engine != engine and (report.engine or not report.running):
                return
            await self._reports.wait_newer(self._reports.version)

    async def _follow(self) -> Never:
        """Have requests forwarded whose service another host serves by now."""
        while True:
            while not (self.left or self._moved):
                await self.changed.wait_newer(self.changed.version)
            self._moved = {key: await self.find(key) for key in self.left}
            self.changed.put_nowait(None)
            await trio.sleep(FOLLOW_SECONDS)

    async def _stay_connected(self) -> Never:
        while True:
            self._set_reports({})
            try:
                async with await self.door.connect() as stream, trio.open_nursery() as nursery:
                    nursery.start_soon(self._send, stream)
                    reader = LineReader(stream)
                    while lines := await reader.read_lines():
                        self._receive(lines)
                    nursery.cancel_scope.cancel(reason="the door has closed the connection")
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it is starting, or was killed
            await trio.sleep(CONNECT_SECONDS)

    def _receive(self, lines: list[bytes]) -> None:
        reports = {**self._reports.value, **dict(load_line(DoorReport, line) for line in lines)}
        self._set_reports({key: report for key, report in reports.items() if report is not None})

    def _set_reports(self, reports: Mapping[Key, DoorReport]) -> None:
        self._reports.put_nowait(reports)
        self._apply()

    async def _send(self, stream: trio.abc.SendStream) -> Never:
        sent: dict[Key, DoorEntry] = {}
        while True:
            version, entries = self.changed.version, self.entries()
            known = {*sent, *self._reports.value} if self._is_complete else sent.keys()
            lines = [dump_line(key, None) for key in known - entries.keys()]
            sent = {key: entry for key, entry in sent.items() if key in entries}
            for key, entry in entries.items():
                if entry is not None and entry != sent.get(key):
                    sent[key] = entry
                    lines.append(dump_line(key, entry.shifted(-trio.current_time())))
            self._apply()
            await stream.send_all(b"".join(lines))
            await self.changed.wait_newer(version)

    def _apply(self) -> None:
        """Publish where the door listens, and keep the services in use that requests need; a new one may load again."""
        reports, entries = self._reports.value, self.entries()
        for key in {*self._used, *reports}:
            gate, report, before = self.gate_of(key), reports.get(key), self._used.get(key)
            if gate is not None and report is not None:
                gate.manager.update(Facts.with_door, report.listen if key in entries else ())
            now = None
            if gate is not None and report is not None and report.requests:
                now = (gate, report.arrived, not report.running)
            if now == before:
                continue
            if now is not None:
                self._used[key] = now
                now[0].change(now[0].activation.begin(trio.current_time()))
                now[0].add_held(now[2])
            if before is not None:
                before[0].add_held(-before[2])
                if now is None:
                    del self._used[key]
                before[0].end_request()
