"""Patterns are matched by RE2, as in kube-apiserver: in time that grows with the text, never exponentially.

The time also grows with the pattern's program: `(a|b)*a(a|b){900}` takes 25 µs for each character. Therefore the
product of the two is limited. RE2 lets other threads run while it matches.

The string formats here are the ones that are enforced; others are informational, as in kube-apiserver.
"""

import base64
import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import re2

from llmkube.base.errors import UserError

MAX_WORK: Final = 1_000_000_000
"""Limit for one match: characters of the text times instructions of the pattern's program; 10 s at worst."""

_GO_MESSAGES: Final = {
    "missing )": "missing closing )",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "no argument for repetition operator": "missing argument to repetition operator",
}


class PatternError(UserError):
    """The pattern is malformed, or too large, or too much work for this text."""


def found(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises:
        PatternError: The pattern is malformed, or the match would exceed `MAX_WORK`.
    """
    return compile_for(pattern, text).search(text) is not None


def compile_for(pattern: str, text: str) -> Any:
    """Return RE2's compiled pattern, for use on that text.

    Raises:
        PatternError: As for `found`.
    """
    program = compiled(pattern)
    if program.programsize * len(text) > MAX_WORK:
        raise PatternError(f"the text of {len(text)} characters is too long for the pattern '{pattern}'")
    return program


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Return the RE2 pattern, compiled at most once.

    Raises:
        PatternError: The pattern is malformed; the message is that of Go's parser, which kube-apiserver uses.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        message, _, where = (error.args[0].decode(errors="replace") if error.args else "").partition(": ")
        go_message = _GO_MESSAGES.get(message, message)
        raise PatternError(f"error parsing regexp: {go_message}: `{where}`") from error


def size(pattern: str) -> int:
    """Return the number of instructions in the pattern's program; 0 when the pattern is malformed."""
    try:
        return int(compiled(pattern).programsize)
    except PatternError:
        return 0


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def is_valid(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return is_valid


_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DURATION: Final = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w))+|0")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]*|/[^\s]*")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_HOST_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_HOST_LABEL}(\.{_HOST_LABEL})*")


def _is_date_time(text: str) -> bool:
    if not _RFC3339.fullmatch(text):
        return False
    return _parses(datetime.datetime.fromisoformat)(re.sub(r"\.(\d{6})\d+", r".\1", text.upper().replace(" ", "T")))


FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _parses(partial(base64.b64decode, validate=True)),
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
"""By name: a function that returns whether a text has the format."""
