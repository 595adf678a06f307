"""Apply the newest manifest of each object, and retry until the API server has answered.

All of the agent's writes go through the applier, so a slow or unreachable API server delays only the reports about a
service, not the service.

When an agent starts, it deletes endpoints that an earlier agent published for services that no longer run here. The
journal normally knows what runs; if it is lost, the slices are the only trace. Until they are deleted, clients send
requests to ports without a listener, so this is the first write to the API server.

The agent of the Go implementation leaves a Service, a slice and Endpoints behind. The Service is adopted; the others
are deleted. All three have the labels below and no owner. The slice and the Endpoints have the Service's name; the
Service has two annotations. Objects with other labels, or with an owner, belong to other programs and are ignored.

`DriftRepair` restores this agent's fields of a status within seconds after another client has overwritten them. An
agent that was disconnected may write an old status before it reads that another host now reports; a script may write
anything. The watches show such writes. If two writers keep correcting each other, a pause limits how often each writes.
"""

import random
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError, UserError
from llmkube.base.waiting import wait_tick
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import resource_version_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition, ObjectMeta
from llmkube.k8s.errors import NameTakenError, NotFoundError
from llmkube.k8s.resource import Key, Object, controller_key
from llmkube.k8s.wire.names import (
    HOST_LABEL,
    PREDECESSOR,
    PREDECESSOR_LABEL,
    PREDECESSOR_SERVICE_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    host_id,
    service_name,
)
from llmkube.k8s.workqueue import WorkQueue, run_workers
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)


_PREFIX: Final = PREDECESSOR_LABEL.partition("/")[0] + "/"


def is_made_by_predecessor(metadata: ObjectMeta) -> bool:
    """Whether the Go implementation's agent created an object."""
    return metadata.labels.get(PREDECESSOR_LABEL) == PREDECESSOR and not metadata.owner_references


async def adopt_service(client: Client, live: Service, manifest: dict[str, Any], *, field_manager: str) -> None:
    """Adopt an earlier agent's Service: replace its labels, annotations, owner and ports; its address stays.

    Raises:
        ConflictError: It has changed meanwhile.
        ApiError: The API server failed or refused.
    """
    # A merge patch, because an apply would keep fields that another manager has set.
    ours, theirs = manifest["metadata"], live.metadata
    labels = {**{name: None for name in theirs.labels if name.startswith(_PREFIX)}, **ours["labels"]}
    annotations = {name: None for name in theirs.annotations if name.startswith(_PREFIX)}
    patch = {
        "metadata": {
            "resourceVersion": theirs.resource_version,
            "labels": labels,
            "ownerReferences": ours["ownerReferences"],
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {"ports": manifest["spec"]["ports"]},
    }
    await client.patch(Service, live.key, patch, field_manager=field_manager)
    log.info("service of an earlier agent adopted", service=str(live.key))


async def clear_endpoints(client: Client, namespace: str, service: str) -> None:
    """Delete the endpoints of a service that the Go implementation's agent published, once this agent's are there.

    Raises:
        ExternalError: The API server failed; retry.
    """
    try:
        selector = f"{PREDECESSOR_LABEL}={PREDECESSOR},{SERVICE_NAME_LABEL}={service}"
        slices = await client.list(EndpointSlice, namespace=namespace, label_selector=selector)
        for one in slices.items:
            if is_made_by_predecessor(one.metadata):
                await _delete(client, EndpointSlice, one.metadata)
        try:
            classic = await client.get(Endpoints, Key(namespace, service))
        except NotFoundError:
            return
        if is_made_by_predecessor(classic.metadata):  # Kubernetes mirrors it into a slice, and deletes that as well
            await _delete(client, Endpoints, classic.metadata)
    except UserError as error:
        # This agent's slice is published in any case; an administrator has to delete the others, or grant the right.
        log.warning("endpoints of an earlier agent not deleted", service=service, error=str(error))


async def _delete(client: Client, kind: type[Endpoints] | type[EndpointSlice], metadata: ObjectMeta) -> None:
    await trio.lowlevel.checkpoint()
    try:
        await client.delete(kind, Key(metadata.namespace, metadata.name), uid=metadata.uid)
    except NotFoundError:
        return
    log.info("endpoints of an earlier agent deleted", kind=kind.RESOURCE.kind, name=metadata.name)


def belongs_to_service(metadata: ObjectMeta, name: str) -> bool:
    """Whether an earlier agent's object belongs to the InferenceService of this name."""
    return metadata.labels.get(PREDECESSOR_SERVICE_LABEL) == name


WRITE_SECONDS = 15.0
"""Time limit of a write, after which it is retried: the API server may have gone without closing the connection."""

REFUSED_SECONDS = 60.0
"""Delay before a refused write is retried, with the same manifest if there is no newer one."""

SETTLE_SECONDS = 0.05
"""Delay of writes that clients do not depend on: the start of an engine changes several facts within moments, and is
more urgent than reports about it."""

_PUBLISHED: Final = frozenset({Service, Endpoints, EndpointSlice})

_NAMED_BY_USERS: Final = frozenset({Service, Endpoints})
"""Kinds whose objects have the name of their InferenceService, which an object of a user may have, too."""

WORKERS = 8
RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0)


@attrs.frozen
class _Wanted:
    manifest: dict[str, Any] | None  # None: the object is to be deleted


@attrs.define(eq=False)
class _Record:
    """State of one slot."""

    wanted: _Wanted
    answered: _Wanted | None = None  # the newest that the API server has accepted or refused
    version: str | None = None  # of the object, after this agent's last write
    is_refused: bool = False
    again: bool = False  # to be written again, although it is answered
    is_last: bool = False  # to be forgotten once it is answered
    is_cleared: bool = False  # the endpoints of an earlier agent that this slice replaces are deleted

    @property
    def is_pending(self) -> bool:
        return self.answered != self.wanted


@attrs.define(eq=False)
class Applier:
    """Applies the newest manifest of each slot.

    Attributes:
        rng: Adds jitter to retries.
        on_refused: Called when an object that a service publishes is refused, and with None when it is accepted again.
    """

    rng: random.Random
    on_refused: Callable[[Key, Slot, UserError | None], None] = lambda *_: None
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _records: dict[Slot, _Record] = attrs.field(factory=dict, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _clearing: WorkQueue[Slot] = attrs.field(init=False)  # slices that replace endpoints of an earlier agent

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng, RETRY, _is_urgent)
        self._clearing = WorkQueue(self.rng, RETRY)

    def apply_nowait(self, slot: Slot, manifest: dict[str, Any], *, is_published: bool = False) -> None:
        """Have a manifest applied; the same manifest again makes no request.

        Args:
            slot: The object or subresource.
            manifest: All fields that this agent sets.
            is_published: Whether an earlier agent may have published the object to clients.
        """
        self._want(slot, _Wanted(manifest), is_published)

    def delete_nowait(self, slot: Slot, *, is_published: bool = False) -> None:
        """Have an object deleted; with `is_published`, an earlier agent may have published it to clients."""
        self._want(slot, _Wanted(None), is_published)

    def _want(self, slot: Slot, wanted: _Wanted, is_published: bool) -> None:
        record = self._records.get(slot)
        if record is None:
            record = self._records[slot] = _Record(wanted)
        elif record.wanted != wanted:
            record.wanted, record.is_last = wanted, False
        else:
            return
        if _is_urgent(slot) and (is_published or record.answered is not None):
            self._queue.add_nowait(slot)
        else:
            self._queue.add_after(slot, SETTLE_SECONDS)

    def forget(self, slot: Slot) -> None:
        """Stop writing to a slot, even if a write is pending."""
        self._records.pop(slot, None)
        self._wake()

    def forget_once_applied(self, slot: Slot) -> None:
        """Forget a slot once its newest manifest is answered, so that other writers may change the object."""
        record = self._records.get(slot)
        if record is None or not record.is_pending:
            self.forget(slot)
        else:
            record.is_last = True

    async def wait_applied(self, *slots: Slot) -> None:
        """Return when the API server has answered the newest manifest of each slot, or of all; callers set deadlines.

        A refusal is an answer, too: a stop does not wait for a server that keeps refusing.
        """
        await trio.lowlevel.checkpoint()
        while any(record.is_pending for slot in slots or self._records if (record := self._records.get(slot))):
            await self._answered.wait()

    async def run(self, client: Client, *, field_manager: str) -> None:
        """Write new manifests, one write per slot at a time, with back-off after failures; never return."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(run_workers, self._queue, partial(self._send, client, field_manager), workers=WORKERS)
            )
            nursery.start_soon(partial(run_workers, self._clearing, partial(self._clear_previous, client), workers=1))

    async def run_resync(self, client: Client, *, every_seconds: float, namespace: str | None = None) -> None:
        """Find objects that other writers have removed or changed, and apply them again; never return.

        Args:
            client: Lists the objects.
            every_seconds: Interval.
            namespace: The only namespace that this agent writes to, or None for all.
        """
        while True:  # one list per kind is cheaper than a write per object
            await wait_tick(every_seconds)
            for kind, subresource in sorted({(slot.kind, slot.subresource) for slot in self._records}, key=str):
                live = await _versions(client, kind, namespace, "" if subresource else SERVICE_LABEL)
                for slot, record in self._records.items():
                    is_listed = slot.kind is kind and slot.subresource == subresource
                    if is_listed and (live is None or live.get(slot.key) != record.version):
                        self.reapply_nowait(slot)

    def reapply_all_nowait(self) -> None:
        """Apply everything again: other writers may have removed or changed it."""
        for slot in self._records:
            self.reapply_nowait(slot)

    def reapply_nowait(self, slot: Slot) -> None:
        """Apply one slot again."""
        if (record := self._records.get(slot)) is not None:
            record.again = True
            self._queue.add_nowait(slot)

    def _reapply_slices_of(self, service: Slot) -> None:
        for slot in self._records:
            service_key = Key(slot.key.namespace, slot.key.name.partition(".")[0])
            if slot.kind is EndpointSlice and service_key == service.key:
                self.reapply_nowait(slot)

    def applied(self, slot: Slot) -> Mapping[str, Any] | None:
        """Return the newest manifest of a slot; None while the API server has not answered it."""
        record = self._records.get(slot)
        return record.wanted.manifest if record is not None and not record.is_pending else None

    def has(self, slot: Slot) -> bool:
        """Whether this agent writes to a slot."""
        return slot in self._records

    async def _send(self, client: Client, field_manager: str, slot: Slot) -> None:
        """Write the newest manifest of one slot; a refusal is logged once and retried after `REFUSED_SECONDS`."""
        record = self._records.get(slot)
        if record is None or not (record.is_pending or record.again):
            return
        wanted, refused, version, record.again = record.wanted, None, record.version, False
        try:
            with trio.fail_after(WRITE_SECONDS):
                version = await self._write(client, field_manager, slot, wanted)
        except NotFoundError:
            # The object with this status, or its namespace, is gone: forget the slot, unless there is a newer manifest.
            if self._records.get(slot) is record and record.wanted == wanted:
                self.forget(slot)
            return
        except UserError as error:
            refused = error
            if record.answered != wanted:
                log.error("write refused", object=str(slot), error=str(error))  # noqa: TRY400 - no bug, no traceback
        except ExternalError as error:
            log.warning("write failed; retrying", object=str(slot), error=str(error))
            record.again = True
            raise
        except trio.TooSlowError as slow:
            record.again = True
            raise ExternalError(f"no answer in {WRITE_SECONDS:g} s while writing {slot}") from slow
        if self._records.get(slot) is record:  # not forgotten meanwhile
            record.version = version
            self._settle(slot, record, wanted, refused)
        self._wake()

    def _settle(self, slot: Slot, record: _Record, wanted: _Wanted, refused: UserError | None) -> None:
        """Record the API server's answer, and forget the slot if that was its last write."""
        record.answered = wanted
        self._report_refusal(slot, record, wanted, refused)
        if refused is None and not record.is_cleared and _serves_clients(slot, wanted.manifest):
            self._clearing.add_nowait(slot)
        is_last = record.is_last or (wanted.manifest is None and refused is None)
        if is_last and not record.is_pending:
            self.forget(slot)
        elif refused is not None:
            record.again = True
            self._queue.add_after(slot, REFUSED_SECONDS)  # a webhook or a role may have been fixed by then

    async def _write(self, client: Client, field_manager: str, slot: Slot, wanted: _Wanted) -> str | None:
        """Write one object, and return its new version; None if it is deleted."""
        ours = True
        if slot.kind in _NAMED_BY_USERS and (live := await _read_live(client, slot)) is not None:
            ours = _is_ours(slot, live)
            if not ours and _can_be_adopted(slot, live, wanted):
                assert wanted.manifest is not None
                await adopt_service(client, live, wanted.manifest, field_manager=field_manager)
                ours = True
                self._reapply_slices_of(slot)  # a policy may have refused slices of a Service that was not ours
        if wanted.manifest is None:
            if ours:
                await client.delete(slot.kind, slot.key)
            return None
        if not ours:
            raise NameTakenError(
                f"{slot} exists and was not made by LLMKube; delete it, or rename the InferenceService"
            )
        manifest, subresource = wanted.manifest, slot.subresource
        applied = await client.apply(slot.kind, manifest, field_manager=field_manager, subresource=subresource)
        return applied.metadata.resource_version

    async def _clear_previous(self, client: Client, slot: Slot) -> None:
        """Delete endpoints that an earlier agent published; writes of the slice itself do not wait for this."""
        record = self._records.get(slot)
        if record is None or record.is_cleared or record.wanted.manifest is None:
            return
        labels = record.wanted.manifest["metadata"]["labels"]
        try:
            with trio.fail_after(WRITE_SECONDS):
                await clear_endpoints(client, slot.key.namespace, labels[SERVICE_NAME_LABEL])
        except trio.TooSlowError as slow:
            message = f"no answer in {WRITE_SECONDS:g} s while deleting endpoints that {slot} replaces"
            raise ExternalError(message) from slow
        record.is_cleared = True

    def _report_refusal(self, slot: Slot, record: _Record, wanted: _Wanted, refused: UserError | None) -> None:
        """Report that the API server refuses a published object, or accepts it again."""
        if slot.kind not in _PUBLISHED or wanted.manifest is None or (refused is None and not record.is_refused):
            return
        record.is_refused = refused is not None
        owner = wanted.manifest["metadata"]["ownerReferences"][0]["name"]
        self.on_refused(Key(slot.key.namespace, owner), slot, refused)

    def _wake(self) -> None:
        self._answered.set()
        self._answered = trio.Event()


def _is_urgent(slot: Slot) -> bool:
    """Whether clients depend on the object, so that every stop waits for its write; a status can be written later."""
    return slot.kind in {Endpoints, EndpointSlice}


async def _versions(client: Client, kind: type[Object], namespace: str | None, label: str) -> dict[Key, str] | None:
    """Return the version of each object; None if the API server does not answer."""
    try:
        with trio.fail_after(WRITE_SECONDS):
            listing = await client.list(kind, namespace=namespace, label_selector=label)
    except (LLMKubeError, trio.TooSlowError) as error:
        log.info("objects not listed; applying all again", kind=kind.RESOURCE.kind, error=str(error) or "no answer")
        return None
    return {Key.of(raw): resource_version_of(raw) for raw in listing.raw}  # hundreds of objects need not be decoded


async def _read_live(client: Client, slot: Slot) -> Any:
    """Return the object, which may belong to another owner; None if there is none."""
    try:
        return await client.get(slot.kind, slot.key)
    except NotFoundError:
        return None


def _is_ours(slot: Slot, live: Object) -> bool:
    """Whether an InferenceService owns the object; otherwise an apply would be merged into another owner's object."""
    owners = live.metadata.owner_references
    ours = [service_name(owner.name) for owner in owners if owner.kind == InferenceService.RESOURCE.kind]
    return slot.key.name in ours


def _can_be_adopted(slot: Slot, live: Object, wanted: _Wanted) -> bool:
    """Whether an object is the Service that the Go implementation's agent created for this InferenceService."""
    if slot.kind is not Service or wanted.manifest is None or not is_made_by_predecessor(live.metadata):
        return False
    return belongs_to_service(live.metadata, wanted.manifest["metadata"]["ownerReferences"][0]["name"])


def _serves_clients(slot: Slot, manifest: Mapping[str, Any] | None) -> bool:
    """Whether a slice has a ready endpoint."""
    endpoints = (manifest or {}).get("endpoints", ())
    return slot.kind is EndpointSlice and any(one["conditions"]["ready"] for one in endpoints)


async def delete_stale_endpoints(
    client: Client, settings: AgentSettings, applier: Applier, running: Container[Key]
) -> None:
    """Have this host's slices deleted, except those of its running services.

    The status managers of the services in `running` write those.
    """
    failures = 0
    ours = f"{HOST_LABEL}={host_id(settings.host_name)}"
    while True:
        try:
            with trio.fail_after(WRITE_SECONDS):
                slices = (await client.list(EndpointSlice, namespace=settings.namespace, label_selector=ours)).items
            break
        except (LLMKubeError, trio.TooSlowError) as error:
            failures += 1
            log.info("slices not listed; retrying", error=str(error) or "no answer")
            await trio.sleep(RETRY.delay(failures, applier.rng))
    for each in slices:
        slot = Slot(EndpointSlice, each.key)
        if controller_key(each, InferenceService.RESOURCE.kind) not in running and not applier.has(slot):
            log.info("endpoint of an earlier agent withdrawn", slice=str(each.key))
            applier.delete_nowait(slot, is_published=True)


CHECK_SECONDS: Final = 1.0
"""Delay of a check after a change: the watch may deliver an older status of ours while a newer one is being written."""

PAUSE_SECONDS: Final = 30.0
"""Minimum time between two corrections of the same status."""


def has_drifted(applied: Mapping[str, Any], live: Iterable[Condition]) -> bool:
    """Whether the object's conditions differ from those that were applied; conditions of others are ignored. Pure.

    Args:
        applied: The status that was applied.
        live: The object's current conditions.
    """
    by_type = {one.type: one for one in live}
    return any(_differs(condition, by_type.get(condition["type"])) for condition in applied["conditions"])


def _differs(applied: Mapping[str, Any], live: Condition | None) -> bool:
    return live is None or (
        applied["status"],
        applied["reason"],
        applied["message"],
        applied["lastTransitionTime"],
        applied.get("observedGeneration"),
    ) != (live.status, live.reason, live.message, live.last_transition_time, live.observed_generation)


@attrs.define(eq=False)
class DriftRepair:
    """Compares the status of each changed object with what this agent applied, and applies it again if it differs.

    Attributes:
        applier: Applies the status.
        conditions: Returns the last known conditions of the object of a slot; None if there is no such object.
        rng: Random source of the queue.
    """

    applier: Applier
    conditions: Callable[[Slot], Iterable[Condition] | None]
    rng: random.Random
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _corrected_at: dict[Slot, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng)

    def check_nowait(self, slot: Slot) -> None:
        """Schedule a check of a changed object, if this agent writes to it."""
        if self.applier.has(slot):
            self._queue.add_after(slot, CHECK_SECONDS)

    async def run(self) -> Never:
        """Check objects, and apply their status again if it has drifted; never return."""
        await run_workers(self._queue, self._check, workers=1)

    async def _check(self, slot: Slot) -> float | None:
        await trio.lowlevel.checkpoint()
        applied, live = self.applier.applied(slot), self.conditions(slot)
        if applied is None or live is None or not has_drifted(applied["status"], live):
            return None
        now = trio.current_time()
        wait_seconds = self._corrected_at.get(slot, now - PAUSE_SECONDS) + PAUSE_SECONDS - now
        if wait_seconds > 0:
            return wait_seconds
        self._corrected_at = {one: at for one, at in self._corrected_at.items() if now < at + PAUSE_SECONDS}
        self._corrected_at[slot] = now
        log.info("status overwritten by another client; applying it again", object=str(slot))
        self.applier.reapply_nowait(slot)
        return None
