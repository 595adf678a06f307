"""On a real kube-apiserver: no status lands on a successor, a Lease has one holder, the declared rights are enough."""

import datetime
import functools
import random
from contextlib import asynccontextmanager

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from k8s.api_calls import ApiCall, undeclared
from llmkube.controller.operator import run_controller
from llmkube.controller.rights import PROGRAM
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s import client as client_room
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.builtins import ConfigMap, Event, Lease, Secret
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ConflictError, ForbiddenError, NotFoundError, SchemaMismatchError, WatchSilentError
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.leases import lease
from llmkube.k8s.leases.lease import LeaseLostError, hold_lease
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.request import APPLY_PATCH
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import Watch
from llmkube.k8s.wire.names import ACCELERATORS_ANNOTATION, HOST_LABEL

pytestmark = pytest.mark.envtest

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05
PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def utcnow():
    return datetime.datetime.now(datetime.UTC)


async def until(what, wanted):
    """Ask again until an answer has a value; the last answer is in the failure."""
    seen = None
    with trio.move_on_after(WAIT_SECONDS):
        while (seen := await what()) != wanted:  # noqa: ASYNC110 (a server outside offers no event)
            await trio.sleep(POLL_SECONDS)
        return
    raise AssertionError(f"{seen!r} instead of {wanted!r}")


async def apply_at(client, path, manifest):
    params = {"fieldManager": "installer", "force": "true"}
    return await client.request_json("PATCH", path, params=params, body=manifest, content_type=APPLY_PATCH)


@pytest.fixture
async def crds(client):
    """Install our kinds; they stay, as the cluster may be shared."""
    for manifest in all_crds():
        name = manifest["metadata"]["name"]
        await apply_at(client, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", manifest)

    async def served():
        try:
            await client.list(Model, namespace="default")
        except Exception:  # noqa: BLE001 (any answer but a list means: not yet)
            return False
        return True

    await until(served, True)


async def make_model(client, namespace, name="phi"):
    manifest = {"metadata": {"name": name, "namespace": namespace}, "spec": {"source": "builtin://demo"}}
    return await client.apply(Model, manifest, field_manager="user")


PHASE = {"phase": "Ready", "conditions": []}


async def test_a_status_does_not_land_on_a_successor(client, crds, namespace):
    """The status of a Model that was replaced in the meantime is a 409, and the new Model has none."""
    first = await make_model(client, namespace)
    await client.delete(Model, first.key)
    second = await make_model(client, namespace)
    with pytest.raises(ConflictError):
        await StatusWriter(client, Model).write(first, PHASE)
    assert not (await client.get(Model, first.key)).status.phase
    assert await StatusWriter(client, Model).write(second, PHASE)
    await client.delete(Model, first.key)
    with pytest.raises(NotFoundError):
        await StatusWriter(client, Model).write(second, PHASE)


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"newField": 1}, "status.newField"),
        ({"phase": 7}, "status.phase"),
        ({"conditions": [{"type": "A", "bogus": 1}]}, 'status.conditions[type="A"].bogus'),
    ],
)
async def test_a_field_that_the_crd_lacks_is_the_users_error(client, crds, namespace, status, field):
    """An apply beyond the installed schema names the field and is not tried for ever."""
    model = await make_model(client, namespace)
    manifest = {"metadata": {"name": "phi", "namespace": namespace}, "status": status}
    with pytest.raises(SchemaMismatchError) as caught:
        await client.apply(Model, manifest, field_manager="x", subresource="status")
    assert caught.value.field == field
    assert model.key.name == "phi"


async def test_a_position_from_the_future_is_silence(client, namespace, monkeypatch):
    """The real server never speaks on a watch from its future; the reflector lists, and has what was created since."""
    monkeypatch.setattr(client_room, "Watch", functools.partial(Watch, read_idle_seconds=3.0))
    future = str(10**9)
    async with client.open_watch(ConfigMap, namespace=namespace, resource_version=future) as watch:
        await client.create(ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace)))
        with pytest.raises(WatchSilentError):
            await watch.next_event()
    cache = Cache()
    cache._position = future
    async with trio.open_nursery() as nursery:
        reflect = functools.partial(run_reflector, namespace=namespace, rng=random.Random(1))
        nursery.start_soon(reflect, client, ConfigMap, cache, lambda key: None)
        with trio.fail_after(WAIT_SECONDS):
            await cache.synced.wait()
        assert Key(namespace, "a") in cache
        assert cache.position != future
        nursery.cancel_scope.cancel()


async def test_a_lease_has_one_holder(client, namespace, monkeypatch):
    """Held, renewed, handed over, and lost to another name, on the real server."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.3)
    key = Key(namespace, "leader")

    async def holder():
        return (await client.get(Lease, key)).spec.holder_identity

    async def robbed():
        async with hold_lease(client, key, "two", utcnow=utcnow, rng=random.Random(2)) as two:
            assert await holder() == two
            await client.patch(Lease, key, {"spec": {"holderIdentity": "somebody"}})
            await trio.sleep_forever()

    with trio.fail_after(WAIT_SECONDS):
        async with hold_lease(client, key, "one", utcnow=utcnow, rng=random.Random(1)) as one:
            before = await client.get(Lease, key)
            assert before.spec.holder_identity == one
            await trio.sleep(1)
            assert (await client.get(Lease, key)).metadata.resource_version != before.metadata.resource_version
        assert await holder() == ""
        with pytest.raises(LeaseLostError):
            await robbed()
        assert await holder() == "somebody"


async def test_events_are_taken_and_counted(client, crds, namespace):
    """The real server takes our Events, also with an instance without a name, and a repetition raises the count."""
    model = await make_model(client, namespace)
    for instance in ("studio", ""):
        async with trio.open_nursery() as nursery:
            recorder = EventRecorder("llmkube-controller", instance, utcnow, random.Random())
            nursery.start_soon(recorder.run, client)
            for _ in range(2):
                recorder.emit_nowait(model, "NotGGUF", "é" * 1000, type="Warning")
                with trio.fail_after(WAIT_SECONDS):
                    await recorder.wait_written()
            nursery.cancel_scope.cancel()
        assert recorder.dropped == 0
    events = (await client.list(Event, namespace=namespace)).items
    assert [one.count for one in events] == [2, 2]
    assert {one.involved_object.uid for one in events} == {model.metadata.uid}


class Impersonating(httpx.AsyncBaseTransport):
    """An administrator who impersonates another user, and records the requests."""

    def __init__(self, inner, user):
        self.inner = inner
        self.user = user
        self.calls = []

    async def handle_async_request(self, request):
        self.calls.append(ApiCall.of(request))
        request.headers["Impersonate-User"] = self.user
        return await self.inner.handle_async_request(request)

    async def aclose(self):
        await self.inner.aclose()


@asynccontextmanager
async def open_impersonated(kubeconfig, system, account):
    config = load_config(kubeconfig)
    transport = Impersonating(AuthTransport(config), f"system:serviceaccount:{system}:{account}")
    async with httpx.AsyncClient(transport=transport, base_url=config.server, timeout=None) as http:
        yield Client(http), transport


@asynccontextmanager
async def installed(client, manifests):
    """Apply manifests, and delete them afterwards."""
    paths = []
    for manifest in manifests:
        metadata = manifest["metadata"]
        paths.append(f"{PLURALS[manifest['kind']].format(metadata.get('namespace'))}/{metadata['name']}")
        await apply_at(client, paths[-1], manifest)
    yield
    for path in reversed(paths):
        await client.request_json("DELETE", path)


@pytest.mark.parametrize("everywhere", [True, False])
async def test_the_declared_rights_are_enough(client, crds, namespace, real_kubeconfig, everywhere):
    """A controller with nothing but its own rendered roles elects itself, creates, derives, writes and tells."""
    system = f"{namespace}-system"
    served = None if everywhere else namespace
    program = attrs.evolve(PROGRAM, name=f"{namespace}-controller")  # cluster-wide names, in a shared cluster
    settings = ControllerSettings(namespace=served, lease_namespace=system, identity="one")
    async with (
        installed(client, rbac_manifests(program, system_namespace=system, namespace=served)),
        open_impersonated(real_kubeconfig, system, program.name) as (limited, transport),
        trio.open_nursery() as nursery,
    ):
        with pytest.raises(ForbiddenError):
            await limited.list(Secret, namespace=namespace)
        transport.calls.clear()
        with trio.fail_after(WAIT_SECONDS):
            await nursery.start(
                lambda task_status: run_controller(
                    limited, settings, utcnow=utcnow, rng=random.Random(), task_status=task_status
                )
            )
        await make_model(client, namespace)
        spec = {"holderIdentity": "mac", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
        metadata = {"name": "mac", "namespace": system, "labels": {HOST_LABEL: "mac"}}
        metadata["annotations"] = {ACCELERATORS_ANNOTATION: "metal"}
        await client.apply(Lease, {"metadata": metadata, "spec": spec}, field_manager="agent")
        body = {"spec": {"source": "builtin://demo", "hardware": {"accelerator": "metal"}}}
        name = {"metadata": {"name": "phi", "namespace": namespace}}
        await client.apply(Model, {**name, **body}, field_manager="user")
        fetched = {"type": "Fetched", "status": "True", "reason": "Fetched", "message": "here"}
        fetched["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        await client.apply(
            Model, {**name, "status": {"conditions": [fetched]}}, field_manager="agent", subresource="status"
        )

        async def phase():
            return (await client.get(Model, Key(namespace, "phi"))).status.phase

        async def reasons():
            return [one.reason for one in (await client.list(Event, namespace=namespace)).items]

        await until(phase, "Ready")
        await until(reasons, ["ModelReady"])
        assert undeclared(transport.calls, PROGRAM, system) == set()
        nursery.cancel_scope.cancel()
