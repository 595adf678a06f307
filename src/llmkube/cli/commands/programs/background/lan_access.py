"""Whether this program may talk to machines of its own network.

macOS lets a program's user decide (Local Network Privacy, Apple's TN3179). A job in a login's session that was never
allowed gets EHOSTUNREACH from each machine of the network, while the internet and the router can be reached: all seems
well, until a pod wants an answer. Daemons are exempt. Only the job itself can tell, so the agent tries.
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
"""Tries an address, and returns an errno; 0 for one that answers or refuses."""

REACHED: Final = "reached"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"

TRY_SECONDS: Final = 3.0
_PEERS: Final = 4
_DISCARD_PORT: Final = 9  # of which a machine that is there says that nothing listens (RFC 863)
_NEIGHBOR: Final = re.compile(r"\((\d+\.\d+\.\d+\.\d+)\) at [0-9a-f:]+ on ", re.IGNORECASE)


def lan_access_path(state_dir: Path) -> Path:
    """Return where the agent leaves what it found, for commands on this host."""
    return state_dir / "lan-access"


def read_lan_access(state_dir: Path) -> str:
    """Return what the agent found; "" when it has found nothing yet, or does not run under launchd."""
    try:
        return lan_access_path(state_dir).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""


def lan_peers(api_server: Address | None, arp_table: str, router: str) -> tuple[Address, ...]:
    """Return the machines of this network that are worth a try, the most telling one first.

    Args:
        api_server: The API server's address, if the host's name is one.
        arp_table: What `arp -an` prints.
        router: The default gateway, which is reached in any case, and tells nothing.
    """
    peers: list[Address] = []
    if api_server is not None and _is_lan_address(api_server[0]):
        peers.append(api_server)
    peers += [(address, _DISCARD_PORT) for address in _NEIGHBOR.findall(arp_table) if _is_lan_address(address)]
    return tuple(dict.fromkeys(each for each in peers if each[0] != router))[:_PEERS]


def assess(errors: Sequence[int]) -> str:
    """Say what the tries mean: one that got through is enough, and only EHOSTUNREACH from all speaks of a refusal.

    A single machine that is off gives EHOSTUNREACH as well, so less than two tries prove nothing.
    """
    if any(each in {0, errno.ECONNREFUSED, errno.ECONNRESET} for each in errors):
        return REACHED
    if len(errors) > 1 and all(each == errno.EHOSTUNREACH for each in errors):
        return REFUSED
    return UNKNOWN


async def record_lan_access(state_dir: Path, peers: Sequence[Address], dial: Dial | None = None) -> None:
    """Try the machines, and leave what that means in the state directory."""
    errors = [await (dial or dial_tcp)(peer) for peer in peers]
    found = assess(errors)
    if found == REFUSED:
        log.error(
            "macOS keeps this agent from its own network (Local Network Privacy); pods may not reach its engines",
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
    """Return what `arp -an` prints and the default gateway's address; empty where macOS does not say."""
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
