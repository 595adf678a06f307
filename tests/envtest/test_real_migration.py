"""The day of a migration on a real kube-apiserver: what the Go implementation leaves, taken over by ours."""

import pytest
import trio

from e2e.addresses import own_address
from e2e.separate_programs import chat, eventually
from e2e.up_process import ANSWER
from envtest.test_real_agent import SYSTEM, TEST_SECONDS, is_gone, open_real_cluster
from llmkube.cli.commands.tools.rbac import agent_manifests
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.supervisor.host_policies import host_policies
from migration.leavings import MARK, agents_objects

pytestmark = [pytest.mark.envtest, pytest.mark.e2e]

HERE = ("--namespace", "default")
KEY = Key("default", "demo")
PLURALS = {"Service": "/api/v1/{}/services", "EndpointSlice": "/apis/discovery.k8s.io/v1/{}/endpointslices",
           "Endpoints": "/api/v1/{}/endpoints"}  # fmt: skip


async def create(client, body):
    path = PLURALS[body["kind"]].format(f"namespaces/{body['metadata']['namespace']}")
    await client.request_json("POST", path, body=body)


async def ready_slices(client):
    """The slices behind the Service that lead to an engine which is said to answer, by name."""
    found = await client.list(EndpointSlice, namespace="default", label_selector="kubernetes.io/service-name=demo")
    return {one.metadata.name for one in found.items if any(end.conditions.ready is not False for end in one.endpoints)}


async def test_an_agent_takes_over_what_their_agent_has_left(assets, tmp_path):
    """A Mac's service never loses its last ready endpoint, keeps its address, and has nothing of theirs at the end."""
    address = own_address()
    agents = [*agent_manifests(SYSTEM, "default", "box", (f"{address}/32",), ()), *host_policies(SYSTEM)]
    with trio.fail_after(TEST_SECONDS):
        async with open_real_cluster(assets, tmp_path, agents, ("llmkube-agent-box",)) as (_, box, _):
            client = box.client
            await box.apply_demo()
            for body in agents_objects("demo", address=address, port=50123):
                await create(client, body)
            before = await client.get(Service, KEY)
            await eventually(lambda: ready_slices(client), lambda names: len(names) == 2)  # theirs and its mirror
            seen = []
            async with trio.open_nursery() as nursery:

                async def look():
                    while True:
                        seen.append(await ready_slices(client))

                nursery.start_soon(look)
                async with box.open_agent(address, *HERE) as agent:
                    await eventually(lambda: ready_slices(client), lambda names: names == {"demo.box"})
                    await box.wait_ready()
                    _, host, port = await box.slice()
                    assert await chat(f"http://{host}:{port}") == ANSWER
                    assert all(seen)
                    after = await client.get(Service, KEY)
                    assert await is_gone(client, Endpoints, KEY)
                    assert "could not delete" not in agent.err
                nursery.cancel_scope.cancel()
            assert after.spec.cluster_ip == before.spec.cluster_ip
            assert after.metadata.labels[SERVICE_LABEL] == "demo"
            assert not [name for name in (*after.metadata.labels, *after.metadata.annotations) if MARK in name]
            assert [owner.kind for owner in after.metadata.owner_references] == ["InferenceService"]
