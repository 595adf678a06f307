"""Proxy that publishes one engine; the engine itself listens on the loopback address only.

On a host, clients in an admitted network need no key, and all others present the engine's key. In a pod, every client
presents one of the service's client keys. This is the gateway's data path with one backend: it checks the head,
replaces the client's credentials with the engine's key, if it has one, and passes the bytes through.
"""

import ipaddress
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import RequestFilter, StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Origin, Response
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presents_key
from llmkube.router.backends import HELD_HEADER, NOT_READY
from llmkube.router.origin_policy import is_foreign_origin
from llmkube.router.refusals import refused
from llmkube.weights.address_policy import Network

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/models", "/v1/models"})
"""Paths that need no key: probes have none, and clients list the models before they prompt for one."""

_SLOTS: Final = "slots"
"""Paths with this word expose other clients' prompts: they need a key in every network.

It is searched for anywhere in a path, because an engine's server may ignore `#…`, `;…` or what follows a NUL.
"""


def key_or_peer_filter(api_key: str, admits: Callable[[str], bool], client_keys: Collection[str] = ()) -> RequestFilter:
    """Return a filter that admits requests by key or by peer address.

    Args:
        api_key: Key accepted from every address.
        admits: Returns whether requests from an address need no key.
        client_keys: Further keys accepted from every address.
    """
    digests = frozenset(map(digest_of_key, (api_key, *client_keys)))

    def check(head: RequestHead, peer: str) -> Response | None:
        if (head.path in OPEN_PATHS and is_read_only(head)) or presents_key(head, digests):
            return None
        # A browser in an admitted network runs pages from anywhere; their requests come from the browser's address.
        foreign = is_foreign_origin(head.lines)
        if not foreign and _SLOTS not in head.path.casefold() and admits(peer):
            return None
        problem = f"this engine requires a key from {peer or 'this client'}"
        if HELD_HEADER in head.lines:  # the client has a key, or is admitted, at the host that has forwarded it
            message = f"request not admitted: {peer} forwarded it; retry, or admit that host with --allow-from"
            return refused(503, message, NOT_READY, {"Retry-After": "2"}).response
        if client_keys:
            return key_refusal(problem)
        return key_refusal(
            f"{problem}; requests from the cluster's nodes and pods, from its own host and from the networks of "
            "`llmkube agent --allow-from` need none"
        )

    return check


def key_filter(digests: Callable[[], Collection[bytes]], open_paths: Collection[str]) -> RequestFilter:
    """Return a filter that admits requests with one of the service's client keys, from any address.

    Args:
        digests: Returns the digests of the current keys.
        open_paths: Paths that need no key: they expose the health of the engine, and nothing about its requests.
    """

    def check(head: RequestHead, _peer: str) -> Response | None:
        if _SLOTS in head.path.casefold():
            message = "path disabled: it exposes the prompts of other clients"
            return refused(403, message, "slots_closed").response
        if (head.path in open_paths and is_read_only(head)) or presents_key(head, digests()):
            return None
        return key_refusal("this engine requires a key: send `Authorization: Bearer KEY` with a key of the service")

    return check


def proxy_handler(backend: Origin, api_key: str, client: HttpClient, *, count_path: str = "") -> StreamHandler:
    """Return a handler that passes admitted requests to the engine and streams its responses back.

    Failures are logged once until the engine responds again: probes arrive every second while a model loads.

    Args:
        backend: Address of the engine.
        api_key: Key that the engine requires; "" for none.
        client: HTTP client for the engine.
        count_path: Path that returns the number of requests in flight to a client with the engine's key; "" for none.
    """
    digests = frozenset({digest_of_key(api_key)})
    credentials = f"Authorization: Bearer {api_key}\r\n".encode("ascii") if api_key else b""

    is_reported, in_flight = False, 0

    async def handle(exchange: StreamExchange) -> None:
        nonlocal is_reported, in_flight
        if count_path and exchange.head.path == count_path and presents_key(exchange.head, digests):
            await exchange.respond(Response.json(200, in_flight))
            return
        in_flight += 1
        try:
            await forward(exchange, client, backend, exchange.body, credentials=credentials)
            is_reported = False
        except HttpError as error:
            if exchange.begun:
                raise  # the server closes the connection, so that no client takes a partial response for a complete one
            if not is_reported:
                _log.warning("engine request failed", error=str(error))
            is_reported = True
            await exchange.respond(refused(502, "the engine did not answer", "engine_failed").response)
        finally:
            in_flight -= 1

    return handle


def is_in(peer: str, networks: Sequence[Network]) -> bool:
    """Return whether an address, as written by a socket, is in one of the networks."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
