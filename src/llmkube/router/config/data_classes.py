"""Which data classes a text names: a header of a client, or the default of a spec. Pure.

No reading of a text may lose a sensitive class: what is read too much can only close backends.
"""

import re
import unicodedata
from typing import Final

_NONE: Final = frozenset[str]()
_NON_WORD: Final = re.compile(r"[^\w-]+")
_LIST_SEPARATORS: Final = re.compile(r"[;|\s]+")
"""What else stands between the values of a list; the name of a class may have a dot or a slash in it."""


def normalized_class(text: str) -> str:
    """Return a class as it is compared: in lower case, with one space between words, letters in one form."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def header_values(line: str) -> frozenset[str]:
    """Return the values of a header that lists some, in lower case."""
    if not line:
        return _NONE
    values = (each.strip().strip('"').strip() for each in line.lower().split(","))
    return frozenset(each for each in values if each)


def classes_in(line: str) -> frozenset[str]:
    """Return the classes that a text names, read in each way in which it may be meant.

    The name of a class may have a space in it. A client that writes `pii phi`, `pii;phi` or `["pii"]` means pii. A
    header comes as Latin-1, and most clients mean UTF-8; a copied text may have spaces and signs that are not visible.
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
    pieces = (
        piece
        for value in values
        for pattern in (_NON_WORD, _LIST_SEPARATORS)
        for piece in pattern.split(value)
        if piece
    )
    return values.union(pieces, (" ".join(value.split()) for value in values))


def _decodings(line: str) -> set[str]:
    try:
        decodings = {line, line.encode("latin-1").decode("utf-8")}
    except UnicodeError:  # no UTF-8, or read as such already
        decodings = {line}
    decodings |= {unicodedata.normalize("NFKC", each) for each in decodings}
    return decodings | {"".join(char for char in each if unicodedata.category(char) != "Cf") for each in decodings}
