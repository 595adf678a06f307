"""More models than memory, as a newcomer meets them: a loop in the shell, and a client with its defaults."""

import shutil
from pathlib import Path

import pytest

from e2e.many_models import JSON_BODY
from e2e.router_lab import run_clients
from e2e.separate_programs import QUESTION, REAL_ENGINE
from e2e.up_process import ANSWER, engines_in, fake_engine, open_machine
from gguf_corpus import DEMO
from llmkube.base.http.client import open_http_client
from llmkube.router.dispatch.relay import LOADING_COMMENT
from llmkube.supervisor.network import host_facts
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

NAMES = ("one", "two", "three", "four", "five")
BUDGET_BYTES = 320 << 20
"""Memory for two engines of the demo's model."""

LOAD_SECONDS = 6
"""More than the client's own retries take: four."""


async def phases(run):
    """Return the phase of each service, from `llmkube list`."""
    code, out, err = await run("list", "isvc")
    assert code == 0, err
    return {line.split()[0]: line.split()[2] for line in out.splitlines()[1:]}


async def test_five_models_and_memory_for_two(tmp_path):
    """`for m in …; do llmkube run $m hi; done` gets five answers; later a name wakes a model, and `stop` unloads it."""
    for name in NAMES:
        shutil.copy(DEMO, tmp_path / f"{name}.gguf")
    fraction = BUDGET_BYTES / host_facts().total_bytes
    async with open_machine(tmp_path, "--memory-fraction", f"{fraction:.6f}") as (_, run):
        for name in NAMES:
            code, out, err = await run("run", str(tmp_path / f"{name}.gguf"), "hi")
            assert (code, len(out.splitlines())) == (0, 2), err
        found = await phases(run)
        assert sorted(found.values()) == ["Idle", "Idle", "Idle", "Ready", "Ready"]
        idle = next(name for name in NAMES if found[name] == "Idle")
        code, out, err = await run("run", idle, "hi")
        assert (code, len(out.splitlines())) == (0, 1), err
        assert (await run("stop", idle))[0] == 0
        await until(lambda: not [each for each in engines_in(tmp_path / "state") if f"{idle}.gguf" in each.cmdline()])


async def test_a_wrong_path_and_a_file_that_appears(tmp_path):
    """Another path replaces what was never served, and the same command succeeds as soon as the file exists."""
    wrong, right = tmp_path / "chat.gguf", tmp_path / "models" / "chat.gguf"
    right.parent.mkdir()
    async with open_machine(tmp_path) as (_, run):
        for path in (wrong, right):
            code, _, err = await run("run", str(path), "hi")
            assert (code, f"FileNotFound: {path}: there is no such file\n" in err) == (1, True), err
        shutil.copy(DEMO, right)
        code, out, err = await run("run", str(right), "hi")
        assert (code, bool(out)) == (0, True), err


async def test_openais_client_waits_for_a_load(tmp_path, client_packages):
    """With its defaults it gets its answer from a model that loads for longer than its own retries last."""
    slow = fake_engine(tmp_path, f'sleep {LOAD_SECONDS}\nexec {REAL_ENGINE} "$@"')
    script = Path(__file__).with_name("patient_client.py")
    async with open_machine(tmp_path, "--llama-server", slow) as (up, run):
        _, gateway, _ = await up.urls()
        code, _, err = await run("deploy", "demo", "--source", "builtin://demo", "--no-wait")
        assert code == 0, err
        answer = await run_clients(tmp_path / "home", client_packages, str(script), gateway, QUESTION)
    assert answer == {"plain": ANSWER}


async def test_a_stop_denies_no_model(tmp_path):
    """A request that waits while `up` stops gets an error that can be retried, not that of an unknown model."""
    slow = fake_engine(tmp_path, "exec sleep 600")
    async with open_machine(tmp_path, "--llama-server", slow) as (up, run), open_http_client() as http:
        _, gateway, _ = await up.urls()
        code, _, err = await run("deploy", "demo", "--source", "builtin://demo", "--no-wait")
        assert code == 0, err
        await up.wait_for("out", "default/demo: Creating")
        body = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
        url = f"{gateway}/v1/chat/completions"
        async with http.open_stream("POST", url, headers=JSON_BODY, body=body) as answer:
            assert LOADING_COMMENT in await answer.receive_some()
            up.process.terminate()
            received = b""
            while piece := await answer.receive_some():
                received += piece
    assert b'"code":"model_not_ready","reason":"Stopping"' in received
