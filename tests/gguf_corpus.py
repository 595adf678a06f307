"""Damaged GGUF headers by the thousand, from a seed: the demo model's and generated ones, with one or a few faults.

A case is the bytes of a header and the size of the file that begins with it; zeros follow the header.
"""

import random
import re
import struct
from pathlib import Path

import attrs

import gguf_bytes as g
from llmkube import weights
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats.gguf import facts_of
from llmkube.weights.formats.gguf_reader import HeaderReader

DEMO = Path(weights.__file__).parent / "builtin" / "demo.gguf"
EDGES = (0, 1, 2, 3, 7, 31, 32, 48, 63, 64, 255, 512, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61)
EDGES += (2**62, 2**63 - 1, 2**63, 2**64 - 1)
WIDTHS = {g.U8: 1, g.I8: 1, g.BOOL: 1, g.U16: 2, g.I16: 2, g.U32: 4, g.I32: 4, g.F32: 4, g.U64: 8, g.I64: 8, g.F64: 8}


@attrs.define
class Key:
    """One key with its value: the bytes after the type of the value, and after the count of an array."""

    name: bytes
    kind: int
    data: bytes
    count: int | None = None

    def packed(self):
        if self.count is None:
            return g.text(self.name) + struct.pack("<I", self.kind) + self.data
        return g.text(self.name) + struct.pack("<IIQ", g.ARRAY, self.kind, self.count) + self.data


@attrs.define
class Tensor:
    """One entry of the list of tensors."""

    name: bytes
    sizes: list[int]
    kind: int
    offset: int
    dimensions: int | None = None  # the claimed number of dimensions, if it differs from the number of sizes

    def packed(self):
        claimed = len(self.sizes) if self.dimensions is None else self.dimensions
        sizes = struct.pack(f"<{len(self.sizes)}Q", *self.sizes)
        return g.text(self.name) + struct.pack("<I", claimed) + sizes + struct.pack("<IQ", self.kind, self.offset)


@attrs.define
class Draft:
    """A header in parts that can be changed separately."""

    keys: list[Key]
    tensors: list[Tensor]
    data_bytes: int
    version: int = 3
    magic: bytes = b"GGUF"
    key_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def packed(self):
        return g.header(
            *(key.packed() for key in self.keys),
            tensors=[tensor.packed() for tensor in self.tensors],
            version=self.version,
            magic=self.magic,
            key_count=self.key_count,
            tensor_count=self.tensor_count,
        )

    def case(self, rng):
        """Return the bytes and a file size: almost always the size of a complete file."""
        data = self.packed()
        size = len(data) + -len(data) % self.alignment + self.data_bytes
        if rng.random() < 0.1:
            size = max(len(data), size - rng.choice((1, 2, 31, 32, 33, 1000)))
        return data, size


def demo_draft():
    """Take the demo model's header apart."""
    data, at = DEMO.read_bytes(), 24
    tensor_count, key_count = struct.unpack_from("<QQ", data, 8)

    def number(layout):
        nonlocal at
        (found,) = struct.unpack_from(layout, data, at)
        at += struct.calcsize(layout)
        return found

    def take(count):
        nonlocal at
        at += count
        return data[at - count : at]

    keys, tensors = [], []
    for _ in range(key_count):
        name, kind, count = take(number("<Q")), number("<I"), None
        if kind == g.ARRAY:
            kind, count = number("<I"), number("<Q")
        if kind == g.STRING:
            value = b"".join(g.text(take(number("<Q"))) for _ in range(1 if count is None else count))
        else:
            value = take(WIDTHS[kind] * (1 if count is None else count))
        keys.append(Key(name, kind, value, count))
    for _ in range(tensor_count):
        name, dimensions = take(number("<Q")), number("<I")
        tensors.append(Tensor(name, [number("<Q") for _ in range(dimensions)], number("<I"), number("<Q")))
    assert Draft(keys, tensors, 0).packed() == data[:at]
    return Draft(keys, tensors, len(data) - (at + -at % 32))


def small_draft(rng):
    """Generate a header that llama.cpp's header reader accepts."""
    tensors, offset = [], 0
    for number in range(rng.randrange(4)):
        kind, row, row_bytes = rng.choice(
            ((0, 5, 20), (1, 7, 14), (8, 64, 68), (12, 256, 144), (39, 32, 17), (42, 64, 18))
        )
        sizes = [row, *(rng.randrange(4) for _ in range(rng.randrange(4)))]
        length = row_bytes
        for size in sizes[1:]:
            length *= size
        tensors.append(Tensor(b"w%d" % number, sizes, kind, offset))
        offset += length + -length % 32
    keys = [Key(b"general.architecture", g.STRING, g.text(rng.choice(("llama", "qwen3", "mamba", "nobody", ""))))]
    keys += [random_key(rng, name) for name in rng.sample(NAMES, rng.randrange(len(NAMES)))]
    rng.shuffle(keys)
    return Draft(
        [key for number, key in enumerate(keys) if key.name not in {k.name for k in keys[:number]}], tensors, offset
    )


NAMES = (
    b"llama.context_length",
    b"llama.block_count",
    b"llama.embedding_length",
    b"llama.attention.head_count",
    b"llama.attention.head_count_kv",
    b"llama.feed_forward_length",
    b"qwen3.context_length",
    b"tokenizer.ggml.model",
    b"tokenizer.ggml.tokens",
    b"general.name",
    b"general.file_type",
    b"general.alignment",
    b"general.architecture",
    b"split.no",
    b"split.count",
    b"split.tensors.count",
    b"x",
    b"x\0y",
)


def random_key(rng, name):
    """Generate a key whose value has the right length for its type."""
    kind = rng.choice((*WIDTHS, g.STRING, g.U32, g.U32))
    count = rng.choice((None, None, None, 0, 1, 3, 40))
    times = 1 if count is None else count
    if kind == g.STRING:
        return Key(name, kind, b"".join(g.text(rng.randbytes(rng.randrange(6))) for _ in range(times)), count)
    if kind == g.U32:
        return Key(name, kind, b"".join(struct.pack("<I", rng.choice(EDGES[:17])) for _ in range(times)), count)
    return Key(name, kind, rng.randbytes(WIDTHS[kind] * times), count)


# -- faults: each changes a draft in one place -------------------------------------------------------------------------


def other_kind(rng, draft):
    rng.choice(draft.keys).kind = rng.choice((*range(15), 99, 2**32 - 1))


def other_value(rng, draft):
    key = rng.choice(draft.keys)
    width = WIDTHS.get(key.kind)
    if width:
        key.data = struct.pack("<Q", rng.choice(EDGES))[:width] + key.data[width:]


def other_count(rng, draft):
    key = rng.choice([key for key in draft.keys if key.count is not None] or draft.keys)
    key.count = rng.choice((*EDGES, (key.count or 0) + 1, max(0, (key.count or 0) - 1)))


def scalar_to_array(rng, draft):
    key = rng.choice([key for key in draft.keys if key.count is None] or draft.keys)
    key.count, key.data = rng.choice(((1, key.data), (2, key.data * 2), (4, key.data * 4), (0, b""), (5, key.data * 5)))


def longer_string(rng, draft):
    key = rng.choice([key for key in draft.keys if key.kind == g.STRING] or draft.keys)
    key.data = struct.pack("<Q", rng.choice(EDGES)) + key.data[8:]


def new_key(rng, draft):
    draft.keys.insert(rng.randrange(len(draft.keys) + 1), random_key(rng, rng.choice(NAMES)))


def replaced_value(rng, draft):
    at = rng.randrange(len(draft.keys))
    draft.keys[at] = random_key(rng, draft.keys[at].name)


def dropped_key(rng, draft):
    del draft.keys[rng.randrange(len(draft.keys))]


def twice(rng, draft):
    key = rng.choice(draft.keys)
    draft.keys.insert(rng.randrange(len(draft.keys) + 1), attrs.evolve(key))


def renamed_key(rng, draft):
    key = rng.choice(draft.keys)
    key.name = rng.choice((b"", b"\0", key.name + b"\0tail", key.name[:-1], rng.choice(NAMES), b"k" * 300))


def shuffled_keys(rng, draft):
    rng.shuffle(draft.keys)


def other_alignment(rng, draft):
    alignment = rng.choice((0, 1, 2, 4, 8, 16, 32, 48, 64, 128, 4096, 2**31, 2**32 - 1))
    draft.keys.append(Key(b"general.alignment", g.U32, struct.pack("<I", alignment)))
    draft.alignment = alignment or 1


def split(rng, draft):
    numbers = rng.choice(((0, 1), (0, 2), (1, 2), (0, 0), (3, 1)))
    for name, number in zip((b"split.no", b"split.count"), numbers, strict=True):
        draft.keys.append(Key(name, rng.choice((g.U16, g.U16, g.U16, g.U32)), struct.pack("<I", number)))
        draft.keys[-1].data = draft.keys[-1].data[: WIDTHS[draft.keys[-1].kind]]


def per_layer(rng, draft):
    name = rng.choice((b"llama.attention.head_count", b"llama.attention.head_count_kv", b"llama.feed_forward_length"))
    count, kind = rng.choice((4, 4, 4, 3, 5)), rng.choice((g.U32, g.I32, g.BOOL, g.U16, g.U64, g.F32))
    value = {b"llama.attention.head_count": 4, b"llama.attention.head_count_kv": 2}.get(name, 384)
    data = (g.value(kind, value) if kind != g.BOOL else b"\1") * count
    draft.keys = [key for key in draft.keys if key.name != name] + [Key(name, kind, data, count)]


def other_header(rng, draft):
    field = rng.choice(("version", "magic", "key_count", "tensor_count"))
    if field == "magic":
        draft.magic = rng.choice((b"GGUf", b"FUGG", b"GGML", b"\0\0\0\0"))
    elif field == "version":
        draft.version = rng.choice((0, 1, 2, 3, 4, 0x03000000, 0x00010000, 2**32 - 1))
    else:
        right = len(draft.keys if field == "key_count" else draft.tensors)
        setattr(draft, field, rng.choice((*EDGES, right - 1 if right else 1, right + 1)))


def with_tensor(change):
    def fault(rng, draft):
        if draft.tensors:
            change(rng, draft, rng.choice(draft.tensors))

    fault.__name__ = change.__name__
    return fault


@with_tensor
def other_shape(rng, _, tensor):
    if tensor.sizes:
        tensor.sizes[rng.randrange(len(tensor.sizes))] = rng.choice(EDGES)


@with_tensor
def more_dimensions(rng, _, tensor):
    tensor.sizes = [*tensor.sizes, *([1] * rng.randrange(5))]
    tensor.dimensions = rng.choice((None, None, 0, 3, 4, 5, 2**32 - 1))


@with_tensor
def other_type(rng, _, tensor):
    tensor.kind = rng.choice((*range(44), 43, 100, 255, 256, 1000, 2**31, 2**32 - 1))


@with_tensor
def other_offset(rng, _, tensor):
    tensor.offset = rng.choice((*EDGES, tensor.offset + 32, tensor.offset + 1))


@with_tensor
def renamed_tensor(rng, draft, tensor):
    other = rng.choice(draft.tensors).name
    tensor.name = rng.choice(
        (b"", other, other + b"\0x", b"n" * 63, b"n" * 64, b"n" * 65, b"\xff\xfe", tensor.name + b".")
    )


def dropped_tensor(rng, draft):
    if draft.tensors:
        draft.tensors.remove(rng.choice((draft.tensors[-1], rng.choice(draft.tensors))))


FAULTS = (
    other_kind,
    other_value,
    other_count,
    scalar_to_array,
    longer_string,
    new_key,
    replaced_value,
    dropped_key,
    twice,
    renamed_key,
    shuffled_keys,
    other_alignment,
    split,
    per_layer,
    other_header,
    other_shape,
    more_dimensions,
    other_type,
    other_offset,
    renamed_tensor,
    dropped_tensor,
)


def damaged_bytes(rng, data, size):
    """Overwrite, insert or remove a few bytes anywhere, or truncate the file."""
    data = bytearray(data)
    how = rng.randrange(4)
    at = rng.randrange(len(data))
    if how == 0:
        data[at] = rng.randrange(256)
    elif how == 1:
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 2:
        data[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
    else:
        return bytes(data[:at]), rng.choice((at, at, size))
    return bytes(data), size


def cases(count, seed):
    """Yield that many (name of the fault, bytes, file size), the same ones for a seed whatever the count."""
    demo = demo_draft()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        base = rng.random()
        draft = small_draft(rng) if base < 0.2 else demo_copy(demo)
        if base > 0.7:
            yield ("bytes", *damaged_bytes(rng, *draft.case(rng)))
            continue
        faults = [rng.choice(FAULTS) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))]
        for fault in faults:
            if draft.keys:
                fault(rng, draft)
        yield ("+".join(fault.__name__ for fault in faults) or "none", *draft.case(rng))


def demo_copy(demo):
    """Return a draft whose parts can be changed without changing the demo's."""
    keys = [attrs.evolve(key) for key in demo.keys]
    return attrs.evolve(demo, keys=keys, tensors=[attrs.evolve(each, sizes=[*each.sizes]) for each in demo.tensors])


# -- verdicts ----------------------------------------------------------------------------------------------------------


def assess(data, size, piece_bytes=4096):
    """Return LLMKube's verdict on a case: its facts or None, and the reason."""
    try:
        reader = HeaderReader("FILE", size)
        while (needed := reader.next_range) is not None:
            length = min(max(needed.length, piece_bytes), size - needed.offset)
            reader.feed(data[needed.offset : needed.offset + length].ljust(length, b"\0"))
        return facts_of(reader), ""
    except NotGGUFError as error:
        return None, str(error)


ENGINE_REASONS = {
    "tensors of the architecture": r"check_tensor_dims|wrong number of tensors|missing tensor",
    "hyperparameters of the architecture": r"error loading model hyperparameters",
    "an architecture that it does not know": r"unknown model architecture|unsupported model architecture",
    "tokens that do not fit together": r"error loading model vocabulary",
    "a tensor type that it does not know": r"has invalid ggml type",
    "it crashed": r"^died of",
}
"""Reasons for which an engine refuses a header that llama.cpp's reader accepts, by llama.cpp's messages."""


def disagreement(facts, verdict):
    """Describe how LLMKube's verdict differs from llama.cpp's; empty if it does not, or if a difference is allowed."""
    if facts is None:
        return "refused, but it loads" if verdict.loads else ""
    if not verdict.header and not facts.newer_tensor_types:
        return "accepted a header that is refused"
    return "" if verdict.loads or engine_reason(verdict) else "accepted, refused for another reason"


def engine_reason(verdict):
    """Return the class of the reasons that only a full load finds, or None."""
    return next((name for name, pattern in ENGINE_REASONS.items() if re.search(pattern, verdict.message)), None)
