"""The computation of a prompt survives the stop of its engine: a real `llmkube up` with a real engine."""

import json
import re
import signal
import stat
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest
import trio

from e2e.agents.model import write_model
from e2e.one_machine import eventually, served
from e2e.up_process import FREE_PORTS, command_line, engines_in, open_up, run_program
from llmkube.base.http.client import open_http_client
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import find_condition
from llmkube.supervisor.network import host_facts

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

PROMPT = " ".join(f"item {number} of the list" for number in range(400))


@asynccontextmanager
async def open_machine(folder, *args):
    """Run `llmkube up` with two services of 8,192 tokens; yield the program and the address of its gateway."""
    model, file = folder / "chat.gguf", folder / "all.yaml"
    if not model.exists():
        write_model(model)
    documents = "\n---\n".join(served(name, str(model)) for name in ("chat", "other"))
    file.write_text(documents.replace("contextSize: 512", "contextSize: 8192"))
    files = () if (folder / "state" / "api.db").exists() else ("-f", str(file))
    async with open_up(folder, "--state-dir", str(folder / "state"), *FREE_PORTS, *files, *args) as up:
        _, gateway, _ = await up.urls()
        yield up, gateway


async def post(gateway, path, body):
    async with open_http_client() as http:
        return await http.request("POST", gateway + path, body=json.dumps(body).encode())


async def cached_share(gateway, model="chat"):
    """Send a prompt, once its model is loaded; return the share of its tokens that were not computed again."""
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}

    async def ask():
        answer = await post(gateway, "/v1/chat/completions", body)
        return json.loads(answer.body) if answer.status == 200 else None

    usage = (await eventually(ask, bool))["usage"]
    assert usage["prompt_tokens"] > 1000
    return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


def records(folder):
    return sorted((folder / "state" / "prompts" / "default" / "chat").glob("*.json"))


async def unload(folder, gateway):
    (engine,) = (each for each in engines_in(folder / "state") if "chat" in command_line(each))
    assert (await post(gateway, "/models/unload", {"model": "chat"})).status == 200
    await eventually(lambda: async_value(not engine.is_running()), bool)


async def async_value(value):
    return value


async def test_a_prompt_survives_every_stop_and_ends_with_its_service(tmp_path):
    """An unload, an edit, a stop and a kill of `up` lose nothing; `delete` and `cache prompts --clear` remove it."""
    folder, found = tmp_path, {}
    async with open_machine(folder) as (up, gateway):
        assert await cached_share(gateway) < 0.1
        await unload(folder, gateway)
        (record,) = records(folder)
        assert stat.S_IMODE(record.with_suffix("").stat().st_mode) == 0o600
        assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
        found["unload"] = await cached_share(gateway)
        up.process.send_signal(signal.SIGTERM)
        assert await up.process.wait() == 0, up.err
    async with open_machine(folder) as (up, gateway):
        found["restart of up"] = await cached_share(gateway)
        up.process.send_signal(signal.SIGKILL)
        await up.process.wait()
        async with open_machine(folder) as (_, after):
            found["kill of up"] = await cached_share(after)
            await unload(folder, after)
            found["unload after it"] = await cached_share(after)
            home = folder / "home"
            home.mkdir()
            run = lambda *args: run_program(home, *args, kubeconfig=folder / "state" / "kubeconfig")  # noqa: E731
            code, out, err = await run("restart", "chat")
            assert code == 0, out + err
            found["restart of the service"] = await cached_share(after)
            state = ("--state-dir", str(folder / "state"))
            code, out, err = await run("cache", "prompts", *state)
            assert (code, out.split()[:5]) == (0, ["SERVICE", "TOKENS", "SIZE", "SAVED", "default/chat"]), out + err
            code, out, err = await run("cache", "prompts", "default/chat", "--clear", *state)
            assert (code, out.split(";")[0]) == (0, "saved prompts removed: 1"), out + err
            await unload(folder, after)
            assert records(folder)
            code, out, err = await run("delete", "chat")
            assert code == 0, out + err
            await eventually(lambda: async_value(not records(folder)), bool)
    assert all(share >= 0.99 for share in found.values()), found


async def test_a_killed_engine_has_lost_nothing_if_it_was_idle(tmp_path):
    """The kernel kills engines first; an engine that has been idle for a minute was saved."""

    async def loaded():
        async with open_client(load_config(tmp_path / "state" / "kubeconfig", None)) as client:
            service = await client.get(InferenceService, Key("default", "chat"))
        return find_condition(service.status.conditions, "Loaded").message

    async with open_machine(tmp_path) as (_, gateway):
        assert await cached_share(gateway) < 0.1
        await eventually(loaded, lambda message: message.endswith("; prompts are saved"))
        with trio.fail_after(60):
            await eventually(lambda: async_value(records(tmp_path)), bool)
        (engine,) = (each for each in engines_in(tmp_path / "state") if "chat" in command_line(each))
        engine.kill()
        await eventually(lambda: async_value(not engine.is_running()), bool)
        await eventually(loaded, lambda message: message.endswith("tokens of saved prompts restored"))
        assert await cached_share(gateway) >= 0.99


async def test_a_swap_keeps_both_conversations_and_a_failed_restore_replaces_the_engine(tmp_path):
    """Two models take turns in memory for one; a file that the engine refuses costs a computation, and no answer."""
    budget = 223 * 1024**2 / host_facts().total_bytes  # each needs 124 MiB by the estimate
    async with open_machine(tmp_path, "--memory-fraction", f"{budget:.6f}", "--log-level", "info") as (up, gateway):
        assert [await cached_share(gateway, name) < 0.1 for name in ("chat", "other")] == [True, True]
        assert [await cached_share(gateway, name) >= 0.99 for name in ("chat", "other", "chat")] == [True] * 3
        for change, count in ((cut_short, 1), (miscounted, 2)):
            await unload(tmp_path, gateway)
            (record,) = records(tmp_path)
            record.write_text(json.dumps(json.loads(record.read_text()) | change(record.with_suffix(""))))
            assert await cached_share(gateway) < 0.1
            # An engine that aborts is reported by its exit, or by the connection that it breaks first.
            assert len(re.findall("the engine exited|restarting the engine", up.err)) == count
            assert not records(tmp_path)
            assert await cached_share(gateway) >= 0.99


def cut_short(saved):
    """Shorten a saved slot; return the record of that. llama.cpp aborts when it reads it."""
    content = saved.read_bytes()[:-1000]
    saved.write_bytes(content)
    return {"size_bytes": len(content), "sha256": sha256(content).hexdigest()}


def miscounted(saved):
    """Return the record of another number of tokens than the file has."""
    return {"tokens": 40 if saved.exists() else 0}


async def test_no_prompt_is_saved_without_the_setting(tmp_path):
    """`--prompt-cache-gib 0` removes what was saved, and saves nothing."""
    left = tmp_path / "state" / "prompts" / "default" / "chat" / "abc-0"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a conversation")
    async with open_machine(tmp_path, "--prompt-cache-gib", "0") as (_, gateway):
        assert await cached_share(gateway) < 0.1
        await unload(tmp_path, gateway)
        assert await cached_share(gateway) < 0.1
        await eventually(lambda: async_value(not left.exists()), bool)
