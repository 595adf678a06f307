"""A user's day with `llmkube up`, an unmodified kubectl and the examples of the repository."""

import re
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from e2e.kubectl_tool import Kubectl
from e2e.separate_programs import chat
from e2e.up_process import ANSWER, FREE_PORTS, command_line, engines_in, open_up, processes_in, run_program
from llmkube.base.http.client import open_http_client
from waiting import until

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo.yaml"


@pytest.mark.kubectl
async def test_apply_ask_scale_edit_and_delete(tmp_path, kubectl_program):
    """Every step of a day with the demo works through kubectl, restarts at most one engine, and leaves none."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "--log-level", "info") as up:
        _, gateway, _ = await up.urls()
        await up.wait_for("out", "models +none yet")
        kubectl = Kubectl(kubectl_program, state / "kubeconfig", tmp_path)
        starts = partial(re.findall, "starting inference service")

        await kubectl.run("apply", "-f", str(EXAMPLE))
        await kubectl.run("wait", "isvc/demo", "--for=condition=Available", "--timeout=60s")
        header, row = (await kubectl.run("get", "isvc")).splitlines()
        assert header.split() == ["NAME", "PHASE", "MODEL", "READY", "DESIRED", "REASON", "ENDPOINT", "AGE"]
        endpoint = f"{gateway}/v1/chat/completions"
        assert row.split()[:7] == ["demo", "Ready", "demo", "1", "1", "InferenceReady", endpoint]
        header, row = (await kubectl.run("get", "mdl")).splitlines()
        assert header.split() == ["NAME", "PHASE", "SIZE", "ACCELERATOR", "QUANT", "AGE"]
        assert row.split()[:6] == ["demo", "Ready", "933.8", "KiB", "cpu", "Q8_0"]
        shown = await kubectl.run("describe", "isvc", "demo")
        assert re.search(r"Endpoint: +" + re.escape(endpoint), shown)
        assert await chat(gateway) == ANSWER
        assert await chat(gateway, stream=True) == ANSWER
        (first,) = engines_in(state)

        kubectl.env["KUBE_EDITOR"] = "sed -i s/contextSize:.512/contextSize:\\ 256/"
        await kubectl.run("edit", "isvc", "demo")
        await until(lambda: (engines := engines_in(state)) and engines != [first] and "256" in command_line(engines[0]))
        await kubectl.run("wait", "isvc/demo", "--for=condition=Available", "--timeout=60s")
        assert await chat(gateway) == ANSWER
        await kubectl.run("label", "isvc", "demo", "team=a")  # does not restart it
        assert len(starts(up.err)) == 2

        await kubectl.run("scale", "isvc/demo", "--replicas=0")
        await until(lambda: not engines_in(state))
        await up.wait_for("out", r"default/demo: Stopped \(ManuallyScaledToZero\)")
        assert "replicas=0; stopping process" in up.err
        await kubectl.run("scale", "isvc/demo", "--replicas=1")
        await kubectl.run("wait", "isvc/demo", "--for=condition=Available", "--timeout=60s")
        assert await chat(gateway) == ANSWER
        assert len(starts(up.err)) == 3

        await kubectl.run("delete", "-f", str(EXAMPLE))
        await until(lambda: not engines_in(state))
        assert "No resources found" in await kubectl.run("get", "isvc,mdl")
        up.process.send_signal(signal.SIGINT)
        assert await up.process.wait() == 0, up.err
    complaints = [line for line in up.err.splitlines() if re.search("WARNING|ERROR|Traceback", line)]
    # On a busy machine any process may stall, which the watchdog reports.
    assert not [line for line in complaints if "event loop" not in line], up.err
    assert not processes_in(state)


@pytest.mark.ci
@pytest.mark.kubectl
async def test_mistakes_are_refused_with_the_field(tmp_path, kubectl_program):
    """An object that violates the schema is never created: kubectl apply fails and names the field."""
    good = EXAMPLE.read_text()
    async with open_up(tmp_path, "--ephemeral", *FREE_PORTS) as up:
        await up.urls()
        kubeconfig = Path((await up.wait_for("err", r"kubeconfig +(\S+)\n"))[1])
        kubectl = Kubectl(kubectl_program, kubeconfig, tmp_path)
        for kind, right, wrong, words in (
            ("mdl", "builtin://demo", "gopher://demo", 'The Model "demo" is invalid: spec.source'),
            ("mdl", "accelerator: cpu", "accelerator: abacus", "spec.hardware.accelerator: Unsupported value"),
            ("isvc", "contextSize: 512", "contextSize: many", "spec.contextSize in body must be of type integer"),
            ("isvc", "contextSize: 512", "contextSize: -1", "spec.contextSize in body should be greater than or equal"),
            ("isvc", "replicas: 1", "replicas: -1", "spec.replicas in body should be greater than or equal to 0"),
            ("isvc", "modelRef: demo", "modelReff: demo", "modelReff"),
        ):
            assert words in await kubectl.run("apply", "-f", "-", stdin=good.replace(right, wrong), code=1)
            assert "No resources found" in await kubectl.run("get", kind)
            await kubectl.run("delete", "isvc,mdl", "--all")


@pytest.mark.ci
async def test_list_status_and_delete_without_kubectl(tmp_path):
    """`llmkube list`, `status` and `delete` cover the common uses of kubectl, with exit codes for scripts."""
    state = tmp_path / "state"
    run = partial(run_program, tmp_path, kubeconfig=state / "kubeconfig")
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(EXAMPLE)) as up:
        await up.wait_for("out", r"default/demo: Ready\n")
        code, out, _ = await run("list")
        assert code == 0
        assert re.search(r"^demo +Fetched +933.8 KiB +cpu +llama", out, re.MULTILINE)
        assert re.search(r"^demo +demo +Ready +1/1 +<none> +\S+$", out, re.MULTILINE)
        code, out, _ = await run("status", "demo")
        assert code == 0
        assert re.search(r"^Available +True +InferenceReady +1 of 1 replicas ready$", out, re.MULTILINE)
        assert await run("delete", "demo", "--wait") == (0, "InferenceService demo is gone\n", "")
        await until(lambda: not engines_in(state))
        code, _, err = await run("status", "demo")
        missing = "Error: there is no InferenceService demo in namespace default; see `llmkube list -A`\n"
        assert (code, err) == (3, missing)
    code, _, err = await run("list")
    assert code == 1
    assert err.startswith("Error: llmkube up is not running; start it: llmkube up start")


async def adopted(probes):
    """Wait until the agent reports a healthy engine; the status of the objects may be older."""
    async with open_http_client() as http:

        async def healthy():
            answer = await http.request("GET", f"{probes}/metrics")
            return re.search(rb"process_healthy\{.*\} 1\.0", answer.body)

        while not await healthy():  # noqa: ASYNC110 - another program knows it
            await trio.sleep(0.05)


@pytest.mark.ci
async def test_state_and_engines_survive_a_killed_up(tmp_path):
    """After SIGKILL the next `llmkube up` on the same folder adopts the engine and serves the same objects again."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(EXAMPLE)) as up:
        await up.wait_for("out", r"default/demo: Ready\n")
        (engine,) = engines_in(state)
        up.process.kill()
        await up.process.wait()
        assert engine.is_running()
        async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS) as again:
            _, gateway, probes = await again.urls()
            await adopted(probes)
            assert engines_in(state) == [engine]
            assert await chat(gateway) == ANSWER
