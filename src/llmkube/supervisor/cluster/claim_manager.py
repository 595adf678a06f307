"""Claim what runs here, and nothing that runs elsewhere: what `claims` decides, said to the API server.

A host that is alone need not ask: it starts the engine, and writes the claim meanwhile. With rivals the claim comes
first; two that want the same slot are told apart by the API server (a name is created once, a version is changed once),
and the one that loses leaves it alone until something changes. Without an API server nothing is claimed or given up.
"""

import datetime
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError, WorldError
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from llmkube.k8s.host_monitor import HostMonitor
from llmkube.k8s.reflector import Cache, is_older, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL, host_id
from llmkube.k8s.workqueue import WorkQueue, run_workers
from llmkube.supervisor.cluster import claims
from llmkube.supervisor.cluster.claims import Acquire, Claim, Held, HeldElsewhere
from llmkube.supervisor.nouns.desired import Desired, accelerator, slots
from llmkube.supervisor.nouns.settings import AgentSettings

log = structlog.get_logger(__name__)

WRITE_SECONDS: Final = 5.0
WORKERS: Final = 4

LEISURE_SECONDS: Final = 0.25
"""A host that is alone writes its claim after the engine has been started, and not just then."""

AGAIN_SECONDS: Final = 1.0
"""The least time between two times that a slot is taken: somebody who keeps removing the claim is not raced."""

RETRY: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)


@attrs.frozen
class _Interest:
    """What this host would do about a service, and whether its engine runs."""

    wish: Desired
    running: bool


@attrs.define(eq=False)
class ClaimManager:
    """One host's claims.

    Attributes:
        client: The API server.
        settings: The host's.
        hosts: Who is alive.
        utcnow: The wall clock, for the times in claims.
        rng: Spreads pauses.
        has_file: Whether a Model's file is on this host already.
        enqueue: Look at a service again; called when its claims have changed.
        name_confirmed: Set once it is certain that no other machine lives under this host's name.
        renewed: Set once this host's own Lease is there: a claim of a host that nobody knows is worth nothing.
    """

    client: Client
    settings: AgentSettings
    hosts: HostMonitor
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    has_file: Callable[[Model], Awaitable[bool]]
    enqueue: Callable[[Key], None]
    name_confirmed: trio.Event = attrs.field(factory=trio.Event)
    renewed: trio.Event = attrs.field(factory=trio.Event)
    leases: Cache[Lease] = attrs.field(factory=Cache)
    host: str = attrs.field(init=False)
    _queue: WorkQueue[Key] = attrs.field(init=False)
    _interests: dict[Key, _Interest] = attrs.field(factory=dict)
    _claims: dict[Key, Claim] = attrs.field(factory=dict)  # by Lease, as the watch or an answer to us says last
    _by_service: dict[Key, set[Key]] = attrs.field(factory=dict)
    _due: dict[Key, tuple[Acquire, float]] = attrs.field(factory=dict)
    _taken_at: dict[Key, float] = attrs.field(factory=dict)  # for as long as it is not taken again
    _unheard: set[Key] = attrs.field(factory=set)  # services that no list has named, with claims of ours

    def __attrs_post_init__(self) -> None:
        self.host = host_id(self.settings.host_name)
        self._queue = WorkQueue(self.rng, RETRY)

    @property
    def synced(self) -> bool:
        """Whether all claims and hosts have been seen once, and this host is the only one of its name."""
        return self.leases.synced.is_set() and self.hosts.leases.synced.is_set() and self.name_confirmed.is_set()

    async def wait_synced(self) -> None:
        """Return when all claims and hosts have been seen once, and this host is the only one of its name."""
        await self.name_confirmed.wait()
        await self.leases.synced.wait()
        await self.hosts.leases.synced.wait()

    def may_run(self, wish: Desired, *, running: bool) -> bool:
        """Return whether this host may run a service now; if it might later, that is worked on, and marked then."""
        if not self.synced:
            return running
        key = wish.key
        self._interests[key] = _Interest(wish, running)
        decision = self._decide(wish)
        if isinstance(decision, Held):
            if len(self._ours(key)) > 1:
                self._queue.add_nowait(key)
            return True
        if isinstance(decision, HeldElsewhere):
            if running:
                log.info("claimed elsewhere", name=key.name, namespace=key.namespace, hosts=list(decision.hosts))
            else:
                self.release(key)  # of a slot that is no longer there
            return False
        self._queue.add_nowait(key)
        starts = running or (decision.over is None and not self._rivals(wish))
        # What is started now runs before its claim is looked at: a rival that appears in between must not come first.
        self._interests[key] = _Interest(wish, starts)
        return starts

    def reports(self, wish: Desired) -> bool:
        """Whether this host is the one that reports about a service; not before it knows who claims what."""
        decision = self._decide(wish)
        return self.synced and (decision.reports if isinstance(decision, Held) else isinstance(decision, Acquire))

    def release(self, key: Key, *, unlisted: bool = False) -> None:
        """Give up what this host claims of a service: its engine has ended, or it is not wanted here.

        Args:
            key: The service's.
            unlisted: Nobody has told of such a service, so that a read has to say first that there is none.
        """
        self._interests.pop(key, None)
        (self._unheard.add if unlisted else self._unheard.discard)(key)
        self._due.pop(key, None)
        if self._ours(key) or self._left_behind(key):
            self._queue.add_nowait(key)

    def services(self) -> list[Key]:
        """The services of which this host holds a claim, or one that is gone."""
        alive = self.hosts.tracker.hosts.accelerators.keys() - {self.host}
        return sorted({claim.service for claim in self._claims.values() if claim.holder not in alive})

    async def run_reflector(self) -> Never:
        """Never return: follow all claims."""
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
        """Never return: take, and give up."""
        await run_workers(self._queue, self._reconcile, workers=WORKERS)

    # -- what is known ------------------------------------------------------------------------------------------------

    def _on_lease(self, lease_key: Key) -> None:
        lease = self.leases.get(lease_key)
        claim = claims.claim_of(lease) if lease else None
        known = self._claims.get(lease_key)
        if claim and known and is_older(claim.version, known.version):
            return  # the watch is behind an answer that we have had
        concerned = {one.service for one in (claim, known) if one}
        self._note(lease_key, claim)
        for key in concerned:
            self.enqueue(key)

    def _note(self, lease_key: Key, claim: Claim | None) -> None:
        known = self._claims.pop(lease_key, None)
        if known:
            self._by_service[known.service].discard(lease_key)
            if not self._by_service[known.service]:
                del self._by_service[known.service]
        if claim:
            self._claims[lease_key] = claim
            self._by_service.setdefault(claim.service, set()).add(lease_key)

    def _of(self, key: Key) -> list[Claim]:
        return [self._claims[one] for one in self._by_service.get(key, ())]

    def _ours(self, key: Key) -> list[Claim]:
        return sorted((claim for claim in self._of(key) if claim.holder == self.host), key=lambda claim: claim.slot)

    def _left_behind(self, key: Key) -> list[Claim]:
        """The claims on a service whose holders are gone."""
        alive = self.hosts.tracker.hosts.accelerators.keys() | {self.host}
        return [claim for claim in self._of(key) if claim.holder not in alive]

    def _decide(self, wish: Desired) -> claims.Decision:
        return claims.decide(self.host, slots(wish), self._of(wish.key), self.hosts.tracker.hosts.accelerators)

    def _rivals(self, wish: Desired) -> Mapping[str, int]:
        """The other live hosts that serve the accelerator, with their free memory in bytes."""
        free = self.hosts.tracker.free_bytes
        serving = self.hosts.tracker.hosts.serving(accelerator(wish.model))
        return {host: free.get(host, 0) for host in serving - {self.host}}

    # -- what is done about it ----------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> float | None:
        await self.renewed.wait()
        interest = self._interests.get(key)
        decision = self._decide(interest.wish) if interest else None
        try:
            with trio.fail_after(WRITE_SECONDS):
                if interest is None:
                    if key in self._unheard and self._ours(key) and await self._is_ours(key):
                        log.warning("a list lacks a service that is there", name=key.name, namespace=key.namespace)
                        return None  # the reflector lists again, as one that denies much is never believed for long
                    self._unheard.discard(key)
                    for claim in self._ours(key):
                        await self._delete(claim)
                    await self._delete_orphans(key)
                elif isinstance(decision, Held):
                    for claim in self._ours(key):
                        if claim.slot != decision.slot:
                            await self._delete(claim)
                elif isinstance(decision, Acquire):
                    return await self._take(interest, decision)
        except (LLMKubeError, trio.TooSlowError) as error:
            said = str(error) or "no answer"
            log.warning("claim not written; will be repeated", name=key.name, namespace=key.namespace, error=said)
            raise WorldError(said) from error
        return None

    async def _take(self, interest: _Interest, take: Acquire) -> float | None:
        wish, now = interest.wish, trio.current_time()
        self._taken_at = {key: at for key, at in self._taken_at.items() if now < at + AGAIN_SECONDS}
        if wish.key in self._taken_at:
            return self._taken_at[wish.key] + AGAIN_SECONDS - now
        remaining = await self._remaining_delay(interest, take)
        if remaining > 0:
            return remaining
        self._due.pop(wish.key, None)
        if take.over is not None and not await self._is_gone(take.over.holder):
            self.enqueue(wish.key)
            return None
        lease_key = await self._write(wish, take)
        if lease_key is not None:
            await self._read(lease_key)
            if lease_key not in self._claims:
                raise WorldError(f"the Lease {lease_key} is in the way, and is no claim")
        # The service may have gone, or changed its number of replicas, while we were writing.
        if self._interests.get(wish.key) is None:
            return 0.0
        self.enqueue(wish.key)
        return None

    async def _remaining_delay(self, interest: _Interest, take: Acquire) -> float:
        """Return how much longer to leave a free slot alone; the time runs from when it was seen free."""
        wish, now = interest.wish, trio.current_time()
        rivals = self._rivals(wish)
        before = self._due.get(wish.key)
        if before is None or before[0] != take:
            if not rivals:
                self._due[wish.key] = (take, now + LEISURE_SECONDS)
                return LEISURE_SECONDS
            mine = self.hosts.tracker.free_bytes.get(self.host, 0)
            place = claims.rank(self.host, {**rivals, self.host: mine})
            has_file = interest.running or await self.has_file(wish.model)
            seconds = claims.delay_seconds(place, len(rivals) + 1, has_file=has_file, running=interest.running)
            self._due[wish.key] = before = (take, now + seconds)
        return before[1] - now

    async def _is_ours(self, key: Key) -> bool:
        """Whether there is such a service, among those that this host follows."""
        if self.settings.namespace not in (None, key.namespace):
            return False
        try:
            service = await self.client.get(InferenceService, key)
        except (NotFoundError, ForbiddenError):
            return False
        return self.settings.selector.matches(service.metadata.labels)

    async def _delete_orphans(self, key: Key) -> None:
        """Remove the claims that hosts which are gone have left on a service that is gone as well.

        Whether it is, a read tells: what we do not follow, for its labels or its namespace, we do not know to be gone.
        """
        left = self._left_behind(key)
        if not left:
            return
        try:
            await self.client.get(InferenceService, key)
        except NotFoundError:
            for claim in left:
                if await self._is_gone(claim.holder):
                    await self._delete(claim)
        except ForbiddenError:
            return  # in a namespace that is not ours to look into, which is somebody else's to clear up

    async def _is_gone(self, holder: str) -> bool:
        return not holder or await self.hosts.wait_gone(holder)

    async def _write(self, wish: Desired, take: Acquire) -> Key | None:
        """Acquire a slot; return the claim to look at if somebody else was faster."""
        now = self.utcnow()
        manifest = claims.claim_manifest(wish.service, take.slot, self.host, self.settings.lease_namespace, now)
        key = Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        try:
            if take.over is None:
                lease = await self.client.create(decode(Lease, manifest))
            else:
                lease = await self.client.patch(Lease, key, claims.taking_over(take.over, self.host, now))
        except (AlreadyExistsError, ConflictError):
            return key
        except NotFoundError:
            if take.over is None:
                raise  # the namespace is missing
            return key
        self._note(key, claims.claim_of(lease))
        self._taken_at[wish.key] = trio.current_time()
        log.info("claimed", name=wish.key.name, namespace=wish.key.namespace, replica=take.slot)
        return None

    async def _read(self, lease_key: Key) -> None:
        try:
            self._note(lease_key, claims.claim_of(await self.client.get(Lease, lease_key)))
        except NotFoundError:
            self._note(lease_key, None)

    async def _delete(self, claim: Claim) -> None:
        try:
            await self.client.delete(Lease, claim.lease, resource_version=claim.version)
        except (NotFoundError, ConflictError):
            await self._read(claim.lease)
        else:
            self._note(claim.lease, None)
            log.info("claim given up", name=claim.service.name, namespace=claim.service.namespace, replica=claim.slot)
        self.enqueue(claim.service)
