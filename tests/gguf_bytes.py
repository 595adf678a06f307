"""GGUF files byte by byte, so that tests can also write invalid ones."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, what):
    return text(what) if kind == STRING else struct.pack("<" + _FORMATS[kind], what)


def key(name, kind, what):
    return text(name) + struct.pack("<I", kind) + value(kind, what)


def array(name, kind, items):
    return array_head(name, kind, len(items)) + b"".join(value(kind, item) for item in items)


def array_head(name, kind, count):
    return text(name) + struct.pack("<IIQ", ARRAY, kind, count)


def tensor(name, dimensions, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def header(*keys, tensors=(), version=3, magic=b"GGUF", key_count=None, tensor_count=None):
    counts = (len(tensors) if tensor_count is None else tensor_count, len(keys) if key_count is None else key_count)
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)


ARCHITECTURE = key("general.architecture", STRING, "llama")
