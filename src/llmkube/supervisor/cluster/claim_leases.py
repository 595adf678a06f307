"""Create, take over, read and delete the Leases that are claims; the index knows each answer at once."""

import datetime
from collections.abc import Callable

import attrs
import structlog

from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import host_id
from llmkube.supervisor.cluster import claims
from llmkube.supervisor.cluster.claims import Acquire, Claim, ClaimIndex
from llmkube.supervisor.nouns.settings import AgentSettings

log = structlog.get_logger(__name__)


@attrs.frozen
class ClaimLeases:
    """The claims in the API server.

    Every method raises `LLMKubeError` when the API server does not answer, or refuses for another reason than a race.

    Attributes:
        client: The API server.
        settings: The host's.
        utcnow: The wall clock, for the times in claims.
        index: Takes in every answer.
    """

    client: Client
    settings: AgentSettings
    utcnow: Callable[[], datetime.datetime]
    index: ClaimIndex

    async def acquire(self, service: InferenceService, decision: Acquire) -> Key | None:
        """Take a slot; return the Lease to read if another host was faster."""
        now, over, host = self.utcnow(), decision.over, host_id(self.settings.host_name)
        manifest = claims.claim_manifest(service, decision.slot, host, self.settings.lease_namespace, now)
        key = Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        try:
            if over is None:
                lease = await self.client.create(decode(Lease, manifest))
            else:
                lease = await self.client.patch(Lease, key, claims.taking_over(over, host, now))
        except (AlreadyExistsError, ConflictError):
            return key
        except NotFoundError:
            if over is None:
                raise  # the namespace is missing
            return key
        self.index.put(key, claims.claim_of(lease))
        log.info("claimed", name=service.key.name, namespace=service.key.namespace, replica=decision.slot)
        return None

    async def read(self, lease: Key) -> None:
        """Find out what a Lease is now."""
        try:
            self.index.put(lease, claims.claim_of(await self.client.get(Lease, lease)))
        except NotFoundError:
            self.index.put(lease, None)

    async def delete(self, claim: Claim) -> None:
        """Delete a claim, unless it has changed meanwhile."""
        try:
            await self.client.delete(Lease, claim.lease, resource_version=claim.version)
        except (NotFoundError, ConflictError):
            await self.read(claim.lease)
        else:
            self.index.put(claim.lease, None)
            log.info("claim given up", name=claim.service.name, namespace=claim.service.namespace, replica=claim.slot)

    async def is_followed(self, service: Key) -> bool:
        """Whether there is such a service, among those that this host follows."""
        if self.settings.namespace not in (None, service.namespace):
            return False
        try:
            found = await self.client.get(InferenceService, service)
        except (NotFoundError, ForbiddenError):
            return False
        return self.settings.selector.matches(found.metadata.labels)

    async def is_deleted(self, service: Key) -> bool:
        """Whether there is certainly no such service; not of a namespace that this agent may not read."""
        try:
            await self.client.get(InferenceService, service)
        except NotFoundError:
            return True
        except ForbiddenError:
            return False
        return False
