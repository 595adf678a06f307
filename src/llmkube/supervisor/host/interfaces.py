"""The addresses of this machine's network interfaces."""

import socket

import psutil


def interface_addresses() -> list[str]:
    """Return every IP address of every interface, as it is now.

    Raises:
        OSError: It cannot be asked: no descriptor is left for the question.
    """
    interfaces, families = psutil.net_if_addrs().values(), {socket.AF_INET, socket.AF_INET6}
    return [entry.address for entries in interfaces for entry in entries if entry.family in families]
