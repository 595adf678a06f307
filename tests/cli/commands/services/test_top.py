"""`llmkube top` and `ps`: an engine of this machine, one behind a slice, and one that says nothing."""

import contextlib
import datetime
from functools import partial

import pytest
import trio

from llmkube.base.http.message import Headers, Response
from llmkube.cli.commands.services import ps as ps_module
from llmkube.cli.commands.services import top as top_module
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.supervisor.nouns.journal import EngineRecord


async def a_host(client):
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    annotations = {
        "accelerators": "cpu,metal",
        "memory-budget-bytes": str(16 << 30),
        "memory-free-bytes": str(4 << 30),
        "services": "2",
    }
    manifest = {
        "metadata": {
            "name": "mac",
            "namespace": "default",
            "labels": {"inference.llmkube.dev/host": "mac"},
            "annotations": {f"inference.llmkube.dev/{name}": value for name, value in annotations.items()},
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": now},
    }
    await client.apply(Lease, manifest, field_manager="test")


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
    await a_host(client)


class Engine:
    """Answers /metrics with ten more tokens at each look."""

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
    """Its figures and its host's memory are shown; that of its process is known on its own host alone."""
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
    """An engine that asks this machine for a key that it does not have reads <none>, and not 0."""
    engine.status = 401
    done = run("top", "--interval", "0.1", prepare=a_slice)
    assert done.output.splitlines()[1].split() == ["demo", "mac", *["<none>"] * 5]


def test_an_engine_of_this_machine_is_asked_with_its_key(run, engine, monkeypatch):
    """The agent's journal has port and key, and the kernel its memory."""
    record = EngineRecord("cookie", "127.0.0.1", 5123, pid=42, api_key="secret")
    monkeypatch.setattr(top_module, "local_engine", lambda folders, key: record)
    monkeypatch.setattr(top_module, "bytes_of", lambda pid: {42: 3 << 30}[pid])
    done = run("top", "--interval", "0.1")
    assert set(engine.asked) == {("http://127.0.0.1:5123/metrics", "Bearer secret")}
    assert done.output.splitlines()[1].split()[-2:] == ["3.0", "GiB"]
    assert "secret" not in done.output


def test_nothing_runs(run, monkeypatch):
    """Without an engine both commands say so."""
    assert run("top", "--interval", "0.1").output == "No engine runs for an InferenceService in default.\n"
    assert run("ps", "-A").output == "Nothing runs in any namespace.\n"


def test_ps_shows_what_runs_with_memory_and_host(run, monkeypatch):
    """A row has the file's size, the engine's memory where it is this machine's, and the host."""
    done = run("ps", prepare=a_slice)
    head, row = done.output.splitlines()
    assert head.split() == ["NAME", "PHASE", "SIZE", "MEMORY", "RUNS", "ON", "CONTEXT", "HOST", "AGE"]
    assert row.split()[:7] == ["demo", "Ready", "<none>", "<none>", "cpu", "512", "mac"]
    monkeypatch.setattr(ps_module, "_memory", lambda folders, key: 2 << 30)
    assert "2.0 GiB" in run("ps", prepare=partial(a_slice, ready=False)).output
