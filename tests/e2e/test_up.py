"""The real `llmkube up` with a real engine, as a new user runs it."""

import json
import os
import signal
import socket
import stat
import sys
from subprocess import DEVNULL

import pytest
import trio

from e2e.terminal import open_terminal
from e2e.up_process import ANSWER, DEMO, FREE_PORTS, environment, fake_engine, is_open, open_up, processes_in, run_up
from llmkube.base.http.client import open_http_client
from waiting import until

pytestmark = pytest.mark.e2e


def nothing_left(folder):
    return not processes_in(folder) and not list(folder.glob("llmkube-*"))


async def test_the_demo_answers_and_leaves_nothing(tmp_path):
    """One command prints the model's answer, the objects and the times, exits 0, and leaves no process or port."""
    async with open_up(tmp_path, "--demo", "--ask", "What is LLMKube?") as up:
        urls = await up.urls()
        assert await up.process.wait() == 0
    assert up.out.splitlines()[1:3] == ["> What is LLMKube?", ANSWER]
    for words in ("NAME  PHASE    SIZE", "demo  Fetched  933.8 KiB  cpu", "STEP    TIME", "total   "):
        assert words in up.out
    assert up.out.splitlines()[-3:] == [
        "  llmkube up start",
        "  llmkube deploy demo --source builtin://demo",
        "  llmkube chat demo 'What is LLMKube?'",
    ]
    for step in ("fetch", "load", "ready", "answer"):
        assert f"{step:<8}done in" in up.err
    assert "\x1b" not in up.out + up.err
    assert "Traceback" not in up.err
    assert not any(map(is_open, urls))
    assert nothing_left(tmp_path)


async def test_state_survives_and_a_signal_stops_in_order(tmp_path):
    """SIGTERM stops engine, ports and program with 0; the next start serves the same objects without -f."""
    state = tmp_path / "state"
    for files in (("-f", str(DEMO)), ()):
        async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, *files) as up:
            api, gateway, probes = await up.urls()
            await up.wait_for("out", r"default/demo: (New|Stopped|Creating|Pending)[\s\S]*default/demo: Ready\n")
            assert len(processes_in(state)) > 1
            async with open_http_client() as http:
                assert json.loads((await http.request("GET", f"{probes}/healthz")).body) == {"status": "ok"}
                assert (await http.request("GET", f"{probes}/readyz")).status == 200
                assert b"llmkube" in (await http.request("GET", f"{probes}/metrics")).body
                models = json.loads((await http.request("GET", f"{gateway}/v1/models")).body)
            assert [each["id"] for each in models["data"]] == ["demo"]
            up.process.send_signal(signal.SIGTERM)
            assert await up.process.wait() == 0, up.err
        assert "SIGTERM: stopping" in up.err
        assert f"kubeconfig  {state}/kubeconfig\n" in up.err
        assert not any(map(is_open, (api, gateway, probes)))
        assert not processes_in(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "kubeconfig").stat().st_mode) == 0o600


@pytest.mark.ci
async def test_ctrl_c_twice_still_stops_cleanly(tmp_path):
    """A second SIGINT during the stop is acknowledged, and nothing is left."""
    stubborn = fake_engine(tmp_path, "trap '' TERM INT; while :; do sleep 1; done")
    async with open_up(tmp_path, "--demo", "--llama-server", stubborn) as up:
        await up.wait_for("out", r"default/demo: Creating")
        await until(lambda: processes_in(tmp_path))
        up.process.send_signal(signal.SIGINT)
        await up.wait_for("err", "SIGINT: stopping")
        up.process.send_signal(signal.SIGINT)
        await up.wait_for("err", "already stopping")
        assert await up.process.wait() == 0, up.err
    assert "Traceback" not in up.err
    assert nothing_left(tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("flag", ["--api-port", "--gateway-port", "--probe-port"])
async def test_a_taken_port_is_named_by_its_flag(tmp_path, flag):
    """A port that another program has ends the start with one sentence that names the flag."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = str(other.getsockname()[1])
        code, out, err = await run_up(tmp_path, "--demo", flag, number)
    assert code == 1
    assert f"{number} ({flag}) is in use by " in err
    assert out == ""
    assert "Traceback" not in err
    assert nothing_left(tmp_path)


@pytest.mark.ci
async def test_a_crashing_engine_is_quoted(tmp_path):
    """When the engine keeps exiting, --ask exits 1 with the reason and the engine's last output."""
    crashing = fake_engine(tmp_path, 'echo "error: no kernel image is available" >&2; exit 3')
    code, out, err = await run_up(tmp_path, "--demo", "--ask", "x", "--llama-server", crashing)
    assert code == 1
    assert "InferenceService default/demo cannot be served: CrashLoopBackOff" in err
    assert "exit code 3" in err
    assert "error: no kernel image is available" in err
    assert out == ""
    assert nothing_left(tmp_path)


@pytest.mark.ci
async def test_waiting_has_an_end(tmp_path):
    """--timeout ends the wait for an engine that never becomes ready, with exit code 4."""
    slow = fake_engine(tmp_path, "exec sleep 100")
    code, _, err = await run_up(tmp_path, "--demo", "--ask", "x", "--timeout", "3", "--llama-server", slow)
    assert code == 4
    assert "no answer within 3 s" in err
    assert nothing_left(tmp_path)


@pytest.mark.ci
async def test_refusals_are_reported_per_object(tmp_path):
    """With --ask, an object that the API server refuses is reported with its reason, and no question is sent."""
    file = tmp_path / "bad.yaml"
    file.write_text(DEMO.read_text().replace("replicas: 1", "replicas: -1"))
    code, _, err = await run_up(tmp_path, "--ephemeral", *FREE_PORTS, "-f", str(file), "--ask", "x")
    assert code == 1
    assert "Model default/demo applied" in err
    assert "InferenceService demo" in err
    assert "spec.replicas" in err
    assert nothing_left(tmp_path)


@pytest.mark.ci
async def test_a_missing_model_file_is_reported(tmp_path):
    """A Model whose file does not exist ends --ask at once with the reason, not after the timeout."""
    file = tmp_path / "none.yaml"
    file.write_text(DEMO.read_text().replace("builtin://demo", f"{tmp_path}/none.gguf"))
    code, _, err = await run_up(tmp_path, "--ephemeral", *FREE_PORTS, "-f", str(file), "--ask", "x")
    assert code == 1
    assert "cannot be served: FileNotFound" in err
    assert nothing_left(tmp_path)


@pytest.mark.ci
async def test_one_state_directory_one_program(tmp_path):
    """A second `llmkube up` on the same state directory is refused with the pid of the first."""
    state, other = str(tmp_path / "first" / "state"), tmp_path / "other"
    other.mkdir()
    async with open_up(tmp_path, "--state-dir", state, *FREE_PORTS) as up:
        await up.urls()
        code, _, err = await run_up(other, "--state-dir", state, *FREE_PORTS)
        assert code == 1
        assert f"llmkube up is already running (pid {up.process.pid})" in err
        up.process.send_signal(signal.SIGINT)
        assert await up.process.wait() == 0


@pytest.mark.ci
async def test_progress_moves_on_a_terminal(tmp_path):
    """On a terminal the same command draws a live line, and ends with the same answer."""
    argv = [sys.executable, "-m", "llmkube", "up", "--demo", "--ask", "What is LLMKube?"]
    env = environment(tmp_path) | {"TERM": "xterm-256color"}
    async with open_terminal() as (follower, drawn):
        done = await trio.run_process(argv, env=env, stdin=DEVNULL, capture_stdout=True, stderr=follower, check=False)
        os.close(follower)
    text = drawn.decode()
    assert done.returncode == 0, text
    assert done.stdout.decode().splitlines()[2] == ANSWER
    assert "\x1b[" in text
    for step in ("fetch", "load", "ready", "answer"):
        assert step in text
