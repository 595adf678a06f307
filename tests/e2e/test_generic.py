"""An engine of the owner's behind the gateway of `llmkube up`: speech to text by pocketsphinx and its model."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from e2e.client_packages import find_speech_package
from e2e.one_machine import open_up_with
from e2e.separate_programs import eventually
from e2e.up_process import command_line, engines_in, run_program
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers

pytestmark = pytest.mark.e2e

WORDS = Path(__file__).parent / "data" / "go_forward_ten_meters.wav"
SERVER = Path(__file__).with_name("speech_server.py")
CONFIG = """
[engines.speech]
program = {program}
args = [{server}, "--model", "{{model}}", "--host={{host}}", "--port", "{{port}}", "--beam", "{{options.beam}}"]
options.beam = ["1e-48", "1e-60"]
env = {{PYTHONPATH = {packages}}}
memory = "256Mi"
ready_pattern = 'listening on port \\d+$'
"""


def documents(folder, **spec):
    named = {"apiVersion": "inference.llmkube.dev/v1alpha1", "metadata": {"name": "speech"}}
    model = {"source": str(folder / "pocketsphinx" / "model" / "en-us"), "format": "custom"}
    service = {"modelRef": "speech", "runtime": "generic", "engine": {"name": "speech"}, **spec}
    objects = ({**named, "kind": "Model", "spec": model}, {**named, "kind": "InferenceService", "spec": service})
    return tuple(map(json.dumps, objects))


def configure(state, packages, **edited):
    """Write the owner's `config.toml`."""
    state.mkdir(mode=0o700, exist_ok=True)
    values = {"program": sys.executable, "server": str(SERVER), "packages": str(packages), **edited}
    (state / "config.toml").write_text(CONFIG.format(**{name: json.dumps(value) for name, value in values.items()}))


async def transcribed(gateway, *, model="speech"):
    """Send the request of OpenAI's clients: a form with the model and the file."""
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode(),
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="w.wav"\r\nContent-Type: audio/wav\r\n\r\n',
        await trio.Path(WORDS).read_bytes(),
        b"\r\n--b--\r\n",
    ]
    headers = Headers.of({"Content-Type": "multipart/form-data; boundary=b"})
    async with open_http_client() as http:
        found = await http.request("POST", f"{gateway}/v1/audio/transcriptions", headers=headers, body=b"".join(parts))
    return found.status, json.loads(found.body)


def speech_engine(state):
    """Return its process, or None while there is not exactly one."""
    found = [each for each in engines_in(state) if str(SERVER) in command_line(each)]
    return found[0] if len(found) == 1 else None


@pytest.mark.ci
async def test_speech_becomes_text(tmp_path):
    """A request loads the engine, which transcribes; a killed one is restarted, and its inner port is on loopback."""
    packages = await trio.to_thread.run_sync(find_speech_package)
    configure(tmp_path / "state", packages)
    flags = ("--allow-local-sources", str(packages))
    async with open_up_with(tmp_path, *flags, documents=documents(packages)) as up:
        assert await transcribed(up.gateway) == (200, {"text": "go forward ten meters"})
        assert "by generic speech from custom weights" in (await up.wait_loaded("speech", "Loaded")).message
        status, refusal = await transcribed(up.gateway, model="other")
        assert (status, "no model 'other'" in json.dumps(refusal)) == (404, True)
        engine = speech_engine(up.state)
        assert command_line(engine)[-2:] == ["--beam", "1e-48"]
        assert "--host=127.0.0.1" in command_line(engine)
        os.kill(engine.pid, signal.SIGKILL)

        async def restarted():
            found = speech_engine(up.state)
            return found if found is not None and found.pid != engine.pid else None

        await eventually(restarted, lambda found: found is not None)
        assert await transcribed(up.gateway) == (200, {"text": "go forward ten meters"})


@pytest.mark.ci
async def test_an_engine_is_deployed_without_yaml(tmp_path):
    """`llmkube deploy --engine` names the engine and a value of its option, and waits until it is Ready."""
    packages = await trio.to_thread.run_sync(find_speech_package)
    configure(tmp_path / "state", packages)
    async with open_up_with(tmp_path, "--allow-local-sources", str(packages)) as up:
        source = str(packages / "pocketsphinx" / "model" / "en-us")
        deploy = ("deploy", "asr", "--source", source, "--engine", "speech", "--engine-option", "beam=1e-60")
        code, out, err = await run_program(tmp_path, *deploy, kubeconfig=up.state / "kubeconfig")
        assert code == 0, (out, err)
        assert command_line(speech_engine(up.state))[-2:] == ["--beam", "1e-60"]
        assert await transcribed(up.gateway, model="asr") == (200, {"text": "go forward ten meters"})
