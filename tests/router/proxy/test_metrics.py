"""Each outcome of a request has a name in `OUTCOMES`: no refusal is counted as a crash.

Series of OpenTelemetry's conventions, from finished requests.
"""

import ast
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from llmkube import router
from llmkube.router.auth import principals
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Backend, Prices
from llmkube.router.dialects.inbound import unread_code
from llmkube.router.dispatch.dispatcher import no_answer
from llmkube.router.dispatch.record import AttemptRecord, Record, Request
from llmkube.router.dispatch.relay import Ending
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy import handler, metrics
from llmkube.router.proxy.metrics import GenAiMetrics, bounded_outcome, provider_of

ROOT = Path(router.__file__).parent
ROOMS = ("dispatch", "proxy", "responses")
ELSEWHERE = {"proxy/admin.py"}  # the operator's port, whose requests are not counted

STATUS_AND_CODE = {"refused": (0, 2), "_own": (0, 2)}
"""Positions of status and code in the arguments of refusing functions."""

COMPUTED = {
    "proxy/handler.py": {(400, "any of BodyError"), *handler._REFUSALS.values(), (503, "no_route")},
    "responses/store.py": {(404, "response_not_found")},
    "dispatch/dispatcher.py": set(),  # called below, with all its arguments
    "dispatch/attempt.py": {(400, "backend_refused")},  # 500 or more is not an answer
}
"""Possible values of a status or code that a module does not write as a constant."""


def refusals_of(name, text):
    """Return each status and code with which a module refuses."""
    for node in ast.walk(ast.parse(text)):
        called = node.func if isinstance(node, ast.Call) else None
        word = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if word not in STATUS_AND_CODE:
            continue
        arguments = [node.args[at] for at in STATUS_AND_CODE[word]]
        if all(isinstance(each, ast.Constant) for each in arguments):
            yield tuple(each.value for each in arguments)
        else:
            assert name in COMPUTED, f"{name}:{node.lineno}: say in COMPUTED what {ast.unparse(node)} can be"
            yield from COMPUTED[name]


def outcomes_of(text):
    """Return the outcomes that a module records, including a crash."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign() if "outcome" in ast.unparse(node.targets[0]):
                parts = ast.walk(node.value)
            case ast.FunctionDef() if "outcome" in node.name:
                parts = ast.walk(node)
            case ast.Call() if words := [each for each in node.keywords if each.arg == "outcome"]:
                parts = ast.walk(words[0].value)
            case ast.Call() if ast.unparse(node.func) == "on_refused":
                parts = ast.walk(node)
            case _:
                continue
        yield from (each.value for each in parts if isinstance(each, ast.Constant))


def sources():
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            name = f"{room}/{path.name}"
            if name not in ELSEWHERE:
                yield name, path.read_text()


def without_backends():
    """Return the errors if no backend answers, for all results of attempts."""
    for cause, has_siblings, rule in product(Cause, (True, False), ("", "a rule")):
        failure = Failure(cause, "why", 500, has_siblings=has_siblings)
        answer = no_answer([failure], [AttemptRecord("a", cause.value, "", 0.0, 0)], closed_by=rule, wait_seconds=1.0)
        yield answer.response.status, answer.code


def refusals():
    """Return each status and code with which a router refuses a request."""
    return {pair for name, text in sources() for pair in refusals_of(name, text)} | set(without_backends())


def test_each_refusal_is_counted_by_its_name():
    """Errors of the client may share `client_error`; none has the label `crashed`."""
    found = refusals()
    assert {(503, "budget_not_kept"), (503, "histories_full"), (503, "queue_full"), (404, "not_found")} <= found
    for status, code in found:
        assert bounded_outcome(code, status) in ({code} if status >= 500 else {code, "client_error"}), (status, code)


def test_no_name_is_there_that_nothing_gives():
    """An alert on a name in `OUTCOMES` can always fire."""
    given = {code for _, code in refusals()} | {each.value for each in Ending}
    given |= {unread_code(status) for status in range(400, 600)}
    for _, text in (*sources(), ("", Path(principals.__file__).read_text())):
        given |= set(outcomes_of(text))
    assert given >= metrics.OUTCOMES - {"client_error", "stream_broken"}  # names that replace others


@pytest.mark.parametrize("code", ["budget_not_kept", "histories_full", "queue_full"])
def test_a_name_that_is_left_out_is_seen(code, monkeypatch):
    """Two of these names were once omitted."""
    monkeypatch.setattr(metrics, "OUTCOMES", metrics.OUTCOMES - {code})
    with pytest.raises(AssertionError, match=code):
        test_each_refusal_is_counted_by_its_name()


@pytest.mark.parametrize("new", ['refused(503, words, "is_new")', "refused(503, words, code)"])
def test_a_refusal_that_is_added_is_seen(new, monkeypatch):
    """Computed codes are found, too."""
    plain = sources
    monkeypatch.setitem(globals(), "sources", lambda: [*plain(), ("proxy/new.py", new)])
    with pytest.raises(AssertionError, match="new"):
        test_each_refusal_is_counted_by_its_name()


LOCAL = Backend(name="mac", model_id="chat", base_url="http://127.0.0.1:1/v1", local=True)
CLOUD = Backend(
    name="c", model_id="gpt", base_url="https://h/v1", local=False, provider="bedrock", model="anthropic.claude"
)
OF_LOCAL = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "llmkube", "gen_ai_request_model": "chat"}


def record(path="/v1/chat/completions", **what):
    request = Request(request_id="r", path=path, method="POST", peer="p", started_at=0.0, trace={})
    found = Record(request)
    found.update(**what)
    return found


def ended(*requests):
    """Count finished requests; return a function that reads a sample."""
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry)
    for one, backend, outcome, seconds in requests:
        metrics.count_request(one, backend, outcome, seconds)
    return registry.get_sample_value


def test_a_stream_has_all_of_them():
    """Two seconds for ten tokens, the first after a fifth of one: nine tokens in 1.8 seconds."""
    one = record(streamed=True, first_byte_seconds=0.2, usage=Usage(30, 10, 0))
    value = ended((one, LOCAL, "ok", 2.0))
    assert value("gen_ai_server_request_duration_seconds_sum", OF_LOCAL | {"error_type": ""}) == 2.0
    assert value("gen_ai_server_time_to_first_token_seconds_sum", OF_LOCAL) == 0.2
    assert value("gen_ai_server_time_per_output_token_seconds_sum", OF_LOCAL) == pytest.approx(0.2)
    assert value("gen_ai_client_token_usage_sum", OF_LOCAL | {"gen_ai_token_type": "input"}) == 30
    assert value("gen_ai_client_token_usage_sum", OF_LOCAL | {"gen_ai_token_type": "output"}) == 10


def test_tokens_and_dollars_are_counted_by_team(monkeypatch):
    """Dollars are those of the prices of the backend; a team beyond the limit is `other`."""
    monkeypatch.setattr(metrics, "MAX_TEAMS", 2)
    registry = CollectorRegistry()
    counted = metrics.RouterMetrics(registry, "n/r")
    prices = Prices(prompt_usd=Decimal(2), completion_usd=Decimal(4), cache_read_usd=Decimal(1))
    paid = Backend(name="b", model_id="b", base_url="http://b", local=False, prices=prices)
    for team in ("red", "blue", "green", "red"):
        one = record(usage=Usage(1_000_000, 500_000, 500_000), backend="b")
        one.decided.principal = Principal(team=team)
        counted.count_request(one, "none", paid, 1.0)
    tokens = [
        registry.get_sample_value("llmkube_router_team_tokens_total", {"router": "n/r", "team": team, "kind": "cached"})
        for team in ("red", "blue", "green", "other")
    ]
    labels = {"router": "n/r", "team": "red", "backend": "b"}
    assert tokens == [1_000_000, 500_000, None, 500_000]
    assert registry.get_sample_value("llmkube_router_cost_dollars_total", labels) == 7.0


def test_a_failure_has_its_type_and_no_first_token():
    one = record(streamed=True, first_byte_seconds=0.2)
    value = ended((one, LOCAL, "stream_broken", 1.0))
    assert value("gen_ai_server_request_duration_seconds_count", OF_LOCAL | {"error_type": "stream_broken"}) == 1
    assert value("gen_ai_server_time_to_first_token_seconds_count", OF_LOCAL) in (None, 0)
    assert value("gen_ai_client_token_usage_count", OF_LOCAL | {"gen_ai_token_type": "input"}) in (None, 0)


def test_labels_are_of_the_config():
    """The client's model name is not a label: its values would be unbounded."""
    value = ended((record(model="whatever it answers"), CLOUD, "ok", 1.0))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "aws.bedrock"}
    labels |= {"gen_ai_request_model": "anthropic.claude", "error_type": ""}
    assert value("gen_ai_server_request_duration_seconds_count", labels) == 1
    assert [provider_of(each) for each in (LOCAL, CLOUD)] == ["llmkube", "aws.bedrock"]


@pytest.mark.parametrize(("path", "backend"), [("/v1/rerank", LOCAL), ("/v1/chat/completions", None)])
def test_paths_outside_the_convention_are_omitted(path, backend):
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry)
    before = sum(len(family.samples) for family in registry.collect())
    metrics.count_request(record(path), backend, "ok", 1.0)
    assert sum(len(family.samples) for family in registry.collect()) == before


def test_embeddings_have_no_output():
    one = record("/v1/embeddings", usage=Usage(8, 0, 0))
    value = ended((one, LOCAL, "ok", 0.1))
    labels = OF_LOCAL | {"gen_ai_operation_name": "embeddings"}
    assert value("gen_ai_client_token_usage_sum", labels | {"gen_ai_token_type": "input"}) == 8
    assert value("gen_ai_client_token_usage_count", labels | {"gen_ai_token_type": "output"}) in (None, 0)
