"""Detect whether macOS lets the agent connect to machines on its own network (Local Network Privacy, Apple's TN3179).

In a login session, a job that its user has not allowed gets EHOSTUNREACH for every machine of the network, while the
internet and the router are reachable. Daemons are exempt. macOS offers no query for this, so the agent itself opens
connections and records the result.
"""

import errno
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from llmkube.base.private_files import write_private

log = structlog.get_logger(__name__)

Address = tuple[str, int]
Dial = Callable[[Address], Awaitable[int]]
"""Connects to an address and returns the errno; 0 for success."""

REACHED: Final = "reached"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"

TRY_SECONDS: Final = 3.0
_MAX_PEERS: Final = 4
_DISCARD_PORT: Final = 9  # nothing listens there, so a machine that is up refuses the connection (RFC 863)
_NEIGHBOR: Final = re.compile(r"\((\d+\.\d+\.\d+\.\d+)\) at [0-9a-f:]+ on ", re.IGNORECASE)


def lan_access_path(state_dir: Path) -> Path:
    """Return the file in which the agent records the result, for commands on this host."""
    return state_dir / "lan-access"


def read_lan_access(state_dir: Path) -> str:
    """Return the result that the agent recorded; "" if there is none yet, or if it does not run under launchd."""
    try:
        return lan_access_path(state_dir).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""


def lan_peers(api_server: Address | None, arp_table: str, default_gateway: str) -> tuple[Address, ...]:
    """Return the machines on this network to try, the API server first.

    Args:
        api_server: Address and port of the API server; ignored if it is a DNS name or not a private address.
        arp_table: Output of `arp -an`.
        default_gateway: Left out, because it is always reachable.
    """
    peers: list[Address] = []
    if api_server is not None and _is_lan_address(api_server[0]):
        peers.append(api_server)
    peers += [(address, _DISCARD_PORT) for address in _NEIGHBOR.findall(arp_table) if _is_lan_address(address)]
    return tuple(dict.fromkeys(each for each in peers if each[0] != default_gateway))[:_MAX_PEERS]


def assess(errors: Sequence[int]) -> str:
    """Return the result of the attempts: reached if one got through, refused if all got EHOSTUNREACH, else unknown.

    A machine that is off gives EHOSTUNREACH as well, so a single attempt cannot show a refusal.
    """
    if any(each in {0, errno.ECONNREFUSED, errno.ECONNRESET} for each in errors):
        return REACHED
    if len(errors) > 1 and all(each == errno.EHOSTUNREACH for each in errors):
        return REFUSED
    return UNKNOWN


async def record_lan_access(state_dir: Path, peers: Sequence[Address], dial: Dial | None = None) -> None:
    """Try to connect to the machines, and record the result in the state directory."""
    errors = [await (dial or dial_tcp)(peer) for peer in peers]
    found = assess(errors)
    if found == REFUSED:
        log.error(
            "local network access denied by macOS (Local Network Privacy): pods may be unable to reach this host's "
            "engines",
            next="llmkube agent install --daemon",
        )
    await trio.to_thread.run_sync(lambda: write_private(lan_access_path(state_dir), f"{found}\n", durable=False))


async def dial_tcp(address: Address) -> int:
    """Open a connection and close it; ETIMEDOUT after three seconds."""
    with trio.move_on_after(TRY_SECONDS):
        try:
            family = trio.socket.AF_INET6 if ":" in address[0] else trio.socket.AF_INET
            with trio.socket.socket(family, trio.socket.SOCK_STREAM) as sock:
                await sock.connect(address)
        except OSError as exc:
            return exc.errno or errno.EIO
        return 0
    return errno.ETIMEDOUT


async def read_neighbors() -> tuple[str, str]:
    """Return the output of `arp -an` and the default gateway's address; empty if macOS does not report them."""
    arp, route = "", ""
    try:
        with trio.move_on_after(TRY_SECONDS):
            arp = await _output("/usr/sbin/arp", "-an")
            route = await _output("/sbin/route", "-n", "get", "default")
    except OSError:
        pass
    found = re.search(r"gateway: (\S+)", route)
    return arp, found.group(1) if found else ""


async def _output(*command: str) -> str:
    done = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    return done.stdout.decode("utf-8", "replace")


def _is_lan_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_private and not (address.is_loopback or address.is_link_local or address.is_unspecified)
