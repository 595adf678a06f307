"""Serve at one address of this machine for as long as the machine has it: a laptop changes networks, and comes back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import innermost
from llmkube.base.http.connection import Judge
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.listen import ListenError, open_listeners
from llmkube.base.http.message import Response, netloc
from llmkube.base.waiting import wait_tick
from llmkube.programs.lan_gateway.listen_options import FLAG, Listen, ListenKeys
from llmkube.programs.program import Port, open_port
from llmkube.router.auth.client_key import digest_of_key, key_refusal, only_reads, shows_key
from llmkube.router.origin_policy import is_preflight, refuse_foreign_pages

LOOK_SECONDS: Final = 10.0
"""How long until a change of network is noticed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Serve = Callable[[Sequence[trio.SocketListener]], Awaitable[object]]
"""Serves on listeners, which it closes, until it is cancelled."""


@attrs.frozen(eq=False)
class LanGateway:
    """The gateway's second address.

    Attributes:
        port: Where other machines reach it.
        judge: Which requests are let in.
        keys: What they show; None where every request is let in.
    """

    port: Port
    judge: Judge
    keys: ListenKeys | None


@asynccontextmanager
async def open_lan_gateway(listen: Listen | None, state_dir: Path) -> AsyncIterator[LanGateway | None]:
    """Listen where the user wants other machines served, or nowhere; a taken port draws no key.

    Raises:
        ListenError: The port is taken, or the address is gone.
        UserError: The file with the keys cannot be used.
    """
    if listen is None:
        yield None
        return
    async with open_port(listen.port, FLAG, listen.address) as port:
        keys = listen.keys(state_dir) if listen.asks_key else None
        yield LanGateway(port, refuse_foreign_pages if keys is None else lan_judge(keys.keys), keys)


def lan_judge(keys: Iterable[str]) -> Judge:
    """Let in requests of other machines that show a key, from no page from elsewhere: the `Judge` of `up --listen`."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (refusal := refuse_foreign_pages(head, peer)) is not None:
            return refusal
        if (head.path == "/health" and only_reads(head)) or is_preflight(head) or shows_key(head, digests):
            return None
        return key_refusal("this gateway asks for a key: send `Authorization: Bearer KEY`; its owner has one")

    return judge


async def run_lan_listener(port: Port, serve: Serve, own_addresses: Callable[[], Collection[str]]) -> NoReturn:
    """Serve at a port of an address while this machine has the address; open the port anew when it has it again.

    A socket on an address that has gone is closed: whether it works once the address is back, systems disagree.

    Args:
        port: What is open now.
        serve: See `Serve`.
        own_addresses: Returns the addresses that this machine has; raises OSError where it cannot tell.
    """
    address, number = port.listeners[0].socket.getsockname()[:2]
    listeners, at = port.listeners, netloc((address, number))
    while True:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, listeners)
                await _wait_for(address, own_addresses, there=False)
                log.warning("this machine has lost the address; other machines do not reach the gateway", address=at)
                nursery.cancel_scope.cancel(reason="the address is gone")
        except* OSError as errors:  # what a network that goes does to a listener is no reason to end what else runs
            log.warning("other machines do not reach the gateway", address=at, error=str(innermost(errors)))
        listeners = await _open_again(address, number, own_addresses)
        log.warning("this machine has the address again; other machines reach the gateway", address=at)


async def _open_again(
    address: str, number: int, own_addresses: Callable[[], Collection[str]]
) -> Sequence[trio.SocketListener]:
    """Return listeners on an address that has gone, as soon as it is back and the port is free."""
    told = ""
    while True:
        await _wait_for(address, own_addresses, there=True)
        try:
            return await open_listeners(address, number, field=FLAG)
        except ListenError as exc:
            if told != str(exc):
                told = str(exc)
                log.warning("other machines do not reach the gateway", address=netloc((address, number)), error=told)


async def _wait_for(address: str, own_addresses: Callable[[], Collection[str]], *, there: bool) -> None:
    while True:
        await wait_tick(LOOK_SECONDS)
        try:
            if (address in own_addresses()) == there:
                return
        except OSError:
            continue  # nothing is known: what was true stays so
