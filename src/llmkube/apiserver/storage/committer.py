"""Writes are decided one after another, made durable in batches, and then visible to readers.

```
decide, based on the head ── join the open batch ── [ one sync to disk per batch ] ── publish, wake watchers ── answer
```

There are two states: the head, on which decisions are based, and the store, which readers see. The store is behind the
head by the changes that are not synced yet. While one batch is being synced, the next one collects writes: a slow disk
makes batches larger, not writers slower. A failed sync fails its batch and the next one, which is based on it, and
resets the head to the store.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from llmkube.apiserver.heavy_work import Work, inline
from llmkube.apiserver.storage.revisions import Change, Store, Transaction
from llmkube.apiserver.storage.write_ahead_log import Persist, StorageError
from llmkube.apiserver.values.api_errors import internal

T = TypeVar("T")

_SYNC_TIMEOUT_SECONDS: Final = 3600.0  # limit of the shield, far beyond any sync: a sync is waited for to its end


@attrs.define(eq=False)
class _Batch:
    """Writes that share a sync."""

    changes: list[Change] = attrs.Factory(list)
    error: StorageError | None = None


class Committer:
    """Decides writes and brings them into the store.

    Args:
        store: The state that readers see.
        persist: Makes changes durable before they are shown; None shows them at once.
        publish: Called with changes right after they are in the store.
        work: Runs decisions; other writes wait for one, reads do not.
    """

    def __init__(
        self, store: Store, persist: Persist | None, publish: Callable[[Sequence[Change]], None], work: Work = inline
    ) -> None:
        self._store = store
        self._persist = persist
        self._publish = publish
        self._work = work
        self._head = store if persist is None else store.replica()
        self._open_batch = _Batch()
        self._deciding = trio.Lock()
        self._syncing = trio.Lock()

    async def write(self, decide: Callable[[Transaction], T], *, dry_run: bool = False) -> T:
        """Decide a write based on the current state, make it durable, and publish it.

        Once it is decided, the write is completed even when cancelled: its outcome is always known.

        Args:
            decide: Decides the write.
            dry_run: Change nothing.

        Raises:
            RequestRefusedError: Raised by the decision; or 500, it could not be made durable and nothing was written.
        """
        async with self._deciding:
            decision, changes = await self._decide(decide, dry_run=dry_run)
            self._head.apply(changes)
            if self._persist is None:
                self._publish(changes)
                return decision
            batch = self._open_batch
            batch.changes.extend(changes)
        with trio.fail_after(_SYNC_TIMEOUT_SECONDS, shield=True):
            async with self._syncing:  # even without changes: the decision may depend on some that are not synced yet
                if self._open_batch is batch and batch.changes:  # otherwise another task has synced it
                    await self._sync(self._persist)
        if batch.error is not None:
            raise internal(str(batch.error)) from batch.error
        return decision

    async def _decide(self, decide: Callable[[Transaction], T], *, dry_run: bool) -> tuple[T, Sequence[Change]]:
        while True:
            head = self._head
            tx = Transaction(head, dry_run=dry_run)
            decision = await self._work(partial(decide, tx))
            if self._head is head:  # otherwise a sync of writes that this one depends on has failed meanwhile
                return decision, () if dry_run else tx.changes

    async def _sync(self, persist: Persist) -> None:
        batch, self._open_batch = self._open_batch, _Batch()
        try:
            await persist(batch.changes)
        except StorageError as exc:
            batch.error = self._open_batch.error = exc
            self._open_batch, self._head = _Batch(), self._store.replica()
        else:
            self._store.apply(batch.changes)
            self._publish(batch.changes)
