"""One task reads the keys that tokens are signed with: a file when it changes, an address when it is time.

One read at a time; the keys of another config are seen at the next look.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.router.auth.jwks_fetch import FetchError
from llmkube.router.auth.key_files import Stamp, stamp_of
from llmkube.router.auth.key_set import MOST_SET_BYTES, KeySet
from llmkube.router.auth.token_keys import TokenKeys

LOOK_SECONDS: Final = 1.0

Fetch = Callable[[str, int], Awaitable[bytes]]
"""Takes an address and the most bytes, and returns what is there."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


class UnreadError(Exception):
    """There are no keys; its words name no address, for clients read them."""


@attrs.define(eq=False)
class JwksRefresh:
    """Keeps keys true.

    Attributes:
        keys_now: Returns those that tokens are checked by now; None where the router takes no tokens.
        fetch: Fetches.
    """

    keys_now: Callable[[], TokenKeys | None]
    fetch: Fetch
    _seen: tuple[str, Stamp] = ("", (0, 0, 0))
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Read them until cancelled; what is in a file is read before the router serves."""
        keys = self.keys_now()
        if keys is not None and keys.file:
            await self.look()
        task_status.started()
        while True:
            await self.look()
            await trio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read again what has changed or whose time is over."""
        keys = self.keys_now()
        if keys is None:
            return
        if keys.file:
            await self._look_at_file(keys)
        elif keys.is_due(trio.current_time()):
            await self._read(keys, lambda: self.fetch(keys.uri, MOST_SET_BYTES))

    async def _look_at_file(self, keys: TokenKeys) -> None:
        stamp = await trio.to_thread.run_sync(stamp_of, Path(keys.file), limiter=self._limiter)
        if self._seen == (keys.file, stamp) and keys.version:
            keys.unchanged(trio.current_time())
            return
        read = await self._read(keys, lambda: trio.to_thread.run_sync(_content, keys.file, limiter=self._limiter))
        self._seen = (keys.file, stamp) if read else ("", stamp)  # rights that change leave the stamp as it is

    async def _read(self, keys: TokenKeys, content: Callable[[], Awaitable[bytes]]) -> bool:
        before = keys.problem
        try:
            found = await parsed(await content(), self._limiter)
        except (FetchError, UnreadError) as exc:
            keys.failed(str(exc), trio.current_time())
            if keys.problem != before:
                source = keys.file or keys.uri
                _log.warning("cannot read the keys of tokens", source=source, error=keys.problem, cause=_cause(exc))
            return False
        version = keys.version
        keys.read(found, trio.current_time())
        if keys.version != version:
            named = [each.key_id for each in found.keys]
            _log.info("keys of tokens are read", source=keys.file or keys.uri, keys=named, left_out=found.left_out)
        return True


def _cause(exc: Exception) -> str:
    return str(exc.__cause__ or "")


def _content(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MOST_SET_BYTES + 1)
    except OSError as exc:
        raise UnreadError(f"the file with the keys cannot be read ({exc.strerror})") from exc


async def parsed(data: bytes, limiter: trio.CapacityLimiter) -> KeySet:
    """Return the keys of a JWK Set, read in a thread: many keys take milliseconds, and the first loads PyJWT.

    Raises:
        UnreadError: It is none.
    """
    return await trio.to_thread.run_sync(key_set, data, limiter=limiter)


def key_set(data: bytes) -> KeySet:
    """Return the keys of a JWK Set. Blocks.

    Raises:
        UnreadError: It is none.
    """
    from llmkube.router.auth.jwk_set import KeySetError, key_set_of  # noqa: PLC0415 (tokens alone pay for PyJWT)

    try:
        return key_set_of(data)
    except KeySetError as exc:
        raise UnreadError(f"what was read is no JWK Set: {exc}") from exc
