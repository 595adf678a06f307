"""What the agent says to the API server: the newest word per object wins, and it is repeated until it is heard.

Everything that is written goes through here, so a slow or absent API server costs a service nothing but the news of it.
"""

from typing import Any

import attrs
import structlog
import trio

from llmkube.base.errors import UserError, WorldError
from llmkube.k8s.client import Client
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.workqueue import WorkQueue

log = structlog.get_logger(__name__)

WRITE_SECONDS = 15.0
"""A write that takes longer is tried again; the API server may have gone away without a word."""


@attrs.frozen
class Slot:
    """One thing that this agent says: an object, or one of its subresources."""

    kind: type[Any]
    key: Key
    subresource: str = ""

    def __str__(self) -> str:
        """`EndpointSlice default/chat.mac`."""
        return f"{self.kind.RESOURCE.kind} {self.key}{'/' + self.subresource if self.subresource else ''}"


@attrs.frozen
class _Word:
    manifest: dict[str, Any] | None  # None: the object shall be gone


@attrs.define(eq=False)
class Outbox:
    """The newest manifest per slot, and which of them the API server has not heard yet."""

    queue: WorkQueue[Slot]
    _words: dict[Slot, _Word] = attrs.field(factory=dict)
    _heard: dict[Slot, _Word] = attrs.field(factory=dict)
    _progress: trio.Event = attrs.field(factory=trio.Event)

    def put_nowait(self, slot: Slot, manifest: dict[str, Any] | None) -> None:
        """Say something new about a slot, or with None that its object shall be deleted; saying it again is free."""
        word = _Word(manifest)
        if self._words.get(slot) != word:
            self._words[slot] = word
            self.queue.add_nowait(slot)

    def forget(self, slot: Slot) -> None:
        """Say nothing more about a slot, not even what is still unheard."""
        self._words.pop(slot, None)
        self._heard.pop(slot, None)
        self._wake()

    def repeat_nowait(self) -> None:
        """Say everything that still stands again, in case somebody removed or changed it."""
        for slot in self._words:
            self.queue.add_nowait(slot)

    async def wait_heard(self, *slots: Slot) -> None:
        """Return when the API server has heard the newest word on each slot; the deadline is the caller's."""
        await trio.lowlevel.checkpoint()
        while any(self._words.get(slot) != self._heard.get(slot) for slot in slots):
            await self._progress.wait()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def _send(self, client: Client, slot: Slot, field_manager: str) -> None:
        """Write one slot's newest word; a refusal for good is logged and not repeated until there is something new."""
        word = self._words.get(slot)
        if word is None:
            return
        try:
            with trio.fail_after(WRITE_SECONDS):
                if word.manifest is None:
                    await client.delete(slot.kind, slot.key)
                else:
                    await client.apply(
                        slot.kind, word.manifest, field_manager=field_manager, subresource=slot.subresource
                    )
        except NotFoundError:
            # Its object is gone (deleted while we were writing about it), which ends the subject.
            if self._words.get(slot) == word:
                self._words.pop(slot, None)
                self._heard.pop(slot, None)
        except UserError as refused:
            log.error("write refused", object=str(slot), error=str(refused))
            self._heard[slot] = word
        except trio.TooSlowError as slow:
            raise WorldError(f"no answer in {WRITE_SECONDS:g} s while writing {slot}") from slow
        else:
            self._heard[slot] = word
            if word.manifest is None and self._words.get(slot) == word:
                self.forget(slot)
        self._wake()


async def run_outbox(outbox: Outbox, client: Client, *, field_manager: str, workers: int = 8) -> None:
    """Never return: write what is new, one write per slot at a time, failed ones again with back-off."""

    async def send(slot: Slot) -> None:
        await outbox._send(client, slot, field_manager)  # noqa: SLF001 - the other half of this class

    await outbox.queue.run(send, workers=workers)


async def run_repeats(outbox: Outbox, *, every_seconds: float) -> None:
    """Never return: say what stands again at a slow, fixed pace, so that what somebody deleted comes back."""
    while True:
        await trio.sleep(every_seconds)
        outbox.repeat_nowait()
