"""A buffer between the network and two threads: what has come is written by one of them, then hashed by the other.

```
 0 ──── hashed ──── written ──── filled ──── hashed + size     bytes since the beginning
          │            │            └ moved by the task that receives
          │            └ moved by the thread that writes, up to `filled`
          └ moved by the thread that hashes, up to `written`: what is behind it is room again
```

No byte is copied on its way through. Each position is moved by one side alone, from whatever thread, so that a thread
goes on while there is something for it, and the event loop hears of it only where a task waits.
"""

from typing import Final

import trio

_RING_BYTES: Final = 16 << 20
_BATCHES: Final = 4
"""A side sleeps until a quarter of the ring is there for it: to hand over to a thread costs as much as 100 KiB."""

_LINGER_SECONDS: Final = 0.02


class Side:
    """One of the three sides of a ring: it may go on as far as the side before it has come.

    Attributes:
        position: How far it has come, in bytes.
        ended: Whether it comes no further.
        stopped: Whether it is told to go no further.
    """

    def __init__(self) -> None:
        self.position = 0
        self.ended = self.stopped = False
        self.before: Side = self
        self.after: Side = self
        self.lead_bytes = 0  # how far it may run ahead of the side before it
        self._token = trio.lowlevel.current_trio_token()
        self._waiting_for = 0  # the task of this side sleeps until there are so many bytes for it; 0 for no task
        self._asleep = trio.lowlevel.ParkingLot()

    @property
    def ahead(self) -> int:
        """How many bytes there are for it."""
        return self.before.position + self.lead_bytes - self.position

    def move(self, count: int) -> None:
        """Go on, from any thread; the side after it is woken if that is what it waits for."""
        self.position += count
        self.after.notice()

    def end(self) -> None:
        """Go no further."""
        self.ended = True
        self.after.notice()

    def stop(self) -> None:
        """Tell it to go no further: what is under way ends with its piece."""
        self.stopped = True
        self.notice()

    def notice(self) -> None:
        """Wake the task of this side, from any thread, if there is what it waits for."""
        # The task says what it waits for, and then looks again: one of the two sees the other.
        if self._waiting_for and not self._must_wait(self._waiting_for):
            self._token.run_sync_soon(self._asleep.unpark_all, idempotent=True)

    async def wait_for(self, count: int) -> None:
        """Return when there are so many bytes for it, or no more come."""
        self._waiting_for = count
        try:
            while self._must_wait(count):
                await self._asleep.park()
        finally:
            self._waiting_for = 0

    def _must_wait(self, count: int) -> bool:
        return self.ahead < count and not (self.before.ended or self.stopped)


class RingBuffer:
    """The memory, and who has come how far.

    Its memory is used again and again: pages fresh from the kernel for each piece would cost more than a copy does.

    Attributes:
        filling: The side that receives.
        writing: The side that writes.
        hashing: The side that hashes.
    """

    def __init__(self, size_bytes: int = _RING_BYTES) -> None:
        self._memory = memoryview(bytearray(size_bytes))
        self._batch_bytes = max(size_bytes // _BATCHES, 1)
        self.filling, self.writing, self.hashing = sides = Side(), Side(), Side()
        for before, side in zip((self.hashing, self.filling, self.writing), sides, strict=True):
            side.before, before.after = before, side
        self.filling.lead_bytes = size_bytes

    async def room(self) -> memoryview:
        """Return where the next bytes go; wait while all is full; BrokenResourceError when nothing more is wanted."""
        side = self.filling
        if side.ahead <= 0:
            await side.wait_for(self._batch_bytes)
        if side.stopped:
            raise trio.BrokenResourceError
        return self._view(side, len(self._memory))

    async def wait_for_work(self, side: Side) -> bool:
        """Wait until there is enough for a side to be worth a thread, or a little for a while; False at the end."""
        await trio.lowlevel.checkpoint()
        await side.wait_for(1)
        if side.ahead < self._batch_bytes and not side.before.ended:
            with trio.move_on_after(_LINGER_SECONDS):
                await side.wait_for(self._batch_bytes)
        return side.ahead > 0 and not side.stopped

    def next_piece(self, side: Side, max_bytes: int) -> memoryview:
        """Return the next bytes for the writing or the hashing side, at most so many; empty while there are none."""
        return self._view(side, 0 if side.stopped else max_bytes)

    def stop(self) -> None:
        """Tell all sides that nothing more is wanted."""
        for side in (self.filling, self.writing, self.hashing):
            side.stop()

    def _view(self, side: Side, max_bytes: int) -> memoryview:
        start = side.position % len(self._memory)
        return self._memory[start : start + min(side.ahead, max_bytes)]
