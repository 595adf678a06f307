"""Listening sockets, with errors that name the address."""

import errno
import socket
import sys
from typing import Final

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
