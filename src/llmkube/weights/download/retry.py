"""Retries of downloads, and pauses that servers request."""

import datetime
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import trio

from llmkube.base.backoff import Backoff
from llmkube.weights.download.guarded_transport import OpenTransport
from llmkube.weights.errors import FetchError, NoSpaceError, ThrottledError
from llmkube.weights.store.disk import FreeSpace, RunSync

T = TypeVar("T")
Origin = tuple[str, str, int]

MAX_PAUSE_SECONDS: Final = 86_400.0
"""The longest pause: a pause of years is a mistake in a header."""


@attrs.frozen
class DownloadLimits:
    """The time and size limits of downloads.

    Attributes:
        head_seconds: From the request to the head of the response, including redirects.
        window_seconds: A body that receives fewer than `window_bytes` within this time has stalled. The total time is
            not limited: a large file over a slow line may take a day.
        window_bytes: See above; an attempt that receives fewer bytes has made no progress.
        tries: Consecutive attempts without progress before a download fails (the next fetch resumes it).
        max_wait_seconds: The longest requested pause for which a download waits; it fails if a server requests more.
        digest_tries: Downloads of a file whose digest is not the hub's.
        checkpoint_seconds: The time between syncs; a power failure loses at most this much progress.
        checkpoint_bytes: The same in bytes, so that the disk is used early and little is left to sync at the end.
        busy_poll_seconds: The interval of checks whether another process has released the same file.
        max_bytes: The largest accepted file.
        backoff: The pauses between attempts.
    """

    head_seconds: float = 45.0
    window_seconds: float = 60.0
    window_bytes: int = 64 * 1024
    tries: int = 6
    max_wait_seconds: float = 3600.0
    digest_tries: int = 3
    checkpoint_seconds: float = 5.0
    checkpoint_bytes: int = 128 << 20
    busy_poll_seconds: float = 1.0
    max_bytes: int = 4 << 40
    backoff: Backoff = Backoff(base_seconds=1.0, cap_seconds=60.0)


@attrs.define(eq=False)
class OriginPauses:
    """The pauses that origins have requested; they apply to all downloads."""

    _until: dict[Origin, float] = attrs.field(factory=dict)

    def start(self, origin: Origin, seconds: float) -> None:
        """Pause requests to an origin, for at most a day; a current pause is not shortened."""
        until = trio.current_time() + min(seconds, MAX_PAUSE_SECONDS)
        self._until[origin] = max(self._until.get(origin, 0.0), until)

    def seconds_left(self, origin: Origin) -> float:
        """Return the seconds until the origin's pause ends."""
        left = self._until.get(origin, 0.0) - trio.current_time()
        if left <= 0:
            self._until.pop(origin, None)
        return max(left, 0.0)


@attrs.frozen(eq=False)
class Network:
    """The dependencies of requests, which a simulation replaces."""

    open_transport: OpenTransport
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    limits: DownloadLimits
    pauses: OriginPauses = attrs.field(factory=OriginPauses)


@attrs.frozen(eq=False)
class Dependencies(Network):
    """The dependencies of downloads."""

    run_sync: RunSync = attrs.field(kw_only=True)
    space: FreeSpace = attrs.field(kw_only=True)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    origin: Origin,
    network: Network,
    waiting: Callable[[float, str, str], None],
    has_progressed: Callable[[], bool] = lambda: False,
) -> T:
    """Retry until an attempt succeeds, a user error occurs, or `DownloadLimits.tries` attempts in a row fail.

    Args:
        attempt: The operation; it is retried after a FetchError, except a full disk, which a retry cannot fix.
        origin: The server; the pauses that it requested are observed, also those of other downloads.
        network: The clock, the random numbers and the limits.
        waiting: Called before each pause with its length, its cause in words and the reason of the error, and with 0
            when the next attempt begins.
        has_progressed: Returns after a failure whether the attempt made progress nevertheless.
    """
    failures = 0
    limits, pauses = network.limits, network.pauses
    message = reason = ""
    while True:
        if message:
            waiting(0.0, message, reason)
        pause = pauses.seconds_left(origin)
        if pause > limits.max_wait_seconds:
            raise ThrottledError(f"{origin[1]} requests another pause of {pause:.0f} s", wait_seconds=pause)
        if pause > 0:
            waiting(pause, f"{origin[1]} requested a pause", ThrottledError.reason)
            await trio.sleep(pause)
            waiting(0.0, f"{origin[1]} requested a pause", ThrottledError.reason)
        try:
            return await attempt()
        except NoSpaceError:
            raise
        except FetchError as error:
            failures = 1 if has_progressed() else failures + 1
            if isinstance(error, ThrottledError) and error.wait_seconds is not None:
                pauses.start(origin, error.wait_seconds)
                if failures < limits.tries and error.wait_seconds > 0:
                    continue
            if failures >= limits.tries:
                raise
            delay = limits.backoff.delay(failures, network.rng)
            message, reason = str(error), error.reason
        waiting(delay, message, reason)
        await trio.sleep(delay)
