"""The string formats that are enforced; others are notes for readers, as in kube-apiserver."""

import base64
import binascii
import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Final


def _parses(read: Callable[[str], object]) -> Callable[[str], bool]:
    def judge(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return judge


_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DURATION: Final = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w))+|0")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]*|/[^\s]*")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_HOST_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_HOST_LABEL}(\.{_HOST_LABEL})*")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_date_time(text: str) -> bool:
    if not _RFC3339.fullmatch(text):
        return False
    return _parses(datetime.datetime.fromisoformat)(re.sub(r"\.(\d{6})\d+", r".\1", text.upper().replace(" ", "T")))


FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _is_base64,
    "date": _parses(datetime.date.fromisoformat),
    "date-time": _is_date_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hostname": lambda text: _HOSTNAME.fullmatch(text) is not None,
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "cidr": lambda text: "/" in text and _parses(ipaddress.ip_interface)(text),
    "uri": lambda text: _URI.fullmatch(text) is not None,
    "uuid": _parses(uuid.UUID),
}
"""By name: whether a text has the format."""
