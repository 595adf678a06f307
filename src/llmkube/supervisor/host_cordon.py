"""Whether this host is cordoned: looked up in a file of its owner, which `llmkube agent cordon` writes.

While it is, the host serves no accelerator: no service is its business, so that each ends as one whose labels do not
select it any more, its claim is free for other hosts, and the host's Lease names it to none of them. When the time is
over, or the file gone, everything is its business again.
"""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import attrs
import structlog

from llmkube.base.waiting import wait_tick
from llmkube.supervisor.nouns.cordon import Cordon, parse_cordon

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""How often to look; with the Lease's renewals and the looks at engines, so that an idle host wakes no more often."""


@attrs.define(eq=False)
class CordonFile:
    """What the owner's file says; it is read again only when it is another one."""

    path: Path
    _mark: tuple[int, ...] = ()
    _known: Cordon | None = None

    def __call__(self) -> Cordon | None:
        """Return the cordon, None without a file.

        Raises:
            OSError: It cannot be read.
            ValueError: It is none.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._mark, self._known = (), None
            return None
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if mark != self._mark:
            self._known, self._mark = parse_cordon(self.path.read_bytes()), mark
        return self._known


@attrs.define(eq=False)
class HostCordon:
    """Whether this host serves now.

    Attributes:
        read: Returns what the owner has said.
        utcnow: The wall clock: the owner means the one on the wall, also after a sleep.
        accelerators: What the host serves while it is not cordoned.
        busy: Whether a service is still here.
        changed: Called when it is cordoned or serves again, and as long as a service has not heard of it.
    """

    read: Callable[[], Cordon | None]
    utcnow: Callable[[], datetime.datetime]
    accelerators: frozenset[str]
    busy: Callable[[], bool]
    changed: Callable[[], None]
    current: Cordon | None = None
    _said: Cordon | None = None
    _problem: str = ""

    @property
    def serves(self) -> frozenset[str]:
        """The accelerators that the host serves now."""
        return frozenset() if self.current is not None else self.accelerators

    @property
    def end(self) -> str:
        """When the host serves again, for people; empty while it does."""
        return "" if self.current is None else self.current.end

    def look(self) -> bool:
        """Take in what the owner has said by now; return whether the host is cordoned otherwise than before."""
        try:
            self._said, self._problem = self.read(), ""
        except (OSError, ValueError) as error:  # what was known stays
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the cordon of this host cannot be read", error=str(error), next="llmkube agent uncordon")
        before = self.current
        self.current = self._said if self._said is not None and self._said.holds(self.utcnow()) else None
        if self.current == before:
            return False
        if self.current is not None:
            log.info("this host is cordoned", end=self.current.end)
        else:
            log.info("this host serves again")
        return True

    async def run(self) -> Never:
        """Never return: look, and tell."""
        told = False
        while True:
            if self.look() or not told or (self.current is not None and self.busy()):
                self.changed()
            told = True
            await wait_tick(LOOK_SECONDS)
