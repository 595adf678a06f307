"""Coordinates and keys: what the URLs look like, and what names nothing."""

from typing import Any

import pytest

from llmkube.k8s.builtins import Endpoint, EndpointSlice, Event, Lease, Namespace, Service
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key, Resource

MODEL = Model.RESOURCE
GROUP_PATH = "/apis/inference.llmkube.dev/v1alpha1"


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (MODEL, {}, f"{GROUP_PATH}/models"),
        (MODEL, {"namespace": ""}, f"{GROUP_PATH}/models"),
        (MODEL, {"namespace": "a"}, f"{GROUP_PATH}/namespaces/a/models"),
        (MODEL, {"namespace": "a", "name": "m"}, f"{GROUP_PATH}/namespaces/a/models/m"),
        (MODEL, {"namespace": "a", "name": "m", "subresource": "status"}, f"{GROUP_PATH}/namespaces/a/models/m/status"),
        (Service.RESOURCE, {"namespace": "a", "name": "s"}, "/api/v1/namespaces/a/services/s"),
        (Namespace.RESOURCE, {}, "/api/v1/namespaces"),
        (Namespace.RESOURCE, {"name": "a"}, "/api/v1/namespaces/a"),
        (Namespace.RESOURCE, {"namespace": "", "name": "a"}, "/api/v1/namespaces/a"),
        (EndpointSlice.RESOURCE, {"namespace": "a"}, "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices"),
        (Lease.RESOURCE, {"namespace": "a"}, "/apis/coordination.k8s.io/v1/namespaces/a/leases"),
    ],
)
def test_paths(resource: Resource, arguments: dict[str, str], path: str) -> None:
    """A kind's URLs are those of the Kubernetes API conventions."""
    assert resource.path(**arguments) == path


def test_a_name_cannot_leave_its_segment() -> None:
    """A name with a slash or a question mark is quoted, so it reaches no other resource."""
    assert Service.RESOURCE.path("a", "../secrets?x=/") == "/api/v1/namespaces/a/services/..%2Fsecrets%3Fx%3D%2F"


@pytest.mark.parametrize(
    ("resource", "arguments", "message"),
    [
        (MODEL, {"name": "m"}, "Model 'm' needs a namespace"),
        (MODEL, {"namespace": "a", "subresource": "status"}, "subresource 'status' of Model needs a name"),
        (Namespace.RESOURCE, {"namespace": "a", "name": "b"}, "Namespace is cluster-scoped"),
    ],
)
def test_paths_that_name_nothing(resource: Resource, arguments: dict[str, str], message: str) -> None:
    """Parts that do not name an object are refused rather than sent to another one's URL."""
    with pytest.raises(ValueError, match=message):
        resource.path(**arguments)


def test_names_of_a_resource() -> None:
    """The derived words are those that kubectl and discovery use."""
    assert (MODEL.api_version, Event.RESOURCE.api_version) == ("inference.llmkube.dev/v1alpha1", "v1")
    assert (MODEL.singular, MODEL.list_kind) == ("model", "ModelList")
    assert (MODEL.full_name, Event.RESOURCE.full_name) == ("models.inference.llmkube.dev", "events")


@pytest.mark.parametrize(
    ("obj", "key"),
    [
        ({"metadata": {"namespace": "a", "name": "b"}}, Key("a", "b")),
        ({"metadata": {"name": "b"}}, Key("", "b")),
        ({"metadata": {"namespace": None, "name": "b"}}, Key("", "b")),
        ({}, Key("", "")),
        (Namespace(metadata=ObjectMeta(name="b")), Key("", "b")),
        (Lease(metadata=ObjectMeta(name="b", namespace="a")), Key("a", "b")),
    ],
)
def test_key_of(obj: Any, key: Key) -> None:
    """A key is read alike from JSON and from a typed object."""
    assert Key.of(obj) == key
    assert getattr(obj, "key", key) == key


def test_keys_sort_by_namespace_first() -> None:
    """Keys sort by namespace, then by name, so listings are stable."""
    assert sorted([Key("b", "a"), Key("a", "z"), Key("", "q")]) == [Key("", "q"), Key("a", "z"), Key("b", "a")]


@pytest.mark.parametrize("key", [Key("a", "b"), Key("", "b")])
def test_key_text_round_trip(key: Key) -> None:
    """A key's text reads back as the same key."""
    assert Key.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "/", "a/", "/b", "a/b/c"])
def test_key_text_that_names_nothing(text: str) -> None:
    """A text with an empty or a third part is refused."""
    with pytest.raises(ValueError, match="expected NAME or NAMESPACE/NAME"):
        Key.parse(text)


def test_every_kind_is_hashable_by_its_parts() -> None:
    """A value without maps can be a set member: endpoints are compared as sets."""
    assert len({Endpoint(addresses=("10.0.0.1",)), Endpoint(addresses=("10.0.0.1",))}) == 1
