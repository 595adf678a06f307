"""All claims that this host knows of, by their Leases and by the services that they are on. Pure."""

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.claims import Claim


@attrs.define(eq=False)
class ClaimIndex:
    """Claims as the watch, or an answer to this host, has shown them last."""

    _by_lease: dict[Key, Claim] = attrs.field(factory=dict)
    _by_service: dict[Key, dict[Key, Claim]] = attrs.field(factory=dict)

    def put(self, lease: Key, claim: Claim | None) -> None:
        """Replace what is known of a Lease; None when it is gone, or is no claim."""
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
        """Return the claim that a Lease is."""
        return self._by_lease.get(lease)

    def of(self, service: Key) -> tuple[Claim, ...]:
        """Return the claims on a service."""
        return tuple(self._by_service.get(service, {}).values())

    def all(self) -> tuple[Claim, ...]:
        """Return every claim."""
        return tuple(self._by_lease.values())
