"""Messages for users: without credentials and control characters, no longer than the field that holds them. Pure."""

import json
import re
import signal
import unicodedata
from typing import Final

_SECRETS: Final = (
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/@\s]+(?=@)"),  # https://user:password@host
    re.compile(r"(?<=\?)[^\s\"'<>?]*=[^\s\"'<>]*"),  # a signed URL's query
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"(?i)\b(?:token|cookie|api[-_]?key|secret|passwd|password)=[^\s&\"']+"),
)

_CONTROL_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"


def redact(message: str) -> str:
    """Return a message with everything that looks like a credential replaced by `[redacted]`."""
    for pattern in _SECRETS:
        message = pattern.sub("[redacted]", message)
    return message


def is_control(char: str) -> bool:
    """Return whether a character controls a terminal, the lines or the direction of a text, or is invisible.

    The two joiners, which scripts and emojis need, do not.
    """
    return unicodedata.category(char) in _CONTROL_CATEGORIES and char not in _JOINERS


def escape_controls(text: str, keep: str = "") -> str:
    """Return a text with its control characters, except those to keep, as JSON's escapes."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if is_control(char) and char not in keep else char for char in text)


def shorten(message: str, max_bytes: int) -> str:
    """Return a message of at most `max_bytes` in UTF-8: its first line (the failure) and its last ones (the cause).

    The lines in between are left out; a first line that leaves no space for others is cut.
    """
    encoded = message.encode()
    if len(encoded) <= max_bytes:
        return message
    first, _, others = encoded.partition(b"\n")
    available = max_bytes - len(first) - len("\n…\n".encode())
    _, _, last = others[-available:].partition(b"\n") if available > 0 else (b"", b"", b"")
    if not last:
        return encoded[: max_bytes - len("…".encode())].decode(errors="ignore") + "…"
    return f"{first.decode()}\n…\n{last.decode()}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
