"""Hold claims for the services that run on this host: carry out the decisions of `claims` in the API server.

A host without rivals starts the engine at once and writes the claim meanwhile; with rivals the claim comes first. If
two hosts want the same slot, the API server lets only one of them create or change the Lease; the other one waits until
something changes. While the API server is unreachable, claims are neither acquired nor released.
"""

import datetime
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.reflector import Cache, is_older, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL, HOST_LABEL, SERVICE_NAME_LABEL, host_id, service_name
from llmkube.k8s.workqueue import WorkQueue, run_workers
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process.host_runtimes import engine_key_of
from llmkube.supervisor.cluster import claims
from llmkube.supervisor.cluster.claims import Claim, ClaimIndex, FreeSlot, HeldSlot, NoFreeSlot
from llmkube.supervisor.values.desired import Desired, accelerator, slots
from llmkube.supervisor.values.door_state import Listen
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)

WRITE_SECONDS: Final = 5.0

WORKERS: Final = 4

UNCONTESTED_SECONDS: Final = 0.25
"""Delay of a claim without rivals, so that it does not compete with the start of the engine."""

REACQUIRE_SECONDS: Final = 1.0
"""Minimum time between two acquisitions of a slot, in case another writer keeps deleting the claim."""

LEAVE_SECONDS: Final = 30.0
"""Time for which a host leaves a service to others before it claims it again."""

RETRY: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)


@attrs.frozen
class ClaimLeases:
    """Read and write the Leases that are claims.

    Every method raises `LLMKubeError` if the API server does not answer, or refuses for any reason but a race.

    Attributes:
        client: Client of the API server.
        settings: The host's settings.
        utcnow: The wall clock, for the times in claims.
        index: Updated with every answer.
    """

    client: Client
    settings: AgentSettings
    utcnow: Callable[[], datetime.datetime]
    index: ClaimIndex

    async def acquire(self, service: InferenceService, decision: FreeSlot) -> Key | None:
        """Claim a slot; return the key of the Lease if another host was faster."""
        now, expired, host = self.utcnow(), decision.expired, host_id(self.settings.host_name)
        manifest = claims.claim_manifest(service, decision.slot, host, self.settings.lease_namespace, now)
        key = Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        try:
            if expired is None:
                lease = await self.client.create(decode(Lease, manifest))
            else:
                lease = await self.client.patch(Lease, key, claims.takeover_patch(expired, host, now))
        except (AlreadyExistsError, ConflictError):
            return key
        except NotFoundError:
            if expired is None:
                raise  # the namespace is missing
            return key
        self.index.put(key, claims.claim_of(lease))
        log.info("service claimed", name=service.key.name, namespace=service.key.namespace, replica=decision.slot)
        return None

    async def read(self, lease: Key) -> None:
        """Read a Lease into the index."""
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
            log.info("claim released", name=claim.service.name, namespace=claim.service.namespace, replica=claim.slot)

    async def is_selected(self, service: Key) -> bool:
        """Whether the service exists and is among those that this host watches."""
        if self.settings.namespace not in (None, service.namespace):
            return False
        try:
            found = await self.client.get(InferenceService, service)
        except (NotFoundError, ForbiddenError):
            return False
        return self.settings.selector.matches(found.metadata.labels)

    async def is_deleted(self, service: Key) -> bool:
        """Whether the service certainly does not exist; False if this agent may not read its namespace."""
        try:
            await self.client.get(InferenceService, service)
        except NotFoundError:
            return True
        except ForbiddenError:
            return False
        return False


@attrs.define(eq=False)
class _ServiceClaim:
    """State of this host's claim of one service."""

    wanted: bool = False  # otherwise its claims are released
    running: bool = False
    unlisted: bool = False  # no list has it, so a read has to confirm that it is gone
    due: tuple[FreeSlot, float] | None = None  # the slot to acquire next, and the time
    acquired_at: float = float("-inf")


@attrs.define(eq=False)
class ClaimManager:
    """Manages the claims of this host.

    Attributes:
        client: Client of the API server.
        settings: The host's settings.
        hosts: Monitors which hosts are alive.
        utcnow: The wall clock, for the times in claims.
        rng: Adds jitter to delays.
        has_file: Returns whether a Model's file is on this host already.
        desired: Returns the desired state of a service here; None if the service does not belong here.
        enqueue: Queues a service for a reconcile; called when its claims have changed.
        name_confirmed: Set once it is certain that no other machine uses this host's name.
        renewed: Set once this host's own Lease exists: a claim is valid only while its holder's Lease is renewed.
    """

    client: Client
    settings: AgentSettings
    hosts: HostMonitor
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    has_file: Callable[[Model], Awaitable[bool]]
    desired: Callable[[Key], Desired | None]
    enqueue: Callable[[Key], None]
    name_confirmed: trio.Event = attrs.field(factory=trio.Event)
    renewed: trio.Event = attrs.field(factory=trio.Event)
    leases: Cache[Lease] = attrs.field(factory=Cache)
    host: str = attrs.field(init=False)
    _queue: WorkQueue[Key] = attrs.field(init=False)
    _claims: ClaimIndex = attrs.field(factory=ClaimIndex)
    _leases: ClaimLeases = attrs.field(init=False)
    _services: dict[Key, _ServiceClaim] = attrs.field(factory=dict)
    _left_until: dict[Key, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.host = host_id(self.settings.host_name)
        self._queue = WorkQueue(self.rng, RETRY)
        self._leases = ClaimLeases(self.client, self.settings, self.utcnow, self._claims)

    @property
    def synced(self) -> bool:
        """Whether all claims and hosts have been listed once, and no other machine uses this host's name."""
        return self.leases.synced.is_set() and self.hosts.leases.synced.is_set() and self.name_confirmed.is_set()

    async def wait_synced(self) -> None:
        """Return when all claims and hosts have been listed once, and no other machine uses this host's name."""
        await self.name_confirmed.wait()
        await self.leases.synced.wait()
        await self.hosts.leases.synced.wait()

    def may_run(self, desired: Desired, *, running: bool, has_engine: bool) -> bool:
        """Return whether this host may run a service now; `enqueue` is called when that may have changed.

        Args:
            desired: Desired state of the service here.
            running: Whether its task runs.
            has_engine: Whether an engine runs, which a host keeps even if its program is gone.
        """
        if not self.synced:
            return running
        key, decision = desired.key, self._decide(desired)
        if key in self._left_until or (not has_engine and self._is_unable(desired)):
            if not running:
                self.release(key)
            return False
        if isinstance(decision, NoFreeSlot):
            if running:
                log.info(
                    "service claimed by other hosts", name=key.name, namespace=key.namespace, hosts=list(decision.hosts)
                )
            else:
                self.release(key)  # claims of slots that no longer exist
            return False
        service = self._services.setdefault(key, _ServiceClaim())
        service.wanted, service.running = True, running
        if isinstance(decision, HeldSlot):
            if claims.claims_to_release(self._ours(key), decision):
                self._queue.add_nowait(key)
            return True
        self._queue.add_nowait(key)
        # Running even before its claim is written: a rival that appears meanwhile must not take precedence.
        service.running = running or (decision.expired is None and not self._rivals(desired))
        return service.running

    def reports(self, desired: Desired) -> bool:
        """Whether this host reports the status of a service; False until it knows all claims."""
        decision = self._decide(desired)
        return self.synced and (decision.reports if isinstance(decision, HeldSlot) else isinstance(decision, FreeSlot))

    def release(self, key: Key, *, unlisted: bool = False) -> None:
        """Release this host's claims of a service that does not run here.

        Args:
            key: The service's key.
            unlisted: Whether the service was missing from a list, so that a read has to confirm that it is gone.
        """
        if key in self._services or self._ours(key) or self._orphans(key):
            service = self._services.setdefault(key, _ServiceClaim())
            service.wanted, service.unlisted, service.due = False, unlisted, None
            self._queue.add_nowait(key)

    def leave(self, desired: Desired, needed_bytes: int) -> None:
        """Leave a service for LEAVE_SECONDS to a host with this much free memory and no replica, if there is one."""
        holders = {claim.holder for claim in self._claims.of(desired.key)}
        able = {host for host, free in self._rivals(desired).items() if free >= needed_bytes} - holders
        if able and desired.key not in self._left_until:
            log.info("service left to hosts with free memory", name=desired.key.name, hosts=sorted(able))
            self._left_until[desired.key] = trio.current_time() + LEAVE_SECONDS
            self.enqueue(desired.key)

    async def find_endpoint(self, key: Key) -> Listen:
        """Return where another host with a claim on a service accepts its requests; empty if that is not known."""
        hosts = {claim.holder for claim in self._claims.of(key)} - {self.host}
        selector = f"{SERVICE_NAME_LABEL}={service_name(key.name)}"
        with trio.move_on_after(WRITE_SECONDS), suppress(LLMKubeError):
            for each in (await self.client.list(EndpointSlice, namespace=key.namespace, label_selector=selector)).items:
                for one, port in zip(each.endpoints, each.ports, strict=False):
                    if each.metadata.labels.get(HOST_LABEL) in hosts and one.conditions.ready and one.addresses:
                        return one.addresses[0], port.port or 0
        return ()

    def services(self) -> list[Key]:
        """Return the services with a claim that is held by this host, or by one that is gone."""
        alive = self.hosts.tracker.hosts.accelerators.keys() - {self.host}
        return sorted({claim.service for claim in self._claims.all() if claim.holder not in alive})

    async def run_reflector(self) -> Never:
        """Watch all claims; never return."""
        await run_reflector(
            self.client,
            Lease,
            self.leases,
            self._on_lease,
            namespace=self.settings.lease_namespace,
            label_selector=CLAIM_LABEL,
            rng=self.rng,
        )

    async def run(self) -> Never:
        """Acquire and release claims; never return."""
        await run_workers(self._queue, self._reconcile, workers=WORKERS)

    # -- state --------------------------------------------------------------------------------------------------------

    def _on_lease(self, lease_key: Key) -> None:
        lease = self.leases.get(lease_key)
        claim = claims.claim_of(lease) if lease else None
        known = self._claims.get(lease_key)
        if claim and known and is_older(claim.version, known.version):
            return  # the watch is older than an answer that this host already has
        affected = {one.service for one in (claim, known) if one}
        self._claims.put(lease_key, claim)
        for key in affected:
            self.enqueue(key)

    def _ours(self, key: Key) -> list[Claim]:
        return sorted((claim for claim in self._claims.of(key) if claim.holder == self.host), key=lambda one: one.slot)

    def _orphans(self, key: Key) -> list[Claim]:
        """Return the claims on a service whose holders are gone."""
        alive = self.hosts.tracker.hosts.accelerators.keys() | {self.host}
        return [claim for claim in self._claims.of(key) if claim.holder not in alive]

    def _decide(self, desired: Desired) -> claims.Decision:
        known, alive = self._claims.of(desired.key), self.hosts.tracker.hosts.accelerators
        return claims.decide(self.host, slots(desired), known, alive)

    def _rivals(self, desired: Desired) -> Mapping[str, int]:
        """Return the other live hosts that could run a service, with their free memory in bytes."""
        free = self.hosts.tracker.free_bytes
        return {host: free.get(host, 0) for host in self._able(desired) - {self.host}}

    def _is_unable(self, desired: Desired) -> bool:
        """Whether this host lacks the engine program of a service, and another one has it."""
        return self.host in self.hosts.tracker.hosts.serving(accelerator(desired.model)) - self._able(desired)

    def _able(self, desired: Desired) -> frozenset[str]:
        hosts, hardware = self.hosts.tracker.hosts, accelerator(desired.model)
        with suppress(PlanError):  # reported when the service is planned
            return hosts.able(hardware, engine_key_of(desired.service, desired.model, self.settings.mlx_runtime))
        return hosts.serving(hardware)

    # -- writes -------------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> float | None:
        await self.renewed.wait()
        service = self._services.setdefault(key, _ServiceClaim())
        try:
            with trio.fail_after(WRITE_SECONDS):
                if not service.wanted:
                    await self._give_up(key, service)
                    return self._return_delay(key)
                if (desired := self.desired(key)) is None:
                    pass  # it has just gone, and the next reconciliation releases it
                elif isinstance(decision := self._decide(desired), FreeSlot):
                    return await self._acquire(desired, service, decision)
                else:
                    for claim in claims.claims_to_release(self._ours(key), decision):
                        await self._delete(claim)
        except (LLMKubeError, trio.TooSlowError) as error:
            message = str(error) or "no answer"
            log.warning("claim not written; retrying", name=key.name, namespace=key.namespace, error=message)
            raise ExternalError(message) from error
        return None

    def _return_delay(self, key: Key) -> float | None:
        """Return the time until this host may claim a service again that it has left; None if it may."""
        left = self._left_until.get(key, -math.inf) - trio.current_time()
        if left > 0:
            return left
        if self._left_until.pop(key, None) is not None:
            self.enqueue(key)
        return None

    async def _give_up(self, key: Key, service: _ServiceClaim) -> None:
        """Delete the claims of this host, and those of hosts that are gone if the service is gone, too."""
        if service.unlisted and self._ours(key) and await self._leases.is_selected(key):
            log.warning("list lacks a service that exists", name=key.name, namespace=key.namespace)
            return  # the reflector lists again, since it does not trust a list that lacks many objects
        for claim in claims.claims_to_release(self._ours(key), None):
            await self._delete(claim)
        await self._delete_orphans(key)
        if not service.wanted:  # it may have come back meanwhile
            del self._services[key]

    async def _acquire(self, desired: Desired, service: _ServiceClaim, decision: FreeSlot) -> float | None:
        """Claim a slot if it is due; otherwise return the delay in seconds."""
        pause = service.acquired_at + REACQUIRE_SECONDS - trio.current_time()
        if pause > 0:
            return pause
        delay = await self._remaining_delay(desired, service, decision)
        if delay > 0:
            return delay
        service.due = None
        if decision.expired is not None and not await self._is_gone(decision.expired.holder):
            self.enqueue(desired.key)
            return None
        lease_key = await self._leases.acquire(desired.service, decision)
        if lease_key is None:
            service.acquired_at = trio.current_time()
        else:
            await self._leases.read(lease_key)
            if self._claims.get(lease_key) is None:
                raise ExternalError(f"the Lease {lease_key} exists and is not a claim; delete it")
        if not service.wanted:  # the service has gone meanwhile
            return 0.0
        self.enqueue(desired.key)
        return None

    async def _remaining_delay(self, desired: Desired, service: _ServiceClaim, decision: FreeSlot) -> float:
        """Return how much longer to leave a free slot to other hosts, counted from when it was first seen free."""
        now = trio.current_time()
        if service.due is not None and service.due[0] == decision:
            return service.due[1] - now
        rivals, seconds = self._rivals(desired), UNCONTESTED_SECONDS
        if rivals:
            own_free_bytes = self.hosts.tracker.free_bytes.get(self.host, 0)
            rank = claims.rank(self.host, {**rivals, self.host: own_free_bytes})
            has_file = service.running or await self.has_file(desired.model)
            seconds = claims.delay_seconds(rank, len(rivals) + 1, has_file=has_file, running=service.running)
        service.due = (decision, now + seconds)
        return seconds

    async def _delete_orphans(self, key: Key) -> None:
        """Delete claims on a service that is gone whose holders are gone as well."""
        orphans = self._orphans(key)
        # A read tells: a service that this host does not watch, because of its labels or namespace, may still exist.
        if orphans and await self._leases.is_deleted(key):
            for claim in orphans:
                if await self._is_gone(claim.holder):
                    await self._delete(claim)

    async def _delete(self, claim: Claim) -> None:
        await self._leases.delete(claim)
        self.enqueue(claim.service)

    async def _is_gone(self, holder: str) -> bool:
        return not holder or await self.hosts.check_gone(holder)
