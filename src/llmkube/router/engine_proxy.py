"""The way into one engine from elsewhere; the engine itself listens on the loopback address alone.

On a host, who comes from an admitted network needs no key, and all others show the engine's own. In a pod, everyone
shows a key of the service's clients. This is the gateway's data path with one backend: it judges the head, shows the
engine's key, if that asks for one, in the place of the client's, and passes the bytes.
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
from llmkube.router.origin_policy import is_foreign_origin
from llmkube.router.refusals import refused
from llmkube.weights.address_policy import Network

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/models", "/v1/models"})
"""What every client may read: probes know no key, and clients list the models before they ask for one."""

_SLOTS: Final = "slots"
"""What shows one client another one's prompt: no network is enough for that.

Wherever it stands in a path: an engine's server may drop `#…`, `;…` or what follows a NUL, and find it there after all.
"""


def proxy_judge(api_key: str, admits: Callable[[str], bool], client_keys: Collection[str] = ()) -> RequestFilter:
    """Return what lets requests in by their heads and by the address from which they come.

    Args:
        api_key: What a client from anywhere may show.
        admits: Says whether the requests of an address need no key.
        client_keys: What else a client from anywhere may show.
    """
    digests = frozenset(map(digest_of_key, (api_key, *client_keys)))

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (head.path in OPEN_PATHS and is_read_only(head)) or presents_key(head, digests):
            return None
        # A browser in an admitted network shows pages from everywhere, and asks for them from its own address.
        foreign = is_foreign_origin(head.lines)
        if not foreign and _SLOTS not in head.path.casefold() and admits(peer):
            return None
        problem = f"this engine asks for a key from {peer or 'here'}"
        if client_keys:
            return key_refusal(problem)
        return key_refusal(
            f"{problem}; requests of the cluster's nodes and pods, of its own host and of the networks of "
            "`llmkube agent --allow-from` need none"
        )

    return judge


def keys_judge(digests: Callable[[], Collection[bytes]], open_paths: Collection[str]) -> RequestFilter:
    """Return what lets requests in that show a key of the service's clients, whatever they come from.

    Args:
        digests: Returns the digests of the keys that count now.
        open_paths: What every client may read: it tells how the engine does, and nothing of what it is asked.
    """

    def judge(head: RequestHead, _peer: str) -> Response | None:
        if _SLOTS in head.path.casefold():
            message = "this path shows what other clients ask, and is closed to every client"
            return refused(403, message, "slots_closed").response
        if (head.path in open_paths and is_read_only(head)) or presents_key(head, digests()):
            return None
        return key_refusal(
            "this engine asks for a key: send `Authorization: Bearer KEY` with one of the service's keys"
        )

    return judge


def proxy_handler(backend: Origin, api_key: str, client: HttpClient, *, count_path: str = "") -> StreamHandler:
    """Pass every request that was let in to the engine, and each byte of its answer back as it comes.

    That the engine does not answer is said once, until it does: probes ask every second while a model is loaded.

    Args:
        backend: Where the engine listens.
        api_key: What the engine asks for; "" when it asks for nothing.
        client: Reaches it.
        count_path: GET it from a client that shows the engine's key: how many requests were passed on and are not
            answered; "" answers it nowhere.
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
                raise  # half an answer is out: the server closes the connection, so that it is not taken for a whole
            if not is_reported:
                _log.warning("the engine did not answer", error=str(error))
            is_reported = True
            await exchange.respond(refused(502, "the engine did not answer", "engine_failed").response)
        finally:
            in_flight -= 1

    return handle


def is_in(peer: str, networks: Sequence[Network]) -> bool:
    """Whether an address, as a socket names it, is in one of the networks."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
