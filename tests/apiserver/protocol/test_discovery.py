"""Discovery and the OpenAPI documents, as values."""

import random

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.protocol import discovery, openapi


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
    assert discovery.preferred_aggregation(accept) == version


def test_both_forms_agree(catalog):
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


def test_a_forgotten_kind_is_nowhere(catalog):
    """After its CRD is gone a kind is in no document, and the documents' address changes when a schema does."""
    before = openapi.root(catalog)["paths"]
    catalog.remove_crd("widgets.check.llmkube.dev")
    assert catalog.find("check.llmkube.dev", "v1", "widgets") is None
    assert before.keys() - openapi.root(catalog)["paths"].keys() == {"apis/check.llmkube.dev/v1"}
    changed = widget_crd()
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "new"
    catalog.add_crd(changed)
    assert openapi.root(catalog)["paths"]["apis/check.llmkube.dev/v1"] != before["apis/check.llmkube.dev/v1"]
