"""The series of OpenTelemetry's conventions, from what became of requests."""

import pytest
from prometheus_client import CollectorRegistry

from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.record import Record
from llmkube.router.proxy.genai_metrics import GenAiMetrics, provider_of

LOCAL = Backend(name="mac", model_id="chat", base_url="http://127.0.0.1:1/v1", local=True)
CLOUD = Backend(
    name="c", model_id="gpt", base_url="https://h/v1", local=False, provider="bedrock", model="anthropic.claude"
)
OF_LOCAL = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "llmkube", "gen_ai_request_model": "chat"}


def record(path="/v1/chat/completions", **what):
    return Record(request_id="r", path=path, peer="p", started_at=0.0, **what)


def ended(*requests):
    """Count them; return a way to read a sample."""
    registry = CollectorRegistry()
    metrics = GenAiMetrics.on(registry)
    for one, backend, outcome, seconds in requests:
        metrics.ended(one, backend, outcome, seconds)
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


def test_a_failure_has_its_type_and_no_first_token():
    one = record(streamed=True, first_byte_seconds=0.2)
    value = ended((one, LOCAL, "stream_broken", 1.0))
    assert value("gen_ai_server_request_duration_seconds_count", OF_LOCAL | {"error_type": "stream_broken"}) == 1
    assert value("gen_ai_server_time_to_first_token_seconds_count", OF_LOCAL) in (None, 0)
    assert value("gen_ai_client_token_usage_count", OF_LOCAL | {"gen_ai_token_type": "input"}) in (None, 0)


def test_labels_are_of_the_config():
    """What a client calls the model is none: it could make up as many as it likes."""
    value = ended((record(model="whatever it answers"), CLOUD, "ok", 1.0))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "aws.bedrock"}
    labels |= {"gen_ai_request_model": "anthropic.claude", "error_type": ""}
    assert value("gen_ai_server_request_duration_seconds_count", labels) == 1
    assert [provider_of(each) for each in (LOCAL, CLOUD)] == ["llmkube", "aws.bedrock"]


@pytest.mark.parametrize(("path", "backend"), [("/v1/rerank", LOCAL), ("/v1/chat/completions", None)])
def test_what_the_convention_has_no_words_for_is_left_out(path, backend):
    registry = CollectorRegistry()
    metrics = GenAiMetrics.on(registry)
    before = sum(len(family.samples) for family in registry.collect())
    metrics.ended(record(path), backend, "ok", 1.0)
    assert sum(len(family.samples) for family in registry.collect()) == before


def test_embeddings_have_no_output():
    one = record("/v1/embeddings", usage=Usage(8, 0, 0))
    value = ended((one, LOCAL, "ok", 0.1))
    labels = OF_LOCAL | {"gen_ai_operation_name": "embeddings"}
    assert value("gen_ai_client_token_usage_sum", labels | {"gen_ai_token_type": "input"}) == 8
    assert value("gen_ai_client_token_usage_count", labels | {"gen_ai_token_type": "output"}) in (None, 0)
