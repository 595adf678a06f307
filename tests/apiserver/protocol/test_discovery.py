"""Discovery and the OpenAPI documents, as values."""

import random

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol import discovery, openapi, openapi_protobuf


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.learn(widget_crd())
    return catalog


def test_versions_are_ranked_as_kubernetes_does():
    """Stable before beta before alpha before anything else, newer first."""
    ranked = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    shuffled = random.Random(0).sample(ranked, len(ranked))
    assert sorted(shuffled, key=discovery.version_rank) == ranked


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        ("application/json", ""),
        ("", ""),
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", "v2"),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json", "v2beta1"),
        ("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json", ""),
        ("application/json,application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", ""),
    ],
)
def test_the_client_chooses_the_form_of_discovery(accept, version):
    """The aggregated form is for those who ask for a version of it that is known."""
    assert discovery.wanted_aggregation(accept) == version


def test_both_forms_say_the_same(catalog):
    """Every resource of the old form is in the aggregated one, with the same verbs and names."""
    for core in (True, False):
        for group in discovery.aggregated(catalog, core=core, api_version="v2")["items"]:
            for version in group["versions"]:
                listed = discovery.resource_list(catalog, group["metadata"].get("name", ""), version["version"])
                old = {entry["name"]: entry["verbs"] for entry in listed["resources"]}
                new = {entry["resource"]: entry["verbs"] for entry in version["resources"]}
                for entry in version["resources"]:
                    for sub in entry.get("subresources", ()):
                        new[f"{entry['resource']}/{sub['subresource']}"] = sub["verbs"]
                assert old == new


def test_discovery_lists_verbs_as_kube_apiserver_does(catalog):
    """Custom kinds list their verbs in an order of their own, and namespaces cannot be deleted all at once."""
    core = {entry["name"]: entry for entry in discovery.resource_list(catalog, "", "v1")["resources"]}
    assert "deletecollection" not in core["namespaces"]["verbs"]
    assert core["namespaces/finalize"]["verbs"] == ["update"]
    assert core["configmaps"]["storageVersionHash"] == "qFsyl6wFWjQ="
    custom = discovery.resource_list(catalog, "check.llmkube.dev", "v1")["resources"][0]
    assert custom["verbs"][:2] == ["delete", "deletecollection"]
    assert sorted(custom["verbs"]) == sorted(core["configmaps"]["verbs"])


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


def test_a_forgotten_kind_is_nowhere(catalog):
    """After its CRD is gone a kind is in no document, and the documents' address changes when a schema does."""
    before = openapi.root(catalog)["paths"]
    catalog.forget("widgets.check.llmkube.dev")
    assert catalog.find("check.llmkube.dev", "v1", "widgets") is None
    assert before.keys() - openapi.root(catalog)["paths"].keys() == {"apis/check.llmkube.dev/v1"}
    changed = widget_crd()
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "new"
    catalog.learn(changed)
    assert openapi.root(catalog)["paths"]["apis/check.llmkube.dev/v1"] != before["apis/check.llmkube.dev/v1"]


def test_kubectl_finds_what_it_looks_for_in_openapi(catalog):
    """The patch of a kind offers fieldValidation, and strategic patches for built-in kinds alone."""
    for path, kind, strategic in (
        ("apis/check.llmkube.dev/v1", "/apis/check.llmkube.dev/v1/namespaces/{namespace}/widgets/{name}", False),
        ("api/v1", "/api/v1/namespaces/{namespace}/services/{name}", True),
    ):
        patch = openapi.version_3(catalog, path)["paths"][kind]["patch"]
        assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
        assert ("application/strategic-merge-patch+json" in patch["requestBody"]["content"]) is strategic


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
