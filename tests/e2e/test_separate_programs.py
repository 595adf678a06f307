"""Real processes that are killed by real signals: what the cluster sees, and what is left."""

import json
import shlex
import signal
import sys

import pytest
import trio

from e2e.kubectl_tool import Kubectl
from e2e.separate_programs import DEMO, chat, eventually, logs, open_cluster, open_server
from e2e.up_process import ANSWER, command_line, engines_in, fake_engine, processes_in
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Lease, Service
from llmkube.k8s.resource import Key
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.mark.ci
async def test_a_killed_engine_is_replaced_behind_the_same_address(tmp_path, address):
    """After SIGKILL the slice is not ready, then ready with a new engine; Service and ClusterIP stay."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        before, first = await cluster.client.get(Service, DEMO), cluster.engine()
        ready, host, port = await cluster.slice()
        assert (ready, host) == (True, address)
        async with cluster.open_slices() as seen:
            first.kill()
            await until(lambda: seen and seen[-1][0])
        new_port = seen[-1][2]
        assert seen == [(False, address, port), (True, address, new_port)]
        await cluster.wait_ready()
        assert await chat(f"http://{address}:{new_port}") == ANSWER
        after = await cluster.client.get(Service, DEMO)
        assert (after.metadata.uid, after.spec.cluster_ip) == (before.metadata.uid, before.spec.cluster_ip)
        second = cluster.engine()
        assert second.pid != first.pid
    engines = ((first.pid, port), (second.pid, new_port))
    for message, keys in (
        ("starting inference service", lambda _pid, port: {"port": port}),
        ("registered endpoint", lambda _pid, port: {"hostIP": address, "port": port}),
        ("started inference service", lambda pid, port: {"pid": pid, "port": port}),
    ):
        lines = logs(agent, message)
        assert [line["name"] for line in lines] == ["demo", "demo"]
        for line, engine in zip(lines, engines, strict=True):
            assert keys(*engine).items() <= line.items()
    (failed,) = logs(agent, "inference service failed")
    assert failed["message"].startswith("the engine exited while serving: killed by SIGKILL: LLMKube did not send it")


@pytest.mark.ci
async def test_scaling_to_zero_is_logged_in_the_words_of_the_guide(tmp_path, address):
    """`replicas: 0` stops the process with the guide's log line, and keeps the Service."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        await cluster.apply_demo(replicas=0)
        await cluster.wait_service(lambda service: service.status.phase == "Stopped")
        await until(lambda: not engines_in(tmp_path))
        assert (await cluster.slice())[0] is False
        assert (await cluster.client.get(Service, DEMO)).spec.cluster_ip
        (line,) = logs(agent, "replicas=0; stopping process")
        assert line["name"] == "demo"


@pytest.mark.ci
async def test_serving_outlives_the_api_server(tmp_path, address):
    """With the API server killed, engines answer and are replaced; once it is back, all is reconciled."""
    own_port = str(free_port())
    async with open_cluster(tmp_path, server_port=own_port) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        first, (_, _, port) = cluster.engine(), await cluster.slice()
        async with open_http_client() as http:

            async def ask():
                while True:  # an engine that does not answer raises, which fails the test
                    assert (await http.request("GET", f"http://{address}:{port}/health")).status == 200
                    await trio.sleep(0.01)

            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                cluster.server.process.kill()
                await cluster.server.process.wait()
                await agent.wait_for("err", "lease not renewed|watch interrupted")
                assert await chat(f"http://{address}:{port}") == ANSWER
                asking.cancel_scope.cancel()
        first.kill()
        await until(lambda: len(logs(agent, "started inference service")) == 2)
        second_port = logs(agent, "started inference service")[-1]["port"]
        assert await chat(f"http://{address}:{second_port}") == ANSWER
        async with open_server(tmp_path, own_port):
            assert await eventually(cluster.slice, lambda state: state[2] != port) == (True, address, second_port)
            await cluster.apply_demo(contextSize=256)
            _, _, third_port = await eventually(cluster.slice, lambda state: state[0] and state[2] != second_port)
            await cluster.wait_service(lambda service: service.status.ready_replicas == 1)
            assert await chat(f"http://{address}:{third_port}") == ANSWER
            await until(lambda: len(engines_in(tmp_path)) == 1)
            assert "256" in command_line(cluster.engine())


ENGINE_THAT_LOOKS_BACK = """
import http.server, json, ssl, sys, threading, signal, urllib.request
import yaml

config = yaml.safe_load(open({kubeconfig!r}))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
context = ssl.create_default_context(cadata=__import__("base64").b64decode(
    cluster["certificate-authority-data"]).decode())

def look_back(*_):
    url = cluster["server"] + "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/demo.box"
    request = urllib.request.Request(url, headers={{"Authorization": "Bearer " + user["token"]}})
    with urllib.request.urlopen(request, context=context, timeout=10) as answer, open({seen!r}, "wb") as seen:
        seen.write(answer.read())
    sys.exit(0)

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
server = http.server.ThreadingHTTPServer((arguments["--host"], int(arguments["--port"])), Health)
signal.signal(signal.SIGTERM, look_back)
server.serve_forever()
"""


@pytest.mark.ci
async def test_the_endpoint_is_withdrawn_before_the_engine_is_stopped(tmp_path, address):
    """After SIGTERM of the agent the slice is not ready before the engine gets TERM; no process or Lease is left."""
    async with open_cluster(tmp_path) as cluster:
        script, seen = tmp_path / "engine.py", tmp_path / "seen.json"
        script.write_text(ENGINE_THAT_LOOKS_BACK.format(kubeconfig=str(cluster.kubeconfig), seen=str(seen)))
        program = fake_engine(tmp_path, f'exec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"')
        async with cluster.open_agent(address, "--llama-server", program) as agent:
            await cluster.apply_demo()
            await cluster.wait_ready()
            assert (await cluster.slice())[0] is True
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.process.wait() == 0, agent.err
            assert json.loads(seen.read_text())["endpoints"][0]["conditions"]["ready"] is False
            assert not processes_in(tmp_path / "agent")
            leases = await cluster.client.list(Lease, namespace="llmkube-system")
            assert "box" not in [lease.metadata.name for lease in leases.items]
            await cluster.wait_service(lambda service: service.status.phase == "Pending")


@pytest.mark.ci
@pytest.mark.kubectl
async def test_classic_endpoints_on_request(tmp_path, address, kubectl_program):
    """With --endpoints-api endpoints, `kubectl get endpoints` shows address and port, and none while not ready."""
    flags = ("--endpoints-api", "endpoints")
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address, *flags) as agent:
        kubectl = Kubectl(kubectl_program, cluster.kubeconfig, tmp_path)
        await cluster.apply_demo()
        await cluster.wait_ready()
        port = logs(agent, "registered endpoint")[0]["port"]
        header, row = (await kubectl.run("get", "endpoints", "demo")).splitlines()[-2:]
        assert header.split() == ["NAME", "ENDPOINTS", "AGE"]
        assert row.split()[:2] == ["demo", f"{address}:{port}"]
        assert not (await cluster.client.list(EndpointSlice, namespace="default")).items
        await cluster.apply_demo(replicas=0)
        await eventually(
            lambda: cluster.client.get(Endpoints, Key("default", "demo")),
            lambda found: not any(subset.get("addresses") for subset in found.wire.unknown.get("subsets", ())),
        )
        assert (await kubectl.run("get", "endpoints", "demo")).split()[-2] == "<none>"
