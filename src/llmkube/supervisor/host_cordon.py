"""Watch the cordon of this host, in the file that `llmkube agent cordon` writes.

A cordoned host serves no accelerator. Its services stop as if its label selector no longer matched them, their claims
are released for other hosts, and the host's Lease lists no accelerator. When the cordon expires or its file is removed,
the host serves again.
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
"""Interval of checks, at the same ticks as Lease renewals and engine samples: an idle host must not wake more often."""


@attrs.define(eq=False)
class CordonFile:
    """Reader of the cordon's file, which reads it again only if it has changed."""

    path: Path
    _fingerprint: tuple[int, ...] = ()
    _known: Cordon | None = None

    def __call__(self) -> Cordon | None:
        """Return the cordon; None without a file.

        Raises:
            OSError: The file cannot be read.
            ValueError: The content is invalid.
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
    """State of this host's cordon.

    Attributes:
        read: Reads the cordon.
        utcnow: The wall clock, in which the end of the cordon is given.
        accelerators: Accelerators that the host serves while it is not cordoned.
        has_services: Returns whether a service still runs here.
        changed: Called when the cordon changes, and at each check while a cordoned host still has services.
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
        """Accelerators that the host serves now."""
        return frozenset() if self.current is not None else self.accelerators

    @property
    def end(self) -> str:
        """End of the cordon, for people; "" while the host serves."""
        return "" if self.current is None else self.current.end

    def refresh(self) -> bool:
        """Read the cordon; return whether it has changed."""
        try:
            self._order, self._problem = self.read(), ""
        except (OSError, ValueError) as error:  # the last known cordon applies
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("cordon not read", error=str(error), next="llmkube agent uncordon")
        before = self.current
        self.current = self._order if self._order is not None and self._order.is_active(self.utcnow()) else None
        if self.current == before:
            return False
        if self.current is not None:
            log.info("host cordoned", end=self.current.end)
        else:
            log.info("host uncordoned")
        return True

    async def run(self) -> Never:
        """Check the cordon at its interval, and report changes; never return."""
        notified = False
        while True:
            if self.refresh() or not notified or (self.current is not None and self.has_services()):
                self.changed()
            notified = True
            await wait_tick(POLL_SECONDS)
