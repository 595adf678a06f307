"""Decide which of several hosts runs a service: one claim per replica, valid while its host renews its Lease. Pure.

A claim is a Lease that names its holder. It is written when the holder changes, and never renewed: it is valid as long
as the host's own Lease. A host that is gone therefore loses all claims when its Lease expires, and a host that is only
disconnected keeps its engines running until it sees that another host has taken over.

There are as many slots as replicas, and one for zero replicas: its holder keeps the service's name and address, reports
its status, and has the file when the service is scaled up again. A host holds at most one slot of a service. The holder
of the lowest claimed slot reports for all; the others have their own slices and Events.
"""

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.builtins import Lease
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL, CLAIMED_ANNOTATION, SLOT_ANNOTATION, claim_name, label_value
from llmkube.k8s.wire.times import micro_timestamp

FETCH_SECONDS: Final = 1.0
"""Minimum additional delay of a host that would have to fetch the file first."""

STEP_SECONDS: Final = 0.25
"""Additional delay for each rank; it is longer than a claim takes to reach the other hosts."""

MAX_STEPS: Final = 12


@attrs.frozen
class Claim:
    """One replica of a service, and the host that holds it."""

    service: Key
    slot: int
    holder: str
    lease: Key
    version: str
    transitions: int = 0


def claim_of(lease: Lease) -> Claim | None:
    """Return the claim in a Lease; None if it is not a claim, or is incomplete."""
    metadata, spec = lease.metadata, lease.spec
    named, slot = metadata.annotations.get(CLAIMED_ANNOTATION, ""), metadata.annotations.get(SLOT_ANNOTATION, "")
    namespace, slash, name = named.partition("/")
    if not (namespace and slash and name and slot.isascii() and slot.isdigit() and len(slot) < len("1000000")):
        return None
    service, number = Key(namespace, name), int(slot)
    if metadata.name != claim_name(namespace, name, number):
        return None
    holder, transitions = spec.holder_identity or "", spec.lease_transitions or 0
    return Claim(service, number, holder, lease.key, metadata.resource_version, transitions)


def claim_manifest(
    service: InferenceService, slot: int, holder: str, lease_namespace: str, now: datetime.datetime
) -> dict[str, Any]:
    """Return the manifest of a new claim."""
    key = service.key
    return {
        "metadata": {
            "name": claim_name(key.namespace, key.name, slot),
            "namespace": lease_namespace,
            "labels": {CLAIM_LABEL: label_value(key.name)},
            "annotations": {CLAIMED_ANNOTATION: str(key), SLOT_ANNOTATION: str(slot)},
        },
        "spec": {"holderIdentity": holder, "acquireTime": micro_timestamp(now), "leaseTransitions": 0},
    }


def takeover_patch(claim: Claim, holder: str, now: datetime.datetime) -> dict[str, Any]:
    """Return the patch that makes a host the holder if the claim still has this version."""
    return {
        "metadata": {"resourceVersion": claim.version},
        "spec": {
            "holderIdentity": holder,
            "acquireTime": micro_timestamp(now),
            "leaseTransitions": claim.transitions + 1,
        },
    }


@attrs.frozen
class HeldSlot:
    """This host holds a slot; with `reports` it reports the status of the service."""

    slot: int
    reports: bool = True


@attrs.frozen
class FreeSlot:
    """A slot is free: it has no claim, or the `expired` claim of a host that is gone."""

    slot: int
    expired: Claim | None = None


@attrs.frozen
class NoFreeSlot:
    """Other live hosts hold all slots."""

    hosts: tuple[str, ...]


Decision = HeldSlot | FreeSlot | NoFreeSlot


def decide(host: str, slots: int, claims: Iterable[Claim], alive: Collection[str]) -> Decision:
    """Return whether a host holds a slot of a service, may claim one, or neither.

    Args:
        host: This host; it is considered alive even if its Lease has expired.
        slots: Number of slots of the service.
        claims: All claims on the service, including those beyond `slots`.
        alive: The live hosts.
    """
    by_slot: Mapping[int, Claim] = {claim.slot: claim for claim in claims if claim.slot < slots}
    live = {slot: claim.holder for slot, claim in by_slot.items() if claim.holder == host or claim.holder in alive}
    ours = [slot for slot, holder in sorted(live.items()) if holder == host]
    if ours:
        return HeldSlot(ours[0], reports=ours[0] == min(live))
    free = next((slot for slot in range(slots) if slot not in live), None)
    if free is None:
        return NoFreeSlot(tuple(sorted(set(live.values()))))
    return FreeSlot(free, by_slot.get(free))


def claims_to_release(ours: Sequence[Claim], decision: Decision | None) -> list[Claim]:
    """Return the claims that a host releases: all without a decision, else all but the one that it holds."""
    if decision is None:
        return list(ours)
    return [claim for claim in ours if claim.slot != decision.slot] if isinstance(decision, HeldSlot) else []


def rank(host: str, free_bytes: Mapping[str, int]) -> int:
    """Return a host's rank, from 0, among the hosts that could serve: most free memory first, then by name."""
    order = sorted(free_bytes.keys() | {host}, key=lambda one: (-free_bytes.get(one, 0), one))
    return order.index(host)


def delay_seconds(rank: int, hosts: int, *, has_file: bool, running: bool) -> float:
    """Return how long a host leaves a free slot to better hosts; 0 if its engine already runs.

    The best host writes first, and the API server accepts only one claim. Hosts that have the file are better than all
    that do not.

    Args:
        rank: The host's rank among the hosts that could serve, from 0.
        hosts: Number of those hosts.
        has_file: Whether the file is on the host.
        running: Whether its engine runs.
    """
    if running:
        return 0.0
    file_delay = 0.0 if has_file else max(FETCH_SECONDS, min(hosts, MAX_STEPS + 1) * STEP_SECONDS)
    return min(rank, MAX_STEPS) * STEP_SECONDS + file_delay


@attrs.define(eq=False)
class ClaimIndex:
    """The newest known claims, from the watch and from answers to this host."""

    _by_lease: dict[Key, Claim] = attrs.field(factory=dict)
    _by_service: dict[Key, dict[Key, Claim]] = attrs.field(factory=dict)

    def put(self, lease: Key, claim: Claim | None) -> None:
        """Set the claim in a Lease; None if the Lease is gone, or is not a claim."""
        known = self._by_lease.pop(lease, None)
        if known is not None:
            others = self._by_service[known.service]
            del others[lease]
            if not others:
                del self._by_service[known.service]
        if claim is not None:
            self._by_lease[lease] = claim
            self._by_service.setdefault(claim.service, {})[lease] = claim

    def get(self, lease: Key) -> Claim | None:
        """Return the claim in a Lease."""
        return self._by_lease.get(lease)

    def of(self, service: Key) -> tuple[Claim, ...]:
        """Return the claims on a service."""
        return tuple(self._by_service.get(service, {}).values())

    def all(self) -> tuple[Claim, ...]:
        """Return every claim."""
        return tuple(self._by_lease.values())
