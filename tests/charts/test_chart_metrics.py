"""Alerts and dashboards, judged by the real promtool: they parse, fire when they should, and read what exists."""

import json
import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import httpx
import pytest
import yaml

from charts.alert_cases import CASES, HEALTHY
from charts.dashboards import boards
from charts.helm_runs import CHART, ROOT, named, render, run
from charts.promql import LLAMACPP, known_names, names_in
from controller.podobjects import pod_service
from docs.reference import router_gauges
from llmkube.controller.metrics import FleetCollector
from llmkube.k8s.wire.reasons import Reason
from llmkube.router.health.health_state import CacheUse

RULES = CHART / "files" / "rules.yaml"
BOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
PAGE = ROOT / "docs" / "guides" / "helm.md"
VARIABLES = {
    "$__rate_interval": "5m",
    "$namespace": "n",
    "$service": "s",
    "$instance": "i",
    "$router": "r",
    "$engine": "e",
}


@cache
def alerts():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels(board):
    return [each for each in board["panels"] if each["type"] != "row"]


def expressions(board):
    for panel in panels(board):
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield f"{panel['title']} {target['refId']}", text


# -- alerts -----------------------------------------------------------------------------------------------------------


def test_promtool_accepts_the_rules(tmp_path):
    """The file as it is, and the PrometheusRule's groups, are rules."""
    assert f"SUCCESS: {len(alerts())} rules found" in run("promtool", "check", "rules", str(RULES))
    everything = (*("--set", "metrics.prometheusRule.enabled=true,metrics.podMonitor.enabled=true,controller.port=1"),)
    (rule,) = named(render(*everything), "PrometheusRule").values()
    rendered = tmp_path / "rules.yaml"
    rendered.write_text(yaml.safe_dump(rule["spec"]))
    assert f"SUCCESS: {len(alerts())} rules found" in run("promtool", "check", "rules", str(rendered))


def firing(minute, expected):
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    query = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}


@pytest.mark.ci
def test_each_alert_fires_alone_on_its_own_trouble(tmp_path):
    """On healthy series nothing fires in two hours; on each case's series its alert does, and no other."""
    assert {case.alert for case in CASES} == set(alerts())
    quiet = [firing(minute, []) for minute in range(5, 120, 5)]
    tests = [{"name": "healthy", "series": HEALTHY, "promql_expr_test": quiet}]
    tests += [
        {"name": str(case), "series": HEALTHY | case.series, "promql_expr_test": [firing(case.minute, [case.alert])]}
        for case in CASES
    ]
    for test in tests:
        series = test.pop("series")
        test["interval"] = "1m"
        test["input_series"] = [{"series": name, "values": values} for name, values in series.items()]
    script = tmp_path / "test.yaml"
    script.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in run("promtool", "test", "rules", str(script))


@pytest.mark.parametrize("name", alerts())
def test_an_alert_has_a_summary_and_a_line_in_the_guide(name):
    """Each has a severity, a summary, a description that says more, and an entry in docs/guides/helm.md."""
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["annotations"]["description"] != rule["annotations"]["summary"]
    assert f"| `{name}` |" in PAGE.read_text()


def test_alerts_read_only_exported_series():
    """An alert on a metric that is not exported never fires."""
    for name, rule in alerts().items():
        assert names_in(rule["expr"]) <= known_names(), name


def test_alerts_know_only_reasons_that_exist():
    """Every reason of a service that an alert waits for is one that agents report."""
    for rule in alerts().values():
        for listed in re.findall(r'reason=~?"([^"]*)"', rule["expr"]):
            assert set(listed.split("|")) <= {str(each) for each in Reason}


def test_no_alert_for_a_controller_that_is_not_scraped():
    """Without a monitor of the controller its group is left out, for absent() would be true forever."""
    (rule,) = named(render("--set", "metrics.prometheusRule.enabled=true"), "PrometheusRule").values()
    assert [group["name"] for group in rule["spec"]["groups"]] == ["llmkube-hosts", "llmkube-engines"]


# -- dashboards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_promtool_reads_every_query_of_a_dashboard(path, tmp_path):
    """Each panel's PromQL parses, once Grafana's variables have values."""
    rules = [
        {"record": f"llmkube:panel:{number}", "expr": text, "labels": {"panel": title}}
        for number, (title, text) in enumerate(expressions(json.loads(path.read_text())))
    ]
    script = tmp_path / "rules.yaml"
    script.write_text(yaml.safe_dump({"groups": [{"name": path.stem, "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run("promtool", "check", "rules", str(script))


def shows(tmp_path, series, labels, value, panel="KV cache of llama.cpp A", *, board="inference"):
    """Check with promtool that a query of the panel has this one value, three minutes into constant series."""
    query = dict(expressions(json.loads((CHART / "files" / "dashboards" / f"{board}.json").read_text())))[panel]
    expected = {"expr": query, "eval_time": "3m", "exp_samples": [{"labels": labels, "value": value}]}
    listed = [{"series": name, "values": f"{number}x5"} for name, number in series.items()]
    test = {"interval": "1m", "input_series": listed, "promql_expr_test": [expected]}
    script = tmp_path / "test.yaml"
    script.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    assert "SUCCESS" in run("promtool", "test", "rules", str(script))


def test_the_kv_cache_of_llama_cpp_is_a_share_of_a_slot(tmp_path):
    """Half of a slot's context in one request is one half, under the engine's own names."""
    series = {
        'llamacpp:n_tokens_max{namespace="n", service="s"}': 2048,
        'llmkube_inferenceservice_slot_context_tokens{namespace="n", inferenceservice="s"}': 4096,
        'llmkube_inferenceservice_slot_context_tokens{namespace="n", inferenceservice="s2"}': 1,
    }
    shows(tmp_path, series, '{namespace="n", service="s"}', 0.5)


def test_a_router_exports_the_usage_of_llama_cpps_cache(tmp_path):
    """Its figure is that of an engine's slots."""
    gauges = router_gauges(CacheUse(used=1, tokens=4))
    [sample] = [one for family in gauges.collect() for one in family.samples if "kv_cache_usage_ratio" in one.name]
    series = {f'{sample.name}{{namespace="n", router="r", backend="b"}}': sample.value}
    shows(tmp_path, series, '{router="r", backend="b"}', 0.25, "KV cache of llama.cpp B")


def test_a_quota_without_a_limit_of_memory_shows_no_share_of_it(tmp_path):
    """The other quota's share is that of its own limit."""
    series = {
        'llmkube_gpuquota_used_vram_bytes{namespace="n", gpuquota="half"}': 8,
        'llmkube_gpuquota_vram_bytes_limit{namespace="n", gpuquota="half"}': 16,
        'llmkube_gpuquota_used_vram_bytes{namespace="n", gpuquota="unlimited"}': 8,
        'llmkube_gpuquota_vram_bytes_limit{namespace="n", gpuquota="unlimited"}': 0,
    }
    shows(tmp_path, series, '{namespace="n", gpuquota="half"}', 0.5, "GPU memory in use A", board="sharing")


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboards_read_only_exported_series(path):
    """Every series of a panel or a variable is one of ours or of an engine that we run."""
    board = json.loads(path.read_text())
    for title, text in expressions(board):
        found = names_in(text)
        assert found, title
        assert found <= known_names(), title
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.findall(r'__name__=~"([^"]*)"', variable["definition"])
            names = asked[0].split("|") if asked else [re.match(r"label_values\(([\w:]+)", variable["definition"])[1]]
            assert set(names) <= known_names(), variable["name"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_explain_themselves_and_do_not_overlap(path):
    """Each has a title of its own, a description and a unit; ids are unique and no two share a square."""
    board = json.loads(path.read_text())
    taken = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]
        assert place["x"] + place["w"] <= 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    shown = panels(board)
    assert len({panel["title"] for panel in shown}) == len(shown)
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in shown)


def test_every_variable_is_used():
    """A choice at the top of a board changes its panels."""
    for path in BOARDS:
        board = json.loads(path.read_text())
        used = json.dumps(board["panels"])
        for variable in board["templating"]["list"]:
            assert f"${variable['name']}" in used or f"${{{variable['name']}}}" in used


def test_boards_of_the_table_are_written():
    """`make manifests` has been run since `dashboards.toml` was changed; runtimes in pods have a board each."""
    for name, board in boards().items():
        assert json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text()) == board
    assert {"llamacpp", "vllm", "tgi", "sglang", "triton"} <= set(boards())


def test_boards_arrive_as_they_are():
    """A ConfigMap per board, with the label of Grafana's sidecar, holds the file's JSON."""
    maps = named(render("--set", "dashboards.enabled=true,dashboards.namespace=grafana"), "ConfigMap")
    assert len(maps) == len(BOARDS)
    for path in BOARDS:
        found = maps[f"llmkube-dashboard-{path.stem}"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["namespace"] == "grafana"
        assert json.loads(found["data"][f"llmkube-{path.name}"]) == json.loads(path.read_text())


# -- the lists themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (a, b) (rate(x_total{a=~"$y"}[5m])) / on (a) group_left (c) y:z > 0.5', {"x_total", "y:z"}),
        ('absent(up{job="x"} == 1)', {"up"}),
        ('histogram_quantile(0.9, sum(rate(h_bucket{s="a b{c}"}[1h])) by (le)) or z offset 5m', {"h_bucket", "z"}),
    ],
)
def test_names_are_distinguished_from_functions_and_labels(expression, names):
    """Only what Prometheus would look up is a name."""
    assert names_in(expression) == names


@pytest.mark.e2e
@pytest.mark.parametrize("runtime", ["llamacpp", "llama-server"])
def test_the_real_llama_cpp_exports_what_we_read(tmp_path, runtime):
    """Every llamacpp: series of alerts and boards is on /metrics of the bundled engine, and the KV panel has data."""
    model = ROOT / "src" / "llmkube" / "weights" / "builtin" / "demo.gguf"
    program = f"{sys.prefix}/bin/llmkube-llama-server"
    command = [program, "--model", str(model), "--port", "0", "--ctx-size", "256", "--metrics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
        try:
            serving = engine.stdout.readline()  # the engine reports that the model is loaded, with the port
            url = f"http://127.0.0.1:{int(serving.rpartition(':')[2])}"
            with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
                http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 8}).raise_for_status()
                text = http.get("/metrics").text
        finally:
            engine.terminate()
    exported = {name: float(value) for name, value in re.findall(r"^(llamacpp:\w+) (\S+)", text, re.MULTILINE)}
    assert exported.keys() >= LLAMACPP
    known = SimpleNamespace(get=lambda _: None, values=lambda: [pod_service("s", runtime=runtime, contextSize=256)])
    fleet = FleetCollector(
        SimpleNamespace(get=known.get, values=list), known, *[SimpleNamespace(values=list)] * 2, {}, {}
    )
    slots = {
        f'{one.name}{{namespace="n", inferenceservice="s"}}': one.value
        for family in fleet.collect()
        for one in family.samples
        if "slot_context" in one.name
    }
    engines = {f'{name}{{namespace="n", service="s"}}': value for name, value in exported.items()}
    share = exported["llamacpp:n_tokens_max"] / 256
    assert 0 < share < 1
    shows(tmp_path, {**engines, **slots}, '{namespace="n", service="s"}', share)
