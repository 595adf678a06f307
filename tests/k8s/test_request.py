"""Requests are values that show the bytes to be sent."""

import json

import pytest

from k8s.scripted import ScriptedServer, ok
from llmkube.k8s.builtins import ConfigMap, Namespace
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import TransportError
from llmkube.k8s.request import ApiRequest, make_request, object_path
from llmkube.k8s.resource import Key

KEY = Key("team", "llama")
MODELS = "/apis/inference.llmkube.dev/v1alpha1/namespaces/team/models"
MODEL = decode(Model, {"metadata": {"namespace": "team", "name": "llama"}, "spec": {"source": "/m"}})


async def sent(ask):
    """Return the one request that a verb sends; the answer is of no use."""
    server = ScriptedServer(ok({}))
    with pytest.raises(TransportError):
        await ask(server.client())
    [call] = server.calls
    return call


@pytest.mark.parametrize(
    ("ask", "method", "path", "params"),
    [
        (lambda c: c.get(Model, KEY), "GET", f"{MODELS}/llama", {}),
        (lambda c: c.get(Namespace, Key("", "team")), "GET", "/api/v1/namespaces/team", {}),
        (lambda c: c.list(Model), "GET", "/apis/inference.llmkube.dev/v1alpha1/models", {"limit": "500"}),
        (
            lambda c: c.list(Model, namespace="team", label_selector="a=b", field_selector="x!=y"),
            "GET",
            MODELS,
            {"labelSelector": "a=b", "fieldSelector": "x!=y", "limit": "500"},
        ),
        (lambda c: c.create(MODEL, field_manager="me"), "POST", MODELS, {"fieldManager": "me"}),
        (lambda c: c.patch(Model, KEY, {}), "PATCH", f"{MODELS}/llama", {}),
        (lambda c: c.delete(Model, KEY), "DELETE", f"{MODELS}/llama", {}),
    ],
)
async def test_requests_go_where_they_should(ask, method, path, params):
    """Each verb has the method, path and parameters of the API reference, and sends no empty parameter."""
    call = await sent(ask)
    assert (call.method, call.path, call.params) == (method, path, params)


async def test_apply_fills_in_the_kind_and_keeps_what_is_given():
    """A manifest without apiVersion and kind gets them; force is sent only when it is meant."""
    manifest = {"metadata": {"name": "llama", "namespace": "team"}, "status": {"phase": "Ready"}}
    call = await sent(lambda c: c.apply(Model, manifest, field_manager="me", subresource="status"))
    assert (call.path, call.params) == (f"{MODELS}/llama/status", {"fieldManager": "me", "force": "true"})
    assert json.loads(call.body) == {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "Model", **manifest}
    assert "force" not in (await sent(lambda c: c.apply(Model, manifest, field_manager="me", force=False))).params


async def test_delete_carries_preconditions_only_when_given():
    """An incarnation, a version and a propagation policy arrive in DeleteOptions; without them there are none."""
    plain = json.loads((await sent(lambda c: c.delete(Model, KEY))).body)
    assert plain == {"apiVersion": "v1", "kind": "DeleteOptions"}
    full = await sent(lambda c: c.delete(Model, KEY, uid="u", resource_version="3", propagation="Foreground"))
    preconditions = {"uid": "u", "resourceVersion": "3"}
    assert json.loads(full.body) == {**plain, "preconditions": preconditions, "propagationPolicy": "Foreground"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.get(Model, Key("team", "")),
        lambda c: c.delete(Model, Key("team", "")),
        lambda c: c.patch(Model, Key("team", ""), {}),
        lambda c: c.apply(Model, {"metadata": {"namespace": "team"}}, field_manager="me"),
    ],
)
async def test_an_object_without_a_name_is_never_its_collection(ask):
    """Deleting, reading or patching a nameless key is refused: its path would be the whole collection's."""
    with pytest.raises(ValueError, match="name"):
        await ask(ScriptedServer().client())


def test_a_name_cannot_leave_its_place_in_the_path():
    """Slashes, dots and question marks in a name are quoted."""
    path = object_path(ConfigMap.RESOURCE, Key("a/b", "../c?d"))
    assert path == "/api/v1/namespaces/a%2Fb/configmaps/..%2Fc%3Fd"


def test_a_body_does_not_show_in_messages():
    """The repr of a request holds no body: it may be a Secret."""
    request = make_request("POST", "/x", body={"password": "hunter2"})
    assert "hunter2" not in repr(request)
    assert request.call == "POST /x"
    assert make_request("GET", "/x") == ApiRequest("GET", "/x")
