"""What the agent says to the API server: the newest word per object wins, and it is repeated until it is heard.

Everything that is written goes through here, so a slow or absent API server costs a service nothing but the news of it.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.coalesced_ticks import wait_tick
from llmkube.base.errors import LLMKubeError, UserError, WorldError
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import NameTakenError, NotFoundError
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.names import SERVICE_LABEL, service_name
from llmkube.k8s.workqueue import WorkQueue, run_workers

log = structlog.get_logger(__name__)

WRITE_SECONDS = 15.0
"""A write that takes longer is tried again; the API server may have gone away without a word."""

REFUSED_SECONDS = 60.0
"""Until a refused write is tried again, with the same words if there are no newer ones."""

_PUBLISHED: Final = frozenset({Service, Endpoints, EndpointSlice})

_NAMED_BY_USERS: Final = frozenset({Service, Endpoints})
"""Kinds whose objects are called as their InferenceService is: a stranger's may have that name. A slice's has a dot."""

WORKERS = 8
RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0)


@attrs.frozen
class Slot:
    """One thing that this agent says: an object, or one of its subresources."""

    kind: type[Object]
    key: Key
    subresource: str = ""

    def __str__(self) -> str:
        """`EndpointSlice default/chat.mac`."""
        return f"{self.kind.RESOURCE.kind} {self.key}{'/' + self.subresource if self.subresource else ''}"


@attrs.frozen
class _Word:
    manifest: dict[str, Any] | None  # None: the object shall be gone


@attrs.define(eq=False)
class Applier:
    """The newest word per slot, and which of them the API server has heard.

    Attributes:
        rng: Spreads repeats.
        on_refused: Called when an object that a service publishes is refused, and with None when it is accepted.
    """

    rng: random.Random
    on_refused: Callable[[Key, Slot, UserError | None], None] = lambda *_: None
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _words: dict[Slot, _Word] = attrs.field(factory=dict, init=False)
    _heard: dict[Slot, _Word] = attrs.field(factory=dict, init=False)
    _versions: dict[Slot, str] = attrs.field(factory=dict, init=False)  # of each object, as our last write has left it
    _refusals: set[Slot] = attrs.field(factory=set, init=False)
    _last: set[Slot] = attrs.field(factory=set, init=False)  # slots whose word is forgotten when it is heard
    _progress: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng, RETRY, _sends_requests)

    def apply_nowait(self, slot: Slot, manifest: dict[str, Any]) -> None:
        """Have a manifest applied; the same one again costs no request."""
        self._want(slot, _Word(manifest))

    def delete_nowait(self, slot: Slot) -> None:
        """Have an object deleted."""
        self._want(slot, _Word(None))

    def _want(self, slot: Slot, word: _Word) -> None:
        if self._words.get(slot) != word:
            self._words[slot] = word
            self._last.discard(slot)
            self._queue.add_nowait(slot)

    def forget(self, slot: Slot) -> None:
        """Say nothing more about a slot, not even what is still unheard."""
        self._words.pop(slot, None)
        self._heard.pop(slot, None)
        self._versions.pop(slot, None)
        self._refusals.discard(slot)
        self._last.discard(slot)
        self._wake()

    def forget_once_applied(self, slot: Slot) -> None:
        """Let what stands on a slot be the last word on it: it is not repeated, and anybody may say something else."""
        if self._heard.get(slot) == self._words.get(slot):
            self.forget(slot)
        else:
            self._last.add(slot)

    async def wait_applied(self, *slots: Slot) -> None:
        """Return when the API server has heard the newest word on each slot, or on all; deadlines are callers'."""
        await trio.lowlevel.checkpoint()
        while any(self._words.get(slot) != self._heard.get(slot) for slot in slots or self._words):
            await self._progress.wait()

    async def run(self, client: Client, *, field_manager: str) -> None:
        """Never return: write what is new, one write per slot at a time, failed ones again with back-off."""
        await run_workers(self._queue, partial(self._send, client, field_manager), workers=WORKERS)

    async def run_resync(self, client: Client, *, every_seconds: float, namespace: str | None = None) -> None:
        """Never return: look at a slow, fixed pace for what somebody has removed or changed, and say that again.

        Args:
            client: Lists what stands; one list per kind costs less than a write per object.
            every_seconds: The pace.
            namespace: The only one that this agent speaks in, or None.
        """
        while True:
            await wait_tick(every_seconds)
            said = {(slot.kind, slot.subresource) for slot in self._words}
            for kind, subresource in sorted(said, key=str):
                stands = await _versions(client, kind, namespace, "" if subresource else SERVICE_LABEL)
                for slot in [one for one in self._words if one.kind is kind and one.subresource == subresource]:
                    if stands is None or stands.get(slot.key) != self._versions.get(slot):
                        self._queue.add_nowait(slot)

    def reapply_all_nowait(self) -> None:
        """Say everything that stands once more: somebody may have removed it, or said something else over it."""
        for slot in self._words:
            self._queue.add_nowait(slot)

    def reapply_nowait(self, slot: Slot) -> None:
        """Say what stands on one slot once more."""
        self._queue.add_nowait(slot)

    def applied(self, slot: Slot) -> Mapping[str, Any] | None:
        """The newest word on a slot, if the API server has heard it; None of one that is on its way."""
        word = self._words.get(slot)
        return word.manifest if word is not None and self._heard.get(slot) == word else None

    def has(self, slot: Slot) -> bool:
        """Whether there is a word on a slot."""
        return slot in self._words

    async def _send(self, client: Client, field_manager: str, slot: Slot) -> None:
        """Write one slot's newest word; a refusal is logged once and tried again after `REFUSED_SECONDS`.

        It counts as heard: nobody's stop waits for a server that does not want to know.
        """
        word = self._words.get(slot)
        if word is None:
            return
        try:
            with trio.fail_after(WRITE_SECONDS):
                await self._write(client, field_manager, slot, word)
        except NotFoundError:
            # What we speak about, or its namespace, is gone: that ends the subject, unless there is news.
            if self._words.get(slot) == word:
                self.forget(slot)
        except UserError as refused:
            if self._heard.get(slot) != word:
                log.error("write refused", object=str(slot), error=str(refused))  # noqa: TRY400 - no bug, no traceback
            self._settle(slot, word, refused)
        except WorldError as error:
            log.warning("write failed; will be repeated", object=str(slot), error=str(error))
            raise
        except trio.TooSlowError as slow:
            raise WorldError(f"no answer in {WRITE_SECONDS:g} s while writing {slot}") from slow
        else:
            self._settle(slot, word, None)
        self._wake()

    def _settle(self, slot: Slot, word: _Word, refused: UserError | None) -> None:
        """Note what the server has made of a word, and forget the slot if that was the last."""
        self._note(slot, word)
        self._tell(slot, word, refused)
        is_last = slot in self._last or (word.manifest is None and refused is None)
        if is_last and self._words.get(slot) == word:
            self.forget(slot)
        elif refused is not None:
            self._queue.add_after(slot, REFUSED_SECONDS)  # a webhook or a role may have been mended meanwhile

    async def _write(self, client: Client, field_manager: str, slot: Slot, word: _Word) -> None:
        ours = slot.kind not in _NAMED_BY_USERS or await _may_be_ours(client, slot)
        if word.manifest is None:
            if ours:
                await client.delete(slot.kind, slot.key)
        elif not ours:
            raise NameTakenError(
                f"{slot} exists and was made by somebody else; delete it, or call the InferenceService otherwise"
            )
        else:
            written = await client.apply(
                slot.kind, word.manifest, field_manager=field_manager, subresource=slot.subresource
            )
            self._versions[slot] = written.metadata.resource_version

    def _tell(self, slot: Slot, word: _Word, refused: UserError | None) -> None:
        """Hand on that something is not published, and why, and when it is."""
        if slot.kind not in _PUBLISHED or word.manifest is None or (refused is None and slot not in self._refusals):
            return
        (self._refusals.discard if refused is None else self._refusals.add)(slot)
        owner = word.manifest["metadata"]["ownerReferences"][0]["name"]
        self.on_refused(Key(slot.key.namespace, owner), slot, refused)

    def _note(self, slot: Slot, word: _Word) -> None:
        """Remember what was heard; not of a slot that was forgotten while it was being written."""
        if slot in self._words:
            self._heard[slot] = word
        else:
            self._versions.pop(slot, None)

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _sends_requests(slot: Slot) -> bool:
    """Whether clients follow what it says: on that every stop waits, and what people read can come after it."""
    return slot.kind in {Endpoints, EndpointSlice}


async def _versions(client: Client, kind: type[Object], namespace: str | None, label: str) -> dict[Key, str] | None:
    """Return which version of each object stands; None when the API server does not say."""
    try:
        with trio.fail_after(WRITE_SECONDS):
            listing = await client.list(kind, namespace=namespace, label_selector=label)
    except (LLMKubeError, trio.TooSlowError) as error:
        log.info("not listed; everything is said again", kind=kind.RESOURCE.kind, error=str(error) or "no answer")
        return None
    return {one.key: one.metadata.resource_version for one in listing.items}


async def _may_be_ours(client: Client, slot: Slot) -> bool:
    """Look who has the name before a write: an apply onto somebody else's object is no conflict, but a merge."""
    try:
        owners = (await client.get(slot.kind, slot.key)).metadata.owner_references
    except NotFoundError:
        return True
    ours = [service_name(owner.name) for owner in owners if owner.kind == InferenceService.RESOURCE.kind]
    return slot.key.name in ours
