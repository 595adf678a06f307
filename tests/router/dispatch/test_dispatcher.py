"""Choice and order of backends, and the error that a client gets if none answers.

Results of attempts as answers to the client.
"""

import json

import pytest
import trio

from llmkube.router.config.routing_config import Match, Rule
from llmkube.router.dispatch.dispatcher import no_answer
from llmkube.router.dispatch.record import AttemptRecord
from llmkube.router.dispatch.verdicts import Cause, Failure
from router.proxy import router_lab as rl

TWO = rl.config_of(rl.cloud("a"), rl.cloud("b"))


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422])
async def test_what_the_request_itself_got_wrong_is_an_answer(status):
    """No other backend is asked, and the circuit stays closed."""
    async with rl.open_lab(TWO, a=rl.error(status, "your fault", code="c"), b=rl.answer()) as lab:
        for _ in range(5):
            response = await lab.ask()
            assert (response.status, json.loads(response.body)["error"]["message"]) == (status, "your fault")
    assert (len(lab.players["a"].asked), len(lab.players["b"].asked)) == (5, 0)
    assert lab.audit[0]["outcome"] == "c"
    outcome = {"rule": "all", "backend": "a", "classification": "none", "outcome": "client_error"}
    assert lab.metric("llmkube_router_requests_total", **outcome) == 5


@pytest.mark.parametrize(
    "first",
    [
        rl.error(400, code="content_filter"),
        rl.error(500, code="content_filter"),
        rl.error(429, innererror={"code": "ResponsibleAIPolicyViolation"}),
        rl.answer(200, {"error": {"message": "no", "code": "content_policy_violation"}}),
        rl.answer(200, rl.ANSWER | {"choices": [{"index": 0, "finish_reason": "content_filter"}]}),
    ],
)
async def test_a_refusal_of_the_content_is_an_answer(first):
    """No other backend is asked for content that one refuses."""
    async with rl.open_lab(TWO, a=first, b=rl.answer()) as lab:
        response = await lab.ask()
    assert not lab.players["b"].asked
    assert b"content" in response.body or response.status in (429, 500)


@pytest.mark.parametrize(
    ("first", "status", "code"),
    [
        (rl.error(500), 502, "all_backends_failed"),
        (rl.error(429, lines=[b"Retry-After: 30"]), 429, "rate_limited"),
        (rl.saying(b"", then=rl.until_gone), 504, "backend_timeout"),
    ],
)
async def test_the_error_if_no_backend_answers(autojump_clock, first, status, code):
    """The last cause decides; Retry-After is correct, and no address is shown."""
    async with rl.open_lab(rl.config_of(rl.cloud("secret-host")), {}, **{"secret-host": first}) as lab:
        response = await lab.ask()
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
    assert response.headers.get("retry-after") == ("30" if status == 429 else None)
    assert b":80" not in response.body


async def test_a_rule_that_fails_closed_reports_it():
    """The status is 503 for any cause."""
    rule = Rule(name="closed", match=Match(), backends=("mac",), fail_closed=True)
    async with rl.open_lab(rl.config_of(rl.local("mac"), rules=(rule,)), mac=rl.error(500)) as lab:
        response = await lab.ask()
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "fail_closed_runtime")
    assert lab.metric("llmkube_router_fail_closed_total", rule="closed", classification="none") == 1


# -- time -------------------------------------------------------------------------------------------------------------


async def test_time_bounds_silence_and_never_the_length_of_a_stream(autojump_clock):
    """An hour of events 50 seconds apart passes under a limit of 60; 61 seconds of silence end it with an error."""
    events = [rl.chunk(rl.piece("x")) for _ in range(72)]
    long = rl.saying(
        rl.stream(rl.piece("x"), end=b""), *events, rl.chunk(rl.piece("", "stop") + rl.DONE) + b"0\r\n\r\n", seconds=50
    )
    config = rl.config_of(rl.cloud("a"), first_byte_seconds=60)
    async with rl.open_lab(config, a=long) as lab:
        status, body, clean = await lab.read()
    assert (status, body.count(b'"x"'), clean) == (200, 73, True)
    assert trio.current_time() > 3600
    async with rl.open_lab(config, a=rl.saying(rl.stream(rl.piece("x"), end=b""), b"1", seconds=61)) as lab:
        started_at = trio.current_time()
        status, body, clean = await lab.read()
    assert (status, clean) == (200, False)
    assert b'"code":"stream_backend_silent"' in body
    assert trio.current_time() - started_at == pytest.approx(60, abs=0.1)


async def test_a_silent_backend_is_abandoned_at_its_limit(autojump_clock):
    """The rule's limit takes precedence."""
    rule = Rule(name="all", match=Match(), backends=("a", "b"), first_byte_seconds=7)
    async with rl.open_lab(
        rl.config_of(rl.cloud("a"), rl.cloud("b"), rules=(rule,)), a=rl.until_gone, b=rl.answer()
    ) as lab:
        response = await lab.ask()
    assert response.status == 200
    assert lab.audit[0]["attempts"][0]["ms"] == pytest.approx(7000)
    assert lab.audit[0]["attempts"][0]["result"] == "timeout"


async def test_a_cold_engine_is_waited_for_and_its_client_gets_comments(autojump_clock):
    """Comments are sent while it loads, and then the answer in the same stream."""
    loading = rl.error(503, "Loading model", code=503, type="unavailable_error")
    async with rl.open_lab(rl.MAC, mac=(*[loading] * 30, rl.stream(rl.WHOLE_STREAM))) as lab:
        status, body, clean = await lab.read()
    assert (status, clean) == (200, True)
    assert body.startswith(b": the model is loading\n\n")
    assert body.count(b": the model is loading") >= 5
    assert body.endswith(rl.WHOLE_STREAM)
    assert [each["result"] for each in lab.audit[0]["attempts"]] == ["loading", "answered"]


async def test_a_cold_engine_is_waited_for_no_longer_than_a_first_byte(autojump_clock):
    """The client gets 503 with Retry-After, or an error event if the stream has started."""
    loading = rl.error(503, "Loading model")
    async with rl.open_lab(rl.config_of(rl.local("mac"), first_byte_seconds=20), mac=loading) as lab:
        response = await lab.ask()
        status, body, clean = await lab.read()
    assert (response.status, response.headers.get("retry-after")) == (503, "5")
    assert json.loads(response.body)["error"]["code"] == "model_loading"
    assert (status, clean, b'"code":"model_loading"' in body) == (200, False, True)


async def test_a_warm_backend_is_asked_before_a_cold_one_is_waited_for():
    """No client waits while another backend can answer."""
    async with rl.open_lab(
        rl.config_of(rl.local("mac"), rl.local("b")), mac=rl.error(503, "Loading model"), b=rl.answer()
    ) as lab:
        response = await lab.ask()
    assert response.headers.get("x-llmkube-backend") == "b"


# -- circuits ---------------------------------------------------------------------------------------------------------


async def test_a_failing_backend_is_closed_and_then_tried_by_one_request(autojump_clock):
    """Three failures in a row open its circuit for 15 seconds; then one request goes through."""
    async with rl.open_lab(TWO, a=rl.error(500), b=rl.answer()) as lab:
        for _ in range(6):
            assert (await lab.ask()).status == 200
        assert len(lab.players["a"].asked) == 3
        assert lab.metric("llmkube_router_backend_health", backend="a") == 1  # for other tenants
        await trio.sleep(15)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lab.ask)
        assert len(lab.players["a"].asked) == 4
        await trio.sleep(15)
        await lab.ask()
        assert len(lab.players["a"].asked) == 4  # the pause has doubled
        await trio.sleep(15)
        await lab.ask()
        assert len(lab.players["a"].asked) == 5


async def test_retry_after_is_the_pause_of_the_backend(autojump_clock):
    """After one 429, any duration applies, short or long."""
    async with rl.open_lab(TWO, a=(rl.error(429, lines=[b"Retry-After: 40"]), rl.answer()), b=rl.answer()) as lab:
        await lab.ask()
        await trio.sleep(39)
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "b"
        await trio.sleep(1)
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "a"


async def test_a_disconnect_during_the_probe_lets_the_next_request_probe(autojump_clock):
    """The result of the probe is unknown."""
    async with rl.open_lab(
        rl.MAC, mac=(rl.error(500), rl.error(500), rl.error(500), rl.until_gone, rl.answer())
    ) as lab:
        for _ in range(3):
            await lab.ask()
        assert (await lab.ask()).headers.get("retry-after") in {"12", "13", "14", "15"}
        await trio.sleep(15)
        with trio.move_on_after(1):
            await lab.ask()
        await trio.testing.wait_all_tasks_blocked()
        assert (await lab.ask()).status == 200


# -- strategies -------------------------------------------------------------------------------------------------------


async def test_weights_share_requests():
    """Many requests are shared at about 1:3."""
    rule = Rule(name="w", match=Match(), backends=("a", "b"), strategy="weighted")
    async with rl.open_lab(
        rl.config_of(rl.cloud("a"), rl.cloud("b", weight=3), rules=(rule,)), a=rl.answer(), b=rl.answer()
    ) as lab:
        for _ in range(200):
            await lab.ask()
    assert 130 <= len(lab.players["b"].asked) <= 170


async def test_the_least_loaded_backend_is_asked(autojump_clock):
    """Requests count until the end of their stream."""
    rule = Rule(name="l", match=Match(), backends=("a", "b"), strategy="least-loaded")
    slow = rl.saying(
        rl.stream(rl.piece("x"), end=b""), rl.chunk(rl.piece("", "stop") + rl.DONE) + b"0\r\n\r\n", seconds=50
    )
    async with rl.open_lab(rl.config_of(rl.local("a"), rl.local("b"), rules=(rule,)), a=slow, b=slow) as lab:
        async with trio.open_nursery() as nursery:
            for at in range(4):
                nursery.start_soon(lab.read)
                await trio.sleep(1 + at)
            assert lab.metric("llmkube_router_in_flight", backend="a") == 2
        assert (len(lab.players["a"].asked), len(lab.players["b"].asked)) == (2, 2)
        assert lab.metric("llmkube_router_in_flight", backend="a") == 0


async def test_a_shadow_gets_a_copy_and_neither_delays_nor_fails_the_request(autojump_clock):
    """Its answer is dropped, even if it never comes; copies beyond the limit are skipped."""
    rule = Rule(name="s", match=Match(), backends=("a", "b"), strategy="shadow")
    async with rl.open_lab(
        rl.config_of(rl.cloud("a"), rl.cloud("b"), rules=(rule,)), a=rl.answer(), b=rl.until_gone
    ) as lab:
        for _ in range(40):
            response = await lab.ask()
            assert (response.status, response.headers.get("x-llmkube-backend")) == (200, "a")
        assert trio.current_time() < 1
        assert len(lab.players["b"].asked) == 8
        assert lab.metric("llmkube_router_shadows_total", backend="b", result="left_out") == 16
        await trio.sleep(121)
        assert lab.metric("llmkube_router_shadows_total", backend="b", result="timeout") == 8
    assert lab.players["b"].bodies[0]["messages"] == rl.ASKED["messages"]


async def test_usage_is_requested_and_shown_on_request():
    """An event with only usage breaks clients that did not request it; the metrics have it in both cases."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    body = rl.stream(rl.piece("x"), rl.piece("", "stop"), usage, rl.DONE)
    async with rl.open_lab(rl.config_of(rl.cloud("a")), a=body) as lab:
        _, hidden, _ = await lab.read()
        _, shown, _ = await lab.read(rl.STREAMED | {"stream_options": {"include_usage": True}})
    assert (b'"choices":[]' in hidden, b'"choices":[]' in shown) == (False, True)
    assert lab.players["a"].bodies[0]["stream_options"] == {"include_usage": True}
    assert lab.metric("llmkube_router_tokens_total", backend="a", kind="prompt") == 6


async def test_a_backend_whose_streams_all_break_off_is_closed():
    """Each starts normally; the fourth client is answered by the next backend. A complete stream resets the count."""
    broken, whole = rl.saying(rl.stream(rl.piece("one"), end=b"")), rl.saying(rl.stream(rl.WHOLE_STREAM))
    async with rl.open_lab(TWO, a=(broken, broken, whole, broken), b=whole) as lab:
        ends = [(await lab.read())[2] for _ in range(7)]
    assert ends == [False, False, True, False, False, False, True]
    assert (len(lab.players["a"].asked), len(lab.players["b"].asked)) == (6, 1)


AGAIN = {"Retry-After": "3"}
CASES = {
    "nothing that it asks for": ((Cause.UNSUPPORTED, Cause.UNSUPPORTED), 400, "unsupported", {}),
    "one could not do it, another was silent": ((Cause.UNSUPPORTED, Cause.TIMEOUT), 504, "backend_timeout", {}),
    "silence": ((Cause.CONNECT, Cause.TIMEOUT), 504, "backend_timeout", {}),
    "frozen": ((Cause.FROZEN,), 504, "backend_timeout", {}),
    "too many requests": ((Cause.RATE_LIMITED,), 429, "rate_limited", AGAIN),
    "it loads": ((Cause.LOADING,), 503, "model_loading", {"Retry-After": "5"}),
    "none may be asked": ((Cause.CIRCUIT, Cause.KEY), 503, "no_backend_available", AGAIN),
    "all circuits are open": ((Cause.CIRCUIT, Cause.CIRCUIT), 503, "no_backend_available", AGAIN),
    "an open circuit does not matter": ((Cause.SERVER_ERROR, Cause.CIRCUIT), 502, "all_backends_failed", {}),
    "not ready": ((Cause.NOT_READY,), 503, "no_backend_available", AGAIN),
    "errors": ((Cause.SERVER_ERROR,), 502, "all_backends_failed", {}),
    "no connection": ((Cause.CONNECT,), 502, "all_backends_failed", {}),
}


def answer_after(failures, closed_by=""):
    attempts = [AttemptRecord(f"b{at}", each.cause.value, "", 0.0, 0) for at, each in enumerate(failures)]
    return no_answer(failures, attempts, closed_by=closed_by, wait_seconds=2.1)


def again_in(answer):
    return dict(answer.response.headers.without("content-type"))


@pytest.mark.parametrize(("causes", "status", "code", "headers"), CASES.values(), ids=CASES)
def test_the_answer_follows_from_the_attempts(causes, status, code, headers):
    answer = answer_after([Failure(cause, "detail") for cause in causes])
    assert (answer.response.status, answer.code, again_in(answer)) == (status, code, headers)
    assert ("b0: " in answer.error["message"]) == (code != "unsupported")


@pytest.mark.parametrize(
    ("has_siblings", "status", "code"), [(True, 429, "tenant_queue_full"), (False, 503, "queue_full")]
)
def test_a_full_queue_is_the_tenants_own_or_shared(has_siblings, status, code):
    """The error has a Retry-After."""
    answer = answer_after([Failure(Cause.QUEUE, "full", retry_after_seconds=7.0, has_siblings=has_siblings)])
    assert (answer.response.status, answer.code, again_in(answer)["Retry-After"]) == (status, code, "7")


def test_a_rule_that_fails_closed_is_named():
    """This applies to all results of attempts, except requests that no backend supports: the client must fix those."""
    answer = answer_after([Failure(Cause.TIMEOUT, "")], closed_by="pii")
    assert (answer.response.status, answer.code) == (503, "fail_closed_runtime")
    assert "rule 'pii' fails closed" in answer.error["message"]
    assert answer_after([Failure(Cause.UNSUPPORTED, "no tools")], closed_by="pii").error["message"] == "no tools"


def test_a_client_does_not_ask_again_for_what_a_person_has_stopped():
    """If another backend may answer by then, the client may retry."""
    stopped, crashed = (Failure(Cause.NOT_READY, "", reason="Hung", is_stuck=is_stuck) for is_stuck in (True, False))
    assert again_in(answer_after([stopped], closed_by="pii")) == {"X-Should-Retry": "false"}
    assert again_in(answer_after([stopped, crashed], closed_by="pii")) == AGAIN


def test_retry_after_is_never_zero():
    answer = no_answer([Failure(Cause.CIRCUIT, "")], [], closed_by="", wait_seconds=-4.0)
    assert again_in(answer) == {"Retry-After": "1"}
