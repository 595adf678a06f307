"""How long a download goes on trying, and when it keeps still because a server asked for it."""

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
"""After a day an origin is asked again, whatever it said: a pause of years is a mistake in a header."""


@attrs.frozen
class DownloadLimits:
    """Every number that says how long is long enough.

    Attributes:
        head_seconds: From the question to the head of the answer, redirects and all.
        window_seconds: A body in which fewer than `window_bytes` come within this time has stalled. There is no limit
            on the whole: a large file over a slow line may take a day.
        window_bytes: See above; also what an attempt must gain to count as progress.
        tries: Attempts in a row without progress before a download gives up (it goes on from there next time).
        max_wait_seconds: The longest pause that is kept when a server asks for one; for longer ones it gives up.
        digest_tries: Downloads of a file that turns out to have another digest than the hub promises.
        checkpoint_seconds: How much of a download a power cut may cost.
        checkpoint_bytes: The same in bytes, so that the disk is busy early and little is left to be synced at the end.
        busy_poll_seconds: How often to look whether another process has finished with the same file.
        max_bytes: The largest file that is taken.
        backoff: Pauses between attempts.
    """

    head_seconds: float = 60.0
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
    """Origins that asked to be left alone for a while, by all downloads."""

    _until: dict[Origin, float] = attrs.field(factory=dict)

    def start(self, origin: Origin, seconds: float) -> None:
        """Ask nothing of an origin for so long, and a day at most; a longer pause that is under way stays."""
        until = trio.current_time() + min(seconds, MAX_PAUSE_SECONDS)
        self._until[origin] = max(self._until.get(origin, 0.0), until)

    def seconds_left(self, origin: Origin) -> float:
        """How long the origin is still to be left alone."""
        left = self._until.get(origin, 0.0) - trio.current_time()
        if left <= 0:
            self._until.pop(origin, None)
        return max(left, 0.0)


@attrs.frozen(eq=False)
class Network:
    """What servers are asked with; a simulation replaces each of it."""

    open_transport: OpenTransport
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    limits: DownloadLimits
    pauses: OriginPauses = attrs.field(factory=OriginPauses)


@attrs.frozen(eq=False)
class Dependencies(Network):
    """What downloads work with besides."""

    run_sync: RunSync = attrs.field(kw_only=True)
    space: FreeSpace = attrs.field(kw_only=True)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    origin: Origin,
    network: Network,
    waiting: Callable[[float, str], None],
    has_progressed: Callable[[], bool] = lambda: False,
) -> T:
    """Try until it works, the user is at fault, or `DownloadLimits.tries` attempts in a row brought nothing.

    Args:
        attempt: What to try; FetchError means to try again. A full disk is not tried again: nothing here empties it.
        origin: Whom it asks; the pauses that this server asks for are kept, also those that it asked of other
            downloads.
        network: The clock, the random numbers and the limits.
        waiting: Called before each pause with its length and reason.
        has_progressed: Asked after each failure whether the attempt brought something all the same.
    """
    failures = 0
    limits, pauses = network.limits, network.pauses
    while True:
        pause = pauses.seconds_left(origin)
        if pause > limits.max_wait_seconds:
            raise ThrottledError(f"{origin[1]} asks to wait {pause:.0f} s more", wait_seconds=pause)
        if pause > 0:
            waiting(pause, f"{origin[1]} asked for a pause")
            await trio.sleep(pause)
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
            message = str(error)
        waiting(delay, message)
        await trio.sleep(delay)
