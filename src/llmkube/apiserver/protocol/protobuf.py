"""The wire format of protobuf: fields of a message as numbers and bytes, both ways. No table of any message is here.

Facts: https://protobuf.dev/programming-guides/encoding (base-128 varints, a tag is a field number and a wire type).
"""

import struct
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 2**64 - 1  # what ten bytes hold beyond it is dropped


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield each field's number and raw value: a number for a varint, bytes for all else.

    Raises:
        ValueError, IndexError: These bytes are not a message.
    """
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(data, at)
        elif wire_type in {_FIXED64, _FIXED32}:
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if at + size > len(data):
            raise ValueError("it ends too early")
        yield number, data[at : at + size]
        at += size


def message(number: int, body: bytes) -> bytes:
    """Return a field that is a message, or any other bytes."""
    return _tag(number, _BYTES) + _varint(len(body)) + body


def text(number: int, value: str) -> bytes:
    """Return a field that is a string."""
    return message(number, value.encode())


def integer(number: int, value: int) -> bytes:
    """Return a field that is a number, 0 or greater."""
    return _tag(number, _VARINT) + _varint(value)


def flag(number: int, *, value: bool) -> bytes:
    """Return a field that is a boolean; False is the default of proto3, and is left out."""
    return integer(number, int(value)) if value else b""


def double(number: int, value: float) -> bytes:
    """Return a field that is a 64-bit floating-point number."""
    return _tag(number, _FIXED64) + struct.pack("<d", value)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MAX_VARINT, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
