"""What a reader of a GGUF header asks for and what it returns: ranges of the file, values, tensors."""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.weights.formats.gguf_format import VALUE_NAMES
from llmkube.weights.formats.shape import Tensor

MAX_SHOWN: Final = 80
"""Bytes of a key or a name in an error."""


@attrs.frozen
class Range:
    """Bytes of the file that are needed: at least `length` of them (never 0), from `offset` on."""

    offset: int
    length: int


@attrs.frozen
class Value:
    """One value as it stands in the file: its kind, its number of elements if it is an array, and its bytes.

    `data` is None if there are more bytes than anything that is wanted has; an array of strings has none kept either.
    """

    kind: int
    count: int | None
    data: bytes | None

    @property
    def title(self) -> str:
        """`u32`, or `array of 3 u32`."""
        name = VALUE_NAMES[self.kind]
        return name if self.count is None else f"array of {self.count} {name}"


@attrs.frozen
class Header:
    """What was read: the kept values by key, the tensors, and what they add up to.

    `size_bytes` is None while the length of the file is not known; `needed_bytes` is how long it must be for all its
    tensors, whose data begins at `data_offset`. `tensor_bytes` has the bytes of each tensor type; one that our
    table does not know counts as 0.
    """

    version: int
    tensors: tuple[Tensor, ...]
    values: Mapping[bytes, Value]
    tensor_bytes: Mapping[int, int]
    needed_bytes: int
    size_bytes: int | None
    data_offset: int

    @property
    def tensor_count(self) -> int:
        """How many tensors this file has."""
        return len(self.tensors)


def shown(name: bytes) -> str:
    """A key or name as an error may show it: short, printable, and never a terminal's business."""
    text = name[:MAX_SHOWN].decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text + "…" if len(name) > MAX_SHOWN else text
