"""A heavy request is worked on in a thread: the event loop goes on, and waits a millisecond for the interpreter.

Reading and judging a body of a megabyte takes seconds of Python. In a thread it shares the interpreter with the event
loop; what does not share it (one call of a JSON library, one sort) is bounded by the bounds of a body.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import trio

from llmkube.apiserver.storage.encoding import fields_of
from llmkube.base.http.message import Request

T = TypeVar("T")

LIGHT_VALUES: Final = 600
"""As many values as the event loop works on itself: about 10 ms."""

LIGHT_BYTES: Final = 64 * 1024

LIGHT_MATCHING: Final = 1_000_000
"""Bytes of text times instructions of a pattern that the event loop matches itself: 10 ms at worst."""

_COPYING: Final = "json-patch"
_LIGHT_YAML_BYTES: Final = 512  # what is no JSON is read at 60 KB/s
_SWITCH_SECONDS: Final = 0.001  # how long a thread keeps the interpreter that another one waits for; 5 ms by default


class Work(Protocol):
    """Where a function is run that takes long."""

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return or raise what the function does."""
        ...


async def inline(function: Callable[[], T], /) -> T:
    """Run the function here and now: in a simulation time does not pass."""
    await trio.lowlevel.checkpoint()
    return function()


class Threaded:
    """Runs one function at a time in a thread, which is waited for even when cancelled. Implements `Work`."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Run the function beside the event loop."""
        async with self._limiter:
            usual = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            try:
                return await trio.to_thread.run_sync(function, abandon_on_cancel=False)
            finally:
                sys.setswitchinterval(usual)


def is_heavy(request: Request) -> bool:
    """Whether a request asks for more than the event loop may do at once, judged by its body."""
    body = request.body
    if _COPYING in (request.headers.get("content-type") or "").lower():
        return True  # a few operations may copy megabytes
    if body[:1] not in {b"{", b"["} and len(body) > _LIGHT_YAML_BYTES:
        return True
    return _weighs(body)


def is_large(stored: Mapping[str, Any] | None) -> bool:
    """Whether a stored object is so large that even a small change to it is heavy."""
    return stored is not None and _weighs(fields_of(stored))


def _weighs(text: bytes) -> bool:
    if len(text) > LIGHT_BYTES:
        return True
    return text.count(b",") + text.count(b"[") + text.count(b"{") > LIGHT_VALUES
