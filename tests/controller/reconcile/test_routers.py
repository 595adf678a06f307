"""A router that nobody serves does not look as if somebody did."""

import trio

from controller.cluster import SETTLED, open_cluster
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import find_condition

KEY = Key("ml", "front")


async def apply_router(client, **spec):
    backends = [{"name": "chat", "inferenceServiceRef": {"name": "chat"}}]
    meta = {"name": KEY.name, "namespace": KEY.namespace}
    resource = ModelRouter.RESOURCE
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    await client.apply(ModelRouter, {**body, "spec": {"backends": backends, **spec}}, field_manager="user")


async def test_a_router_says_that_nothing_routes_by_it(autojump_clock):
    """Its condition is about the newest spec, and is written once for each; deleting it is quiet."""
    async with open_cluster() as cluster:
        await apply_router(cluster.client)
        await trio.sleep(SETTLED)
        await apply_router(cluster.client, defaultRoute="chat")
        await trio.sleep(600)
        router = await cluster.client.get(ModelRouter, KEY)
        accepted = find_condition(router.status.conditions, "Accepted")
        assert (accepted.status, accepted.reason) == ("False", "NotSupported")
        assert accepted.observed_generation == router.metadata.generation == 2
        assert cluster.writes.count("front") == 2
        await cluster.client.delete(ModelRouter, KEY)
        await trio.sleep(SETTLED)
        assert cluster.reconciles("modelrouter", "error") == 0
