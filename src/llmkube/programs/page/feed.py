"""Send the state of all that the page shows to its viewers, as it changes, with resume.

Without viewers nothing is computed except one point per busy service every ten seconds for the plots.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Never

import attrs
import orjson
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.base.waiting import wait_tick
from llmkube.programs.page.state import RATE_SECONDS, Rates, State, changed_members

UPDATE_SECONDS: Final = 1.0
"""Shortest time between two updates."""
KEEP_ALIVE_SECONDS: Final = 15.0
MAX_VIEWERS: Final = 64
KEPT_UPDATES: Final = 60
"""Updates that a viewer can resume after; one that has missed more gets the whole state."""

Collect = Callable[[Rates], Awaitable[State]]
"""Returns the current state; a checkpoint within a few milliseconds of work."""


@attrs.define(eq=False)
class Feed:
    """The current state and its last updates.

    Attributes:
        collect: Returns the current state.
        name: Identifies this process in the ids of updates, so that none is resumed in another one.
        rates: Tokens per second, from the requests.
        on_point: Called once for each point of the plots.
    """

    collect: Collect
    name: str
    rates: Rates = attrs.field(factory=Rates)
    on_point: Callable[[], None] = lambda: None
    viewers: int = 0
    _state: State = attrs.field(factory=dict)
    _updates: deque[tuple[int, bytes]] = attrs.field(factory=lambda: deque(maxlen=KEPT_UPDATES))
    _changes: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))  # its version is the number of the last update
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> Never:
        """Update the state while there are viewers; never return."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_rates)
            while True:
                if not self.viewers:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                await self._update()
                await trio.sleep(UPDATE_SECONDS)

    @contextmanager
    def open_viewer(self, last_id: str) -> Iterator["Viewer"]:
        """Update the state for a viewer during the block; it resumes after the update with this id, if that is kept."""
        self.viewers += 1
        self._arrived.set()
        try:
            yield Viewer(self, self._resumed(last_id))
        finally:
            self.viewers -= 1

    async def wait_newer(self, version: int) -> None:
        """Return once there is an update after a version."""
        await self._changes.wait_newer(version)

    def whole(self) -> tuple[int, bytes]:
        """Return the version of the state, and the event with all of it."""
        return self._changes.version, self._event("state", self._changes.version, orjson.dumps(self._state))

    def missed(self, version: int) -> tuple[int, bytes] | None:
        """Return the newest version and the events with the updates since `version`; None if they are not all kept."""
        missed = [(number, data) for number, data in self._updates if number > version]
        if missed[0][0] > version + 1:
            return None
        return missed[-1][0], b"".join(self._event("update", number, data) for number, data in missed)

    def _resumed(self, last_id: str) -> int | None:
        """Return the number of the update after which a viewer resumes; None if it needs the whole state."""
        name, _, number = last_id.partition("-")
        resumable = (self._changes.version, *(one - 1 for one, _ in self._updates))
        return next((one for one in resumable if name == self.name and str(one) == number), None)

    async def _update(self) -> None:
        state = await self.collect(self.rates)
        patch = changed_members(self._state, state)
        if not patch:
            return
        self._state = state
        self._updates.append((self._changes.version + 1, orjson.dumps(patch)))
        self._changes.put_nowait(None)

    async def _run_rates(self) -> Never:
        while True:
            await wait_tick(RATE_SECONDS)
            self.rates.end_point()
            self.on_point()

    def _event(self, kind: str, number: int, data: bytes) -> bytes:
        return b"event: %b\nid: %b-%d\ndata: %b\n\n" % (kind.encode(), self.name.encode(), number, data)


@attrs.define(eq=False)
class Viewer:
    """A viewer of the page.

    Attributes:
        feed: The state.
        version: The newest update that it has; None before the first event.
    """

    feed: Feed
    version: int | None

    async def next_events(self) -> bytes:
        """Return the next server-sent events: `state` with everything first, then each `update`.

        After some seconds without a change it returns a comment, so that a broken connection is noticed.
        """
        if self.version is None:
            await self.feed.wait_newer(0)
            self.version, events = self.feed.whole()
            return events
        with trio.move_on_after(KEEP_ALIVE_SECONDS) as waiting:
            await self.feed.wait_newer(self.version)
        if waiting.cancelled_caught:
            return b": \n\n"
        self.version, events = self.feed.missed(self.version) or self.feed.whole()  # it was too slow for the updates
        return events
