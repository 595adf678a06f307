"""The OpenAPI v2 document in protobuf: kubectl reads it in no other form, and 1.20 cannot apply without it.

Facts: field numbers of `openapi.v2` in gnostic's OpenAPIv2.proto. Only what `openapi.document_v2` writes is encoded.

The wire format: fields of a message as numbers and bytes, encoded and decoded.
Facts: https://protobuf.dev/programming-guides/encoding (base-128 varints, a tag is a field number and a wire type).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from llmkube.apiserver.values.json_text import write

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 2**64 - 1  # the extra bits of a ten-byte varint are dropped


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield each field's number and raw value: a number for a varint, bytes for all else.

    Raises:
        ValueError, IndexError: These bytes are not a message.
    """
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, offset = _read_varint(data, offset)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, offset = _read_varint(data, offset)
        elif wire_type in {_FIXED64, _FIXED32}:
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if offset + size > len(data):
            raise ValueError("it ends too early")
        yield number, data[offset : offset + size]
        offset += size


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
    """Return a field that is a boolean; False is the default of proto3, and is omitted."""
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


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MAX_VARINT, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


ACCEPTED: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""Media type that clients request."""

MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Media type of the response: Go's parser accepts no `@` in it, so kube-apiserver writes a dot as well."""

_METHODS: Final = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_TEXTS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_DOUBLES: Final = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_FLAGS: Final = {"exclusiveMaximum": 8, "exclusiveMinimum": 10, "uniqueItems": 16}
_INTEGERS: Final = {
    "maxLength": 11,
    "minLength": 12,
    "maxItems": 14,
    "minItems": 15,
    "maxProperties": 17,
    "minProperties": 18,
}
_QUERY, _PATH = 3, 4  # arms of NonBodyParameter


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return a Swagger 2.0 document as `openapi.v2.Document`."""
    info = text(1, document["info"]["title"]) + text(2, document["info"]["version"])
    paths = b"".join(message(2, _named(url, _path_item(item))) for url, item in document["paths"].items())
    schemas = b"".join(message(1, _named(name, _schema(schema))) for name, schema in document["definitions"].items())
    return b"".join([text(1, document["swagger"]), message(2, info), message(8, paths), message(9, schemas)])


def _path_item(item: Mapping[str, Any]) -> bytes:
    operations = [message(number, _operation(item[method])) for method, number in _METHODS.items() if method in item]
    return b"".join(operations) + _parameters(9, item["parameters"])


def _operation(operation: Mapping[str, Any]) -> bytes:
    responses = (_named(code, _response(response)) for code, response in operation["responses"].items())
    return b"".join(
        [
            text(3, operation["description"]),
            *(text(7, media) for media in operation.get("consumes", ())),
            _parameters(8, operation.get("parameters", ())),
            message(9, b"".join(message(1, answer) for answer in responses)),
            _extensions(13, operation),
        ]
    )


def _response(response: Mapping[str, Any]) -> bytes:
    body = text(1, response["description"]) + message(2, message(1, _schema(response["schema"])))
    return message(1, body)


def _parameters(number: int, parameters: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(message(number, message(1, message(2, _parameter(each)))) for each in parameters)


def _parameter(parameter: Mapping[str, Any]) -> bytes:
    in_query = parameter["in"] == "query"
    fields = [
        flag(1, value=bool(parameter.get("required"))),
        text(2, parameter["in"]),
        text(3, parameter["description"]),
        text(4, parameter["name"]),
        text(6 if in_query else 5, parameter["type"]),
    ]
    return message(_QUERY if in_query else _PATH, b"".join(fields))


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = [text(number, schema[name]) for name, number in _TEXTS.items() if name in schema]
    parts += [double(number, schema[name]) for name, number in _DOUBLES.items() if name in schema]
    parts += [flag(number, value=schema[name]) for name, number in _FLAGS.items() if name in schema]
    parts += [integer(number, schema[name]) for name, number in _INTEGERS.items() if name in schema]
    parts += [text(19, name) for name in schema.get("required", ())]
    parts += [message(20, _any(value)) for value in schema.get("enum", ())]
    if "default" in schema:
        parts.append(message(5, _any(schema["default"])))
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        parts.append(message(21, message(1, _schema(additional))))
    elif additional is not None:
        parts.append(message(21, flag(2, value=bool(additional))))
    if "type" in schema:
        parts.append(message(22, text(1, schema["type"])))
    if "items" in schema:
        parts.append(message(23, message(1, _schema(schema["items"]))))
    parts += [message(24, _schema(each)) for each in schema.get("allOf", ())]
    if "properties" in schema:
        named = (_named(name, _schema(each)) for name, each in schema["properties"].items())
        parts.append(message(25, b"".join(message(1, each) for each in named)))
    parts.append(_extensions(31, schema))
    return b"".join(parts)


def _extensions(number: int, carrier: Mapping[str, Any]) -> bytes:
    named = (_named(name, _any(value)) for name, value in carrier.items() if name.startswith("x-"))
    return b"".join(message(number, each) for each in named)


def _any(value: Any) -> bytes:
    return text(2, write(value).decode())  # the field is called yaml; JSON is YAML


def _named(name: str, value: bytes) -> bytes:
    return text(1, name) + message(2, value)
