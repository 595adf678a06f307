"""Which hosts are there: judged by when we saw their Leases change, never by what their clocks say. Pure.

A Lease carries the holder's wall clock, and two machines' clocks are never compared here. What counts is our own
monotonic clock: a Lease that has not changed for its whole duration since *we* saw it change belongs to a host that is
gone. A program that has just started therefore believes every Lease for its whole duration. Time is an argument
throughout, so a test needs no clock.
"""

import math
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.k8s.builtins import Lease
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import ACCELERATORS_ANNOTATION, CORDON_ANNOTATION, HOST_LABEL, MEMORY_FREE_ANNOTATION

DEFAULT_LEASE_SECONDS: Final = 40.0
"""How long a Lease that does not say is good for."""


_MAX_DIGITS: Final = 19


@attrs.frozen
class LiveHosts:
    """The hosts that are alive, each with the accelerators that it serves.

    Attributes:
        accelerators: Empty for a host that serves nothing now.
        cordons: The hosts among them whose owners have taken them back, and until when.
    """

    accelerators: Mapping[str, frozenset[str]] = attrs.field(factory=dict)
    cordons: Mapping[str, str] = attrs.field(factory=dict)

    def is_alive(self, host: str) -> bool:
        """Whether this host holds a live Lease."""
        return host in self.accelerators

    def serving(self, accelerator: str) -> frozenset[str]:
        """The live hosts that serve an accelerator."""
        return frozenset(host for host, served in self.accelerators.items() if accelerator in served)


@attrs.frozen
class _ObservedLease:
    host: str
    accelerators: frozenset[str]
    version: str
    duration_seconds: float
    deadline: float
    free_bytes: int
    cordon: str = ""
    is_alive: bool = True


@attrs.define(eq=False)
class LeaseTracker:
    """Remember when each Lease was last seen to change; every time is a reading of one monotonic clock, in seconds.

    Nothing expires by itself: `overdue` names the Leases to read again, and who has read one calls `observe` or
    `mark_gone`.
    """

    _observed: dict[Key, _ObservedLease] = attrs.field(factory=dict, init=False)

    @property
    def hosts(self) -> LiveHosts:
        """The hosts that are alive."""
        merged: dict[str, frozenset[str]] = {}
        for observed in self._observed.values():
            if observed.is_alive:
                merged[observed.host] = merged.get(observed.host, frozenset()) | observed.accelerators
        cordons = {each.host: each.cordon for each in self._observed.values() if each.is_alive and each.cordon}
        return LiveHosts(merged, cordons)

    @property
    def free_bytes(self) -> dict[str, int]:
        """How much memory each live host has said to have free; 0 where it has not said."""
        return {s.host: s.free_bytes for s in self._observed.values() if s.is_alive}

    @property
    def next_deadline(self) -> float:
        """When the next Lease becomes overdue; infinity when none can."""
        return min((s.deadline for s in self._observed.values() if s.is_alive), default=math.inf)

    def observe(self, lease: Lease, now: float, *, renewed: bool = False) -> None:
        """Take note of a Lease; only a change, or `renewed`, restarts its clock.

        Args:
            lease: The Lease as the API server has it. One without our label is ignored.
            now: The monotonic time.
            renewed: Treat it as changed: during an outage of the API server no host could renew its Lease.
        """
        host = lease.metadata.labels.get(HOST_LABEL, "")
        if not host:
            self._observed.pop(lease.key, None)
            return
        before = self._observed.get(lease.key)
        version = f"{lease.metadata.uid}/{lease.metadata.resource_version}"
        if before is not None and before.version == version and not renewed:
            return
        duration = float(lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS)
        listed = lease.metadata.annotations.get(ACCELERATORS_ANNOTATION, "")
        served = frozenset(word.strip() for word in listed.split(",") if word.strip())
        cordon = lease.metadata.annotations.get(CORDON_ANNOTATION, "")
        self._observed[lease.key] = _ObservedLease(
            host, served, version, duration, now + duration, _free_bytes(lease), cordon
        )

    def forget(self, key: Key) -> None:
        """Drop a Lease that was deleted: its host is gone at once."""
        self._observed.pop(key, None)

    def overdue(self, now: float) -> tuple[Key, ...]:
        """The Leases of hosts held to be alive that have not changed for their whole duration."""
        return tuple(key for key, s in self._observed.items() if s.is_alive and s.deadline <= now)

    def postpone(self, key: Key, until: float) -> None:
        """Look again at a later time: whether the host is alive is not known now."""
        if key in self._observed:
            self._observed[key] = attrs.evolve(self._observed[key], deadline=until)

    def mark_gone(self, key: Key) -> None:
        """Hold a host for dead until its Lease changes again."""
        if key in self._observed:
            self._observed[key] = attrs.evolve(self._observed[key], is_alive=False)


def _free_bytes(lease: Lease) -> int:
    text = lease.metadata.annotations.get(MEMORY_FREE_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0
