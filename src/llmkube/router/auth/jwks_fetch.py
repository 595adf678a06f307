"""Fetch the keys of an issuer from the one address that the config names: no redirect, a bound on bytes and on time."""

from typing import Final
from urllib.parse import urlsplit

import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError, HttpError
from llmkube.base.http.message import Headers, encode_request_head, netloc

FETCH_SECONDS: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}


class FetchError(Exception):
    """The keys could not be fetched; its words name no address, for clients read them."""


async def fetch_jwks(plain: HttpClient, secure: HttpClient, uri: str, most_bytes: int) -> bytes:
    """Return what is at an address.

    Args:
        plain: For http.
        secure: For https; it verifies certificates.
        uri: The address.
        most_bytes: A longer answer is refused.

    Raises:
        FetchError: It is not there, too long, or did not come in 10 seconds.
    """
    with trio.move_on_after(FETCH_SECONDS):
        try:
            return await _fetch(plain, secure, uri, most_bytes)
        except ConnectError as exc:
            raise FetchError("no connection to the issuer") from exc
        except ValueError as exc:
            raise FetchError("the issuer's address cannot be asked") from exc
        except HttpError as exc:
            raise FetchError("the issuer broke off, or does not speak HTTP/1.1") from exc
    raise FetchError(f"no whole answer of the issuer in {FETCH_SECONDS:g} seconds")


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
            also = "; no redirect is followed" if 300 <= answer.status < 400 else ""
            raise FetchError(f"the issuer answers {answer.status}{also}")
        if (answer.headers.get("content-encoding") or "identity").lower() != "identity":
            raise FetchError("the issuer's answer is compressed, and was not asked to be")
        received = bytearray()
        while piece := await answer.receive_some():
            received += piece
            if len(received) > most_bytes:
                raise FetchError(f"the issuer's answer has more than {most_bytes} bytes")
    finally:
        if not client.keep_nowait(answer):
            await trio.aclose_forcefully(answer.stream)  # noqa: ASYNC102 (closes at once, also when cancelled)
    return bytes(received)
