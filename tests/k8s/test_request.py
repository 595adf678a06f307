"""Requests are values: what goes on the wire can be read off them."""

import json

import pytest

from llmkube.k8s import request as build
from llmkube.k8s.builtins import ConfigMap, Namespace
from llmkube.k8s.crd.model import Model
from llmkube.k8s.request import ApiRequest
from llmkube.k8s.resource import Key

KEY = Key("team", "llama")
MODELS = "/apis/inference.llmkube.dev/v1alpha1/namespaces/team/models"
RESOURCE = Model.RESOURCE


@pytest.mark.parametrize(
    ("request_", "method", "path", "params"),
    [
        (build.get(RESOURCE, KEY), "GET", f"{MODELS}/llama", {}),
        (build.get(Namespace.RESOURCE, Key("", "team")), "GET", "/api/v1/namespaces/team", {}),
        (build.list_page(RESOURCE, "team"), "GET", MODELS, {}),
        (build.list_page(RESOURCE, None), "GET", "/apis/inference.llmkube.dev/v1alpha1/models", {}),
        (
            build.list_page(RESOURCE, "team", label_selector="a=b", field_selector="x!=y", limit=5, continue_token="t"),
            "GET",
            MODELS,
            {"labelSelector": "a=b", "fieldSelector": "x!=y", "limit": "5", "continue": "t"},
        ),
        (
            build.watch(RESOURCE, "team", resource_version="7", timeout_seconds=250),
            "GET",
            MODELS,
            {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "7", "timeoutSeconds": "250"},
        ),
        (build.create(RESOURCE, "team", {}, field_manager="me"), "POST", MODELS, {"fieldManager": "me"}),
        (build.update(RESOURCE, KEY, {}, subresource="status"), "PUT", f"{MODELS}/llama/status", {}),
        (build.merge_patch(RESOURCE, KEY, {}), "PATCH", f"{MODELS}/llama", {}),
        (build.delete(RESOURCE, KEY), "DELETE", f"{MODELS}/llama", {}),
    ],
)
def test_requests_go_where_they_should(request_, method, path, params):
    """Each verb has the method, path and parameters of the API reference, and sends no empty parameter."""
    assert (request_.method, request_.path, dict(request_.params)) == (method, path, params)


def test_apply_fills_in_the_kind_and_keeps_what_is_given():
    """A manifest without apiVersion and kind gets them; force is sent only when it is meant."""
    manifest = {"metadata": {"name": "llama", "namespace": "team"}, "status": {"phase": "Ready"}}
    request = build.apply(RESOURCE, manifest, field_manager="me", force=True, subresource="status")
    assert request.path == f"{MODELS}/llama/status"
    assert dict(request.params) == {"fieldManager": "me", "force": "true"}
    assert request.content_type == "application/apply-patch+yaml"
    assert json.loads(request.body) == {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "Model", **manifest}
    assert "force" not in dict(build.apply(RESOURCE, manifest, field_manager="me", force=False).params)


def test_delete_carries_preconditions_only_when_given():
    """An incarnation, a version and a propagation policy arrive in DeleteOptions; without them there are none."""
    plain = json.loads(build.delete(RESOURCE, KEY).body)
    assert plain == {"apiVersion": "v1", "kind": "DeleteOptions"}
    full = json.loads(build.delete(RESOURCE, KEY, uid="u", resource_version="3", propagation="Foreground").body)
    assert full["preconditions"] == {"uid": "u", "resourceVersion": "3"}
    assert full["propagationPolicy"] == "Foreground"


@pytest.mark.parametrize("name", ["", None])
def test_an_object_without_a_name_is_never_its_collection(name):
    """Deleting, reading or patching a nameless key is refused: its path would be the whole collection's."""
    key = Key("team", name or "")
    for make in (
        build.get,
        build.delete,
        lambda r, k: build.merge_patch(r, k, {}),
        lambda r, k: build.update(r, k, {}),
    ):
        with pytest.raises(ValueError, match="name"):
            make(RESOURCE, key)
    with pytest.raises(ValueError, match="name"):
        build.apply(RESOURCE, {"metadata": {"namespace": "team"}}, field_manager="me", force=True)


def test_a_name_cannot_leave_its_place_in_the_path():
    """Slashes, dots and question marks in a name are quoted."""
    assert build.get(ConfigMap.RESOURCE, Key("a/b", "../c?d")).path == "/api/v1/namespaces/a%2Fb/configmaps/..%2Fc%3Fd"


def test_a_body_does_not_show_in_messages():
    """The repr of a request holds no body: it may be a Secret."""
    request = build.any_request("POST", "/x", body={"password": "hunter2"})
    assert "hunter2" not in repr(request)
    assert request.call == "POST /x"
    assert build.any_request("GET", "/x") == ApiRequest("GET", "/x")
