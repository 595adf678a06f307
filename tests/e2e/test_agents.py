"""Claude Code, Codex, opencode and the AI SDK, unmodified and with their defaults, at `llmkube up` and at a router.

A real llama.cpp has a model with a long context, one answer and a chat template as strict as Qwen's; a scripted engine
calls the agents' own tools.
"""

import base64
import contextlib
import json
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from e2e.agents import engine
from e2e.agents.lab import FIRST, NEXT, Lab
from e2e.agents.model import ANSWER, write_model
from e2e.client_packages import find_agents
from e2e.separate_programs import REAL_ENGINE
from e2e.up_process import FREE_PORTS, open_up
from lengths import SOAK
from llmkube.base.http.client import open_http_client
from llmkube.cli.commands.inference.clients import Served

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

CONTEXT, SMALL = 65_536, 32_768
SHARE = 0.95
AGENTS = ("claude", "codex", "opencode")
CACHED = {"gateway": AGENTS, "router": AGENTS if SOAK else ("claude",)}
"""The agents whose second turn is measured at each route; both routes have the same engine."""

TOOLS = {"gateway": ("claude", "codex") if SOAK else ("claude",), "router": AGENTS}
"""The agents that call tools at each route."""

MANIFESTS = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: qwen}
spec: {source: MODEL, hardware: {accelerator: cpu}}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: agents}
spec:
  backends: [BACKENDS]
  defaultRoute: FIRST
"""
SERVICE = """
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: NAME}
spec: {modelRef: qwen, contextSize: SIZE, parallelSlots: 1}
"""
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="session")
def agents():
    """The folder of the agents' packages."""
    return find_agents()


@contextlib.asynccontextmanager
async def open_lab(folder, packages, **contexts):
    """Serve models with these contexts by `llmkube up`; yield a lab and the URLs of its two routes."""
    model = folder / "qwen.gguf"
    write_model(model)
    text = MANIFESTS.replace("MODEL", str(model)).replace("FIRST", next(iter(contexts)))
    text = text.replace(
        "BACKENDS", ", ".join(f"{{name: {name}, inferenceServiceRef: {{name: {name}}}}}" for name in contexts)
    )
    for name, size in contexts.items():
        text += SERVICE.replace("NAME", name).replace("SIZE", str(size))
    (folder / "up.yaml").write_text(text)
    program = folder / "llama-server"
    script = f'exec {sys.executable} {engine.__file__} {folder}/engine.log "$@"'
    choice = f'for each; do [ "$each" = {engine.SCRIPTED} ] && {script}; done'
    program.write_text(f'#!/bin/sh\n{choice}\nexec {REAL_ENGINE} "$@"\n')
    program.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    flags = (*FREE_PORTS, "-f", str(folder / "up.yaml"), "--allow-local-sources", str(folder))
    async with (
        open_up(folder, *flags, "--state-dir", str(folder / "state"), "--llama-server", str(program)) as up,
        trio.open_nursery() as nursery,
    ):
        for name in contexts:
            await up.wait_for("out", rf"default/{name}: Ready\n")
        _, gateway, _ = await up.urls()
        lab = Lab(home, packages)
        urls = {"gateway": gateway, "router": f"{gateway}/routers/default/agents"}
        yield lab, {name: await lab.record(nursery, url) for name, url in urls.items()}
        nursery.cancel_scope.cancel()


def refusals(lab):
    """Return the requests that were refused, with the words."""
    return [(each.path, each.status, each.answer[:400]) for each in lab.asked if each.status >= 400]


def cached_share(turns):
    """Return the cached tokens of the second turn's main request, as a share of those that the first one computed."""
    (before, _), (after, cached) = (max(each.tokens for each in turn) for turn in turns)
    return cached / min(before, after)


async def test_second_turns_of_each_agent_are_cached(tmp_path, agents, capsys):
    """No request is refused, and at least 95 % of the first prompt is cached in the second turn, at both routes.

    All agents ask the gateway; `make soak` has all of them ask the router, too.
    """
    shares, found = {}, {}
    async with open_lab(tmp_path, agents, qwen=CONTEXT) as (lab, urls):
        for route, url in urls.items():
            for name in CACHED[route]:
                run, turns = partial(lab.run, name, Served(url, "qwen", CONTEXT)), []
                for args in (FIRST[name], NEXT[name]):
                    begun = len(lab.asked)
                    assert ANSWER in await run(*args, "Say hello, then wait for the next question.")
                    turns.append([each for each in lab.asked[begun:] if each.tokens[0]])
                shares[f"{name} at the {route}"] = cached_share(turns)
            found[route] = await lab.ai_sdk(url, "qwen", "text")
        assert refusals(lab) == []
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{share:.1%} cached in the second turn: {name}" for name, share in shares.items()))
    assert all(share >= SHARE for share in shares.values()), shares
    expected = {"first": ANSWER, "second": ANSWER}
    structured = expected | {"object": "boolean"}
    by_provider = {"openai": structured, "compatible": structured, "anthropic": expected}
    assert found == dict.fromkeys(urls, by_provider)


async def test_a_full_context_is_compacted_by_the_agent(tmp_path, agents):
    """Claude Code summarizes a conversation that has become too long, and answers; only that request is refused."""
    pages = (Path(__file__).parents[2] / "docs" / "reference" / "routing.md").read_text().split() * 2
    async with open_lab(tmp_path, agents, small=SMALL) as (lab, urls):
        for url in urls.values():
            lab.asked.clear()
            run = partial(lab.run, "claude", Served(url, "small"))
            for args, words in ((FIRST["claude"], pages[:2500]), (NEXT["claude"], pages[2500:5500])):
                assert ANSWER in await run(*args, stdin=" ".join(words).encode())
            assert [status for _, status, _ in refusals(lab)] == [400]
            assert b"prompt is too long: " in refusals(lab)[0][2]
            lab.asked.clear()
            body = {"model": "small", "input": " ".join(pages * 9)}
            async with open_http_client() as http:
                answer = await http.request("POST", f"{url}/v1/responses", body=json.dumps(body).encode())
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "context_length_exceeded")


async def test_tools_resumed_sessions_and_pictures(tmp_path, agents):
    """Each agent runs the called tool, gives its output to the model, resumes with it, and shows pictures."""
    picture = tmp_path / "one.png"
    picture.write_bytes(PICTURE)
    encoded = base64.b64encode(PICTURE).decode()
    async with open_lab(tmp_path, agents, scripted=CONTEXT) as (lab, urls):
        for route, url in urls.items():
            served = Served(url, engine.SCRIPTED, CONTEXT, images=True)
            for name in TOOLS[route]:
                for args in (FIRST[name], NEXT[name]):
                    assert "canary-42" in await lab.run(name, served, *args, "Print the canary")
                bodies = [json.loads(line) for line in (tmp_path / "engine.log").read_text().splitlines()]
                called = [each for each in bodies[-1]["messages"] if each.get("tool_calls")]
                results = [each for each in bodies[-1]["messages"] if each["role"] == "tool"]
                assert (len(called), len(results)) == (2, 2), name
                assert all("canary-42" in json.dumps(each) for each in results), name
            shown = {"codex": (*FIRST["codex"], "--image", str(picture), "--", "What is this?"),
                     "opencode": ("run", "What is this?", "--file", str(picture))}  # fmt: skip
            for name, words in shown.items() if route == "router" else ():
                assert "a picture" in await lab.run(name, served, *words)
            tried = await lab.ai_sdk(url, engine.SCRIPTED, "tools", PICTURE=encoded)
            for name, each in tried.items():
                assert "sunny in Rome" in each["first"], name
                assert "sunny in Rome" in each["second"], name
                assert each["picture"] == "a picture", name
        assert refusals(lab) == []


async def test_launch_starts_a_client(tmp_path, agents):
    """The user's own settings, which name another server, are neither used nor changed."""
    async with open_lab(tmp_path, agents, scripted=CONTEXT) as (lab, _):
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in AGENTS:
            (programs / name).symlink_to(lab.program(name))
        own = {
            ".claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}}',
            ".codex/config.toml": 'model = "gpt-5"\nmodel_provider = "openai"\n',
            ".config/opencode/opencode.json": '{"$schema": "https://opencode.ai/config.json", "model": "openai/gpt-5"}',
        }
        for name, text in own.items():
            (lab.folder / name).parent.mkdir(parents=True)
            (lab.folder / name).write_text(text)
        variables = {"KUBECONFIG": str(tmp_path / "state" / "kubeconfig"), "ANTHROPIC_API_KEY": "sk-canary"}
        variables |= {"PATH": f"{programs}:{os.environ['PATH']}"}
        for name in AGENTS:
            command = [sys.executable, "-m", "llmkube", "launch", name, "--", *FIRST[name], "Print the canary"]
            assert "canary-42" in await lab.execute(command, variables), name
        assert {name: (lab.folder / name).read_text() for name in own} == own
        printed = await lab.execute([sys.executable, "-m", "llmkube", "launch"], variables)
        assert f"model {engine.SCRIPTED}" in printed


async def test_the_settings_that_the_page_shows(tmp_path, agents):
    """Claude Code and Codex, configured as docs/guides/clients.md shows, use the model."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "clients.md").read_text()
    exports = re.search(r"```bash\n((?:export .*\n)+)```", page)[1]
    config = re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1]
    async with open_lab(tmp_path, agents, scripted=CONTEXT) as (lab, urls):
        served = {"http://127.0.0.1:8080": urls["gateway"], "coder": engine.SCRIPTED}
        for shown, meant in served.items():
            exports, config = exports.replace(shown, meant), config.replace(shown, meant)
        (lab.folder / ".codex").mkdir()
        (lab.folder / ".codex" / "config.toml").write_text(config)
        variables = dict(word.split("=", 1) for word in shlex.split(exports) if word != "export")
        for name in ("claude", "codex"):
            command = [str(lab.program(name)), *FIRST[name], "Print the canary"]
            assert "canary-42" in await lab.execute(command, variables), name
