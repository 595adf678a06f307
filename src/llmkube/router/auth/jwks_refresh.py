"""One task reads the keys that tokens are signed with: a file when it changes, an address when it is time.

One read at a time; the keys of another config are seen at the next look. An address is that of the config alone: no
redirect, a bound on bytes and on time.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import attrs
import structlog
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError, HttpError
from llmkube.base.http.message import Headers, encode_request_head, netloc
from llmkube.router.auth.key_files import Stamp, stamp_of
from llmkube.router.auth.token_keys import MAX_SET_BYTES, KeySet, TokenKeys

FETCH_SECONDS: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}


class KeysUnreadableError(Exception):
    """There are no keys; its words name no address, for clients read them."""


async def fetch_jwks(plain: HttpClient, secure: HttpClient, uri: str, most_bytes: int) -> bytes:
    """Return what is at an address.

    Args:
        plain: For http.
        secure: For https; it verifies certificates.
        uri: The address.
        most_bytes: A longer answer is refused.

    Raises:
        KeysUnreadableError: It is not there, too long, or did not come in 10 seconds.
    """
    with trio.move_on_after(FETCH_SECONDS):
        try:
            return await _fetch(plain, secure, uri, most_bytes)
        except ConnectError as exc:
            raise KeysUnreadableError("no connection to the issuer") from exc
        except ValueError as exc:
            raise KeysUnreadableError("the issuer's address cannot be asked") from exc
        except HttpError as exc:
            raise KeysUnreadableError("the issuer broke off, or does not speak HTTP/1.1") from exc
    raise KeysUnreadableError(f"no whole answer of the issuer in {FETCH_SECONDS:g} seconds")


async def _fetch(plain: HttpClient, secure: HttpClient, uri: str, most_bytes: int) -> bytes:
    parts = urlsplit(uri)
    origin = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
    client = secure if parts.scheme == "https" else plain
    host = netloc(origin) if origin[1] != _PORTS[parts.scheme] else netloc(origin).rpartition(":")[0]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = Headers.of({"Host": host, "Accept": "application/json", "Accept-Encoding": "identity"})
    answer = await client.start(origin, "GET", encode_request_head("GET", target, lines), b"")
    try:
        if answer.status != 200:
            hint = "; no redirect is followed" if 300 <= answer.status < 400 else ""
            raise KeysUnreadableError(f"the issuer answers {answer.status}{hint}")
        if (answer.headers.get("content-encoding") or "identity").lower() != "identity":
            raise KeysUnreadableError("the issuer's answer is compressed, and was not asked to be")
        received = bytearray()
        while piece := await answer.receive_some():
            received += piece
            if len(received) > most_bytes:
                raise KeysUnreadableError(f"the issuer's answer has more than {most_bytes} bytes")
    finally:
        if not client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)  # noqa: ASYNC102 (closes at once, also when cancelled)
    return bytes(received)


POLL_SECONDS: Final = 1.0

Fetch = Callable[[str, int], Awaitable[bytes]]
"""Takes an address and the most bytes, and returns what is there."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class JwksRefresh:
    """Keeps keys true.

    Attributes:
        current_keys: Returns those that tokens are checked by now; None where the router takes no tokens.
        fetch: Fetches.
    """

    current_keys: Callable[[], TokenKeys | None]
    fetch: Fetch
    _last_read: tuple[str, Stamp] = ("", (0, 0, 0))
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Read them until cancelled; what is in a file is read before the router serves."""
        keys = self.current_keys()
        if keys is not None and keys.file:
            await self.look()
        task_status.started()
        while True:
            await self.look()
            await trio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Read again what has changed or whose time is over."""
        keys = self.current_keys()
        if keys is None:
            return
        if keys.file:
            await self._check_file(keys)
        elif keys.is_due(trio.current_time()):
            await self._read(keys, lambda: self.fetch(keys.uri, MAX_SET_BYTES))

    async def _check_file(self, keys: TokenKeys) -> None:
        stamp = await trio.to_thread.run_sync(stamp_of, Path(keys.file), limiter=self._limiter)
        if self._last_read == (keys.file, stamp) and keys.version:
            keys.unchanged(trio.current_time())
            return
        read = await self._read(keys, lambda: trio.to_thread.run_sync(_read_file, keys.file, limiter=self._limiter))
        self._last_read = (keys.file, stamp) if read else ("", stamp)  # rights that change leave the stamp as it is

    async def _read(self, keys: TokenKeys, content: Callable[[], Awaitable[bytes]]) -> bool:
        before = keys.problem
        try:
            found = await parsed(await content(), self._limiter)
        except KeysUnreadableError as exc:
            keys.failed(str(exc), trio.current_time())
            if keys.problem != before:
                source, cause = keys.file or keys.uri, str(exc.__cause__ or "")
                _log.warning("cannot read the keys of tokens", source=source, error=keys.problem, cause=cause)
            return False
        version = keys.version
        keys.read(found, trio.current_time())
        if keys.version != version:
            key_ids = [each.key_id for each in found.keys]
            _log.info("keys of tokens are read", source=keys.file or keys.uri, keys=key_ids, left_out=found.left_out)
        return True


def _read_file(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_SET_BYTES + 1)
    except OSError as exc:
        raise KeysUnreadableError(f"the file with the keys cannot be read ({exc.strerror})") from exc


async def parsed(data: bytes, limiter: trio.CapacityLimiter) -> KeySet:
    """Return the keys of a JWK Set, read in a thread: many keys take milliseconds, and the first loads PyJWT.

    Raises:
        KeysUnreadableError: It is none.
    """
    return await trio.to_thread.run_sync(load_key_set, data, limiter=limiter)


def load_key_set(data: bytes) -> KeySet:
    """Return the keys of a JWK Set. Blocks.

    Raises:
        KeysUnreadableError: It is none.
    """
    from llmkube.router.auth.jwk_set import KeySetError, parse_key_set  # noqa: PLC0415 (tokens alone pay for PyJWT)

    try:
        return parse_key_set(data)
    except KeySetError as exc:
        raise KeysUnreadableError(f"what was read is no JWK Set: {exc}") from exc
