"""Writes are decided one after the other, made durable together, and shown when they are.

```
decide on the head ── join the open batch ── [ one sync to disk for all who wait ] ── show, wake watchers ── answer
```

There are two states: the head, which decisions are made on, and the store that readers see, which is behind it by what
is on its way to the disk. While one batch is being synced, the next one gathers: a slow disk makes batches larger, not
writers slower. A failed sync fails its batch and the one decided on top of it, and the head goes back to what is shown.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from llmkube.apiserver.heavy_work import Work, inline
from llmkube.apiserver.storage.revisions import Change, Store, Transaction
from llmkube.apiserver.storage.write_ahead_log import Durable, StorageError
from llmkube.apiserver.values.api_errors import internal

T = TypeVar("T")

_SYNC_TIMEOUT_SECONDS: Final = 3600.0  # how long the shield holds: a sync is waited for to its end, whatever it takes


@attrs.define(eq=False)
class _Batch:
    """Writes that share a sync."""

    changes: list[Change] = attrs.Factory(list)
    error: StorageError | None = None


class Committer:
    """Brings decisions into the store.

    Args:
        store: What readers see.
        durable: Where writes go before they are shown; None shows them at once.
        publish: Called with changes right after they are in the store.
        work: Where decisions are made; other writes wait for one, reads do not.
    """

    def __init__(
        self,
        store: Store,
        durable: Durable | None,
        publish: Callable[[Sequence[Change]], None],
        work: Work = inline,
    ) -> None:
        self._store = store
        self._durable = durable
        self._publish = publish
        self._work = work
        self._head = store if durable is None else store.replica()
        self._open_batch = _Batch()
        self._deciding = trio.Lock()
        self._syncing = trio.Lock()

    async def write(self, decide: Callable[[Transaction], T], *, dry_run: bool = False) -> T:
        """Decide on the state as it is, make the decision durable, show it.

        Once it is decided, the write is waited for even when cancelled: its outcome is always known.

        Args:
            decide: The decision.
            dry_run: Change nothing.

        Raises:
            RequestRefusedError: The decision's own; 500, it could not be made durable and nothing was written.
        """
        async with self._deciding:
            decision, changes = await self._decide(decide, dry_run=dry_run)
            self._head.apply(changes)
            if self._durable is None:
                self._publish(changes)
                return decision
            batch = self._open_batch
            batch.changes.extend(changes)
        with trio.fail_after(_SYNC_TIMEOUT_SECONDS, shield=True):
            async with self._syncing:  # also without changes: the decision may rest on some that are on their way
                if self._open_batch is batch and batch.changes:  # otherwise another task has synced it
                    await self._sync(self._durable)
        if batch.error is not None:
            raise internal(str(batch.error)) from batch.error
        return decision

    async def _decide(self, decide: Callable[[Transaction], T], *, dry_run: bool) -> tuple[T, Sequence[Change]]:
        while True:
            head = self._head
            tx = Transaction(head, dry_run=dry_run)
            decision = await self._work(partial(decide, tx))
            if self._head is head:  # otherwise a sync has failed meanwhile, of writes that this one rests on
                return decision, () if dry_run else tx.changes

    async def _sync(self, durable: Durable) -> None:
        batch, self._open_batch = self._open_batch, _Batch()
        try:
            await durable(batch.changes)
        except StorageError as exc:
            batch.error = self._open_batch.error = exc
            self._open_batch, self._head = _Batch(), self._store.replica()
        else:
            self._store.apply(batch.changes)
            self._publish(batch.changes)
