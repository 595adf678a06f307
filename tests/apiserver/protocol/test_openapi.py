"""The OpenAPI documents describe the kinds, in JSON and in protobuf."""

import pytest

from llmkube.apiserver.protocol import openapi, openapi_protobuf


@pytest.mark.parametrize(("version", "prefix"), [(2, "#/definitions/"), (3, "#/components/schemas/")])
def test_every_reference_in_openapi_leads_somewhere(catalog, version, prefix):
    """Each named part that a document refers to is in the same document, and kinds share the one of metadata."""
    documents = [openapi.document_v2(catalog)["definitions"]]
    if version == 3:
        paths = [path.lstrip("/") for path in openapi.root(catalog)["paths"]]
        documents = [openapi.document_v3(catalog, path)["components"]["schemas"] for path in paths]
    for schemas in documents:
        found = set(references(schemas))
        assert f"{prefix}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" in found
        assert {each.removeprefix(prefix) for each in found} <= schemas.keys()


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_kubectl_finds_what_it_looks_for_in_openapi(catalog):
    """The patch of a kind offers fieldValidation, and strategic patches for built-in kinds alone."""
    for path, kind, strategic in (
        ("apis/check.llmkube.dev/v1", "/apis/check.llmkube.dev/v1/namespaces/{namespace}/widgets/{name}", False),
        ("api/v1", "/api/v1/namespaces/{namespace}/services/{name}", True),
    ):
        patch = openapi.document_v3(catalog, path)["paths"][kind]["patch"]
        assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
        assert ("application/strategic-merge-patch+json" in patch["requestBody"]["content"]) is strategic


def test_the_swagger_document_in_protobuf_can_be_walked(catalog):
    """The encoded document has the version, every path and every definition at the field numbers of openapi.v2."""
    document = openapi.document_v2(catalog)
    fields = read_fields(openapi_protobuf.encode_document(document))
    assert fields[1] == [b"2.0"]
    paths = [read_fields(entry)[1][0].decode() for entry in read_fields(fields[8][0])[2]]
    assert paths == list(document["paths"])
    definitions = [read_fields(entry)[1][0].decode() for entry in read_fields(fields[9][0])[1]]
    assert definitions == list(document["definitions"])


def read_fields(data: bytes) -> dict[int, list]:
    """Split a protobuf message into its fields, independently of the encoder's code."""
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
