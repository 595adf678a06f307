"""A real kube-apiserver accepts the project's requests as intended, and its answers are understood."""

import copy
import datetime
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from contracts.check_api_server import CHECKS
from contracts.check_controllers import WORKLOAD_CHECKS
from contracts.lab import Lab, install, open_lab
from contracts.widgets import widget_crd
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Lease, Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, GoneError, InvalidError, NotFoundError
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.request import APPLY_PATCH, object_path
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.conditions import Statement
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster.host_lease import lease_manifest
from llmkube.supervisor.cluster.status import SERVICE_CONDITIONS, model_status, service_status, settle
from llmkube.supervisor.service.status_manager import endpoints_manifest, service_manifest, slice_manifest
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile

pytestmark = pytest.mark.envtest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENT = "llmkube-agent-mac"
COLLECTOR = "/api/v1/namespaces/kube-system/serviceaccounts/generic-garbage-collector"
NEEDS_CONTROLLERS = {
    "check_an_absent_owner_is_no_owner",
    "workloads_go_with_their_owner",
}
"""Work of kube-controller-manager that kube-apiserver alone does not do."""

NOW = datetime.datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=datetime.UTC)
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05
MODEL = {"source": "builtin://demo"}
FACTS = GGUFFacts(
    architecture="llama",
    file_version=3,
    tensor_count=291,
    size_bytes=4_920_000_000,
    name="Llama 3.1 8B",
    license="llama3.1",
    quantization="Q4_K_M",
    context_length=131072,
    layer_count=32,
    embedding_size=4096,
    head_count=32,
)


@pytest.fixture
async def crds(client: Client) -> None:
    """Install our kinds. They stay: deleting a definition deletes its objects, and the cluster may be shared."""
    for manifest in all_crds():
        path = f"{CRDS}/{manifest['metadata']['name']}"
        await _apply_at(client, path, manifest)
        with trio.fail_after(WAIT_SECONDS):
            while True:
                if _is_served(await client.get_json(path)):
                    break
                await trio.sleep(POLL_SECONDS)


@pytest.fixture
async def chat(client: Client, crds: None, namespace: str) -> InferenceService:
    """An InferenceService as small as can be."""
    return await client.apply(
        InferenceService,
        {"metadata": {"name": "chat", "namespace": namespace}, "spec": {"modelRef": "llama"}},
        field_manager="user",
    )


@pytest.fixture
async def llama(client: Client, crds: None, namespace: str) -> Model:
    """A Model as small as can be."""
    return await client.apply(
        Model,
        {"metadata": {"name": "llama", "namespace": namespace}, "spec": MODEL},
        field_manager="user",
    )


async def _apply_strictly(
    client: Client, kind: type[Object], manifest: Mapping[str, Any], subresource: str = ""
) -> Any:
    key = Key.of(manifest)
    path, body = kind.RESOURCE.path(key.namespace, key.name, subresource), {**kind.RESOURCE.type_meta, **manifest}
    return await _apply_at(client, path, body)


async def _apply_at(client: Client, path: str, manifest: Mapping[str, Any]) -> Any:
    params = {"fieldManager": AGENT, "force": "true", "fieldValidation": "Strict"}
    return await client.request_json("PATCH", path, params=params, body=manifest, content_type=APPLY_PATCH)


async def _need_controllers(http: httpx.AsyncClient) -> None:
    if (await http.get(COLLECTOR)).status_code == httpx.codes.NOT_FOUND:
        pytest.skip("needs a cluster with kube-controller-manager: `make envtest` builds one")


async def _wait_empty(client: Client, kind: type[Object], namespace: str) -> None:
    while True:
        if not (await client.list(kind, namespace=namespace)).raw:
            return
        await trio.sleep(POLL_SECONDS)


def _is_served(crd: Mapping[str, Any]) -> bool:
    # of a definition that is a moment old, the conditions are null
    conditions = {each["type"]: each["status"] for each in crd.get("status", {}).get("conditions") or ()}
    return conditions.get("Established") == conditions.get("NamesAccepted") == "True"


def _lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Name what was sent and is not kept as it was; a Go server writes an empty list as null or leaves it out."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        return [line for name in sent for line in _lost(sent[name], kept.get(name), f"{path}.{name}")]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        return [line for i, pair in enumerate(zip(sent, kept, strict=True)) for line in _lost(*pair, f"{path}[{i}]")]
    return [] if sent == kept or (sent == [] and kept is None) else [f"{path}: sent {sent!r}, kept {kept!r}"]


# -- our kinds --------------------------------------------------------------------------------------------------------


async def test_the_definitions_are_accepted_as_they_are(client: Client, crds: None):
    """Each CRD is served, is structural, loses nothing, and gains only the conversion that it does not need."""
    for manifest in all_crds():
        stored = await client.get_json(f"{CRDS}/{manifest['metadata']['name']}")
        assert _lost(manifest["spec"], stored["spec"]) == []
        assert stored["spec"].keys() - manifest["spec"].keys() == {"conversion"}
        assert "NonStructuralSchema" not in {each["type"] for each in stored["status"]["conditions"]}


async def test_the_servers_defaults_are_those_of_the_classes(client: Client, chat: InferenceService, llama: Model):
    """An object that says the least is stored with what the classes say on their own."""
    minimal = decode(InferenceService, {"metadata": {}, "spec": {"modelRef": "llama"}})
    assert (await client.get(InferenceService, chat.key)).spec == minimal.spec
    assert (await client.get(Model, llama.key)).spec == decode(Model, {"metadata": {}, "spec": MODEL}).spec


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"modelRef": ""}, ("spec.modelRef", "at least 1 char")),
        ({}, ("spec.modelRef", "Required value")),
        ({"modelRef": "m", "replicas": 11}, ("spec.replicas", "less than or equal to 10")),
        ({"modelRef": "m", "runtime": "mystery"}, ("spec.runtime", "supported values")),
        ({"modelRef": "m", "resources": {"memory": "-1Gi"}}, ("spec.resources.memory", "should match")),
        (
            {"modelRef": "m", "autoscaling": {"minReplicas": 5, "maxReplicas": 2}},
            ("spec.autoscaling", "minReplicas must not exceed maxReplicas"),
        ),
        (
            {"modelRef": "m", "speculativeDecoding": {"type": "draft", "draftModel": "a", "draftModelRef": "b"}},
            ("spec.speculativeDecoding", "exclude each other"),
        ),
    ],
)
async def test_a_spec_that_makes_no_sense_is_refused(
    client: Client, crds: None, namespace: str, spec: dict[str, Any], refusal: tuple[str, str]
):
    """The schema's bounds and rules hold on a real server, and the error names the field."""
    manifest = {"metadata": {"name": "chat", "namespace": namespace}, "spec": spec}
    with pytest.raises(InvalidError, match=refusal[1]) as caught:
        await client.apply(InferenceService, manifest, field_manager="user")
    assert caught.value.field == refusal[0]


# -- what the agent writes --------------------------------------------------------------------------------------------


async def test_what_the_agent_publishes_is_kept_and_repeating_it_is_free(
    client: Client, chat: InferenceService, namespace: str
):
    """Service, slices and Lease pass strict validation, lose nothing, and a second apply changes no version."""
    settings = AgentSettings(
        host_name="mac", state_dir=Path("/"), store_dir=Path("/"), llama_server="", lease_namespace=namespace
    )
    published: list[tuple[type[Object], dict[str, Any]]] = [
        (Service, service_manifest(chat)),
        (EndpointSlice, slice_manifest(chat, "mac", "192.0.2.5", 0, ready=False)),
        (EndpointSlice, slice_manifest(chat, "mac", "192.0.2.5", 4711, ready=False)),
        (EndpointSlice, slice_manifest(chat, "mac", "192.0.2.5", 4711, ready=True)),
        (EndpointSlice, slice_manifest(chat, "mac", "192.0.2.5", 0, ready=False)),
        (EndpointSlice, slice_manifest(chat, "six", "2001:db8::5", 4711, ready=True)),
        (Lease, lease_manifest(settings, NOW)),
    ]
    for kind, manifest in published:
        stored = await _apply_strictly(client, kind, manifest)
        assert _lost(manifest, stored) == []
        again = await client.apply(kind, manifest, field_manager=AGENT)
        assert again.metadata.resource_version == stored["metadata"]["resourceVersion"]


async def test_the_classic_endpoints_are_kept(client: Client, chat: InferenceService):
    """Endpoints pass strict validation while the engine starts, answers, and is gone."""
    for port, ready in ((4711, False), (4711, True), (0, False)):
        manifest = endpoints_manifest(chat, "192.0.2.5", port, ready=ready)
        assert _lost(manifest, await _apply_strictly(client, Endpoints, manifest)) == []


async def test_a_loopback_address_is_refused(client: Client, chat: InferenceService):
    """No slice names 127.0.0.1: a host must advertise an address of its own, or publish nothing."""
    with pytest.raises(InvalidError, match="loopback") as caught:
        await client.apply(
            EndpointSlice, slice_manifest(chat, "mac", "127.0.0.1", 4711, ready=True), field_manager=AGENT
        )
    assert caught.value.field == "endpoints[0].addresses[0]"


async def test_agent_and_controller_write_one_status_together(
    client: Client, chat: InferenceService, llama: Model, namespace: str
):
    """Each writer keeps its own conditions when the other applies, and saying the same again changes nothing."""
    statements = [
        Statement("Accepted", True, "Accepted", "fine", generation=1),
        Statement("Loaded", False, "Loading", "x" * 10_000, generation=1),
    ]
    conditions = settle(statements, (), now=NOW)
    weights = WeightsFile(Path("/models/llama.gguf"), 4_920_000_000, "ab" * 32, "1")
    of_service = set(SERVICE_CONDITIONS)  # always the whole set
    loading = ServiceView(Reason.LOADING, "40 %\nof it")
    statuses: list[tuple[type[Object], dict[str, Any], set[str]]] = [
        (InferenceService, service_status(chat, conditions, loading, "Always"), of_service),
        (Model, model_status(llama, conditions, weights, FACTS), {"Accepted", "Loaded"}),
    ]
    for kind, manifest, of_agent in statuses:
        stored = await _apply_strictly(client, kind, manifest, "status")
        assert _lost(manifest, stored) == []
        theirs = copy.deepcopy(manifest)
        theirs["status"] = {
            "phase": "Pending",
            "conditions": [{**manifest["status"]["conditions"][0], "type": "Available", "status": "False"}],
        }
        await client.apply(kind, theirs, field_manager="llmkube-controller", subresource="status")
        again = await client.apply(kind, manifest, field_manager=AGENT, subresource="status")
        assert {each.type for each in again.status.conditions} == of_agent | {"Available"}
        assert again.status.phase == "Pending"
        assert again.metadata.generation == 1
        settled = await client.apply(kind, manifest, field_manager=AGENT, subresource="status")
        assert settled.metadata.resource_version == again.metadata.resource_version


async def test_what_was_published_goes_with_its_service(
    client: Client, http: httpx.AsyncClient, chat: InferenceService, namespace: str
):
    """Deleting an InferenceService makes the garbage collector delete its Service and slices."""
    await _need_controllers(http)
    await client.apply(Service, service_manifest(chat), field_manager=AGENT)
    await client.apply(EndpointSlice, slice_manifest(chat, "mac", "192.0.2.5", 1, ready=True), field_manager=AGENT)
    await client.delete(InferenceService, chat.key, uid=chat.metadata.uid)
    with trio.fail_after(WAIT_SECONDS):
        await _wait_empty(client, Service, namespace)
        await _wait_empty(client, EndpointSlice, namespace)


# -- what the client understands --------------------------------------------------------------------------------------


async def test_a_reflector_follows_a_real_watch(client: Client, chat: InferenceService, namespace: str):
    """A list, a change and a deletion reach the cache, each with one notification."""
    cache: Cache[InferenceService] = Cache()
    send, receive = trio.open_memory_channel[Key](16)
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            await run_reflector(
                client, InferenceService, cache, send.send_nowait, namespace=namespace, rng=random.Random(1)
            )

        nursery.start_soon(follow)
        with trio.fail_after(WAIT_SECONDS):
            assert await receive.receive() == chat.key
            await client.patch(InferenceService, chat.key, {"spec": {"replicas": 3}})
            assert await receive.receive() == chat.key
            changed = cache.get(chat.key)
            assert changed is not None
            assert changed.spec.replicas == 3
            await client.delete(InferenceService, chat.key)
            assert await receive.receive() == chat.key
            assert cache.get(chat.key) is None
        nursery.cancel_scope.cancel()


async def test_refusals_keep_their_meaning(client: Client, chat: InferenceService, namespace: str):
    """Each way in which a real server says no is the error that callers act on."""
    with pytest.raises(NotFoundError):
        await client.get(InferenceService, Key(namespace, "absent"))
    with pytest.raises(NotFoundError):  # the namespace
        await client.create(decode(Lease, {"metadata": {"name": "mac", "namespace": "absent"}}))
    with pytest.raises(AlreadyExistsError):
        await client.create(decode(InferenceService, {"metadata": _named(chat), "spec": {"modelRef": "m"}}))
    stale = {**_named(chat), "resourceVersion": "1"}
    edited = encode(decode(InferenceService, {"metadata": stale, "spec": {"modelRef": "m"}}))
    with pytest.raises(ConflictError):
        await client.request_json("PUT", object_path(InferenceService.RESOURCE, chat.key), body=edited)
    theirs = {"metadata": _named(chat), "spec": {"modelRef": "other"}}
    with pytest.raises(ConflictError, match="conflict with"):
        await client.apply(InferenceService, theirs, field_manager="somebody", force=False)
    with pytest.raises(ConflictError):
        await client.delete(InferenceService, chat.key, uid="5c1d2b1e-0000-4000-8000-000000000000")
    with pytest.raises(GoneError):
        async with client.open_watch(InferenceService, resource_version="1", namespace=namespace) as watch:
            await watch.next_event()


def _named(service: InferenceService) -> dict[str, Any]:
    return {"name": service.key.name, "namespace": service.key.namespace}


# -- what the embedded server is held to ------------------------------------------------------------------------------


# httpx nests generators that a check which stops reading a watch half-way leaves to the garbage collector
@pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("check", [*CHECKS, *WORKLOAD_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_real_server_passes_the_contract(http: httpx.AsyncClient, check: Callable[[Lab], Awaitable[None]]):
    """The contract of the embedded server holds for the real one, too."""
    if check.__name__ in NEEDS_CONTROLLERS:
        await _need_controllers(http)
    await install(http, widget_crd())
    async with open_lab(http) as lab:
        await check(lab)
