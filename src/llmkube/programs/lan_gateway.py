"""`llmkube up --listen`: the gateway at an address of this machine that others reach, and the keys that they show.

Serve at one address of this machine for as long as the machine has it: a laptop changes networks, and comes back.
"""

import ipaddress
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import UserError, first_leaf
from llmkube.base.http.connection import RequestFilter
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.listen import ListenError, open_listeners
from llmkube.base.http.message import Response, netloc
from llmkube.base.private_files import ensure_token
from llmkube.base.waiting import wait_tick
from llmkube.programs.config import UpConfig
from llmkube.programs.program import Port, open_port
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presents_key
from llmkube.router.origin_policy import is_preflight, refuse_foreign_pages
from llmkube.supervisor.values.api_keys import MOST_CHARS, MOST_KEYS, parse_keys
from llmkube.supervisor.values.host_addresses import is_usable

FLAG: Final = "--listen"


_FILE_FLAG: Final = "--listen-key-file"


_KEY_FILE: Final = "listen-key"
"""In the state directory."""

POLL_SECONDS: Final = 10.0
"""How long until a change of network is noticed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()
Serve = Callable[[Sequence[trio.SocketListener]], Awaitable[object]]
"""Serves on listeners, which it closes, until it is cancelled."""

_MOST_BYTES: Final = (MOST_CHARS + 1) * MOST_KEYS
_LISTEN_PATTERN: Final = re.compile(
    r"(?:\[(?P<six>[^][]*)]|(?P<four>[^][:]*))(?::(?P<port>[0-9]{1,5}))?|(?P<bare>[^][]*)", re.ASCII
)


@attrs.frozen
class ListenSettings:
    """What the user wants other machines to reach.

    Attributes:
        address: An address of this machine.
        port: TCP port; 0 takes a free one.
        key_file: The owner's own; None for the one in the state directory.
        requires_key: Whether requests need a key.
    """

    address: str
    port: int
    key_file: Path | None = None
    requires_key: bool = True

    def keys(self, state_dir: Path) -> "ListenKeys":
        """Read the keys; the first call on a state directory draws one, unless the owner has a file. Blocks.

        Raises:
            UserError: The file cannot be used.
        """
        if self.key_file is not None:
            return _listen_keys(self.key_file, _FILE_FLAG, generated=False)
        path = state_dir / _KEY_FILE
        generated = not path.exists()
        if generated:
            ensure_token(path)
        return _listen_keys(path, FLAG, generated=generated)


@attrs.frozen
class ListenKeys:
    """The keys that other machines may show.

    Attributes:
        path: Where they are.
        keys: At least one.
        generated: Whether the only one was made just now, so that its owner has not seen it yet.
        is_world_readable: Whether other users of this machine may read the file.
    """

    path: Path
    keys: tuple[str, ...] = attrs.field(repr=False)
    generated: bool
    is_world_readable: bool = False


@attrs.frozen(eq=False)
class LanGateway:
    """The gateway's second address.

    Attributes:
        port: Where other machines reach it.
        judge: Which requests are let in.
        keys: What they show; None where every request is let in.
    """

    port: Port
    judge: RequestFilter
    keys: ListenKeys | None


@asynccontextmanager
async def open_lan_gateway(listen: ListenSettings | None, state_dir: Path) -> AsyncIterator[LanGateway | None]:
    """Listen where the user wants other machines served, or nowhere; a taken port draws no key.

    Raises:
        ListenError: The port is taken, or the address is gone.
        UserError: The file with the keys cannot be used.
    """
    if listen is None:
        yield None
        return
    async with open_port(listen.port, FLAG, listen.address) as port:
        keys = listen.keys(state_dir) if listen.requires_key else None
        yield LanGateway(port, refuse_foreign_pages if keys is None else lan_judge(keys.keys), keys)


def lan_judge(keys: Iterable[str]) -> RequestFilter:
    """Return the filter of `up --listen`: requests of other machines need a key; foreign pages are refused."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (refusal := refuse_foreign_pages(head, peer)) is not None:
            return refusal
        if (head.path == "/health" and is_read_only(head)) or is_preflight(head) or presents_key(head, digests):
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
                await _wait_for_address(address, own_addresses, present=False)
                log.warning("this machine has lost the address; other machines do not reach the gateway", address=at)
                nursery.cancel_scope.cancel(reason="the address is gone")
        except* OSError as errors:  # what a network that goes does to a listener is no reason to end what else runs
            log.warning("other machines do not reach the gateway", address=at, error=str(first_leaf(errors)))
        listeners = await _reopen(address, number, own_addresses)
        log.warning("this machine has the address again; other machines reach the gateway", address=at)


async def _reopen(
    address: str, number: int, own_addresses: Callable[[], Collection[str]]
) -> Sequence[trio.SocketListener]:
    """Return listeners on an address that has gone, as soon as it is back and the port is free."""
    logged = ""
    while True:
        await _wait_for_address(address, own_addresses, present=True)
        try:
            return await open_listeners(address, number, field=FLAG)
        except ListenError as exc:
            if logged != str(exc):
                logged = str(exc)
                log.warning("other machines do not reach the gateway", address=netloc((address, number)), error=logged)


async def _wait_for_address(address: str, own_addresses: Callable[[], Collection[str]], *, present: bool) -> None:
    while True:
        await wait_tick(POLL_SECONDS)
        try:
            if (address in own_addresses()) == present:
                return
        except OSError:
            continue  # nothing is known: what was true stays so


def listen_settings(config: UpConfig, own: Callable[[], Collection[str]]) -> ListenSettings | None:
    """Return what `--listen` asks for, or None without it. Blocks on the disk.

    Args:
        config: The program's.
        own: Returns the addresses of this machine that others may reach; raises OSError where it cannot tell.

    Raises:
        UserError: The address is none of them, or the flags do not fit together; the sentence names what does.
    """
    if config.listen is None:
        if config.listen_key_file is not None:
            raise UserError("it is for --listen ADDRESS, which is not given; give both or none", field=_FILE_FLAG)
        return None
    if config.listen_key_file is not None:
        if config.insecure_lan:
            raise UserError(
                "no request would need the keys in it under --insecure-lan; give one of them", field=_FILE_FLAG
            )
        _read_keys(config.listen_key_file, _FILE_FLAG)
    try:
        address, port = parse_listen(config.listen, config.gateway_port, own())
    except OSError as exc:
        problem = f"the system does not tell the addresses of this machine ({exc.strerror or exc})"
        raise UserError(f"{problem}; allow that, or leave the flag out", field=FLAG) from exc
    return ListenSettings(address, port, config.listen_key_file, not config.insecure_lan)


def parse_listen(text: str, default_port: int, own: Collection[str]) -> tuple[str, int]:
    """Return the address and the port in `ADDRESS[:PORT]`; an address of IPv6 with a port has brackets.

    Raises:
        UserError: It is not one address of this machine that other machines may reach; the sentence says which are.
    """
    match = _LISTEN_PATTERN.fullmatch(text)
    port = int((match and match["port"]) or default_port)
    try:
        address = ipaddress.ip_address((match and (match["six"] or match["four"] or match["bare"])) or "")
    except ValueError:
        raise _address_error(f'"{text}" is not an IP address, or one with a port', own) from None
    if port > 65535:
        raise UserError(f"{text}: {port} is not a port; the highest is 65535", field=FLAG)
    if address.is_unspecified:
        problem = f"{address} is every address of this machine, in each network that it joins"
    elif address.is_loopback:
        problem = f"only this machine reaches {address}, and the gateway is on its loopback address without this flag"
    elif not is_usable(str(address)):
        problem = f"{address} is not an address at which other machines are served"
    elif str(address) not in own:
        problem = f"this machine does not have the address {address}"
    else:
        return str(address), port
    raise _address_error(problem, own)


def _address_error(problem: str, own: Collection[str]) -> UserError:
    present = f"give one of {', '.join(sorted(own))}" if own else "it has none at the moment that others reach"
    return UserError(f"{problem}; {present}", field=FLAG)


def _listen_keys(path: Path, field: str, *, generated: bool) -> ListenKeys:
    keys = _read_keys(path, field)
    return ListenKeys(path, keys, generated, is_world_readable=bool(path.stat().st_mode & stat.S_IROTH))


def _read_keys(path: Path, field: str) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:  # what was cut off might be half of a key
            raise ValueError(f"is larger than {_MOST_BYTES} bytes")
        return parse_keys(content)
    except OSError as exc:
        raise UserError(f"{path} cannot be read ({exc.strerror or exc})", field=field) from exc
    except ValueError as exc:
        fix = "" if field == _FILE_FLAG else "; remove it, and a new key is drawn"
        raise UserError(f"{path} {exc}{fix}", field=field) from exc
