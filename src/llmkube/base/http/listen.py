"""Listening sockets, with errors that name the address."""

import errno
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

import trio

from llmkube.base.errors import UserError
from llmkube.base.http.dial import dial
from llmkube.base.http.message import netloc

SHARES_PORTS: Final = sys.platform != "linux"
"""Whether two programs of one user can listen on one port, one on all addresses and the other on a specific one.

With SO_REUSEADDR, which every server sets, the BSDs and macOS see no conflict there (`in_pcbbind` in their kernels),
and give connections to the more specific listener.
"""

CONNECT_SECONDS: Final = 1.0
"""Time for an existing listener to accept a connection."""


class ListenError(UserError):
    """The address cannot be listened on; `field` is the flag or setting that chose it."""


class PortTakenError(ListenError):
    """Another program listens on the port."""


async def open_listeners(host: str | None, port: int, *, field: str = "") -> list[trio.SocketListener]:
    """Listen on every address of `host`, or with port 0 on any free port of the first address only.

    Args:
        host: Name or address; None for all addresses of IPv4 and IPv6.
        port: TCP port; with 0, `listeners[0].socket.getsockname()[1]` is the port that was chosen.
        field: Flag or setting that chose the port; errors name it.

    Raises:
        PortTakenError: Another program listens on the port.
        ListenError: The host is unknown or is another machine, or the port needs privileges.
    """
    address = "every address" if host is None else host
    if port and SHARES_PORTS and await _is_listening("localhost" if host is None else host, port):
        raise PortTakenError(_explain(address, port, OSError(errno.EADDRINUSE, "")), field=field)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except UnicodeError as exc:  # a name that DNS cannot carry: an empty label, or one of more than 63 bytes
        raise ListenError(f"cannot listen on {host!r}: not a host name", field=field) from exc
    except OSError as exc:
        error = PortTakenError if exc.errno == errno.EADDRINUSE else ListenError
        raise error(_explain(address, port, exc), field=field) from exc
    if port == 0:  # each address would get a port of its own
        for extra in listeners[1:]:
            await extra.aclose()
        del listeners[1:]
    return listeners


async def _is_listening(host: str, port: int) -> bool:
    """Return whether a process accepts connections there; one that is too busy is found by `bind`, or not at all."""
    with trio.move_on_after(CONNECT_SECONDS):
        try:
            stream = await dial(host, port)
        except (OSError, UnicodeError):
            return False
        await trio.aclose_forcefully(stream)
        return True
    return False


def _explain(host: str, port: int, exc: OSError) -> str:
    return f"cannot listen on {netloc((host, port))}: {_failure_reason(exc)}"


def _failure_reason(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror):
        return f"unknown host ({exc.strerror})"
    if exc.errno == errno.EADDRINUSE:
        return "another program listens there; stop it or choose another port"
    if exc.errno == errno.EACCES:
        return "ports below 1024 need privileges; choose a higher one"
    if exc.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return exc.strerror or str(exc)


_SOCK_DIAG: Final = (4, 20)
"""Family of netlink sockets and type of message with which Linux describes sockets (`sock_diag(7)`)."""

_UID_AT: Final = 80
_ANY_COOKIE: Final = 0xFFFFFFFF


def peer_uid(peer: Sequence[Any], own: Sequence[Any]) -> int | None:
    """Return the user of the other end of a connection within this machine; None if it is not known.

    Args:
        peer: Address of the other end, as sockets have it.
        own: Address of this end.
    """
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    if sys.platform != "linux" or peer[0] not in ("127.0.0.1", "::1"):
        return None
    ends = [socket.inet_pton(family, each[0]) for each in (peer, own)]
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += struct.pack("!HH16s16s", peer[1], own[1], *ends) + struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    protocol, kind = _SOCK_DIAG
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, protocol) as kernel:
            kernel.send(struct.pack("=IHHII", 16 + len(body), kind, 1, 0, 0) + body)  # answered within the call
            found = kernel.recv(4096)
    except OSError:
        return None
    is_found = len(found) >= _UID_AT + 4 and struct.unpack_from("=H", found, 4) == (kind,)
    return int(struct.unpack_from("=I", found, _UID_AT)[0]) if is_found else None
