"""Attacks by a second user of the machine, really run: on ports of the loopback address, and on files.

`tests/e2e/test_files.py` has the attack on the state directory before its first use (S14).
"""

import json
import shutil
import signal
from pathlib import Path

import psutil
import pytest
import trio
import yaml

from e2e.addresses import own_address
from e2e.separate_programs import chat, open_cluster
from e2e.test_keys import ASK, listeners
from e2e.up_process import ANSWER, DEMO, FREE_PORTS, engines_in, open_up, proxies_in
from lengths import FLOOD_TIMES
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from second_user import needs_second_user, open_common_folder, start_as_other
from waiting import until

pytestmark = [pytest.mark.e2e, needs_second_user, pytest.mark.ci]

ATTACKER = Path(__file__).parents[2] / "benchmarks" / "http_load" / "attacks.py"
TIMES, ANSWER_SECONDS, END_SECONDS = FLOOD_TIMES, 30.0, 30.0
MEMORY_BYTES = 1 << 30
FIXED_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
"""A Python that every user may run; that of the tests may be in a private folder."""

# Send requests to each listening port, as to an engine and an API server; then try to read all files.
SCAN = """
import json, os, socket, ssl, sys, urllib.request
ports, state, report = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
statuses = {}
loose = ssl._create_unverified_context()
for port in ports:
    for scheme in ("http", "https"):
        for path in ("/healthz", "/v1/models", "/slots", "/props", "/metrics", "/api/v1/namespaces/default/secrets"):
            url = f"{scheme}://127.0.0.1:{port}{path}"
            try:
                with urllib.request.urlopen(url, timeout=2, context=loose if scheme == "https" else None) as answer:
                    statuses[url] = answer.status
            except urllib.error.HTTPError as error:
                statuses[url] = error.code
            except OSError:
                break  # it speaks the other one
read = []
for folder, _, names in os.walk(state, onerror=lambda error: read.append(type(error).__name__)):
    read += names
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            read += [pid] if state.encode() in file.read() else []
    except OSError:
        pass
with open(report, "w") as file:
    json.dump([statuses, read], file)
"""

# Listen at the port where an engine listened, require no key, and record all requests.
IMPOSTOR = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open(sys.argv[2] + ".ready", "w").close()
while True:
    client, _ = server.accept()
    request = client.recv(65536)
    with open(sys.argv[2], "ab") as file:
        file.write(request)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nConnection: close\\r\\n\\r\\nfalse")
    client.close()
"""


async def test_s6_the_sockets_of_another_user_silence_no_server(tmp_path):
    """With a thousand idle connections and thirty half-sent bodies of another user, servers answer new clients."""
    state = tmp_path / "state"
    with open_common_folder() as common:
        program = shutil.copytree(ATTACKER.parent, common / "http_load") / ATTACKER.name
        shutil.copytree(yaml.__path__[0], program.with_name("yaml"))
        (common / "kubeconfig").write_text("users: [{user: {token: none-of-his}}]")
        async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(DEMO)) as up:
            api, gateway, probes = await up.urls()
            await up.wait_for("out", r"default/demo: Ready\n")
            ports = [url.rpartition(":")[2] for url in (gateway, api)]
            words = [program, *ports, common / "kubeconfig"]
            attackers = [
                start_as_other(
                    'exec "$0x" 2>/dev/null'.replace('"$0x"', f'{FIXED_PYTHON} "$1" {name} "$2" "$3" "$4"'), *words
                )
                for name in ("idle", "held")
            ]
            try:
                await until(lambda: len(connections_from(attackers)) > 500)
                for _ in range(TIMES):
                    await answered("POST", f"{gateway}/v1/chat/completions", ASK.encode())
                    await answered("GET", f"{probes}/healthz")
                    with trio.fail_after(ANSWER_SECONDS):
                        async with open_client(load_config(state / "kubeconfig")) as client:
                            assert (await client.list(InferenceService)).items
                    assert psutil.Process(up.process.pid).memory_info().rss < MEMORY_BYTES
                assert [each.poll() for each in attackers] == [None, None], "an attack ended by itself"
                up.process.send_signal(signal.SIGTERM)
                with trio.fail_after(END_SECONDS):
                    assert await up.process.wait() == 0, up.err
            finally:
                end(attackers)


async def test_s4_another_user_finds_no_open_engine_and_nothing_on_disk(tmp_path):
    """On each port of `up` and its engines, only the gateway, health and metrics answer without a key: else 401."""
    state = tmp_path / "state"
    with open_common_folder() as common:
        common.chmod(0o1777)
        async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(DEMO)) as up:
            api, gateway, probes = await up.urls()
            await up.wait_for("out", r"default/demo: Ready\n")
            (engine,) = engines_in(state)
            open_ports = sorted({where.port for where in listeners([up.process.pid, engine.pid])})
            (own,) = {where.port for where in listeners([engine.pid])}
            scan = start_as_other(
                f'exec {FIXED_PYTHON} -c "$1" "$2" "$3" "$4"', SCAN, json.dumps(open_ports), state, common / "report"
            )
            await until(lambda: scan.poll() is not None)
            statuses, read = json.loads((common / "report").read_text())
        free = {url for url, status in statuses.items() if status == 200}
        assert len(open_ports) == 4
        health = {f"{each}/healthz" for each in (gateway, api, probes)}  # each reports that it is up, and nothing else
        state_of_engines = {f"{gateway}/{name}" for name in ("props", "slots", "metrics")}  # without prompts
        assert free == health | state_of_engines | {f"{gateway}/v1/models", f"{probes}/metrics"}
        assert {status for url, status in statuses.items() if f":{own}/" in url} <= {200, 401}
        assert statuses[f"http://127.0.0.1:{own}/slots"] == 401
        assert statuses[f"{api}/api/v1/namespaces/default/secrets"] == 401
        assert set(read) == {"PermissionError"}


async def test_s5_another_user_on_the_port_of_a_dead_engine_gets_no_request(tmp_path):
    """After agent and engine are killed, the proxy exits with the engine, and the port gets no further request."""
    address = own_address()
    with open_common_folder() as common:
        common.chmod(0o1777)
        async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
            await cluster.apply_demo()
            await cluster.wait_ready()
            _, host, port = await cluster.slice()
            url = f"http://{host}:{port}"
            assert await chat(url) == ANSWER
            engine = cluster.engine()
            (inside,) = {where.port for where in listeners([engine.pid])}
            agent.process.kill()
            await agent.process.wait()
            assert await chat(url) == ANSWER
            engine.kill()
            await until(lambda: not listeners([engine.pid]))
            impostor = start_as_other(f'exec {FIXED_PYTHON} -c "$1" "$2" "$3"', IMPOSTOR, inside, common / "requests")
            try:
                await until((common / "requests.ready").exists)
                async with open_http_client() as http:
                    with pytest.raises(HttpError):
                        await http.request("POST", f"{url}/v1/chat/completions", body=ASK.encode())
                assert not (common / "requests").exists()
                await until(lambda: not proxies_in(tmp_path / "agent"))
            finally:
                end([impostor])


async def answered(method, url, body=b""):
    """Fail unless a new client gets a successful answer."""
    with trio.fail_after(ANSWER_SECONDS):
        async with open_http_client() as http:
            answer = await http.request(method, url, body=body)
    assert answer.status == 200, answer.body


def connections_from(attackers):
    return [each for attacker in attackers for each in psutil.Process(attacker.pid).net_connections("inet")]


def end(processes):
    for process in processes:
        process.kill()
        process.wait()
