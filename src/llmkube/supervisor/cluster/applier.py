"""Write the newest manifest of each object, and repeat it until the API server has answered.

Everything that the agent writes goes through here, so a slow or absent API server costs a service nothing but the news
of it.

At its start an agent takes back what an earlier one has published of services that do not run here any more. The
journal tells what runs; it may be lost, and the slices are then the only trace. Until this is done, a cluster sends
requests to ports without a listener, so it is the first write to the API server.

The Go implementation's agent leaves a Service, a slice and Endpoints behind: the first is adopted, the others go.

Facts: it marks all three with the labels below and gives them no owner. The slice and the Endpoints have the Service's
name, the Service two annotations. What has another label, or an owner, belongs to another program and is left alone.
"""

import random
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError, UserError
from llmkube.base.waiting import wait_tick
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import ObjectMeta
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
    """Whether an object is one that the Go implementation's agent has left."""
    return metadata.labels.get(PREDECESSOR_LABEL) == PREDECESSOR and not metadata.owner_references


async def adopt_service(client: Client, live: Service, manifest: dict[str, Any], *, field_manager: str) -> None:
    """Make an earlier agent's Service ours: our labels, owner and ports take the place of its labels and annotations.

    Its address stays. A merge patch, because an apply would leave what another manager has set.

    Raises:
        ConflictError: It has changed meanwhile.
        ApiError: The API server could not or would not.
    """
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
    log.info("took over the Service of the agent that was here before", service=str(live.key))


async def clear_endpoints(client: Client, namespace: str, service: str) -> None:
    """Delete what an earlier agent says of where a service is, now that this agent's own word stands.

    Raises:
        ExternalError: The API server could not; to be tried again.
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
        if is_made_by_predecessor(classic.metadata):  # Kubernetes has mirrored it into a slice, which goes with it
            await _delete(client, Endpoints, classic.metadata)
    except UserError as error:
        # This agent's slice stands in any case; only an administrator can let it remove the other one.
        log.warning("could not delete what an earlier agent has published", service=service, error=str(error))


async def _delete(client: Client, kind: type[Endpoints] | type[EndpointSlice], metadata: ObjectMeta) -> None:
    await trio.lowlevel.checkpoint()
    try:
        await client.delete(kind, Key(metadata.namespace, metadata.name), uid=metadata.uid)
    except NotFoundError:
        return
    log.info("deleted what an earlier agent has published", kind=kind.RESOURCE.kind, name=metadata.name)


def belongs_to_service(metadata: ObjectMeta, name: str) -> bool:
    """Whether an earlier agent's object is of the InferenceService of this name."""
    return metadata.labels.get(PREDECESSOR_SERVICE_LABEL) == name


WRITE_SECONDS = 15.0
"""A write that takes longer is tried again; the API server may have gone away without a word."""

REFUSED_SECONDS = 60.0
"""Until a refused write is tried again, with the same manifest if there is no newer one."""

SETTLE_SECONDS = 0.05
"""Until news is written that clients do not follow: an engine's start makes several things known within moments, and
comes before the words about it."""

_PUBLISHED: Final = frozenset({Service, Endpoints, EndpointSlice})

_NAMED_BY_USERS: Final = frozenset({Service, Endpoints})
"""Kinds whose objects have the name of their InferenceService: a user's own may have it. A slice's name has a dot."""

WORKERS = 8
RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0)


@attrs.frozen
class _Wanted:
    manifest: dict[str, Any] | None  # None: the object shall be gone


@attrs.define(eq=False)
class _Record:
    """What is known of one slot."""

    wanted: _Wanted
    answered: _Wanted | None = None  # the newest that the API server has accepted or refused
    version: str | None = None  # of the object, as our last write has left it
    is_refused: bool = False
    again: bool = False  # it is to be written once more, although it is answered
    is_last: bool = False  # forgotten once it is answered
    is_cleared: bool = False  # a slice beside which no earlier agent's stands any more

    @property
    def is_pending(self) -> bool:
        return self.answered != self.wanted


@attrs.define(eq=False)
class Applier:
    """The newest manifest per slot, and what the API server has answered to it.

    Attributes:
        rng: Spreads repeats.
        on_refused: Called when an object that a service publishes is refused, and with None when it is accepted.
    """

    rng: random.Random
    on_refused: Callable[[Key, Slot, UserError | None], None] = lambda *_: None
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _records: dict[Slot, _Record] = attrs.field(factory=dict, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _clearing: WorkQueue[Slot] = attrs.field(init=False)  # slices that take the place of an earlier agent's

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng, RETRY, _is_urgent)
        self._clearing = WorkQueue(self.rng, RETRY)

    def apply_nowait(self, slot: Slot, manifest: dict[str, Any], *, is_published: bool = False) -> None:
        """Have a manifest applied; the same one again costs no request.

        Args:
            slot: Where it goes.
            manifest: The whole of what this agent says there.
            is_published: Clients may follow what an earlier agent has said there.
        """
        self._want(slot, _Wanted(manifest), is_published)

    def delete_nowait(self, slot: Slot, *, is_published: bool = False) -> None:
        """Have an object deleted, which clients may follow."""
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
        """Write nothing more to a slot, not even what is still pending."""
        self._records.pop(slot, None)
        self._wake()

    def forget_once_applied(self, slot: Slot) -> None:
        """Forget a slot when its newest manifest is answered: it is not repeated, and other writers may change it."""
        record = self._records.get(slot)
        if record is None or not record.is_pending:
            self.forget(slot)
        else:
            record.is_last = True

    async def wait_applied(self, *slots: Slot) -> None:
        """Return when the API server has answered the newest manifest of each slot, or of all; deadlines are callers'.

        A refusal is an answer: a stop does not wait for a server that will not accept.
        """
        await trio.lowlevel.checkpoint()
        while any(record.is_pending for slot in slots or self._records if (record := self._records.get(slot))):
            await self._answered.wait()

    async def run(self, client: Client, *, field_manager: str) -> None:
        """Never return: write what is new, one write per slot at a time, failed ones again with back-off."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(run_workers, self._queue, partial(self._send, client, field_manager), workers=WORKERS)
            )
            nursery.start_soon(partial(run_workers, self._clearing, partial(self._clear_previous, client), workers=1))

    async def run_resync(self, client: Client, *, every_seconds: float, namespace: str | None = None) -> None:
        """Never return: find at a slow, fixed pace what other writers have removed or changed, and apply it again.

        Args:
            client: Lists what stands; one list per kind costs less than a write per object.
            every_seconds: The pace.
            namespace: The only one that this agent writes to, or None.
        """
        while True:
            await wait_tick(every_seconds)
            for kind, subresource in sorted({(slot.kind, slot.subresource) for slot in self._records}, key=str):
                live = await _versions(client, kind, namespace, "" if subresource else SERVICE_LABEL)
                for slot, record in self._records.items():
                    is_listed = slot.kind is kind and slot.subresource == subresource
                    if is_listed and (live is None or live.get(slot.key) != record.version):
                        self.reapply_nowait(slot)

    def reapply_all_nowait(self) -> None:
        """Apply everything once more: other writers may have removed or changed it."""
        for slot in self._records:
            self.reapply_nowait(slot)

    def reapply_nowait(self, slot: Slot) -> None:
        """Apply one slot once more."""
        if (record := self._records.get(slot)) is not None:
            record.again = True
            self._queue.add_nowait(slot)

    def _reapply_slices_of(self, service: Slot) -> None:
        for slot in self._records:
            behind = Key(slot.key.namespace, slot.key.name.partition(".")[0])
            if slot.kind is EndpointSlice and behind == service.key:
                self.reapply_nowait(slot)

    def applied(self, slot: Slot) -> Mapping[str, Any] | None:
        """The newest manifest of a slot; None while the API server has not answered it."""
        record = self._records.get(slot)
        return record.wanted.manifest if record is not None and not record.is_pending else None

    def has(self, slot: Slot) -> bool:
        """Whether this agent writes to a slot."""
        return slot in self._records

    async def _send(self, client: Client, field_manager: str, slot: Slot) -> None:
        """Write the newest manifest of one slot; a refusal is logged once and tried again after `REFUSED_SECONDS`."""
        record = self._records.get(slot)
        if record is None or not (record.is_pending or record.again):
            return
        wanted, refused, version, record.again = record.wanted, None, record.version, False
        try:
            with trio.fail_after(WRITE_SECONDS):
                version = await self._write(client, field_manager, slot, wanted)
        except NotFoundError:
            # The object of the status, or its namespace, is gone: forget the slot, unless there is a newer manifest.
            if self._records.get(slot) is record and record.wanted == wanted:
                self.forget(slot)
            return
        except UserError as error:
            refused = error
            if record.answered != wanted:
                log.error("write refused", object=str(slot), error=str(error))  # noqa: TRY400 - no bug, no traceback
        except ExternalError as error:
            log.warning("write failed; will be repeated", object=str(slot), error=str(error))
            record.again = True
            raise
        except trio.TooSlowError as slow:
            record.again = True
            raise ExternalError(f"no answer in {WRITE_SECONDS:g} s while writing {slot}") from slow
        if self._records.get(slot) is record:  # and was not forgotten while it was written
            record.version = version
            self._settle(slot, record, wanted, refused)
        self._wake()

    def _settle(self, slot: Slot, record: _Record, wanted: _Wanted, refused: UserError | None) -> None:
        """Take in what the server has answered, and forget the slot if that was the last write."""
        record.answered = wanted
        self._report_refusal(slot, record, wanted, refused)
        if refused is None and not record.is_cleared and _serves_clients(slot, wanted.manifest):
            self._clearing.add_nowait(slot)
        is_last = record.is_last or (wanted.manifest is None and refused is None)
        if is_last and not record.is_pending:
            self.forget(slot)
        elif refused is not None:
            record.again = True
            self._queue.add_after(slot, REFUSED_SECONDS)  # a webhook or a role may have been mended meanwhile

    async def _write(self, client: Client, field_manager: str, slot: Slot, wanted: _Wanted) -> str | None:
        """Write, and return the version that the object has then; None when it is deleted."""
        ours = True
        if slot.kind in _NAMED_BY_USERS and (live := await _read_live(client, slot)) is not None:
            ours = _is_ours(slot, live)
            if not ours and _can_be_adopted(slot, live, wanted):
                assert wanted.manifest is not None
                await adopt_service(client, live, wanted.manifest, field_manager=field_manager)
                ours = True
                self._reapply_slices_of(slot)  # a policy may have refused a slice behind a Service that was not ours
        if wanted.manifest is None:
            if ours:
                await client.delete(slot.kind, slot.key)
            return None
        if not ours:
            raise NameTakenError(
                f"{slot} exists and was not made by LLMKube; delete it, or rename the InferenceService"
            )
        applied = await client.apply(
            slot.kind, wanted.manifest, field_manager=field_manager, subresource=slot.subresource
        )
        return applied.metadata.resource_version

    async def _clear_previous(self, client: Client, slot: Slot) -> None:
        """Clear what an earlier agent has published; no write of the slice, such as its withdrawal, waits for this."""
        record = self._records.get(slot)
        if record is None or record.is_cleared or record.wanted.manifest is None:
            return
        labels = record.wanted.manifest["metadata"]["labels"]
        try:
            with trio.fail_after(WRITE_SECONDS):
                await clear_endpoints(client, slot.key.namespace, labels[SERVICE_NAME_LABEL])
        except trio.TooSlowError as slow:
            raise ExternalError(f"no answer in {WRITE_SECONDS:g} s about what stands beside {slot}") from slow
        record.is_cleared = True

    def _report_refusal(self, slot: Slot, record: _Record, wanted: _Wanted, refused: UserError | None) -> None:
        """Report that an object is not published, and why; and when it is."""
        if slot.kind not in _PUBLISHED or wanted.manifest is None or (refused is None and not record.is_refused):
            return
        record.is_refused = refused is not None
        owner = wanted.manifest["metadata"]["ownerReferences"][0]["name"]
        self.on_refused(Key(slot.key.namespace, owner), slot, refused)

    def _wake(self) -> None:
        self._answered.set()
        self._answered = trio.Event()


def _is_urgent(slot: Slot) -> bool:
    """Whether clients follow what it says: every stop waits for that; what people read can come after it."""
    return slot.kind in {Endpoints, EndpointSlice}


async def _versions(client: Client, kind: type[Object], namespace: str | None, label: str) -> dict[Key, str] | None:
    """Return which version of each object stands; None when the API server does not say."""
    try:
        with trio.fail_after(WRITE_SECONDS):
            listing = await client.list(kind, namespace=namespace, label_selector=label)
    except (LLMKubeError, trio.TooSlowError) as error:
        log.info("not listed; everything is applied again", kind=kind.RESOURCE.kind, error=str(error) or "no answer")
        return None
    return {one.key: one.metadata.resource_version for one in listing.items}


async def _read_live(client: Client, slot: Slot) -> Any:
    """Return the object, which may be another owner's; None when there is none."""
    try:
        return await client.get(slot.kind, slot.key)
    except NotFoundError:
        return None


def _is_ours(slot: Slot, live: Object) -> bool:
    """Whether an object is ours: an apply onto another owner's object is no conflict, but a merge."""
    owners = live.metadata.owner_references
    ours = [service_name(owner.name) for owner in owners if owner.kind == InferenceService.RESOURCE.kind]
    return slot.key.name in ours


def _can_be_adopted(slot: Slot, live: Object, wanted: _Wanted) -> bool:
    """Whether an object is the Service that the Go implementation's agent has made for this very InferenceService."""
    if slot.kind is not Service or wanted.manifest is None or not is_made_by_predecessor(live.metadata):
        return False
    return belongs_to_service(live.metadata, wanted.manifest["metadata"]["ownerReferences"][0]["name"])


def _serves_clients(slot: Slot, manifest: Mapping[str, Any] | None) -> bool:
    """Whether a slice leads clients to an engine that answers."""
    ends = (manifest or {}).get("endpoints", ())
    return slot.kind is EndpointSlice and any(one["conditions"]["ready"] for one in ends)


async def delete_stale_endpoints(
    client: Client, settings: AgentSettings, applier: Applier, running: Container[Key]
) -> None:
    """Take back the slices of this host that belong to no service that it looks after; return once that is told.

    Of the services in `running` their own status managers write.
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
            log.info("slices not listed; will be repeated", error=str(error) or "no answer")
            await trio.sleep(RETRY.delay(failures, applier.rng))
    for piece in slices:
        slot = Slot(EndpointSlice, piece.key)
        if controller_key(piece, InferenceService.RESOURCE.kind) not in running and not applier.has(slot):
            log.info("endpoint of an earlier agent withdrawn", slice=str(piece.key))
            applier.delete_nowait(slot, is_published=True)
