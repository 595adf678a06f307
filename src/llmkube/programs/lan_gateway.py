"""`llmkube up --listen`: open the gateway to other machines, at one address of this machine and with keys.

The address is served while the machine has it: a laptop leaves its network and comes back.
"""

import ipaddress
import random
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Never, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import UserError, first_leaf
from llmkube.base.http.connection import RequestFilter, StreamHandler
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.listen import ListenError, open_listeners
from llmkube.base.http.message import Response, netloc
from llmkube.base.private_files import ensure_token
from llmkube.base.times import utcnow
from llmkube.base.waiting import wait_tick
from llmkube.k8s.builtins import Secret
from llmkube.k8s.client import Client
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.programs.config import UpConfig
from llmkube.programs.page.handler import is_public
from llmkube.programs.program import Port, open_port
from llmkube.programs.router_host.secret_files import key_texts
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presented_credential, presents_key
from llmkube.router.auth.issued_keys import ISSUED_IN
from llmkube.router.auth.key_files import NO_KEYS, KeyHolders, holders_in
from llmkube.router.auth.principals import KEY_EXPIRED
from llmkube.router.origin_policy import is_preflight, refuse_foreign_pages
from llmkube.router.responses.store import logged_path
from llmkube.supervisor.values.api_keys import MAX_CHARS, MAX_KEYS, parse_keys
from llmkube.supervisor.values.host_addresses import is_usable

FLAG: Final = "--listen"
_FILE_FLAG: Final = "--listen-key-file"
_KEY_FILE: Final = "listen-key"
"""Name in the state directory."""

POLL_SECONDS: Final = 10.0
"""Interval at which the machine's addresses are checked."""

KEYS_SECRET: Final = Key("default", ISSUED_IN)
"""The Secret of issued keys."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()
Serve = Callable[[Sequence[trio.SocketListener]], Awaitable[object]]
"""Serves on listeners, which it closes, until it is cancelled."""

_MAX_BYTES: Final = (MAX_CHARS + 1) * MAX_KEYS
_LISTEN_PATTERN: Final = re.compile(
    r"(?:\[(?P<six>[^][]*)]|(?P<four>[^][:]*))(?::(?P<port>[0-9]{1,5}))?|(?P<bare>[^][]*)", re.ASCII
)


@attrs.frozen
class ListenSettings:
    """The address at which other machines reach the gateway.

    Attributes:
        address: An address of this machine.
        port: TCP port; 0 selects a free one.
        key_file: The user's file of keys; None for the one in the state directory.
        requires_key: Whether requests need a key.
    """

    address: str
    port: int
    key_file: Path | None = None
    requires_key: bool = True

    def keys(self, state_dir: Path) -> "ListenKeys":
        """Read the keys; if the user names no file, the first call generates a key in the state directory. Blocks.

        Raises:
            UserError: The file cannot be used.
        """
        path, field = (state_dir / _KEY_FILE, FLAG) if self.key_file is None else (self.key_file, _FILE_FLAG)
        generated = self.key_file is None and not path.exists()
        if generated:
            ensure_token(path)
        return ListenKeys(path, _read_keys(path, field), generated, bool(path.stat().st_mode & stat.S_IROTH))


@attrs.frozen
class ListenKeys:
    """The keys that other machines may send.

    Attributes:
        path: File of the keys.
        keys: At least one key.
        generated: Whether the key was just generated, so that the user has not seen it yet.
        is_world_readable: Whether other users of this machine may read the file.
    """

    path: Path
    keys: tuple[str, ...] = attrs.field(repr=False)
    generated: bool
    is_world_readable: bool = False


@attrs.frozen(eq=False)
class LanGateway:
    """The gateway's address for other machines.

    Attributes:
        port: The open port.
        judge: Filter of requests.
        keys: The keys in the file; None if requests need no key.
        issued: The holders of issued keys.
    """

    port: Port
    judge: RequestFilter
    keys: ListenKeys | None
    issued: KeyHolders

    def identified(self, handler: StreamHandler) -> StreamHandler:
        """Return a handler for requests of the listener: it sets the client, if that is known by an issued key."""

        async def handle(exchange: StreamExchange) -> None:
            client = self.issued.holder_of(digest_of_key(presented_credential(exchange.head.lines)))
            if client is not None:
                exchange.client, exchange.owner = client, client.tenant
            try:
                await handler(exchange)
            finally:
                who = {"key": client.name, "team": client.team} if client is not None else {}
                who |= {"path": logged_path(exchange.head.path)[:MAX_CHARS], "model": exchange.about}
                log.info("request answered", source=exchange.peer, **who, status=exchange.status)

        return handle

    async def follow_issued_keys(
        self, client: Client, rng: random.Random, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Watch the Secret of issued keys until cancelled; started once it has been read."""
        cache = Cache[Secret]()

        def read(key: Key) -> None:
            if key == KEYS_SECRET:
                self.issued.holders = holders_in(key_texts(cache.get(key)))

        async with trio.open_nursery() as nursery:
            reflect = partial(run_reflector, namespace=KEYS_SECRET.namespace, rng=rng)
            nursery.start_soon(reflect, client, Secret, cache, read)
            await cache.synced.wait()
            task_status.started()
            await trio.sleep_forever()


@asynccontextmanager
async def open_lan_gateway(
    listen: ListenSettings | None, state_dir: Path, judge_page: RequestFilter = refuse_foreign_pages
) -> AsyncIterator[LanGateway | None]:
    """Listen for other machines if the user wants that; if the port is taken, no key is generated.

    Args:
        listen: The address; None if the user wants none.
        state_dir: Folder of a generated key.
        judge_page: Filter of web pages.

    Raises:
        ListenError: The port is taken, or the machine no longer has the address.
        UserError: The file with the keys cannot be used.
    """
    if listen is None:
        yield None
        return
    async with open_port(listen.port, FLAG, listen.address) as port:
        keys = listen.keys(state_dir) if listen.requires_key else None
        issued = KeyHolders(lambda: utcnow().timestamp())
        yield LanGateway(port, judge_page if keys is None else lan_judge(keys.keys, judge_page, issued), keys, issued)


def lan_judge(
    keys: Iterable[str], judge_page: RequestFilter = refuse_foreign_pages, issued: KeyHolders = NO_KEYS
) -> RequestFilter:
    """Return the filter of `up --listen`: requests need a key, and foreign web pages are refused."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (refusal := judge_page(head, peer)) is not None:
            return refusal
        is_open = (head.path == "/health" and is_read_only(head)) or is_preflight(head) or is_public(head)
        if is_open or presents_key(head, digests):
            return None
        digest = digest_of_key(presented_credential(head.lines))
        if issued.holder_of(digest) is not None:
            return None
        if issued.has_expired(digest):
            return KEY_EXPIRED
        return key_refusal("this gateway requires a key: send `Authorization: Bearer KEY`; its owner has one")

    return judge


async def run_lan_listener(port: Port, serve: Serve, own_addresses: Callable[[], Collection[str]]) -> NoReturn:
    """Serve on a port while this machine has its address; open the port again when the address is back.

    The listeners are closed when the address is lost, because on some systems they would not work once it is back.

    Args:
        port: The open port.
        serve: See `Serve`.
        own_addresses: Returns this machine's addresses; raises OSError if they cannot be determined.
    """
    address, number = port.listeners[0].socket.getsockname()[:2]
    listeners, at = port.listeners, netloc((address, number))
    while True:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, listeners)
                await _wait_for_address(address, own_addresses, present=False)
                log.warning("address lost, gateway unreachable for other machines", address=at)
                nursery.cancel_scope.cancel(reason="the address is lost")
        except* OSError as errors:  # a lost network breaks listeners, but must not stop the other tasks
            log.warning("gateway unreachable for other machines", address=at, error=str(first_leaf(errors)))
        listeners = await _reopen(address, number, own_addresses)
        log.warning("address restored, gateway reachable for other machines", address=at)


async def _reopen(address: str, number: int, own: Callable[[], Collection[str]]) -> Sequence[trio.SocketListener]:
    """Return listeners on a lost address, as soon as it is back and the port is free."""
    logged = ""
    while True:
        await _wait_for_address(address, own, present=True)
        try:
            return await open_listeners(address, number, field=FLAG)
        except ListenError as exc:
            if logged != str(exc):
                logged = str(exc)
                log.warning("gateway unreachable for other machines", address=netloc((address, number)), error=logged)


async def _wait_for_address(address: str, own: Callable[[], Collection[str]], *, present: bool) -> None:
    while True:
        await wait_tick(POLL_SECONDS)
        try:
            if (address in own()) == present:
                return
        except OSError:
            continue  # unknown: assume no change


def listen_settings(config: UpConfig, own: Callable[[], Collection[str]]) -> ListenSettings | None:
    """Return the settings of `--listen`, or None without the flag. Blocks on the disk.

    Args:
        config: Settings of the program.
        own: Returns this machine's addresses on its networks; raises OSError if they cannot be determined.

    Raises:
        UserError: The address is not one of them, or flags conflict.
    """
    if config.listen is None:
        if config.listen_key_file is not None:
            raise UserError("it requires --listen ADDRESS; specify both or neither", field=_FILE_FLAG)
        return None
    if config.listen_key_file is not None:
        if config.insecure_lan:
            raise UserError("under --insecure-lan no keys are needed; specify only one of the two", field=_FILE_FLAG)
        _read_keys(config.listen_key_file, _FILE_FLAG)
    try:
        address, port = parse_listen(config.listen, config.gateway_port, own())
    except OSError as exc:
        problem = f"the addresses of this machine cannot be determined ({exc.strerror or exc})"
        raise UserError(f"{problem}; allow this program to read them, or omit the flag", field=FLAG) from exc
    return ListenSettings(address, port, config.listen_key_file, not config.insecure_lan)


def parse_listen(text: str, default_port: int, own: Collection[str]) -> tuple[str, int]:
    """Return the address and the port in `ADDRESS[:PORT]`; an IPv6 address with a port has brackets.

    Raises:
        UserError: It is not an address of this machine that others can reach; the message lists those that are.
    """
    match = _LISTEN_PATTERN.fullmatch(text)
    port = int((match and match["port"]) or default_port)
    try:
        address = ipaddress.ip_address((match and (match["six"] or match["four"] or match["bare"])) or "")
    except ValueError:
        raise _address_error(f'"{text}" is not an IP address, with or without a port', own) from None
    if port > 65535:
        raise UserError(f"{text}: {port} is not a port; the highest is 65535", field=FLAG)
    if address.is_unspecified:
        problem = f"{address} means every address of this machine, in each network that it joins"
    elif address.is_loopback:
        problem = f"only this machine can reach {address}, where the gateway listens without this flag, too"
    elif not is_usable(str(address)):
        problem = f"other machines cannot be served at {address}"
    elif str(address) not in own:
        problem = f"this machine does not have the address {address}"
    else:
        return str(address), port
    raise _address_error(problem, own)


def _address_error(problem: str, own: Collection[str]) -> UserError:
    present = f"give one of {', '.join(sorted(own))}" if own else "it has no address now that others can reach"
    return UserError(f"{problem}; {present}", field=FLAG)


def _read_keys(path: Path, field: str) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:  # a truncated file might end with half a key
            raise ValueError(f"is larger than {_MAX_BYTES} bytes")
        return parse_keys(content)
    except OSError as exc:
        raise UserError(f"{path} cannot be read ({exc.strerror or exc})", field=field) from exc
    except ValueError as exc:
        fix = "" if field == _FILE_FLAG else "; remove the file, and a new key is generated"
        raise UserError(f"{path} {exc}{fix}", field=field) from exc
