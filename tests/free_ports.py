"""A port for a program that needs its number beforehand: neither the kernel nor another test uses it.

A port that the kernel has chosen is free again once it is closed: the next outgoing connection or the next bind of
port 0 may get it, and the program then finds its port taken. The ports of this module lie outside of the kernel's
range. A program that can bind port 0 and report the result does not need one.
"""

import random
import socket
from pathlib import Path

_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ELSEWHERE = (49152, 65535)  # what macOS and the BSDs hand out
_OURS = range(20000, 30000)  # below the node ports of Kubernetes
_dice = random.Random()  # of its own: Hypothesis seeds the module's, in all workers alike


def free_port() -> int:
    """Return a port that is free on all addresses; it is this process's until its exit, and never returned twice.

    A UDP socket with the same number reserves it among the test processes; the kernel closes it with this process.

    Raises:
        RuntimeError: No port is free.
    """
    first, last = kernels_range()
    ports = [port for port in _OURS if not first <= port <= last]
    for port in _dice.sample(ports, len(ports)):
        if _is_free(port) and _claims(port):
            return port
    ours = f"{_OURS.start} to {_OURS.stop - 1}"
    raise RuntimeError(f"no port of {ours} is free and outside of {first} to {last}, {_KERNELS}")


def kernels_range() -> tuple[int, int]:
    """Return the first and the last port of the range from which the kernel assigns ports."""
    try:
        first, last = map(int, _KERNELS.read_text().split())
    except FileNotFoundError:
        return _ELSEWHERE
    return first, last


def _claims(port: int) -> bool:
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    claim.detach()
    return True


def _is_free(port: int) -> bool:
    families = (socket.AF_INET, socket.AF_INET6) if socket.has_dualstack_ipv6() else (socket.AF_INET,)
    try:
        for family in families:
            with socket.socket(family) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
    except OSError:
        return False
    return True
