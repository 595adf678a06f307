"""Leader election: one process holds the Lease and acts, the others wait; never do two act at a time.

```
 candidate ──acquire──▶ holder ──renews every RENEW_SECONDS──▶ …
    ▲                    │ no renewal for HOLD_SECONDS, or another holder in the Lease
     └────────────────────┘ the body is cancelled, then LeaseLostError
```

Two holders never overlap, and only each process's own monotonic clock is used:

* A holder measures from the moment **before** it sent its last successful renewal; `HOLD_SECONDS` later a Trio deadline
  cancels its body, whatever its tasks wait for.
* A candidate measures from the moment **after** it saw the Lease change, and waits for the whole `leaseDurationSeconds`
  of the Lease. That is longer; the difference is the time that a cancelled body has to clean up.
* A renewal must change the Lease: an API server does not change the version for a write without a change, and a
  candidate would not see it. So no two renewals of a holder write the same time, even if its clock does not advance.
* Every write has the resourceVersion that it is based on, so of two candidates one gets a 409. After a 409, a renewal
  reads the Lease again and continues only if it still names this holder.
* The holder's name is unique: a random suffix distinguishes two processes, or two runs, with the same identity.

The times in the Lease are for people and for other programs; they are never compared with a clock here. One gap
remains: the clock of a suspended machine may not have advanced. Until its next renewal is answered, the body assumes
that it still holds the Lease; a write that must not be late needs its own precondition (a resourceVersion).
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
"""The `leaseDurationSeconds` of the Lease: the time that candidates wait after the last change that they saw."""

HOLD_SECONDS: Final = 20.0
"""The time after its last renewal for which a holder acts; the rest of the duration is for a cancelled body to end."""

RENEW_SECONDS: Final = 5.0
"""The interval of renewals, and of a candidate's reads."""

RELEASE_SECONDS: Final = 2.0
"""The timeout for releasing the Lease on exit; if it fails, the Lease expires."""

_log = structlog.get_logger()


class LeaseLostError(ExternalError):
    """The Lease could not be renewed in time, or another process holds it; the body was cancelled."""


@attrs.define(eq=False)
class _Candidate:
    """One attempt to hold one Lease with a unique identity."""

    client: Client
    key: Key
    holder: str
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random

    writes: int = 0

    # Set while the Lease is held: the version of our last renewal, and the time at which it was sent.
    version: str = ""
    renewed_at: float = -math.inf

    # The version of another holder's Lease, and when it was first seen.
    seen: str = ""
    seen_at: float = 0.0

    async def acquire(self) -> None:
        """Return when we hold the Lease; failures of the API server are retried."""
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
                    _log.info("lease held by another process", lease=str(self.key), holder=other)
                    logged_holder = other
            await trio.sleep(self._pause_seconds())

    async def renew(self, scope: trio.CancelScope) -> None:
        """Renew the Lease, extending the scope's deadline each time; return when another process holds it."""
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
        """Release the Lease if it is still ours, so that the next holder need not wait; best effort."""
        try:
            await self._write_if_ours({"holderIdentity": "", "leaseDurationSeconds": 1})
        except LLMKubeError as error:
            _log.info("lease not released; it will expire", lease=str(self.key), error=str(error))

    async def _try_acquire(self) -> str | None:
        """Acquire the Lease if it is free; otherwise return the name of its holder."""
        try:
            lease = await self.client.get(Lease, self.key)
        except NotFoundError:
            await self._create()
            return None
        spec, version = lease.spec, f"{lease.metadata.uid}/{lease.metadata.resource_version}"
        if spec.holder_identity and spec.holder_identity != self.holder:  # ours: a write whose response was lost
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
        """Update the Lease; return False if it has another holder or is gone."""
        try:
            await self._write(self.version, spec)
        except NotFoundError:
            return False
        except ConflictError:
            # A write of ours whose response was lost, a new label, or a new holder: only a read shows which.
            lease = await self.client.get(Lease, self.key)
            if lease.spec.holder_identity != self.holder:
                _log.warning("lease lost to another process", lease=str(self.key), holder=lease.spec.holder_identity)
                return False
            await self._write(lease.metadata.resource_version, spec)
        return True

    async def _write(self, over_version: str, spec: Mapping[str, Any]) -> None:
        """Update the Lease if it still has that version; if so, we hold it from the time of sending."""
        sent_at = trio.current_time()
        patch = {"metadata": {"resourceVersion": over_version}, "spec": {**spec, "renewTime": self._now()}}
        lease = await self.client.patch(Lease, self.key, patch)
        if lease.metadata.resource_version == over_version:
            raise ExternalError("the API server answered the renewal without a new resourceVersion")
        self.version, self.renewed_at = lease.metadata.resource_version, sent_at

    def _claim(self) -> dict[str, Any]:
        return {"holderIdentity": self.holder, "leaseDurationSeconds": DURATION_SECONDS}

    def _now(self) -> str:
        """Return the wall-clock time with the number of the write as its microseconds, so that each write differs."""
        self.writes += 1
        moment = self.utcnow().astimezone(datetime.UTC).replace(microsecond=self.writes % 1_000_000)
        return micro_timestamp(moment)

    def _pause_seconds(self) -> float:
        return RENEW_SECONDS * (1 - 0.2 * self.rng.random())


@asynccontextmanager
async def hold_lease(
    client: Client, key: Key, identity: str, *, utcnow: Callable[[], datetime.datetime], rng: random.Random
) -> AsyncGenerator[str, None]:
    """Hold a Lease while the body runs; the body is cancelled when the Lease is lost.

    Entering blocks until the Lease is ours, without a limit. The Lease is released after the body has ended. Like a
    nursery, this wraps exceptions of the body in an exception group.

    Args:
        client: The API server of the Lease.
        key: The Lease; it is created if missing, its namespace is not.
        identity: Our name, for people who read the Lease; a random suffix is added.
        utcnow: The wall clock, only for the timestamps in the Lease.
        rng: For the suffix and the jitter of pauses; two candidates must not have the same seed.

    Yields:
        The holder's name in the Lease.

    Raises:
        LeaseLostError: The Lease was lost, and the body was cancelled.
    """
    candidate = _Candidate(client, key, f"{identity}_{rng.getrandbits(48):012x}", utcnow, rng)
    await candidate.acquire()
    _log.info("lease acquired", lease=str(key), holder=candidate.holder)
    finished = False
    try:
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            scope.deadline = candidate.renewed_at + HOLD_SECONDS

            async def renew() -> None:
                await candidate.renew(scope)
                scope.cancel(reason="another process holds the Lease")

            nursery.start_soon(renew)
            yield candidate.holder
            finished = True
            scope.cancel(reason="the body has ended")
    finally:
        if trio.current_time() < candidate.renewed_at + HOLD_SECONDS:
            with trio.move_on_after(RELEASE_SECONDS, shield=True):
                await candidate.release()
    if not finished:
        raise LeaseLostError(f"Lease {key} lost: it was not renewed in time, or another process holds it")
