"""`llmkube top` and `ps`: a local engine, one behind a slice, and one without figures."""

import contextlib
from functools import partial

import pytest
import trio

from cli.memory_cluster import announce
from llmkube.base.http.message import Headers, Response
from llmkube.cli.commands.services import ps as ps_module
from llmkube.cli.commands.services import top as top_module
from llmkube.cli.commands.services.top import EngineLoad, load_between, parse_metrics
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.supervisor.values.journal import EngineRecord


async def a_slice(client, *, ready=True):
    manifest = {
        "metadata": {
            "name": "demo-mac",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "demo", "inference.llmkube.dev/host": "mac"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.7"], "conditions": {"ready": ready}}],
        "ports": [{"port": 4711}],
    }
    await client.apply(EndpointSlice, manifest, field_manager="test")
    status = {"status": {"phase": "Ready", "readyReplicas": 1}, "metadata": {"name": "demo", "namespace": "default"}}
    await client.apply(InferenceService, status, field_manager="llmkube-controller", subresource="status")
    facts = {"memory_budget_bytes": str(16 << 30), "memory_free_bytes": str(4 << 30), "services": "2"}
    await announce(client, "cpu", "metal", **facts)


class Engine:
    """An engine whose /metrics has ten more tokens at each request."""

    def __init__(self, status=200):
        self.asked = []
        self.status = status

    @contextlib.asynccontextmanager
    async def open(self, connect):
        yield self

    async def request(self, method, url, *, headers):
        await trio.lowlevel.checkpoint()
        self.asked.append((url, headers.get("authorization")))
        made = 10 * len(self.asked)
        body = f"llamacpp:tokens_predicted_total {made}\nllamacpp:requests_processing 1\n"
        return Response(self.status, Headers.of({}), body.encode())


@pytest.fixture
def engine(monkeypatch):
    found = Engine()
    monkeypatch.setattr(top_module, "open_http_client", found.open)
    return found


def test_an_engine_behind_a_slice_is_asked_at_its_address(run, engine):
    """Its figures and its host's memory are shown; process memory is known only on its own host."""
    done = run("top", "--interval", "0.1", prepare=a_slice, env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    assert {url for url, _ in engine.asked} == {"http://192.0.2.7:4711/metrics"}
    head, row, _, hosts, host = done.output.splitlines()
    assert head.split() == ["NAME", "HOST", "TOKENS/S", "PROMPT/S", "RUNNING", "WAITING", "MEMORY"]
    name, where, rate, *rest = row.split()
    assert (name, where, rest) == ("demo", "mac", ["<none>", "1", "<none>", "<none>"])
    assert float(rate) > 0
    assert hosts.split() == ["HOST", "SERVES", "SERVICES", "BUDGET", "FREE"]
    assert host.split() == ["mac", "cpu,metal", "2", "16.0", "GiB", "4.0", "GiB"]


def test_an_engine_that_refuses_has_no_figures(run, engine):
    """An engine that requires an unknown key shows <none>, not 0."""
    engine.status = 401
    done = run("top", "--interval", "0.1", prepare=a_slice)
    assert done.output.splitlines()[1].split() == ["demo", "mac", *["<none>"] * 5]


def test_an_engine_of_this_machine_is_asked_with_its_key(run, engine, monkeypatch):
    """Port and key come from the agent's journal, memory from the kernel."""
    record = EngineRecord("cookie", "127.0.0.1", 5123, pid=42, api_key="secret")
    monkeypatch.setattr(top_module, "local_engine", lambda folders, key: record)
    monkeypatch.setattr(top_module, "bytes_of", lambda pid: {42: 3 << 30}[pid])
    done = run("top", "--interval", "0.1")
    assert set(engine.asked) == {("http://127.0.0.1:5123/metrics", "Bearer secret")}
    assert done.output.splitlines()[1].split()[-2:] == ["3.0", "GiB"]
    assert "secret" not in done.output


def test_nothing_runs(run, monkeypatch):
    assert run("top", "--interval", "0.1").output == "No engine is running in default.\n"
    assert run("ps", "-A").output == "Nothing is running in any namespace.\n"


def test_ps_shows_what_runs_with_memory_and_host(run, monkeypatch):
    """A row has file size, host, and the engine's memory if it is local."""
    done = run("ps", prepare=a_slice)
    head, row = done.output.splitlines()
    assert head.split() == ["NAME", "PHASE", "SIZE", "MEMORY", "RUNS", "ON", "CONTEXT", "HOST", "AGE"]
    assert row.split()[:7] == ["demo", "Ready", "<none>", "<none>", "cpu", "512", "mac"]
    monkeypatch.setattr(ps_module, "used_bytes", lambda folders, key: 2 << 30)
    assert "2.0 GiB" in run("ps", prepare=partial(a_slice, ready=False)).output


LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {prompt}
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {generated}
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""
VLLM = """# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{model_name="a"}} {generated}
vllm:generation_tokens_total{{model_name="b"}} 100.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{model_name="a"}} {prompt}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="a"}} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="a"}} 1.0
"""
TGI = """# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{{le="+Inf"}} 3
tgi_request_generated_tokens_sum {generated}
tgi_request_generated_tokens_count 3
# TYPE tgi_request_input_length histogram
tgi_request_input_length_sum {prompt}
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 2
# TYPE tgi_queue_size gauge
tgi_queue_size 1
"""
SGLANG = VLLM.replace("vllm:", "sglang:").replace("num_requests_running", "num_running_reqs")
SGLANG = SGLANG.replace("num_requests_waiting", "num_queue_reqs")


@pytest.mark.parametrize("text", [LLAMA, VLLM, TGI, SGLANG], ids=["llama.cpp", "vllm", "tgi", "sglang"])
def test_rates_are_computed_from_two_samples(text):
    """Ten tokens in two seconds are five per second, whatever the engine calls them."""
    before = parse_metrics(text.format(generated=10, prompt=100), 1.0)
    now = parse_metrics(text.format(generated=20, prompt=104), 3.0)
    assert load_between(before, now) == EngineLoad(generated=5.0, prompt=2.0, running=2, waiting=1)


def test_mlx_lm_has_no_figures_of_prompts_and_queues():
    """Its entry point counts generated tokens and running requests."""
    text = "llmkube:requests_processing 2\nllmkube:tokens_predicted_total {}\n"
    before, now = parse_metrics(text.format(10), 1.0), parse_metrics(text.format(20), 3.0)
    assert load_between(before, now) == EngineLoad(generated=5.0, running=2)


def test_first_sample_and_restart_have_no_rate():
    """Without an earlier sample there is no rate, and a counter that went back is another engine's."""
    first = parse_metrics(LLAMA.format(generated=10, prompt=1), 1.0)
    assert load_between(None, first) == EngineLoad(running=2, waiting=1)
    again = parse_metrics(LLAMA.format(generated=3, prompt=1), 2.0)
    assert load_between(first, again) == EngineLoad(generated=None, prompt=0.0, running=2, waiting=1)


def test_missing_metrics_are_not_zero():
    """An engine without these metrics has no figures rather than zeros; an invalid exposition is refused."""
    assert load_between(None, parse_metrics("other 1\n", 1.0)) == EngineLoad()
    with pytest.raises(ValueError, match=r".+"):
        parse_metrics("<html>no metrics</html>\n", 1.0)
