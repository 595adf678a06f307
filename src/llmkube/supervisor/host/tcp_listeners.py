"""TCP ports of a Linux host, or of a pod, that have a listener, and those at which a client waits.

For a listener the kernel reports the number of connections that are not accepted yet, for a connection the number of
unread bytes. sock_diag(7) is queried for these two states only: /proc/net/tcp also lists all recently closed
connections, and takes ten times as long on a host with many of them. It is the fallback if sock_diag is missing.
"""

import re
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from pathlib import Path
from typing import Final

from llmkube.supervisor.host.procfs import PROC

ESTABLISHED: Final = 1
LISTEN: Final = 10
"""States from the kernel's net/tcp_states.h."""

_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_DONE, _ERROR = 3, 2
_REPLY_BYTES: Final = 64 * 1024

_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_REQUEST: Final = struct.Struct("=BBBxI48x")  # inet_diag_req_v2: family, protocol, extensions, states, no socket
_ANSWER: Final = struct.Struct("=xB2xBB50xI")  # inet_diag_msg: state, port (network order), receive queue

_LINE: Final = re.compile(rb":([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} (0A|01) [0-9A-F]{8}:([0-9A-F]{8}) ")
"""A line of /proc/net/tcp: port, state and receive queue."""

Link = tuple[int, int, int]
"""State, local port, and receive queue: connections that are not accepted, or bytes that are not read."""


def listening_ports(wanted: AbstractSet[int]) -> Mapping[int, bool] | None:
    """Return the ports with a listener, and whether a client waits at each; None if the kernel does not report them.

    IPv6 is queried only if a wanted port has no listener in IPv4.
    """
    listening: set[int] = set()
    waiting: set[int] = set()
    answered = False
    for links in _by_family():
        answered = True
        listening |= {port for state, port, _ in links if state == LISTEN}
        waiting |= {port for _, port, queue in links if queue}
        if wanted <= listening:
            break
    return {port: port in waiting for port in listening} if answered else None


def connections_at(port: int) -> tuple[bool, int] | None:
    """Return whether a port has a listener, and its number of connections; None if the kernel does not report them."""
    families = [[state for state, local, _ in links if local == port] for links in _by_family()]
    found = list(chain.from_iterable(families))
    return (LISTEN in found, found.count(ESTABLISHED)) if families else None


def _by_family() -> Iterator[list[Link]]:
    """Yield the links of IPv4, then those of IPv6, if this host supports them."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            yield _links(family)
        except OSError:
            continue


def _links(family: socket.AddressFamily) -> list[Link]:
    """Return all listeners and connections; raises `OSError` if neither method works."""
    try:
        return list(_query_kernel(family))
    except (OSError, struct.error):
        return list(_read(PROC / "net" / ("tcp" if family is socket.AF_INET else "tcp6")))


def _query_kernel(family: socket.AddressFamily) -> Iterator[Link]:
    """Query sock_diag; the kernel answers during the call, so this does not block."""
    if sys.platform != "linux":
        raise OSError("only Linux has netlink")
    states = 1 << LISTEN | 1 << ESTABLISHED
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, states)
    head = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.send(head + request)
        while True:
            reply, at = kernel.recv(_REPLY_BYTES, socket.MSG_DONTWAIT), 0
            while at < len(reply):
                size, kind, _, _, _ = _HEADER.unpack_from(reply, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("sock_diag failed")
                state, high, low, queue = _ANSWER.unpack_from(reply, at + _HEADER.size)
                yield state, high << 8 | low, queue
                at += (size + 3) & ~3


def _read(table: Path) -> Iterator[Link]:
    for port, state, queue in _LINE.findall(table.read_bytes()):
        yield int(state, 16), int(port, 16), int(queue, 16)
