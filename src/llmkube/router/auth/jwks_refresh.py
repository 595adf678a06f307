"""Keep the keys of a token issuer current: one task reads a file when it changes, or fetches an address periodically.

There is one read at a time; a reloaded config takes effect at the next check. Only the address in the config is
fetched: redirects are not followed, and size and time are bounded.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError, HttpError
from llmkube.base.http.message import Headers, encode_request_head
from llmkube.router.auth.key_files import Stamp, stamp_of
from llmkube.router.auth.token_keys import MAX_SET_BYTES, KeySet, KeysUnreadableError, TokenKeys
from llmkube.weights.urls import parse_url

FETCH_SECONDS: Final = 10.0


async def fetch_jwks(plain: HttpClient, secure: HttpClient, uri: str, max_bytes: int) -> bytes:
    """Fetch a JWK Set.

    Args:
        plain: For http.
        secure: For https; it verifies certificates.
        uri: The address.
        max_bytes: A longer response is rejected.

    Raises:
        KeysUnreadableError: There is no successful response within 10 seconds, or it is too long.
    """
    with trio.move_on_after(FETCH_SECONDS):
        try:
            return await _fetch(plain, secure, uri, max_bytes)
        except ConnectError as exc:
            raise KeysUnreadableError("no connection to the issuer") from exc
        except ValueError as exc:
            raise KeysUnreadableError("the issuer's address is invalid") from exc
        except HttpError as exc:
            raise KeysUnreadableError("the issuer closed the connection, or does not speak HTTP/1.1") from exc
    raise KeysUnreadableError(f"no complete response from the issuer within {FETCH_SECONDS:g} seconds")


async def _fetch(plain: HttpClient, secure: HttpClient, uri: str, max_bytes: int) -> bytes:
    url, _ = parse_url(uri)
    client = secure if url.scheme == "https" else plain
    lines = Headers.of({"Host": url.netloc, "Accept": "application/json", "Accept-Encoding": "identity"})
    answer = await client.start((url.host, url.port), "GET", encode_request_head("GET", url.target, lines), b"")
    try:
        if answer.status != 200:
            hint = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            raise KeysUnreadableError(f"the issuer responds with status {answer.status}{hint}")
        if (answer.headers.get("content-encoding") or "identity").lower() != "identity":
            raise KeysUnreadableError("the issuer's response is compressed, although that was not requested")
        received = bytearray()
        while piece := await answer.receive_some():
            received += piece
            if len(received) > max_bytes:
                raise KeysUnreadableError(f"the issuer's response has more than {max_bytes} bytes")
    finally:
        if not client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)  # noqa: ASYNC102 (closes at once, even when cancelled)
    return bytes(received)


POLL_SECONDS: Final = 1.0

Fetch = Callable[[str, int], Awaitable[bytes]]
"""Fetches an address; takes it and the most bytes that a response may have."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class JwksRefresh:
    """Keeps keys current.

    Attributes:
        current_keys: Returns the keys in use; None if the router accepts no tokens.
        fetch: Fetches an address.
    """

    current_keys: Callable[[], TokenKeys | None]
    fetch: Fetch
    _last_read: tuple[str, Stamp] = ("", (0, 0, 0))
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Read keys until cancelled; a file is read once before `started`, so that the router serves with its keys."""
        keys = self.current_keys()
        if keys is not None and keys.file:
            await self.refresh_if_due()
        task_status.started()
        while True:
            await self.refresh_if_due()
            await trio.sleep(POLL_SECONDS)

    async def refresh_if_due(self) -> None:
        """Read the keys again if their file has changed or their refresh is due."""
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
            keys.confirm(trio.current_time())
            return
        read = await self._read(keys, lambda: trio.to_thread.run_sync(_read_file, keys.file, limiter=self._limiter))
        # After a failure the next check reads again: a change of permissions leaves the stamp as it is
        self._last_read = (keys.file, stamp) if read else ("", stamp)

    async def _read(self, keys: TokenKeys, content: Callable[[], Awaitable[bytes]]) -> bool:
        before = keys.problem
        try:
            found = await parsed(await content(), self._limiter)
        except KeysUnreadableError as exc:
            keys.record_failure(str(exc), trio.current_time())
            if keys.problem != before:
                source, cause = keys.file or keys.uri, str(exc.__cause__ or "")
                _log.warning("token keys unreadable", source=source, error=keys.problem, cause=cause)
            return False
        version = keys.version
        keys.replace(found, trio.current_time())
        if keys.version != version:
            key_ids = [each.key_id for each in found.keys]
            _log.info("token keys read", source=keys.file or keys.uri, keys=key_ids, left_out=found.left_out)
        return True


def _read_file(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_SET_BYTES + 1)
    except OSError as exc:
        raise KeysUnreadableError(f"the key file cannot be read ({exc.strerror})") from exc


async def parsed(data: bytes, limiter: trio.CapacityLimiter) -> KeySet:
    """Parse a JWK Set in a thread: many keys take milliseconds, and the first call loads PyJWT.

    Raises:
        KeysUnreadableError: The data is not a JWK Set.
    """
    return await trio.to_thread.run_sync(load_key_set, data, limiter=limiter)


def load_key_set(data: bytes) -> KeySet:
    """Parse a JWK Set. Blocks.

    Raises:
        KeysUnreadableError: The data is not a JWK Set.
    """
    from llmkube.router.auth.jwk_set import parse_key_set  # noqa: PLC0415 (only tokens need PyJWT)

    return parse_key_set(data)
