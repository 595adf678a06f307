"""Every place that holds a secret gets one that can be found again; then much happens, and everything is searched."""

import base64
import json
import signal
import stat

import psutil
import pytest
import yaml

from e2e.one_machine import Up
from e2e.separate_programs import chat, eventually
from e2e.test_downloads import OTHER, deploy
from e2e.up_process import DEMO, FREE_PORTS, engines_in, open_up, run_program
from e2e.web import open_web
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.k8s.auth.load import load_config
from llmkube.k8s.builtins import Event, Lease, Secret, Service
from llmkube.k8s.client import open_client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from waiting import until

pytestmark = pytest.mark.e2e

GOOD, WRONG, PASSWORD, SIGNATURE = "hf_CanaryGood1", "hf_CanaryWrong2", "CanaryPassword3", "CanarySignature4"
HUB, AWS, THEIRS, PROMPT = "hf_CanaryHub5", "CanaryAws6", "CanaryClientKey7", "CanaryPrompt8"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
TYPED = (GOOD, WRONG, PASSWORD, SIGNATURE, HUB, AWS, THEIRS, PROMPT, BASIC)

PRIVATE = ("journal", "keys", "api.db", "api.db-wal", "api.db-shm", "ca", "kubeconfig", "token")
"""What in a state directory is there to hold what must not be told, each with mode 0600, and folders of such files."""


async def test_secrets_are_where_they_belong_and_nowhere_else(tmp_path):
    """No canary is in a log, a command line, an engine's environment, a metric, an Event, a status or an output."""
    state, hub_token = tmp_path / "state", tmp_path / "hub-token"
    hub_token.write_text(f"{HUB}\n")
    hub_token.chmod(0o600)
    environment = ("env", f"AWS_SECRET_ACCESS_KEY={AWS}", f"AWS_ACCESS_KEY_ID={AWS}id", f"HF_TOKEN={HUB}")
    args = ("--state-dir", str(state), *FREE_PORTS, "--hf-token-file", str(hub_token), "-f", str(DEMO))
    async with open_web(m=OTHER) as web:
        web.files["o/r/resolve/main/m.gguf"] = OTHER
        web.credentials = (GOOD, BASIC, SIGNATURE, HUB)
        host = web.url.removeprefix("http://")
        async with open_up(tmp_path, *args, "--hub-endpoint", web.url, prefix=environment) as program:
            _, gateway, probes = await program.urls()
            await program.wait_for("out", "export KUBECONFIG")
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
                said = await ask(gateway)
                up.engine("by-secret").send_signal(signal.SIGABRT)  # the last words of an engine are told
                await up.wait_condition(InferenceService, "by-secret", "Loaded", lambda found: found.reason != "Loaded")
                await up.wait_loaded("by-secret", "Loaded")
                refused = {"spec": {"extraArgs": ["--api-key", GOOD]}}  # a secret in the wrong place
                await client.patch(InferenceService, Key("default", "by-password"), refused)
                await up.wait_condition(
                    InferenceService, "by-password", "Accepted", lambda found: found.status != "True"
                )
                assert await chat(gateway, "by-secret")

                keys = [path.read_text().strip() for path in state.glob("keys/*")]
                assert len(keys) == len(engines_in(state))
                canaries = (*TYPED, *keys, api_token(state))
                everything = {
                    "outputs": program.out + program.err,
                    "answers": said,
                    "command lines": words_of(psutil.process_iter(), lambda each: each.cmdline()),
                    "engines' environments": words_of(engines_in(state), lambda each: each.environ().values()),
                    "metrics": await read(f"{probes}/metrics"),
                    "objects": await objects(client),
                    "commands": await commands(tmp_path, state / "kubeconfig"),
                    "files": files_that_tell(state),
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
    assert not [canary for canary in canaries if canary in program.out + program.err + files_that_tell(state)]


async def ask(gateway):
    """Ask in ways that succeed and fail, with a key of a client's own; return what is answered but for the echo."""
    headers = Headers.of({"Authorization": f"Bearer {THEIRS}", "Content-Type": "application/json"})
    said = []
    async with open_http_client() as http:
        for body in (
            {"model": "by-secret", "max_tokens": 1, "messages": [{"role": "user", "content": PROMPT}]},
            {"model": "by-wrong-secret", "messages": [{"role": "user", "content": PROMPT}]},
            {"model": 5, "messages": PROMPT},
        ):
            url, data = f"{gateway}/v1/chat/completions", json.dumps(body).encode()
            answer = await http.request("POST", url, headers=headers, body=data)
            said.append(answer.body.decode())
    return "".join(said)


async def read(url):
    async with open_http_client() as http:
        return (await http.request("GET", url)).body.decode()


async def objects(client):
    """What every reader of the cluster sees of what programs write: all but what users wrote themselves."""
    found = []
    for kind in (Model, InferenceService, Event, Lease, Service):
        for each in (await client.list(kind)).items:
            body = encode(each)
            body.pop("spec", None) if kind in {Model, InferenceService} else None
            body["metadata"].pop("managedFields", None)
            found.append(json.dumps(body))
    return "".join(found)


async def commands(folder, kubeconfig):
    """What the commands print that people paste into reports."""
    printed = ""
    for args in (("list",), ("list", "models"), ("status", "by-wrong-password"), ("status", "by-password")):
        printed += "".join(map(str, await run_program(folder, *args, kubeconfig=kubeconfig)))
    return printed


def words_of(processes, what):
    said = []
    for process in processes:
        try:
            said += what(process)
        except psutil.Error:
            continue
    return " ".join(said)


def private_files(state):
    for path in state.rglob("*"):
        if path.is_file() and path.relative_to(state).parts[0] in PRIVATE:
            yield path


def files_that_tell(state):
    """Everything in a state directory but for what is private, and but for weights."""
    private = set(private_files(state))
    told = [path.read_bytes() for path in state.rglob("*") if path.is_file() and path not in private]
    return b"".join(told).decode("latin-1")


def api_token(state):
    """The token of the embedded API server, as its kubeconfig has it."""
    (user,) = yaml.safe_load((state / "kubeconfig").read_text())["users"]
    return user["user"]["token"]
