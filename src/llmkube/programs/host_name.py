"""The name of this machine, and its address on the network."""

import hashlib
import ipaddress
import socket
import uuid
from pathlib import Path

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.k8s.wire.names import host_id

_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_NAME_FILE = "host-name"
_RANDOM_NODE_BIT = 1 << 40  # RFC 9562 section 6.10: set in a node id that is not a hardware address
_LONGEST_HOST = 58  # characters, so that "-" and four digits still make a DNS label


def default_host_name(host: str | None = None, machine_id: bytes | None = None) -> str:
    """Return the short host name and four hex digits of the machine's id, so that two machines named `mac` differ."""
    short = (socket.gethostname() if host is None else host).split(".")[0]
    digest = hashlib.sha256(_machine_id() if machine_id is None else machine_id).hexdigest()[:4]
    return host_id(f"{short.lower()[:_LONGEST_HOST]}-{digest}")


def stored_host_name(state_dir: Path) -> str:
    """Return the name under which agents on a state directory report; it may change until one has run."""
    return _stored_name(state_dir) or default_host_name()


def persistent_host_name(state_dir: Path) -> str:
    """Return the same name at every start on a state directory, even if the machine's name changes.

    A Mac without a HostName takes its name from the DHCP or DNS server of each network, and its Wi-Fi address may
    differ between networks. A new name would orphan the Lease and the claims of the old one.

    Raises:
        UserError: The folder cannot be used.
    """
    name = _stored_name(state_dir)
    if not name:
        name = default_host_name()
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(state_dir / _NAME_FILE, f"{name}\n")
        except OSError as exc:
            problem = f"the state directory {state_dir} cannot be used ({exc.strerror})"
            raise UserError(f"{problem}; choose another with --state-dir") from exc
    return name


def check_own_address(text: str) -> str:
    """Return the address if engines can listen on it.

    Raises:
        UserError: It is not an IP address of this machine that other machines can reach.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        problem = f'"{text}" is not an IP address'
        raise UserError(f"--host-ip: {problem}; specify one of this machine, such as 192.168.1.50") from None
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        # kube-apiserver refuses these in EndpointSlices (validation of v1 endpoints)
        raise UserError(f"--host-ip: {address} is not routable; specify an address of this machine on its network")
    try:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as exc:
        problem = f"engines cannot listen on {address} ({exc.strerror})"
        raise UserError(f"--host-ip: {problem}; specify an address that this machine has") from exc
    return str(address)


def source_address_for(host: str, port: int) -> str | None:
    """Return the local address for connections to a host; None if no other machine can reach that address."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: for a datagram socket it only queries the routing table
            own = ipaddress.ip_address(str(probe.getsockname()[0]).split("%")[0])
    except OSError:
        return None
    return None if own.is_loopback or own.is_link_local or own.is_unspecified else str(own)


def _stored_name(state_dir: Path) -> str:
    try:
        name = (state_dir / _NAME_FILE).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return name if name and name == host_id(name) else ""


def _machine_id() -> bytes:
    for path in _MACHINE_ID_FILES:
        try:
            content = path.read_bytes().strip()
        except OSError:
            continue
        if content:
            return content
    node = uuid.getnode()
    # Without a hardware address Python generates one for each process, but the name must not change at each start.
    return b"" if node & _RANDOM_NODE_BIT else node.to_bytes(6, "big")
