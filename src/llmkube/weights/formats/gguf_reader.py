"""Read a header from pieces of a file, without I/O: the reader returns which piece it needs next.

```
 HeaderReader.next_range ── Range ──▶ a file, or an HTTP Range request
        ▲                              │
        └────────── feed(data) ◀───────┘        until `next_range` is None: then `header` has the result
```

A file is refused by the rules of llama.cpp's `gguf_init_from_file`, before an engine is started for it. In addition,
there are bounds on time and memory, each a constant below. Arrays of strings have to be skipped string by string, since
each string has its own length; they are not retained.
"""

import math
import struct
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Final

import attrs

from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats import gguf_format as fmt
from llmkube.weights.formats.shape import Tensor

MAX_SHOWN: Final = 80
"""Maximum bytes of a key or a name in an error."""


@attrs.frozen
class Range:
    """Bytes of the file that are needed: at least `length` (never 0) from `offset`."""

    offset: int
    length: int


@attrs.frozen
class Value:
    """One value in the file: its kind, the number of its elements if it is an array, and its bytes.

    `data` is None if the value is longer than `MAX_VALUE_BYTES`; for an array of strings it is empty.
    """

    kind: int
    count: int | None
    data: bytes | None

    @property
    def title(self) -> str:
        """`u32`, or `array of 3 u32`."""
        name = fmt.VALUE_NAMES[self.kind]
        return name if self.count is None else f"array of {self.count} {name}"


@attrs.frozen
class Header:
    """The content of a header: the retained values by key, the tensors, and their sums.

    `size_bytes` is None if the size of the file is unknown; `needed_bytes` is the minimum size for all its tensors,
    whose data begins at `data_offset`. `tensor_bytes` has the bytes of each tensor type, 0 for types that our table
    does not have.
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
        """The number of tensors in this file."""
        return len(self.tensors)

    @property
    def max_bytes(self) -> int:
        """The size that no file with this header needs to exceed; tensors of unknown types have 64 bits per element."""
        unknown = sum(8 * math.prod(each.sizes) for each in self.tensors if not each.size_bytes)
        return self.needed_bytes + unknown + MAX_PADDING_BYTES


def escaped(name: bytes) -> str:
    """Return a key or name for an error: short and printable, without control sequences."""
    text = name[:MAX_SHOWN].decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text + "…" if len(name) > MAX_SHOWN else text


MAX_HEADER_BYTES: Final = 256 << 20
"""A longer header is refused: the largest vocabularies in use take about 20 MiB."""
MAX_KEYS: Final = 1 << 16
"""Real files have a few dozen."""
MAX_PADDING_BYTES: Final = 1 << 20
"""Tolerated bytes after the last tensor."""
MAX_TENSORS: Final = 1 << 16
"""The largest models, with each expert a tensor of its own, have under fifty thousand."""
MAX_SKIPPED_STRINGS: Final = 1 << 21
"""Limit of all arrays together; the largest vocabularies with their merges have under a million."""
MAX_KEY_BYTES: Final = 1 << 16
"""The format's limit; engines allow more."""
MAX_VALUE_BYTES: Final = 1 << 16
"""A longer value is skipped, and only its kind is retained."""
MAX_RETAINED_BYTES: Final = 1 << 20
"""Limit of all retained values together."""

_DIGESTED_BYTES: Final = 64  # for longer keys, only the hash is stored
_START_BYTES: Final = 24
_MAX_ELEMENTS: Final = (1 << 63) - 1
_ALIGNMENT: Final = b"general.alignment"

_U32: Final = fmt.LAYOUTS[fmt.UINT32]
_U64: Final = fmt.LAYOUTS[fmt.UINT64]
_STARTS: Final = struct.Struct("<4sIQQ")
_TENSOR_TAIL: Final = struct.Struct("<IQ")
_SHAPES: Final = tuple(struct.Struct(f"<{count}Q") for count in range(fmt.MAX_DIMENSIONS + 1))


Steps = Generator[Range, bytes, None]


class HeaderReader:
    """A reader of one header; feed it until `next_range` is None.

    Every call either makes progress or raises; all calls together take less than a second and 64 MiB, whatever the
    content.

    Args:
        name: The name of the file in errors.
        size_bytes: The size of the file, or None if unknown.
        limit_bytes: The end of the range in which the reader may request pieces.

    Attributes:
        next_range: The piece that is needed next; None when the header is complete.
        header: The result, once `next_range` is None.
        string_arrays: Where the file has the elements of each array of strings, by key.
    """

    def __init__(self, name: str, size_bytes: int | None, *, limit_bytes: int = MAX_HEADER_BYTES) -> None:
        self.header: Header | None = None
        self._name = name
        self._size = size_bytes
        self._limit = limit_bytes
        self._data = b""
        self._cursor = 0  # position in the data of the next byte to read; beyond its end after a long skip
        self._base = 0  # position in the file of the data
        self._skipped_strings = 0
        self._retained_bytes = 0
        self._values: dict[bytes, Value] = {}
        self.string_arrays: dict[bytes, range] = {}
        self._steps = self._read()
        self.next_range: Range | None = next(self._steps)

    def feed(self, data: bytes) -> None:
        """Process the piece at `next_range`, which may be longer; a shorter one means that the file ends there.

        Raises:
            NotGGUFError: No engine could load this file, or the header exceeds a bound.
        """
        try:
            self.next_range = self._steps.send(data)
        except StopIteration:
            self.next_range = None

    def refuse(self, reason: str) -> NotGGUFError:
        """Return the error for an invalid file, with the reason."""
        return NotGGUFError(f"{self._name} is not a valid GGUF file: {reason}")

    # -- the window onto the file ---------------------------------------------------------------------------------

    @property
    def _position(self) -> int:
        return self._base + self._cursor

    def _require(self, count: int, part: str) -> Steps:
        """Request pieces until `count` bytes are buffered; raise if the file ends first."""
        while count and len(self._data) - self._cursor < count:  # after a long skip the difference may be negative
            self._check(count, part)
            self._data = self._data[self._cursor :]
            self._base, self._cursor = self._position, 0
            missing = Range(self._base + len(self._data), count - len(self._data))
            more = yield missing
            if len(more) < missing.length:
                self._size = missing.offset + len(more)
            self._data += more

    def _check(self, count: int, part: str) -> None:
        """Refuse a position beyond the file or the limit."""
        end = self._position + count
        if self._size is not None and end > self._size:
            raise self.refuse(f"{part} goes beyond the end of the file (is the download complete?)")
        if end > self._limit:
            raise self.refuse(f"its header is longer than {self._limit >> 20} MiB, at {part}")

    def _skip(self, count: int, part: str) -> None:
        self._check(count, part)
        self._cursor += count

    def _number(self, layout: struct.Struct) -> int:
        """Read a number from buffered bytes."""
        (number,) = layout.unpack_from(self._data, self._cursor)
        self._cursor += layout.size
        return int(number)

    def _take(self, count: int) -> bytes:
        data = self._data[self._cursor : self._cursor + count]
        self._cursor += count
        return data

    # -- the format -----------------------------------------------------------------------------------------------

    def _read(self) -> Steps:
        yield from self._require_start()
        magic, version, tensor_count, key_count = _STARTS.unpack(self._take(_START_BYTES))
        self._check_start(magic, version)
        if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
            limits = f"the limits are {MAX_TENSORS} and {MAX_KEYS}"
            raise self.refuse(f"it claims {tensor_count} tensors and {key_count} keys; {limits}")
        yield from self._read_keys(key_count)
        yield from self._read_tensors(version, tensor_count, self._alignment())

    def _require_start(self) -> Steps:
        """Buffer the fixed-size part; refuse a file that is shorter, or not GGUF, and say what it looks like."""
        if self._size is None or self._size >= _START_BYTES:
            start = yield Range(0, _START_BYTES)
        else:
            start = (yield Range(0, self._size)) if self._size else b""
        self._data = start
        if not start:
            raise self.refuse("it is empty")
        if len(start) < _START_BYTES:
            self._size = len(start)
            self._check_start(start[:4], None)
            raise self.refuse("its header is cut off (is the download complete?)")

    def _check_start(self, magic: bytes, version: int | None) -> None:
        if magic != fmt.MAGIC:
            guess = next((guess for prefix, guess in fmt.LOOKALIKES if self._data.startswith(prefix)), None)
            raise self.refuse(guess or f"it does not start with {fmt.MAGIC.decode()}")
        if version is None or version in fmt.VERSIONS:
            return
        if version & 0xFFFF == 0:
            raise self.refuse("it is big-endian; convert it for little-endian machines")
        raise self.refuse(f"it has format version {version}; engines read versions {fmt.VERSIONS}")

    def _read_keys(self, key_count: int) -> Steps:
        seen: set[bytes | int] = set()
        for number in range(key_count):
            yield from self._require(8, "a key")
            length = self._number(_U64)
            if length > MAX_KEY_BYTES:
                self._check(length, "a key")
                raise self.refuse(f"a key claims to be {length} bytes long")
            yield from self._require(length + 4, "a key")
            key = self._take(length)
            if not key:
                raise self.refuse(f"its key {number} is empty")
            fingerprint = key if length <= _DIGESTED_BYTES else hash(key)
            if fingerprint in seen:
                raise self.refuse(f"it has {escaped(key)} twice")
            seen.add(fingerprint)
            yield from self._read_value(key)

    def _read_value(self, key: bytes) -> Steps:
        """Retain or skip one value, whose kind is buffered."""
        kind, count = self._number(_U32), None
        if kind == fmt.ARRAY:
            yield from self._require(12, escaped(key))
            kind, count = self._number(_U32), self._number(_U64)
        name = key.partition(b"\0")[0]  # engines look up keys as C strings, and use the first that matches
        is_retained = name in fmt.RETAINED_KEYS or name.partition(b".")[2] in fmt.RETAINED_ARCHITECTURE_KEYS
        if kind == fmt.STRING and count is None:
            yield from self._require(8, escaped(key))
            length = self._number(_U64)
        elif kind == fmt.STRING:
            start = self._position
            yield from self._skip_strings(count or 0, key)
            self.string_arrays[name] = range(start, self._position)
            length = 0
        elif kind in fmt.LAYOUTS:
            length = fmt.LAYOUTS[kind].size * (1 if count is None else count)
        else:  # an array in an array is legal in the format, but no engine reads one
            raise self.refuse(f"{escaped(key)} has the unexpected type {kind}")
        if not is_retained:
            self._skip(length, escaped(key))
        elif length > MAX_VALUE_BYTES:
            self._skip(length, escaped(key))
            self._values.setdefault(name, Value(kind, count, None))
        else:
            yield from self._require(length, escaped(key))
            self._retain(name, Value(kind, count, self._take(length)))

    def _retain(self, name: bytes, value: Value) -> None:
        self._retained_bytes += len(value.data or b"")
        if self._retained_bytes > MAX_RETAINED_BYTES:
            raise self.refuse("it describes more architectures than any model has")
        self._values.setdefault(name, value)

    def _skip_strings(self, count: int, key: bytes) -> Steps:
        """Skip strings; for a vocabulary, nearly all the time is spent in the inner loop."""
        self._check(8 * count, escaped(key))  # each has at least its length
        self._skipped_strings += count
        if self._skipped_strings > MAX_SKIPPED_STRINGS:
            raise self.refuse(f"{escaped(key)} claims {count} strings, more than any vocabulary has")
        length_at = _U64.unpack_from
        while count:
            data, cursor, last = self._data, self._cursor, len(self._data) - 8
            remaining = count
            while remaining and cursor <= last:
                cursor += 8 + length_at(data, cursor)[0]
                remaining -= 1
            self._cursor, count = cursor, remaining
            self._check(8 if count else 0, escaped(key))
            if count:
                yield from self._require(8, escaped(key))

    def _alignment(self) -> int:
        value = self._values.get(_ALIGNMENT)
        if value is None:
            return fmt.DEFAULT_ALIGNMENT
        if value.kind != fmt.UINT32 or value.count is not None or value.data is None:
            raise self.refuse(f"general.alignment is of type {value.title}, not u32")
        (alignment,) = _U32.unpack(value.data)
        if alignment == 0 or alignment & (alignment - 1):
            raise self.refuse(f"general.alignment is {alignment}, not a power of two")
        return int(alignment)

    def _read_tensors(self, version: int, tensor_count: int, alignment: int) -> Steps:
        """Read the list of tensors; their data must be contiguous, as engines require."""
        names: set[bytes] = set()
        by_type: Counter[int] = Counter()
        tensors: list[Tensor] = []
        expected, needed, misaligned = 0, 0, b""
        for _ in range(tensor_count):
            name, kind, sizes, offset = yield from self._read_tensor()
            tensor_bytes = self._tensor_bytes(name, kind, sizes)
            if name in names:
                raise self.refuse(f"it has the tensor {escaped(name)} twice")
            names.add(name)
            type_name = fmt.TENSOR_TYPES[kind][0] if kind in fmt.TENSOR_TYPES else str(kind)
            tensors.append(Tensor(name.decode("utf-8", "replace"), type_name, sizes, tensor_bytes))
            by_type[kind] += tensor_bytes
            if kind in fmt.NEWER_TENSOR_TYPES:
                expected = -1  # the size of an unknown type, and so the start of the next tensor, is unknown
            elif expected < 0:
                expected = offset
            if 0 <= expected != offset:
                raise self.refuse(f"the data of tensor {escaped(name)} begins at {offset}; {expected} is expected")
            if offset % fmt.DATA_ALIGNMENT:
                misaligned = misaligned or name
            needed = max(needed, offset + tensor_bytes)
            if expected >= 0:
                expected = offset + tensor_bytes + -tensor_bytes % alignment
        start = self._position + -self._position % alignment if tensor_count else self._position
        if self._size is not None and start + needed > self._size:
            raise self.refuse(
                f"its tensors need {start + needed} bytes but it has {self._size} (is the download complete?)"
            )
        if tensor_count and (misaligned or start % fmt.DATA_ALIGNMENT):
            which = f"tensor {escaped(misaligned)}" if misaligned else "the first tensor"
            raise self.refuse(
                f"{which} is not at a multiple of {fmt.DATA_ALIGNMENT} in the file, which makes engines crash"
            )
        self.header = Header(version, tuple(tensors), self._values, by_type, start + needed, self._size, start)

    def _read_tensor(self) -> Generator[Range, bytes, tuple[bytes, int, tuple[int, ...], int]]:
        """Return one tensor's name, type, dimensions and offset."""
        part = "the list of tensors"
        yield from self._require(8, part)
        length = self._number(_U64)
        if length >= fmt.NAME_BYTES:
            self._check(length, part)
            raise self.refuse(f"a tensor's name is {length} bytes long; engines allow fewer than {fmt.NAME_BYTES}")
        yield from self._require(length + 4, part)
        name = self._take(length).partition(b"\0")[0]
        dimensions = self._number(_U32)
        if dimensions > fmt.MAX_DIMENSIONS:
            raise self.refuse(f"tensor {escaped(name)} claims {dimensions} dimensions")
        shape = _SHAPES[dimensions]
        yield from self._require(shape.size + _TENSOR_TAIL.size, part)
        sizes = shape.unpack_from(self._data, self._cursor)
        self._cursor += shape.size
        kind, offset = _TENSOR_TAIL.unpack_from(self._data, self._cursor)
        self._cursor += _TENSOR_TAIL.size
        return name, kind, sizes, offset

    def _tensor_bytes(self, name: bytes, kind: int, sizes: tuple[int, ...]) -> int:
        elements = 1
        for size in sizes:
            elements *= size
        if max(sizes, default=1) > _MAX_ELEMENTS or elements >= _MAX_ELEMENTS:
            raise self.refuse(f"tensor {escaped(name)} claims {elements} elements")
        if kind in fmt.NEWER_TENSOR_TYPES:
            return 0
        _, block_elements, block_bytes = fmt.TENSOR_TYPES.get(kind, ("", 0, 0))
        if not block_elements:
            raise self.refuse(f"tensor {escaped(name)} has the type {kind}, which no engine knows")
        row = sizes[0] if sizes else 1
        if row % block_elements:
            raise self.refuse(
                f"tensor {escaped(name)} has rows of {row} elements; its type packs them in blocks of {block_elements}"
            )
        return elements // block_elements * block_bytes
