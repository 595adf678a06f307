import pytest

from llmkube.cli.view.advice import advice, explain
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, State

KEY = Key("prod", "chat")


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.meaning.is_failing])
def test_every_failure_has_a_way_out(reason):
    """Whatever keeps a service from being served, the user is told what to do, with the service's own name."""
    text = advice(reason, KEY)
    assert text != advice("OutOfcpu", KEY)
    assert "{" not in text


def test_a_failure_is_told_with_its_advice():
    """The words of the program that knows it come first, then what to do; control characters are not passed on."""
    told = explain(KEY, Health(State.FAILING, 1, "CrashLoopBackOff", "exit code 1\x1b[2J\nerror: no memory"))
    assert told.splitlines() == [
        "InferenceService prod/chat cannot be served: CrashLoopBackOff: exit code 1\N{REPLACEMENT CHARACTER}[2J",
        "error: no memory",
        "What to do: `llmkube logs chat` has all that the engine wrote",
    ]


@pytest.mark.parametrize("reason", [Reason.TOKEN_UNAVAILABLE, Reason.ACCESS_DENIED])
def test_a_token_is_asked_for_by_the_key_that_is_read(reason):
    """The Secret's key in the advice is the one that agents and Jobs read."""
    assert "key HF_TOKEN" in advice(reason, KEY)
