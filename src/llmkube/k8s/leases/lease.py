"""Leader election: the holder of the Lease acts, the other processes wait, and never two act at a time.

```
 candidate ──acquire──▶ holder ──renews every RENEW_SECONDS──▶ …
     ▲                    │ no renewal for HOLD_SECONDS, or another name in the Lease
     └────────────────────┘ the body is cancelled, then LeaseLostError
```

Why two holders cannot meet, with nothing but each process's own monotonic clock:

* A holder counts from the moment **before** it sent its last successful renewal, and its body is cancelled by Trio's
  own deadline `HOLD_SECONDS` later, whatever its tasks wait for.
* A candidate counts from the moment **after** it saw the Lease change, and waits for the whole `leaseDurationSeconds`
  that stand in the Lease. That is longer; the difference is the time that a cancelled body has for its clean-up.
* A renewal is one only if it changed the Lease: an API server does not move the version for a write without a change,
  and a candidate would not see it. So no two renewals of a holder write the same time, even if its clock stands still.
* Every write carries the resourceVersion that it was decided on, so of two candidates one gets a 409. A renewal that
  meets a 409 reads again, and goes on only if the Lease still names this holder.
* The name is this holder's alone: a random suffix separates two processes, or two runs, of the same identity.

The times in the Lease are for people and for other programs; none of them is ever compared with a clock here. What
remains is a machine that was suspended: its clock may have stood still. Until its next renewal is answered, its body
believes in the Lease; a write that must not come late needs a precondition of its own (a resourceVersion).
"""

import datetime
import math
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.base.errors import ExternalError, LLMKubeError
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, NotFoundError
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import micro_timestamp

PERMISSIONS: Final = (Permission(Lease, frozenset({"get", "create", "patch"}), place="system"),)

DURATION_SECONDS: Final = 30
"""What stands in the Lease: how long candidates wait after the last change that they saw."""

HOLD_SECONDS: Final = 20.0
"""How long after its last renewal a holder acts: less than the duration by what a cancelled body may need."""

RENEW_SECONDS: Final = 5.0
"""Between two renewals, and between two looks of a candidate."""

RELEASE_SECONDS: Final = 2.0
"""How long an orderly end may take to hand the Lease back; after that it expires by itself."""

_log = structlog.get_logger()


class LeaseLostError(ExternalError):
    """The Lease could not be renewed in time, or another process holds it; the body was cancelled."""


@attrs.define(eq=False)
class _Candidate:
    """One attempt to hold one Lease, under a unique identity."""

    client: Client
    key: Key
    holder: str
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random

    writes: int = 0

    # Set while the Lease is held: the version that our last renewal made, and when that renewal was sent.
    version: str = ""
    renewed_at: float = -math.inf

    # What was seen of another holder, and when.
    seen: str = ""
    seen_at: float = 0.0

    async def acquire(self) -> None:
        """Return once the Lease names us; no failure of the API server ends this."""
        logged_holder = ""
        while True:
            try:
                with trio.fail_after(RENEW_SECONDS):
                    other = await self._try_acquire()
            except (LLMKubeError, trio.TooSlowError) as error:
                _log.warning("lease not acquired", lease=str(self.key), error=str(error) or "no answer")
            else:
                if other is None:
                    return
                if other != logged_holder:
                    _log.info("lease is held by another", lease=str(self.key), holder=other)
                    logged_holder = other
            await trio.sleep(self._pause_seconds())

    async def renew(self, scope: trio.CancelScope) -> None:
        """Renew, and move the scope's deadline with each renewal; return when another process holds the Lease."""
        while True:
            await trio.sleep(self._pause_seconds())
            try:
                with trio.fail_after(RENEW_SECONDS):
                    if not await self._write_if_ours(self._claim()):
                        self.renewed_at = -math.inf
                        return
            except (LLMKubeError, trio.TooSlowError) as error:
                left_seconds = scope.deadline - trio.current_time()
                _log.warning(
                    "lease not renewed", lease=str(self.key), error=str(error) or "no answer", leftSeconds=left_seconds
                )
            else:
                scope.deadline = self.renewed_at + HOLD_SECONDS

    async def release(self) -> None:
        """Hand the Lease back, so that the next one need not wait; only if it is still ours, and best effort."""
        try:
            await self._write_if_ours({"holderIdentity": "", "leaseDurationSeconds": 1})
        except LLMKubeError as error:
            _log.info("lease not handed back; it will expire", lease=str(self.key), error=str(error))

    async def _try_acquire(self) -> str | None:
        """Take the Lease if it is free; return the name of its holder if it is not."""
        try:
            lease = await self.client.get(Lease, self.key)
        except NotFoundError:
            await self._create()
            return None
        spec, version = lease.spec, f"{lease.metadata.uid}/{lease.metadata.resource_version}"
        if spec.holder_identity and spec.holder_identity != self.holder:  # ours: taken by a call whose answer was lost
            if version != self.seen:
                self.seen, self.seen_at = version, trio.current_time()
            if trio.current_time() < self.seen_at + (spec.lease_duration_seconds or DURATION_SECONDS):
                return spec.holder_identity
        taken = {"acquireTime": self._now(), "leaseTransitions": (spec.lease_transitions or 0) + 1}
        await self._write(lease.metadata.resource_version, self._claim() | taken)
        return None

    async def _create(self) -> None:
        sent_at = trio.current_time()
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        spec = self._claim() | {"acquireTime": self._now(), "renewTime": self._now(), "leaseTransitions": 0}
        try:
            lease = await self.client.create(decode(Lease, {"metadata": metadata, "spec": spec}))
        except AlreadyExistsError as error:
            raise ConflictError("another process created the Lease first", code=409) from error
        self.version, self.renewed_at = lease.metadata.resource_version, sent_at

    async def _write_if_ours(self, spec: Mapping[str, Any]) -> bool:
        """Change the Lease; False when it names another holder or is gone."""
        try:
            await self._write(self.version, spec)
        except NotFoundError:
            return False
        except ConflictError:
            # A write of ours whose answer was lost, a new label, or a new holder: only a read can tell.
            lease = await self.client.get(Lease, self.key)
            if lease.spec.holder_identity != self.holder:
                _log.warning("lease was taken", lease=str(self.key), holder=lease.spec.holder_identity)
                return False
            await self._write(lease.metadata.resource_version, spec)
        return True

    async def _write(self, over_version: str, spec: Mapping[str, Any]) -> None:
        """Change the Lease if it is still at that version; only then are we its holder from this moment on."""
        sent_at = trio.current_time()
        patch = {"metadata": {"resourceVersion": over_version}, "spec": {**spec, "renewTime": self._now()}}
        lease = await self.client.patch(Lease, self.key, patch)
        if lease.metadata.resource_version == over_version:
            raise ExternalError("the API server answered the renewal without a new resourceVersion")
        self.version, self.renewed_at = lease.metadata.resource_version, sent_at

    def _claim(self) -> dict[str, Any]:
        return {"holderIdentity": self.holder, "leaseDurationSeconds": DURATION_SECONDS}

    def _now(self) -> str:
        """The time of day, with the number of the write for its microseconds."""
        self.writes += 1
        moment = self.utcnow().astimezone(datetime.UTC).replace(microsecond=self.writes % 1_000_000)
        return micro_timestamp(moment)

    def _pause_seconds(self) -> float:
        return RENEW_SECONDS * (1 - 0.2 * self.rng.random())


@asynccontextmanager
async def hold_lease(
    client: Client,
    key: Key,
    identity: str,
    *,
    utcnow: Callable[[], datetime.datetime],
    rng: random.Random,
) -> AsyncGenerator[str, None]:
    """Hold a Lease; the body is cancelled when it is lost.

    Entering waits until the Lease is ours, however long that takes. Leaving hands it back, after the body has ended.
    Like a nursery, this wraps what the body raises in an exception group.

    Args:
        client: Where the Lease is.
        key: Which Lease; it is created when there is none, its namespace is not.
        identity: Who we are, for people who read the Lease; a random suffix is added.
        utcnow: The wall clock, for the timestamps in the Lease and for nothing else.
        rng: Makes the suffix and spreads pauses; it must not be seeded alike in two candidates.

    Yields:
        The name under which the Lease is held.

    Raises:
        LeaseLostError: The Lease was lost, and the body was cancelled for it.
    """
    candidate = _Candidate(client, key, f"{identity}_{rng.getrandbits(48):012x}", utcnow, rng)
    await candidate.acquire()
    _log.info("lease acquired", lease=str(key), holder=candidate.holder)
    ended = False
    try:
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            scope.deadline = candidate.renewed_at + HOLD_SECONDS

            async def renew() -> None:
                await candidate.renew(scope)
                scope.cancel(reason="another process holds the Lease")

            nursery.start_soon(renew)
            yield candidate.holder
            ended = True
            scope.cancel(reason="the body has ended")
    finally:
        if trio.current_time() < candidate.renewed_at + HOLD_SECONDS:
            with trio.move_on_after(RELEASE_SECONDS, shield=True):
                await candidate.release()
    if not ended:
        raise LeaseLostError(f"the Lease {key} is lost: it was not renewed in time, or another process holds it")
