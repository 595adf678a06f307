"""The API keys of a service's clients, as a Secret has them: one per line, as llama.cpp's `--api-key-file`. Pure.

Several keys are valid at once, so that clients can change from one to the next.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

MOST_KEYS: Final = 64
"""In one Secret."""

MOST_CHARS: Final = 1024
"""In one key."""

_KEY: Final = re.compile(rf'[!"$-~][!-~]{{0,{MOST_CHARS - 1}}}', re.ASCII)
"""What an `Authorization` header carries as one word; some builds take a line with a hash in front for a comment."""


def parse_keys(value: bytes) -> tuple[str, ...]:
    """Return the keys of a Secret's value, each once; empty lines count for nothing.

    Raises:
        ValueError: What is wrong, as the end of a sentence; it repeats no key.
    """
    try:
        lines = value.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError("has other characters than ASCII") from error
    for number, line in enumerate(lines, 1):
        if line and not _KEY.fullmatch(line):
            raise ValueError(
                f"has something else than a key in line {number}: a key is 1 to {MOST_CHARS} printable ASCII "
                "characters without spaces, does not begin with #, and ends with a line feed alone"
            )
    keys = tuple(dict.fromkeys(filter(None, lines)))
    if not keys:
        raise ValueError("is empty")
    if len(keys) > MOST_KEYS:
        raise ValueError(f"has {len(keys)} keys, and {MOST_KEYS} is the most")
    return keys


def digest_of(keys: Iterable[str]) -> str:
    """Return what tells one set of keys from another without telling a key; "" of none."""
    text = "\n".join(sorted(set(keys)))
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
