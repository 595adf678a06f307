"""The way into one engine from outside its host: who comes from an allowed network needs no key, all others do.

The engine itself asks for a key, and listens on the loopback address alone. This is the gateway's data path with one
backend: it judges the head, shows the engine's key in the place of the client's, and passes the bytes.
"""

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Final

import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import Judge, StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.pool import Origin
from llmkube.router.origin_policy import is_foreign_origin
from llmkube.weights.address_policy import Network

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/models", "/v1/models"})
"""What every client may read: probes know no key, and clients list the models before they ask for one."""

_CLOSED: Final = "slots"
"""What shows one client another one's prompt: no network is enough for that.

Wherever it stands in a path: an engine's server may drop `#…`, `;…` or what follows a NUL, and find it there after all.
"""


def proxy_judge(api_key: str, allowed: Sequence[Network]) -> Judge:
    """Return what lets requests in by their heads and by the address from which they come.

    Args:
        api_key: What a client from anywhere may show.
        allowed: The networks whose requests need no key.
    """
    expected = api_key.encode()

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (head.path in OPEN_PATHS and _only_reads(head)) or _shows(head, expected):
            return None
        # A browser in an allowed network shows pages from everywhere, and asks for them from its own address.
        foreign = is_foreign_origin(head.lines)
        if not foreign and _CLOSED not in head.path.casefold() and _is_in(peer, allowed):
            return None
        message = (
            f"this engine asks for a key from {peer or 'here'}; requests of the cluster's own networks need none "
            "(llmkube agent --allow-from)"
        )
        error = {"message": message, "type": "authentication_error", "code": "invalid_api_key"}
        return Response.json(401, {"error": error}, headers=Headers.of({"WWW-Authenticate": "Bearer"}))

    return judge


def proxy_handler(backend: Origin, api_key: str, client: HttpClient) -> StreamHandler:
    """Pass every request that was let in to the engine, and each byte of its answer back as it comes."""
    credentials = f"Authorization: Bearer {api_key}\r\n".encode("ascii")

    async def handle(exchange: StreamExchange) -> None:
        try:
            await forward(exchange, client, backend, exchange.body, credentials=credentials)
        except HttpError as error:
            if exchange.begun:
                raise  # half an answer is out: the server closes the connection, so that it is not taken for a whole
            _log.warning("the engine did not answer", error=str(error))
            said = {"message": "the engine did not answer", "type": "server_error", "code": "engine_failed"}
            await exchange.respond(Response.json(502, {"error": said}))

    return handle


def _only_reads(head: RequestHead) -> bool:
    """Whether a request changes nothing and brings no body, which would take of the room that all bodies share."""
    return head.method in ("GET", "HEAD") and not head.length and not head.chunked


def _shows(head: RequestHead, expected: bytes) -> bool:
    """Whether a request shows the engine's key, in one of the two headers that llama.cpp's server reads."""
    scheme, _, bearer = (head.lines.get("authorization") or "").partition(" ")
    shown = bearer.strip() if scheme.lower() == "bearer" else head.lines.get("x-api-key") or ""
    return bool(shown) and hmac.compare_digest(shown.encode("latin-1", "replace"), expected)


def _is_in(peer: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
