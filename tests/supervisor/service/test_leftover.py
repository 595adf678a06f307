"""The program that unloads the models of a killed engine, as a real process."""

import json
import random
import sys
from types import SimpleNamespace

import pytest
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.service import attempt
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.values.ports import Shutdown
from llmkube.supervisor.values.settings import AgentSettings

KEY = Key("default", "chat")

SECOND_TIME = """
import json, os, pathlib, sys
print(json.dumps([sys.argv[1:], os.environ["LLMKUBE_AGENT_STATE"]]), flush=True)
first = pathlib.Path("first")
sys.exit(0 if first.exists() else first.touch() or 1)
"""

TOLD_TO_END = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("ended in order", flush=True)))
print("up", flush=True)
time.sleep(600)
"""


class Engines(LocalEngines):
    """Real processes of a program that is a script."""

    async def info(self, runtime="llamacpp"):
        await trio.lowlevel.checkpoint()
        return EngineInfo("/opt/ollama", "0.1", frozenset())


def staged(tmp_path, script):
    """The attempt of a service, and its launch."""
    settings = AgentSettings("h", tmp_path, tmp_path, sys.executable, grace_seconds=5.0)
    argv = (sys.executable, "-c", script, Placeholder.PROGRAM, "--model", Placeholder.MODEL, Placeholder.KEYS)
    plan = LaunchPlan(argv=argv, env=(), runtime="ollama", alias="chat", weights_identity="w")
    manager = SimpleNamespace(key=KEY, log=structlog.get_logger())
    ports = SimpleNamespace(engines=Engines(settings), rng=random.Random(1))
    context = ServiceContext(manager, ports, settings, Shutdown(), None, None, prompts=None)
    return context, SimpleNamespace(plan=plan, weights=SimpleNamespace(path="/models/one.gguf"))


@pytest.mark.e2e
async def test_the_engines_own_program_runs_until_the_model_is_unloaded(tmp_path, monkeypatch):
    """In the service's log, with the agent's state directory, without a key; again only after a failure."""
    monkeypatch.setattr(attempt, "RETRY", Backoff(0.05, 0.05))
    context, launch = staged(tmp_path, SECOND_TIME)
    with trio.fail_after(60):
        await attempt.unload_leftover(context, launch)
    commands = [json.loads(line) for line in context.log_path.read_text().splitlines() if line.startswith("[[")]
    assert commands == [[["/opt/ollama", "--model", "/models/one.gguf", "", "--unload-left"], str(tmp_path)]] * 2
    assert not list((tmp_path / "keys").glob("*"))


@pytest.mark.e2e
async def test_cancelled_it_ends_its_program_in_order(tmp_path):
    """The next engine starts when it has exited."""
    context, launch = staged(tmp_path, TOLD_TO_END)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt.unload_leftover, context, launch)
            while not (context.log_path.exists() and "up" in context.log_path.read_text()):  # noqa: ASYNC110
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel(reason="there is room")
    assert "ended in order" in context.log_path.read_text()
