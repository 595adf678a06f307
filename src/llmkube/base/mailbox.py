"""A mailbox holds one value, unlike a queue: a new value replaces the last one, and nothing piles up."""

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Hold the newest value; a reader that falls behind gets the latest one and skips those in between.

    Any number of tasks may write and read; each reader remembers the version that it has read.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = trio.Event()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """Number that grows with every `put_nowait`."""
        return self._version

    def put_nowait(self, value: T) -> None:
        """Replace the value and wake every waiting reader."""
        self._value = value
        self._version += 1
        self._changed.set()
        self._changed = trio.Event()

    async def wait_newer(self, version: int) -> T:
        """Return the newest value once its version is above `version`; always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while self._version <= version:
            await self._changed.wait()
        return self._value
