from pathlib import Path

import pytest

from llmkube.cli.view.advice import _table, advice, explain
from llmkube.cli.view.readiness import DELETED
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, State
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine import launcher
from llmkube.supervisor.engine.launcher import EngineNotFoundError, find_program
from llmkube.supervisor.values.settings import AgentSettings

KEY = Key("prod", "chat")


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.meaning.is_failing])
def test_every_failure_has_advice(reason):
    """Each failing reason has advice of its own, with every placeholder filled."""
    text = advice(reason, KEY)
    assert text != advice("OutOfcpu", KEY)
    assert "{" not in text


def test_advice_table_has_only_known_reasons():
    assert set(_table()) <= {*Reason, DELETED}


def test_a_failure_is_reported_with_its_advice():
    """The reported message comes first, then the advice; control characters are replaced."""
    text = explain(KEY, Health(State.FAILING, 1, "CrashLoopBackOff", "exit code 1\x1b[2J\nerror: no memory"))
    assert text.splitlines() == [
        "InferenceService prod/chat cannot be served: CrashLoopBackOff: exit code 1\N{REPLACEMENT CHARACTER}[2J",
        "error: no memory",
        "What to do: `llmkube logs chat` shows the engine's log",
    ]


def test_a_service_that_was_deleted_during_the_wait_is_not_to_be_looked_at():
    """There is nothing that `llmkube status` could show."""
    assert advice(DELETED, KEY) == "deploy it again, if it was not you who deleted it"


@pytest.mark.parametrize(("part", "flag"), [("the draft model", "--draft"), ("the adapters", "--lora")])
def test_advice_for_a_second_file_names_its_flag(part, flag):
    """The source of the model itself is fine."""
    text = explain(KEY, Health(State.FAILING, 1, "FileNotFound", f"{part}: spec.source: there is no file"))
    assert text.endswith(f"What to do: deploy again with another {flag}, or without it")


@pytest.mark.parametrize("runtime", ["ollama", "omlx", "mlx-lm", "vllm-metal"])
def test_a_missing_engine_is_reported_with_its_own_remedy(runtime, monkeypatch):
    """The remedy is that of the missing program, not of llama-server."""
    monkeypatch.setattr(launcher, "HOMEBREW", ())
    monkeypatch.setenv("PATH", "/nowhere")
    engine = HOST_RUNTIMES[runtime]
    with pytest.raises(EngineNotFoundError) as missing:
        find_program(AgentSettings("h", Path("/s"), Path("/s"), "/llama-server"), engine)
    text = explain(KEY, Health(State.FAILING, 1, missing.value.reason, str(missing.value)))
    assert engine.program.remedy in text
    assert "What to do: install the program that is named above" in text
    assert "llama-server" not in text


@pytest.mark.parametrize("reason", [Reason.TOKEN_UNAVAILABLE, Reason.ACCESS_DENIED])
def test_advice_names_the_key_of_the_token(reason):
    """The advice names the Secret's key that agents and Jobs read."""
    assert "key HF_TOKEN" in advice(reason, KEY)
