"""What attempts came to, and what the client is told."""

import pytest

from llmkube.router.dispatch.no_answer import no_answer
from llmkube.router.dispatch.record import Try
from llmkube.router.dispatch.verdicts import Cause, Failure

AGAIN = {"Retry-After": "3"}
CASES = {
    "nothing that it asks for": ((Cause.UNSUPPORTED, Cause.UNSUPPORTED), 400, "unsupported", {}),
    "one could not do it, another was silent": ((Cause.UNSUPPORTED, Cause.TIMEOUT), 504, "backend_timeout", {}),
    "silence": ((Cause.CONNECT, Cause.TIMEOUT), 504, "backend_timeout", {}),
    "frozen": ((Cause.FROZEN,), 504, "backend_timeout", {}),
    "too many requests": ((Cause.RATE_LIMITED,), 429, "rate_limited", AGAIN),
    "it loads": ((Cause.LOADING,), 503, "model_loading", {"Retry-After": "5"}),
    "none may be asked": ((Cause.CIRCUIT, Cause.KEY), 503, "no_backend_available", AGAIN),
    "all are left alone": ((Cause.CIRCUIT, Cause.CIRCUIT), 503, "no_backend_available", AGAIN),
    "one that is left alone says nothing": ((Cause.SERVER_ERROR, Cause.CIRCUIT), 502, "all_backends_failed", {}),
    "not ready": ((Cause.NOT_READY,), 503, "no_backend_available", AGAIN),
    "errors": ((Cause.SERVER_ERROR,), 502, "all_backends_failed", {}),
    "no connection": ((Cause.CONNECT,), 502, "all_backends_failed", {}),
}


def told(failures, closing_rule=""):
    tries = [Try(f"b{at}", each.cause.value, "", 0.0, 0) for at, each in enumerate(failures)]
    return no_answer(failures, tries, closing_rule=closing_rule, wait_seconds=2.1)


@pytest.mark.parametrize(("causes", "status", "code", "headers"), CASES.values(), ids=CASES)
def test_the_answer_follows_from_the_attempts(causes, status, code, headers):
    said = told([Failure(cause, "detail") for cause in causes])
    assert (said.status, said.code, dict(said.headers)) == (status, code, headers)
    assert ("b0: " in said.message) == (code != "unsupported")


@pytest.mark.parametrize(("is_own", "status", "code"), [(True, 429, "tenant_queue_full"), (False, 503, "queue_full")])
def test_a_full_queue_is_the_tenants_own_or_everybodys(is_own, status, code):
    """It says when to come again."""
    said = told([Failure(Cause.QUEUE, "full", retry_after_seconds=7.0, is_own=is_own)])
    assert (said.status, said.code, said.headers["Retry-After"]) == (status, code, "7")


def test_a_rule_that_fails_closed_is_named():
    """Whatever the attempts came to: only what cannot be done at all is the client's to mend."""
    said = told([Failure(Cause.TIMEOUT, "")], closing_rule="pii")
    assert (said.status, said.code) == (503, "fail_closed_runtime")
    assert "rule 'pii' fails closed" in said.message
    assert told([Failure(Cause.UNSUPPORTED, "no tools")], closing_rule="pii").message == "no tools"


def test_a_client_does_not_ask_again_for_what_a_person_has_stopped():
    """Unless another backend may answer by then."""
    stopped, crashed = (Failure(Cause.NOT_READY, "", reason="Hung", stays=stays) for stays in (True, False))
    assert told([stopped], closing_rule="pii").headers == {"X-Should-Retry": "false"}
    assert told([stopped, crashed], closing_rule="pii").headers == AGAIN


def test_a_client_is_never_told_to_come_again_at_once():
    assert no_answer([Failure(Cause.CIRCUIT, "")], [], closing_rule="", wait_seconds=-4.0).headers == {
        "Retry-After": "1"
    }
