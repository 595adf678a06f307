"""What the OpenAPI documents say of the kinds."""

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol import openapi


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.learn(widget_crd())
    return catalog


@pytest.mark.parametrize(("version", "prefix"), [(2, "#/definitions/"), (3, "#/components/schemas/")])
def test_every_reference_in_openapi_leads_somewhere(catalog, version, prefix):
    """Each named part that a document refers to is in the same document, and kinds share the one of metadata."""
    documents = [openapi.version_2(catalog)["definitions"]]
    if version == 3:
        paths = [path.lstrip("/") for path in openapi.root(catalog)["paths"]]
        documents = [openapi.version_3(catalog, path)["components"]["schemas"] for path in paths]
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
        patch = openapi.version_3(catalog, path)["paths"][kind]["patch"]
        assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
        assert ("application/strategic-merge-patch+json" in patch["requestBody"]["content"]) is strategic
