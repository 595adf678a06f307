"""The OpenAPI v2 document as protobuf."""

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol import openapi, openapi_protobuf


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.learn(widget_crd())
    return catalog


def test_the_swagger_document_in_protobuf_can_be_walked(catalog):
    """The encoded document has the version, every path and every definition at the field numbers of openapi.v2."""
    document = openapi.version_2(catalog)
    fields = read_fields(openapi_protobuf.encode_document(document))
    assert fields[1] == [b"2.0"]
    paths = [read_fields(entry)[1][0].decode() for entry in read_fields(fields[8][0])[2]]
    assert paths == list(document["paths"])
    definitions = [read_fields(entry)[1][0].decode() for entry in read_fields(fields[9][0])[1]]
    assert definitions == list(document["definitions"])


def read_fields(data: bytes) -> dict[int, list]:
    """Split a protobuf message into its fields, independent of the encoder's code."""
    fields: dict[int, list] = {}
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            value = varint()
        else:
            size = varint() if tag & 7 == 2 else 8
            value, at = data[at : at + size], at + size
        fields.setdefault(tag >> 3, []).append(value)
    return fields
