import pytest

from cli.memory_cluster import open_cluster_client
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import TransportError
from llmkube.k8s.resource import Key
from llmkube.programs.server_side_apply import FIELD_MANAGER, Applier, Manifest

VERSION = "inference.llmkube.dev/v1alpha1"


def manifest(kind="ConfigMap", name="a", version="v1", **rest):
    return Manifest("x.yaml, document 1", {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest})


async def applied(*manifests, namespace="default"):
    reported = []
    async with open_cluster_client() as client:
        results = await Applier(client, namespace).apply_all(manifests, reported.append)
    assert tuple(reported) == results
    return results


async def test_the_demo_is_applied_by_its_own_manager():
    """The demo's objects arrive in the default namespace, and their fields belong to `llmkube-up`."""
    async with open_cluster_client() as client:
        results = await Applier(client).apply_all(demo_manifests(), lambda _: None)
        assert [(str(each.key), each.error) for each in results] == [("default/demo", None)] * 2
        model = await client.get(Model, Key("default", "demo"))
        service = await client.get(InferenceService, Key("default", "demo"))
    assert (model.spec.source, service.spec.model_ref) == ("builtin://demo", "demo")
    assert {each["manager"] for each in model.metadata.managed_fields} == {FIELD_MANAGER}


async def test_applying_twice_changes_nothing():
    """The second start with the same files leaves the objects as they are."""
    async with open_cluster_client() as client:
        applier = Applier(client)
        await applier.apply_all(demo_manifests(), lambda _: None)
        before = await client.get(Model, Key("default", "demo"))
        await applier.apply_all(demo_manifests(), lambda _: None)
        assert await client.get(Model, Key("default", "demo")) == before


async def test_the_rest_is_applied_after_a_refusal():
    """The result of a refused object has the API server's message."""
    bad = manifest("InferenceService", "bad", VERSION, spec={"modelRef": "a", "replicas": -1})
    refused, good = await applied(bad, manifest())
    assert "spec.replicas" in str(refused.error)
    assert (good.error, str(good.key)) == (None, "default/a")


async def test_an_unknown_field_is_refused():
    """A misspelt field is refused by name, and not dropped silently."""
    (refused,) = await applied(manifest("Model", "a", VERSION, spec={"source": "builtin://demo", "sorce": "x"}))
    assert "sorce" in str(refused.error)


@pytest.mark.parametrize(
    ("unknown", "message"),
    [
        (manifest("ConfgMap"), "kind: v1 has no kind ConfgMap"),
        (manifest("A", version="example.org/v1"), "apiVersion: the API server does not serve example.org/v1"),
        (manifest("A", version="v7"), "apiVersion: the API server does not serve v7"),
    ],
)
async def test_unknown_kinds_are_named(unknown, message):
    """A refusal names the kind or the version that the server does not serve."""
    (refused,) = await applied(unknown)
    assert str(refused.error).startswith(message)


async def test_cluster_scoped_kinds_have_no_namespace():
    (result,) = await applied(manifest("Namespace", "team"), namespace="default")
    assert (result.error, str(result.key)) == (None, "team")


async def test_an_object_may_name_its_namespace():
    """An object's own namespace wins over the default one."""
    metadata = {"name": "a", "namespace": "kube-system"}
    (result,) = await applied(Manifest("x", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
    assert (result.error, str(result.key)) == (None, "kube-system/a")


async def test_a_silent_server_ends_everything():
    """When the API server cannot be reached, applying stops with that error."""

    class Unreachable:
        async def get_json(self, path):
            raise TransportError("connection refused")

    with pytest.raises(TransportError):
        await Applier(Unreachable()).apply_all([manifest()], lambda _: None)
