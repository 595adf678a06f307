"""`llmkube cost` adds up the metrics of programs, or asks Prometheus; unknown figures stay empty."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from charts.promql import known_names
from llmkube.base.package_data import read_table
from llmkube.cli.main import cli

ROUTER = """
# TYPE llmkube_router_team_tokens counter
llmkube_router_team_tokens_total{router="n/r",team="red",kind="prompt"} 60
llmkube_router_team_tokens_total{router="n/r",team="red",kind="completion"} 20
llmkube_router_team_tokens_total{router="n/s",team="red",kind="prompt"} 40
# TYPE llmkube_router_cost_dollars counter
llmkube_router_cost_dollars_total{router="n/r",team="red",backend="gpt"} 0.25
# TYPE llmkube_router_tokens counter
llmkube_router_tokens_total{router="n/r",backend="gpt",kind="cached"} 7
# TYPE llmkube_metal_agent_energy_joules counter
llmkube_metal_agent_energy_joules_total{domain="package"} 30
llmkube_metal_agent_energy_joules_total{domain="dram"} 3
# TYPE llmkube_metal_agent_service_energy_joules counter
llmkube_metal_agent_service_energy_joules_total{namespace="team-a",name="chat"} 12
# TYPE llmkube_metal_agent_engine_info gauge
llmkube_metal_agent_engine_info{namespace="team-a",name="chat",engine="llamacpp"} 1
"""
ENGINE = """
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 100
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 50
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 9
"""
MODELS = [{"id": "chat", "meta": {}}, {"id": "short", "meta": {}, "parent": "chat"}, {"id": "off"}]
ELSEWHERE = {"id": "team-a/joined", "meta": {}}


@pytest.fixture
def serve():
    """Serve answers by path; the value is the URL and the queries."""
    queries = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            if url.path == "/api/v1/query":
                queries.append(parse_qs(url.query)["query"][0])
                vector = [{"metric": {"team": "red", "kind": "prompt"}, "value": [1, "12.6"]}]
                body = {"status": "success", "data": {"result": vector if "team_tokens" in queries[-1] else []}}
            else:
                body = {"data": MODELS} if url.path == "/v1/models" else ENGINE if url.query else ROUTER
            self.send_response(200)
            self.end_headers()
            self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", queries
    server.shutdown()
    server.server_close()


def run(*args):
    return CliRunner().invoke(cli, ["cost", *args])


def test_the_totals_of_programs_are_added_up(serve):
    """Routers have teams and dollars, engines tokens, agents energy; a model's cached tokens are part of its prompt."""
    url, _ = serve
    found = {}
    for axis in ("team", "model", "host"):
        done = run("--by", axis, "--metrics", f"{url}/metrics", "--gateway", url, "-o", "json")
        found |= {one[axis]: [one[each] for each in list(one)[1:]] for one in json.loads(done.stdout)}
    assert found == {
        "red": [100.0, 20.0, None, None, 0.25, pytest.approx(0.25e6 / 120)],
        "router n/r: gpt": [None, None, 7.0, None, 0.25, None],
        "team-a/chat": [150.0, 9.0, 50.0, 12.0, None, None],
        url.removeprefix("http://"): [150.0, 9.0, 50.0, 33.0, None, None],
    }


def test_tokens_of_a_host_whose_metrics_are_not_read_are_unknown(serve, monkeypatch):
    """They are neither lost nor those of another host."""
    url, _ = serve
    monkeypatch.setattr(f"{__name__}.MODELS", [*MODELS, ELSEWHERE])
    done = run("--by", "host", "--metrics", f"{url}/metrics", "--gateway", url, "-o", "json")
    assert {one["host"]: one["prompt"] for one in json.loads(done.stdout)} == {
        url.removeprefix("http://"): 150.0,
        "unknown": 150.0,
    }


def test_the_running_up_is_asked_at_its_own_ports(serve, tmp_path, monkeypatch):
    """They need not be the usual ones; flags have precedence."""
    url, _ = serve
    (tmp_path / "addresses").write_text(f"page        {url}/\ngateway     {url}/v1\nprobes      {url}")
    monkeypatch.setattr("llmkube.cli.commands.router.cost.own_up_dir", lambda _: tmp_path)
    done = run("-o", "json")
    assert [one["model"] for one in json.loads(done.stdout)] == ["router n/r: gpt", "team-a/chat"]
    (tmp_path / "addresses").unlink()  # it starts
    done = run("--metrics", "http://127.0.0.1:1/metrics")
    assert "http://127.0.0.1:1/metrics cannot be read" in done.stderr


def test_energy_has_a_price(serve):
    """Dollars of measured joules are added to those that were charged; without joules nothing changes."""
    url, _ = serve
    done = run("--metrics", f"{url}/metrics", "--gateway", url, "--price-per-kwh", "300000", "-o", "json")
    assert {one["model"]: (one["dollars"], one["per_million"]) for one in json.loads(done.stdout)} == {
        "router n/r: gpt": (0.25, None),
        "team-a/chat": (pytest.approx(1.0), pytest.approx(1e6 / 159)),
    }
    assert run("--price-per-kwh", "-1").exit_code == 2


def test_a_period_is_asked_of_prometheus(serve):
    """The table shows whole tokens, and nothing for what is unknown."""
    url, queries = serve
    done = run("--by", "team", "--prometheus", f"{url}/", "--since", "2d")
    assert done.stdout.split() == [
        "TEAM",
        "PROMPT",
        "COMPLETION",
        "CACHED",
        "JOULES",
        "DOLLARS",
        "PER_MILLION",
        "red",
        "13",
        *("<none>",) * 5,
    ]
    assert queries == [
        "sum by (team, kind) (increase(llmkube_router_team_tokens_total[172800s]))",
        "sum by (team) (increase(llmkube_router_cost_dollars_total[172800s]))",
    ]


def test_what_cannot_be_asked_is_an_error():
    done = run("--prometheus", "http://127.0.0.1:1")
    assert (done.exit_code, "http://127.0.0.1:1/api/v1/query cannot be read" in done.stderr) == (1, True)
    assert "--since" in run("--since", "soon").stderr


def test_every_series_is_exported():
    """A series that no program exports would stay empty for ever."""
    named = {one["name"] for one in read_table("llmkube.cli.commands.router", "cost")["series"]}
    assert named <= known_names()
