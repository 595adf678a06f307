"""API keys of a service's clients in a Secret: one per line, as in llama.cpp's `--api-key-file`. Pure.

Several keys can be valid at once, so that keys can be rotated.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

MAX_KEYS: Final = 64
"""Maximum number of keys in one Secret."""

MAX_CHARS: Final = 1024
"""Maximum length of one key."""

_KEY: Final = re.compile(rf'[!"$-~][!-~]{{0,{MAX_CHARS - 1}}}', re.ASCII)
"""Printable ASCII without spaces; no `#` in front, since some llama.cpp builds read such a line as a comment."""


def parse_keys(value: bytes) -> tuple[str, ...]:
    """Return the distinct keys in a Secret's value; ignore empty lines.

    Raises:
        ValueError: The value is invalid; the message is the end of a sentence, and contains no key.
    """
    try:
        lines = value.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError("has characters other than ASCII") from error
    for number, line in enumerate(lines, 1):
        if line and not _KEY.fullmatch(line):
            raise ValueError(
                f"has an invalid key in line {number}: a key is 1 to {MAX_CHARS} printable ASCII "
                "characters without spaces, does not start with #, and ends with a line feed only"
            )
    keys = tuple(dict.fromkeys(filter(None, lines)))
    if not keys:
        raise ValueError("is empty")
    if len(keys) > MAX_KEYS:
        raise ValueError(f"has {len(keys)} keys; at most {MAX_KEYS} are allowed")
    return keys


def digest_of(keys: Iterable[str]) -> str:
    """Return a digest of a set of keys; "" without keys."""
    text = "\n".join(sorted(set(keys)))
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
