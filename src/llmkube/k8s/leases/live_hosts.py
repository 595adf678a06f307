"""Determine which hosts are alive from when we saw their Leases change, never from their clocks. Pure.

The times in a Lease are from the holder's wall clock and are not used. A host is gone if its Lease has not changed for
its whole duration since *we* saw it change, by our own monotonic clock. So a program that has just started assumes that
every Lease is live for its whole duration. The time is always an argument, so tests need no clock.
"""

import math
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.k8s.builtins import Lease
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import (
    ACCELERATORS_ANNOTATION,
    CORDON_ANNOTATION,
    HOST_LABEL,
    MEMORY_FREE_ANNOTATION,
    RUNTIMES_ANNOTATION,
)

DEFAULT_LEASE_SECONDS: Final = 40.0
"""The duration of a Lease without `leaseDurationSeconds`."""


_MAX_DIGITS: Final = 19


@attrs.frozen
class LiveHosts:
    """The hosts that are alive, each with the accelerators that it serves.

    Attributes:
        accelerators: Empty for a host that serves nothing now.
        cordons: The cordoned hosts among them, and the end of each cordon.
        one_machine: Whether there can be no other hosts (`llmkube up`).
        runtimes: The runtimes whose programs a host has; without an entry it is assumed to have all.
    """

    accelerators: Mapping[str, frozenset[str]] = attrs.field(factory=dict)
    cordons: Mapping[str, str] = attrs.field(factory=dict)
    one_machine: bool = False
    runtimes: Mapping[str, frozenset[str]] = attrs.field(factory=dict)

    def is_alive(self, host: str) -> bool:
        """Return whether this host holds a live Lease."""
        return host in self.accelerators

    def serving(self, accelerator: str) -> frozenset[str]:
        """Return the live hosts that serve an accelerator."""
        return frozenset(host for host, served in self.accelerators.items() if accelerator in served)

    def able(self, accelerator: str, runtime: str) -> frozenset[str]:
        """Return the live hosts that serve an accelerator and have a runtime's program, or all if none has."""
        serving = self.serving(accelerator)
        return frozenset(host for host in serving if runtime in self.runtimes.get(host, (runtime,))) or serving


@attrs.frozen
class _ObservedLease:
    host: str
    accelerators: frozenset[str]
    version: str
    duration_seconds: float
    deadline: float
    free_bytes: int
    cordon: str = ""
    runtimes: frozenset[str] = frozenset()
    is_alive: bool = True


@attrs.define(eq=False)
class LeaseTracker:
    """A record of when each Lease was last seen to change; all times are seconds of one monotonic clock.

    Nothing expires by itself: `overdue` returns the Leases to read again; after a read, the caller calls `observe` or
    `mark_gone`.

    Attributes:
        one_machine: As in `LiveHosts`.
    """

    one_machine: bool = False
    _observed: dict[Key, _ObservedLease] = attrs.field(factory=dict, init=False)

    @property
    def hosts(self) -> LiveHosts:
        """The hosts that are alive."""
        merged: dict[str, frozenset[str]] = {}
        for observed in self._observed.values():
            if observed.is_alive:
                merged[observed.host] = merged.get(observed.host, frozenset()) | observed.accelerators
        cordons = {each.host: each.cordon for each in self._observed.values() if each.is_alive and each.cordon}
        runtimes = {each.host: each.runtimes for each in self._observed.values() if each.is_alive and each.runtimes}
        return LiveHosts(merged, cordons, self.one_machine, runtimes)

    @property
    def free_bytes(self) -> dict[str, int]:
        """The free memory that each live host reports, in bytes; 0 where it reports none."""
        return {s.host: s.free_bytes for s in self._observed.values() if s.is_alive}

    @property
    def next_deadline(self) -> float:
        """The time at which the next Lease becomes overdue; infinity if none can."""
        return min((s.deadline for s in self._observed.values() if s.is_alive), default=math.inf)

    def observe(self, lease: Lease, now: float, *, renewed: bool = False) -> None:
        """Record a Lease; only a change, or `renewed`, restarts its duration.

        Args:
            lease: The Lease as read from the API server. One without our label is ignored.
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
        served, runtimes = _words(lease, ACCELERATORS_ANNOTATION), _words(lease, RUNTIMES_ANNOTATION)
        cordon = lease.metadata.annotations.get(CORDON_ANNOTATION, "")
        self._observed[lease.key] = _ObservedLease(
            host, served, version, duration, now + duration, _free_bytes(lease), cordon, runtimes
        )

    def forget(self, key: Key) -> None:
        """Remove a deleted Lease: its host is gone at once."""
        self._observed.pop(key, None)

    def overdue(self, now: float) -> tuple[Key, ...]:
        """Return the Leases of live hosts that have not changed for their whole duration."""
        return tuple(key for key, s in self._observed.items() if s.is_alive and s.deadline <= now)

    def postpone(self, key: Key, until: float) -> None:
        """Defer the deadline of a Lease, when it is unknown whether its host is alive."""
        if key in self._observed:
            self._observed[key] = attrs.evolve(self._observed[key], deadline=until)

    def mark_gone(self, key: Key) -> None:
        """Treat a host as gone until its Lease changes again."""
        if key in self._observed:
            self._observed[key] = attrs.evolve(self._observed[key], is_alive=False)


def _words(lease: Lease, annotation: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, lease.metadata.annotations.get(annotation, "").split(","))))


def _free_bytes(lease: Lease) -> int:
    text = lease.metadata.annotations.get(MEMORY_FREE_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0
