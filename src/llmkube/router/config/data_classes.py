"""Data classes named in a client's header or in the default of a spec. Pure.

Parsing must never lose a sensitive class. A class too many is safe: it can only exclude backends.
"""

import re
import unicodedata
from typing import Final

_NONE: Final = frozenset[str]()
_NON_WORD: Final = re.compile(r"[^\w-]+")
_LIST_SEPARATORS: Final = re.compile(r"[;|\s]+")
"""Separators besides the comma. Class names may contain a dot or a slash, so these do not separate."""


def normalized_class(text: str) -> str:
    """Return a class in the form used for comparison: lower case, single spaces, Unicode NFKC."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def header_values(line: str) -> frozenset[str]:
    """Return the values of a comma-separated header in lower case."""
    if not line:
        return _NONE
    values = (each.strip().strip('"').strip() for each in line.lower().split(","))
    return frozenset(each for each in values if each)


def classes_in(line: str) -> frozenset[str]:
    """Return the classes in a text, under every plausible reading of it.

    A class name may contain a space, but a client that sends `pii phi`, `pii;phi` or `["pii"]` means pii. A header
    arrives as Latin-1, while most clients mean UTF-8. Copied text may contain invisible spaces and characters.
    """
    if not line:
        return _NONE
    if line.isascii():
        return _values_and_pieces(line)
    return frozenset().union(*(_values_and_pieces(each) for each in _decodings(line)))


def _values_and_pieces(line: str) -> frozenset[str]:
    values = header_values(line)
    if line.isalpha():
        return values
    parts = (part for value in values for each in (_NON_WORD, _LIST_SEPARATORS) for part in each.split(value) if part)
    return values.union(parts, (" ".join(value.split()) for value in values))


def _decodings(line: str) -> set[str]:
    try:
        decodings = {line, line.encode("latin-1").decode("utf-8")}
    except UnicodeError:  # not UTF-8, or already decoded
        decodings = {line}
    decodings |= {unicodedata.normalize("NFKC", each) for each in decodings}
    return decodings | {"".join(char for char in each if unicodedata.category(char) != "Cf") for each in decodings}
