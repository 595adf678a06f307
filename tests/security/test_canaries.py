"""Put a unique secret into every place that holds one, exercise the programs, and search all they write."""

import base64
import json
import signal
import stat
import subprocess
import sys

import psutil
import pytest
import trio
import yaml

from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, cluster_model, pod_service
from e2e.addresses import own_address
from e2e.one_machine import Up
from e2e.separate_programs import DEMO as SERVED
from e2e.separate_programs import chat, eventually, open_cluster
from e2e.test_downloads import OTHER, deploy
from e2e.test_listen import network_url
from e2e.up_process import DEMO, FREE_PORTS, command_line, engines_in, open_program, open_up, run_program
from e2e.web import open_web
from free_ports import free_port
from gguf_corpus import DEMO as DEMO_WEIGHTS
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers, netloc
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.drain import KEYS_FOLDER
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.storage import Weights, serving_storage
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import Event, Lease, Secret, Service
from llmkube.k8s.client import open_client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment
from llmkube.runtimes.registry import container_plan_for
from waiting import until

pytestmark = pytest.mark.e2e

GOOD, WRONG, PASSWORD, SIGNATURE = "hf_CanaryGood1", "hf_CanaryWrong2", "CanaryPassword3", "CanarySignature4"
HUB, AWS, THEIRS, PROMPT = "hf_CanaryHub5", "CanaryAws6", "CanaryClientKey7", "CanaryPrompt8"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
TYPED = (GOOD, WRONG, PASSWORD, SIGNATURE, HUB, AWS, THEIRS, PROMPT, BASIC)

PRIVATE = ("journal", "keys", "api.db", "api.db-wal", "api.db-shm", "ca", "kubeconfig", "token", "listen-key")
"""Files of a state directory that hold secrets, each with mode 0600, and folders of such files."""


@pytest.mark.ci
async def test_secrets_are_where_they_belong_and_nowhere_else(tmp_path):
    """No canary is in a log, a command line, an engine's environment, a metric, an Event, a status or an output."""
    state, hub_token = tmp_path / "state", tmp_path / "hub-token"
    hub_token.write_text(f"{HUB}\n")
    hub_token.chmod(0o600)
    environment = ("env", f"AWS_SECRET_ACCESS_KEY={AWS}", f"AWS_ACCESS_KEY_ID={AWS}id", f"HF_TOKEN={HUB}")
    args = ("--state-dir", str(state), *FREE_PORTS, "--hf-token-file", str(hub_token), "-f", str(DEMO))
    args += ("--listen", netloc((own_address(), 0)))
    async with open_web(m=OTHER) as web:
        web.files["o/r/resolve/main/m.gguf"] = OTHER
        web.credentials = (GOOD, BASIC, SIGNATURE, HUB)
        host = web.url.removeprefix("http://")
        async with open_up(tmp_path, *args, "--hub-endpoint", web.url, prefix=environment) as program:
            _, gateway, probes = await program.urls()
            await program.wait_for("out", "stop +Ctrl-C")
            config = load_config(state / "kubeconfig", None)
            async with open_client(config) as client:
                up = Up(client, gateway, state, probes)
                for name, token in (("good", GOOD), ("wrong", WRONG)):
                    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}
                    text = base64.b64encode(token.encode()).decode()
                    await client.apply(Secret, body | {"data": {"HF_TOKEN": text}}, field_manager="user")
                for name, source, more in (
                    ("by-secret", f"{web.url}/m.gguf", {"sourceSecretRef": {"name": "good"}}),
                    ("by-wrong-secret", f"{web.url}/m.gguf", {"sourceSecretRef": {"name": "wrong"}}),
                    ("by-password", f"http://me:{PASSWORD}@{host}/m.gguf", {}),
                    ("by-wrong-password", f"http://me:{PASSWORD}x@{host}/m.gguf", {}),
                    ("by-signature", f"{web.url}/m.gguf?sig={SIGNATURE}", {}),
                    ("by-lost-signature", f"{web.url}/gone.gguf?sig={SIGNATURE}", {}),
                    ("by-hub", "hf://o/r/m.gguf", {}),
                    ("by-bucket", "s3://bucket/m.gguf", {}),
                ):
                    await deploy(up, name, source, **more)
                for name in ("by-secret", "by-password", "by-signature", "by-hub"):
                    await up.wait_loaded(name, "Loaded")
                for name in ("by-wrong-secret", "by-wrong-password", "by-lost-signature", "by-bucket"):
                    await up.wait_condition(Model, name, "Fetched", lambda found: found.reason not in {"", "Fetching"})
                listen_key = (state / "listen-key").read_text()
                answers = await ask(gateway)
                answers += await ask(network_url(program), listen_key)
                up.engine("by-secret").send_signal(signal.SIGABRT)  # the engine's last lines are reported
                await up.wait_condition(InferenceService, "by-secret", "Loaded", lambda found: found.reason != "Loaded")
                await up.wait_loaded("by-secret", "Loaded")
                refused = {"spec": {"extraArgs": ["--api-key", GOOD]}}  # a secret in the wrong field
                await client.patch(InferenceService, Key("default", "by-password"), refused)
                await up.wait_condition(
                    InferenceService, "by-password", "Accepted", lambda found: found.status != "True"
                )
                assert await chat(gateway, "by-secret")

                keys = [path.read_text().strip() for path in state.glob("keys/*")]
                assert len(keys) == len(engines_in(state))
                canaries = (*TYPED, *keys, api_token(state), listen_key)
                everything = {
                    "outputs": program.out + program.err,
                    "answers": answers,
                    "command lines": words_of(psutil.process_iter(), lambda each: each.cmdline()),
                    "engines' environments": words_of(engines_in(state), lambda each: each.environ().values()),
                    "metrics": await read(f"{probes}/metrics"),
                    "objects": await objects(client),
                    "commands": await commands(tmp_path, state / "kubeconfig"),
                    "files": public_files(state),
                }
                assert await eventually(lambda: client.list(Event), lambda events: len(events.items) > 8)
                assert [
                    (place, canary) for place, text in everything.items() for canary in canaries if canary in text
                ] == []
                for path in private_files(state):
                    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            program.process.send_signal(signal.SIGTERM)
            assert await program.process.wait() == 0
    await until(lambda: not engines_in(state))
    assert not [canary for canary in canaries if canary in program.out + program.err + public_files(state)]


FIRST, SECOND, THIRD = "CanaryClients9", "CanaryClients10", "CanaryClients11"
KEYS = (FIRST, SECOND, THIRD, WRONG)
MISPLACED = "CanaryClients12"
"""Written into the object itself; the journal stores the desired object, as the API server does."""


@pytest.mark.ci
async def test_keys_of_a_host_s_clients_are_where_they_belong_and_nowhere_else(tmp_path):
    """API server, controller and agent are separate programs; keys are rotated and corrupted, an agent is killed."""
    state, probe, address = tmp_path / "agent", str(free_port()), own_address()
    controllers = str(free_port())
    async with open_cluster(tmp_path, "--port", controllers) as cluster:
        answers = []
        await put_keys(cluster.client, FIRST, SECOND)
        async with cluster.open_agent(address, "--port", probe) as killed:
            await cluster.apply_demo(apiKeySecretRef={"name": "chat-keys"})
            await cluster.wait_ready()
            answers += await ask_with_keys(await engine_url(cluster), FIRST, WRONG)
            await put_keys(cluster.client, THIRD)  # at once, not at the next scan, since the service is edited as well
            await cluster.client.patch(InferenceService, SERVED, {"spec": {"contextSize": 256}})
            await until(lambda: ["256" in command_line(each) for each in engines_in(state)] == [True])
            await eventually(lambda: ask_with_keys(None, THIRD, cluster=cluster), lambda found: "choices" in found[0])
            cluster.engine().send_signal(signal.SIGABRT)
            await eventually(lambda: ask_with_keys(None, THIRD, cluster=cluster), lambda found: "choices" in found[0])
            metrics = await read(f"http://127.0.0.1:{probe}/metrics")
            killed.process.kill()
            await killed.process.wait()
            async with cluster.open_agent(address, "--port", probe) as agent:
                await put_keys(cluster.client, f"{FIRST} spoilt")
                await cluster.client.patch(InferenceService, SERVED, {"spec": {"contextSize": 384}})
                await cluster.wait_service(lambda service: "APIKeysUnavailable" in str(encode(service)))
                await cluster.client.patch(InferenceService, SERVED, {"spec": {"extraArgs": ["--api-key", MISPLACED]}})
                await cluster.wait_service(lambda service: "Accepted" in refused(service))
                await engine_url(cluster)  # the adopted engine keeps its keys
                key_file = tmp_path / "their-key"
                key_file.write_text(f"{THIRD}\n")
                chatted = await run_program(
                    tmp_path, "chat", "demo", "Hi?", "--api-key-file", str(key_file), kubeconfig=cluster.kubeconfig
                )
                assert chatted[0] == 0, chatted
                key_file.unlink()
                programs = (killed, agent, cluster.server, cluster.controller)
                outputs = [text for each in programs for text in (each.out, each.err)] + list(map(str, chatted))
                ours = [line for path in state.glob("keys/*") for line in path.read_text().splitlines()]
                assert THIRD in ours
                canaries = {*KEYS, MISPLACED, *ours, api_token(tmp_path / "server")}
                everything = {
                    "outputs": "".join(outputs),
                    "answers": "".join(answers),
                    "command lines": words_of(psutil.process_iter(), lambda each: each.cmdline()),
                    "engines' environments": words_of(engines_in(state), lambda each: each.environ().values()),
                    "metrics": metrics + await read(f"http://127.0.0.1:{probe}/metrics"),
                    "objects": await objects(cluster.client),
                    "commands": await commands(tmp_path, cluster.kubeconfig),
                    "journal": "".join(path.read_text() for path in state.glob("journal/**/*.json")),
                    "files": public_files(state) + public_files(tmp_path / "server"),
                }
                everything["files"] += public_files(tmp_path / "controller")
                everything["metrics"] += await read(f"http://127.0.0.1:{controllers}/metrics")
                assert "llmkube_" in everything["metrics"]
                assert everything["journal"]
                journal = everything.pop("journal")  # private: it holds our own key, but no client's key
                assert not [key for key in KEYS if key in journal]
                assert [(place, each) for place, text in everything.items() for each in canaries if each in text] == []
                for folder in (state, tmp_path / "server"):
                    for path in private_files(folder):
                        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            assert not [each for each in canaries if each in agent.out + agent.err]


@pytest.mark.ci
async def test_keys_of_a_pod_s_clients_are_where_they_belong_and_nowhere_else(tmp_path):
    """Both containers of a pod run as under a kubelet: keys are rotated, corrupted, deleted, and the engine exits."""
    weights, keys, port, inside = tmp_path / "model.gguf", tmp_path / "keys", free_port(), free_port()
    weights.write_bytes(DEMO_WEIGHTS.read_bytes())
    keys.write_text(f"{FIRST}\n{SECOND}\n")
    service = pod_service(apiKeySecretRef={"name": "chat-keys"}, containerPort=port)
    model = cluster_model(hardware={"accelerator": "cpu"})
    plan = container_plan_for(service, model, rendered=RENDERED)
    storage = serving_storage(service, model, str(weights), SETTINGS)
    made = deployment(service, plan, SETTINGS, WantedPods(weights=Weights(storage)))
    engine, ours = made["spec"]["template"]["spec"]["containers"]
    places = {str(plan.key_check.engine_port): str(inside), f"{KEYS_FOLDER}/keys": str(keys)}
    url = f"http://127.0.0.1:{port}"
    async with (
        open_container(tmp_path, ours["args"], places) as asks,
        open_container(
            tmp_path, engine["args"], places, module="llmkube.programs.bundled_engine.llama_server"
        ) as serves,
    ):
        await eventually(lambda: status_of(f"{url}/health"), lambda found: found == 200)
        answers = await ask_with_keys(url, FIRST, SECOND, WRONG, "")
        assert ["choices" in text for text in answers] == [True, True, False, False]
        assert await status_of(f"{url}/metrics") == 200
        assert [await status_of(f"{url}{path}", FIRST) for path in ("/slots", "/props")] == [403, 200]
        assert await status_of(f"{url}/props") == 401
        replace(keys, f"{THIRD}\n")
        await eventually(lambda: ask_with_keys(url, THIRD), lambda found: "choices" in found[0])
        answers += await ask_with_keys(url, FIRST)
        assert "choices" not in answers[-1]
        replace(keys, f"{FIRST} spoilt\n")
        await asks.wait_for("err", "client keys not reloaded")
        assert "choices" in (await ask_with_keys(url, THIRD))[0]
        everything = {
            "command lines": words_of(psutil.process_iter(), lambda each: each.cmdline()),
            "environments": words_of(
                (psutil.Process(each.process.pid) for each in (asks, serves)), lambda each: each.environ().values()
            ),
            "metrics": await read(f"{url}/metrics"),
            "manifest": json.dumps(made),
        }
        serves.process.kill()
        await serves.process.wait()
        answers += await ask_with_keys(url, THIRD)
        assert "engine_failed" in answers[-1]
    replace(keys, "")
    empty = await run_program(tmp_path, *(places.get(word, word) for word in ours["args"]))
    assert (empty[0], "is empty" in empty[2]) == (1, True)
    everything |= {
        "outputs": asks.out + asks.err + serves.out + serves.err,
        "answers": "".join(answers),
        "end": str(empty),
    }
    assert [(place, each) for place, text in everything.items() for each in KEYS if each in text] == []


async def test_the_controller_prints_no_secret_that_pods_mount(autojump_clock, capsys):
    """The controller reads no Secret; a key in the wrong field of a spec is refused without being repeated."""
    async with open_pods() as hands:
        await put_keys(hands.client, FIRST, SECOND, namespace="ml")
        await hands.bring_up(apiKeySecretRef={"name": "chat-keys"})
        pod = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [
            {"name": "client-keys", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "message": "Error: Secret chat-keys, api-key: is empty"}}},
        ]}  # fmt: skip
        await hands.service_pod(pod)
        await hands.roll_out(ready=0)
        await trio.sleep(60)
        live = await hands.json(InferenceService)
        assert "container client-keys exited with code 1: Error: Secret chat-keys, api-key: is empty" in str(live)
        await hands.create_service(apiKeySecretRef={"name": "chat-keys"}, extraArgs=["--api-key", SECOND])
        await trio.sleep(60)
        live = await hands.json(InferenceService)
        assert "--api-key is controlled by spec.env with a Secret" in str(live["status"])
        said = json.dumps(live["status"]) + json.dumps(await hands.json(Deployment))
        said += "".join(json.dumps(encode(each)) for each in (await hands.client.list(Event)).items)
    said += "".join(capsys.readouterr())
    assert not [each for each in KEYS if each in said]


CRASH = """
import sys
import structlog, trio
from llmkube.base.log import configure_logging
from llmkube.k8s.auth.config import BearerToken, ClusterConfig

async def fail(secret, cluster):
    raise RuntimeError(f"a bug beside {cluster}")

async def main(secret):
    cluster = ClusterConfig(server="https://x", identity=BearerToken(secret))
    try:
        await fail(secret, cluster)
    except RuntimeError:
        structlog.get_logger().exception("a bug")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail, secret, cluster)

configure_logging("debug", style=sys.argv[1])
trio.run(main, sys.stdin.read())
"""


@pytest.mark.parametrize("style", ["json", "console"])
def test_the_report_of_a_crash_has_no_values_of_its_frames(style):
    """A crash report has the stack, in the log and at exit, but not the values of the arguments."""
    done = subprocess.run([sys.executable, "-c", CRASH, style], input=GOOD, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("a bug beside") >= 2, done.stderr
    assert GOOD not in done.stdout + done.stderr


async def put_keys(client, *keys, namespace="default"):
    value = base64.b64encode("".join(f"{key}\n" for key in keys).encode()).decode()
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": namespace}}
    await client.apply(Secret, body | {"data": {"api-key": value}}, field_manager="user")


def replace(path, text):
    """Replace a file atomically, as a kubelet does with a Secret's."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


async def engine_url(cluster):
    _, host, port = await eventually(cluster.slice, lambda endpoints: endpoints[0])
    return f"http://{host}:{port}"


async def ask_with_keys(url, *keys, cluster=None):
    """Ask once with each key; return the answers. The address comes from the slice, since the engine may move."""
    answers = []
    body = json.dumps({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": PROMPT}]}).encode()
    async with open_http_client() as http:
        for key in keys:
            where = url or await engine_url(cluster)
            headers = Headers.of({"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            try:
                answer = await http.request("POST", f"{where}/v1/chat/completions", headers=headers, body=body)
            except HttpError:
                answers.append("")
            else:
                answers.append(answer.body.decode())
    return answers


async def status_of(url, key=""):
    headers = Headers.of({"Authorization": f"Bearer {key}"} if key else {})
    async with open_http_client() as http:
        try:
            return (await http.request("GET", url, headers=headers)).status
        except HttpError:
            return 0


def refused(service):
    return "".join(each.type for each in service.status.conditions if each.status == "False")


def open_container(folder, args, places, **options):
    """Run a container's command, with paths of this machine in place of the pod's."""
    return open_program(folder, *(places.get(word, word) for word in args), **options)


async def ask(gateway, key=THEIRS):
    """Send requests that succeed and fail, with a key; return all answers except the echo."""
    headers = Headers.of({"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    answers = []
    async with open_http_client() as http:
        for body in (
            {"model": "by-secret", "max_tokens": 1, "messages": [{"role": "user", "content": PROMPT}]},
            {"model": "by-wrong-secret", "messages": [{"role": "user", "content": PROMPT}]},
            {"model": 5, "messages": PROMPT},
        ):
            url, data = f"{gateway}/v1/chat/completions", json.dumps(body).encode()
            answer = await http.request("POST", url, headers=headers, body=data)
            answers.append(answer.body.decode())
    return "".join(answers)


async def read(url):
    async with open_http_client() as http:
        return (await http.request("GET", url)).body.decode()


async def objects(client):
    """Return all objects that the programs write, as a reader of the cluster gets them, without what users wrote."""
    found = []
    for kind in (Model, InferenceService, Event, Lease, Service):
        for each in (await client.list(kind)).items:
            body = encode(each)
            body.pop("spec", None) if kind in {Model, InferenceService} else None
            body["metadata"].pop("managedFields", None)
            found.append(json.dumps(body))
    return "".join(found)


async def commands(folder, kubeconfig):
    """Return the output of the commands that people paste into reports."""
    printed = ""
    for args in (("list",), ("list", "models"), ("status", "by-wrong-password"), ("status", "by-password")):
        printed += "".join(map(str, await run_program(folder, *args, kubeconfig=kubeconfig)))
    return printed


def words_of(processes, what):
    texts = []
    for process in processes:
        try:
            texts += what(process)
        except psutil.Error:
            continue
    return " ".join(texts)


def private_files(state):
    for path in state.rglob("*"):
        if path.is_file() and path.relative_to(state).parts[0] in PRIVATE:
            yield path


def public_files(state):
    """Return the content of all files in a state directory, except private files and weights."""
    private = set(private_files(state))
    contents = [path.read_bytes() for path in state.rglob("*") if path.is_file() and path not in private]
    return b"".join(contents).decode("latin-1")


def api_token(state):
    """Return the token of the embedded API server from its kubeconfig."""
    (user,) = yaml.safe_load((state / "kubeconfig").read_text())["users"]
    return user["user"]["token"]
