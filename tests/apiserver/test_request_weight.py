"""What takes long is known before it begins."""

import json

import pytest

from contracts.widgets import widget_crd
from llmkube.apiserver.heavy_work import inline
from llmkube.apiserver.kinds.catalog import CRDS, Catalog, ref_of
from llmkube.apiserver.kinds.kind_info import kinds_from_crd
from llmkube.apiserver.request_weight import LIGHT_VALUES, RequestWeights, has_heavy_body, is_large
from llmkube.apiserver.storage.revisions import Store
from llmkube.apiserver.writes.request_target import Target
from llmkube.base.http.message import Headers, Request


def request(body: bytes, media: str = "application/json") -> Request:
    return Request("PATCH", "/x", Headers.of({"Content-Type": media}), body)


@pytest.mark.parametrize(
    ("body", "media", "heavy"),
    [
        (b"", "", False),
        (json.dumps({"spec": {"replicas": 1}}).encode(), "application/json", False),
        (json.dumps({"a": list(range(LIGHT_VALUES + 2))}).encode(), "application/json", True),
        (b'{"a":"%b"}' % (b"x" * 100_000), "application/json", True),
        (b"[]", "application/json-patch+json", True),  # a few words may copy much
        (b"a: b\n", "application/yaml", False),
        (b"a: b\n" * 200, "application/apply-patch+yaml", True),  # YAML is read slowly
    ],
)
def test_what_a_body_weighs(body: bytes, media: str, heavy: bool):
    """A body's length, the number of its values and its format decide."""
    assert has_heavy_body(request(body, media)) is heavy


def test_a_large_stored_object_makes_a_small_change_heavy():
    """What is not there weighs nothing."""
    assert not is_large(None)
    assert not is_large({"metadata": {"name": "a"}})
    assert is_large({"data": {f"key-{number}": "v" for number in range(LIGHT_VALUES + 2)}})


def thing(**spec) -> Target:
    crd = widget_crd()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].update(spec)
    (kind,) = kinds_from_crd(crd)
    return Target(kind, ref_of(kind, "default", "a"))


@pytest.mark.parametrize(
    ("target", "heavy"),
    [
        (thing(), False),
        (thing(x={"type": "array", "x-kubernetes-validations": [{"rule": "self.all(a, a > 1)"}]}), False),
        (thing(x={"type": "array", "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a > b))"}]}), True),
        (thing(x={"type": "string", "pattern": "^a+$"}), False),
        (thing(x={"type": "string", "pattern": "(a|b)*a(a|b){900}"}), True),
    ],
)
async def test_the_rules_of_a_kind_make_a_small_request_heavy(target: Target, heavy: bool):
    """Loops inside loops, and the program of a pattern times the length of the body."""
    weights = RequestWeights(Store(), inline)
    assert await weights.is_heavy(request(b'{"spec":{"x":"%b"}}' % (b"a" * 1000)), target) is heavy


async def test_a_definition_and_a_whole_collection_are_heavy():
    """Whatever their bodies are."""
    catalog, weights = Catalog(), RequestWeights(Store(), inline)
    (definitions,), (maps,) = catalog.versions(CRDS), catalog.versions("configmaps")
    assert await weights.is_heavy(request(b"{}"), Target(definitions, ref_of(definitions, "", "a")))
    assert await weights.is_heavy(Request("DELETE", "/x"), Target(maps, ref_of(maps, "default", "")))
    assert not await weights.is_heavy(Request("DELETE", "/x"), Target(maps, ref_of(maps, "default", "a")))
