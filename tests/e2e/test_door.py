"""Services on request of an agent: their door holds requests, and outlives the agent; it is restored on its port."""

import base64
import fcntl
import json
import shlex
import signal
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import trio

from e2e.separate_programs import REAL_ENGINE, SLICE, chat, eventually, open_cluster
from e2e.up_process import ANSWER, doors_in, engines_in, fake_engine, is_open
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.k8s.builtins import EndpointSlice, Lease, Secret
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import claim_name
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ON_REQUEST = ("--activation", "OnRequest")
SHORT = {"idleTimeout": "1s"}
ASK = json.dumps({"model": "any", "max_tokens": 1, "messages": [{"role": "user", "content": "What is LLMKube?"}]})


@pytest.fixture(autouse=True)
def own_port(tmp_path_factory):
    """Run one test of this file at a time: their services have the same name, and so the same port of this machine."""
    with (tmp_path_factory.getbasetemp().parent / "door.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def slow_engine(folder):
    """Return an engine that starts to load once the returned file is gone."""
    closed = folder / "closed"
    script = f'while [ -e {shlex.quote(str(closed))} ]; do sleep 0.05; done\nexec {REAL_ENGINE} "$@"'
    return fake_engine(folder, script), closed


def asking(nursery):
    """Return a list of answers, and a function that asks at an address and adds the answer once it has come."""
    answers = []

    async def ask(url):
        answers.append(await chat(url, "any name", stream=True))

    return answers, partial(nursery.start_soon, ask)


async def wait_idle(cluster):
    """Return the service and its address once it is not loaded."""
    service = await cluster.wait_service(lambda service: service.status.phase == "Idle")
    await until(lambda: not engines_in(cluster.folder))
    _, host, port = await eventually(cluster.slice, lambda state: state[0])
    return service, f"http://{host}:{port}"


async def test_requests_for_an_unloaded_service_outlive_the_agent_and_a_new_door_has_the_port(tmp_path, address):
    """A request loads the model; one that waits is answered by the successor of a killed agent, as is one without any.

    The endpoint is ready while nothing is loaded, and reads load nothing. A killed door is restored on its port.
    """
    engine, closed = slow_engine(tmp_path)
    args = (*ON_REQUEST, "--llama-server", engine)
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        answers, ask = asking(nursery)
        async with cluster.open_agent(address, *args) as agent:
            await cluster.apply_demo(activation=SHORT)
            service, url = await wait_idle(cluster)
            conditions = {each.type: (each.status, each.reason) for each in service.status.conditions}
            assert conditions["Available"] == ("True", "Idle")
            assert conditions["SpecHonoured"][0] == "True"
            assert (service.status.activation, service.status.ready_replicas) == ("OnRequest", 0)
            async with open_http_client() as http:
                for path, status in (("/health", 200), ("/v1/models", 200), ("/props", 503)):
                    assert (await http.request("GET", url + path)).status == status
            assert not engines_in(tmp_path)
            assert await chat(url) == ANSWER  # loaded for it
            await wait_idle(cluster)

            closed.touch()
            ask(url)
            await until(lambda: agent.err.count('"msg":"starting inference service"') == 3)
            agent.process.kill()
            await agent.process.wait()
            assert not answers
            (door,) = doors_in(tmp_path)
            async with cluster.open_agent(address, *args) as successor:
                closed.unlink()
                await until(lambda: answers == [ANSWER])
                assert (await wait_idle(cluster))[1] == url

                successor.process.kill()
                await successor.process.wait()
                ask(url)  # no agent runs
                await until(lambda: any(each.raddr for each in door.net_connections("inet")))
                async with cluster.open_slices() as seen, cluster.open_agent(address, *args) as third:
                    await until(lambda: answers == [ANSWER, ANSWER])
                    assert doors_in(tmp_path) == [door]
                    assert all(ready for ready, *_ in seen)
                    await wait_idle(cluster)
                    door.kill()
                    await until(lambda: door not in doors_in(tmp_path))
                    await until(lambda: doors_in(tmp_path) and is_open(url))
                    assert await chat(url) == ANSWER
                    assert (await cluster.slice())[2] == int(url.rpartition(":")[2])
                    third.process.send_signal(signal.SIGTERM)
                    await third.process.wait()
                    assert not doors_in(tmp_path)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_request_that_waits_is_answered_by_the_host_that_takes_the_service(tmp_path, address, is_killed):
    """Its client notices nothing, also if the claim moves after the agent has been killed."""
    engine, closed = slow_engine(tmp_path)
    args = (*ON_REQUEST, "--llama-server", engine)
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        answers, ask = asking(nursery)
        async with cluster.open_agent(address, *args) as agent:
            await cluster.apply_demo(activation=SHORT)
            _, url = await wait_idle(cluster)
            closed.touch()
            ask(url)
            await until(lambda: agent.err.count('"msg":"starting inference service"') == 2)
            async with cluster.open_agent(address, *ON_REQUEST, "--host-name", "other", folder="other"):
                lease = Key("llmkube-system", "other")
                await eventually(lambda: cluster.client.get(Lease, lease), lambda _: True)
                if is_killed:
                    agent.process.kill()
                    await agent.process.wait()
                claim = attrs.evolve(lease, name=claim_name("default", "demo", 0))
                await cluster.client.patch(Lease, claim, {"spec": {"holderIdentity": "other"}})
                async with cluster.open_agent(address, *args) if is_killed else nullcontext():
                    await until(lambda: answers == [ANSWER])
                    assert not engines_in(tmp_path / "agent")
                    names = [each.metadata.name for each in (await cluster.client.list(EndpointSlice)).items]
                    assert names == ["demo.other"]


async def test_the_door_of_an_unloaded_service_checks_its_keys(tmp_path, address):
    """Without a key the model is not loaded, also after a restart of the agent; with a key the request is answered."""
    async with open_cluster(tmp_path) as cluster:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "default"}}
        data = {"api-key": base64.b64encode(b"secret-of-client").decode()}
        await cluster.client.apply(Secret, secret | {"data": data}, field_manager="user")
        for restarted in (False, True):
            async with cluster.open_agent(address, *ON_REQUEST) as agent:
                if not restarted:
                    await cluster.apply_demo(activation=SHORT, apiKeySecretRef={"name": "keys"})
                _, url = await wait_idle(cluster)
                assert await status(url) == 401
                assert await status(url, "another") == 401
                assert not engines_in(tmp_path)
                assert await status(url, "secret-of-client") == 200
                agent.process.kill()
                await agent.process.wait()


async def status(url, key=""):
    headers = Headers.of({"Authorization": f"Bearer {key}"}) if key else NO_HEADERS
    async with open_http_client() as http:
        return (await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=ASK.encode())).status


async def test_services_that_are_always_loaded_have_no_door(tmp_path, address):
    """The agent adds nothing to their path; an edit to OnRequest gives the service a door, and one back removes it."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address):
        await cluster.apply_demo()
        await cluster.wait_ready()
        assert not doors_in(tmp_path)
        _, _, direct = await cluster.slice()
        await cluster.apply_demo(activation={"mode": "OnRequest", "idleTimeout": "1s"})
        _, url = await wait_idle(cluster)
        assert await chat(url) == ANSWER
        assert int(url.rpartition(":")[2]) != direct
        piece = await eventually(lambda: cluster.client.get(EndpointSlice, SLICE), lambda each: each)
        assert piece.metadata.labels.get("inference.llmkube.dev/loaded") in (None, "false")
        await wait_idle(cluster)
        await cluster.apply_demo(activation={"mode": "Always"})
        await cluster.wait_ready()
        await until(lambda: not doors_in(tmp_path))
        _, host, port = await cluster.slice()
        assert await chat(f"http://{host}:{port}") == ANSWER
