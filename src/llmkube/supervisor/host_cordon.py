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
from llmkube.supervisor.values.cordon import Cordon, parse_cordon

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 5.0
"""How often to look; with the Lease's renewals and the looks at engines, so that an idle host wakes no more often."""


@attrs.define(eq=False)
class CordonFile:
    """What the owner's file says; it is read again only when it is another one."""

    path: Path
    _fingerprint: tuple[int, ...] = ()
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
            self._fingerprint, self._known = (), None
            return None
        fingerprint = (found.st_ino, found.st_mtime_ns, found.st_size)
        if fingerprint != self._fingerprint:
            self._known, self._fingerprint = parse_cordon(self.path.read_bytes()), fingerprint
        return self._known


@attrs.define(eq=False)
class HostCordon:
    """Whether this host serves now.

    Attributes:
        read: Returns what the owner has said.
        utcnow: The wall clock: the owner means the one on the wall, also after a sleep.
        accelerators: What the host serves while it is not cordoned.
        has_services: Whether a service is still here.
        changed: Called when it is cordoned or serves again, and as long as a service has not heard of it.
    """

    read: Callable[[], Cordon | None]
    utcnow: Callable[[], datetime.datetime]
    accelerators: frozenset[str]
    has_services: Callable[[], bool]
    changed: Callable[[], None]
    current: Cordon | None = None
    _order: Cordon | None = None
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
            self._order, self._problem = self.read(), ""
        except (OSError, ValueError) as error:  # what was known stays
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the cordon of this host cannot be read", error=str(error), next="llmkube agent uncordon")
        before = self.current
        self.current = self._order if self._order is not None and self._order.is_active(self.utcnow()) else None
        if self.current == before:
            return False
        if self.current is not None:
            log.info("this host is cordoned", end=self.current.end)
        else:
            log.info("this host serves again")
        return True

    async def run(self) -> Never:
        """Never return: look, and tell."""
        notified = False
        while True:
            if self.look() or not notified or (self.current is not None and self.has_services()):
                self.changed()
            notified = True
            await wait_tick(POLL_SECONDS)
