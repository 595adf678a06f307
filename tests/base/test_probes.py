"""The three paths for an operator's tools."""

import json

import pytest
import trio
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.base.probes import probes_handler, with_metrics


@pytest.fixture
def state():
    """The value of `ready`; a test changes it."""
    return {"ready": (True, "serving 2 models")}


@pytest.fixture
async def ask(state, nursery):
    """A function that requests the probes in memory."""
    registry = CollectorRegistry()
    Gauge("llmkube_demo", "A figure.", registry=registry).set(7)
    listener = MemoryListener()
    await nursery.start(run_server, probes_handler(lambda: state["ready"], registry), [listener])
    async with open_http_client(listener.connect) as client:

        async def ask(method, path, **headers):
            return await client.request(method, f"http://probes:9090{path}", headers=Headers.of(headers))

        yield ask


async def test_healthz_is_always_ok(ask, state):
    """`/healthz` is ok even while nothing is ready: the process answers, and that is all."""
    state["ready"] = (False, "the API server is away")
    answer = await ask("GET", "/healthz")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok"})


async def test_readyz_follows_the_work(ask, state):
    """`/readyz` is 200 or 503 by the current value of `ready`, with its reason."""
    answer = await ask("GET", "/readyz")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok", "reason": "serving 2 models"})
    state["ready"] = (False, "caches are not synced")
    answer = await ask("GET", "/readyz?verbose")
    assert (answer.status, json.loads(answer.body)) == (503, {"status": "not ready", "reason": "caches are not synced"})


async def test_metrics_in_the_format_that_is_asked_for(ask):
    """`/metrics` is Prometheus text, and OpenMetrics for a client that accepts it."""
    answer = await ask("GET", "/metrics")
    assert answer.headers.get("content-type").startswith("text/plain")
    assert b"\nllmkube_demo 7.0\n" in answer.body
    answer = await ask("GET", "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers.get("content-type").startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


async def test_metrics_are_computed_once_a_second(nursery, autojump_clock):
    """A client cannot have them computed again in another version, escaping, path or method."""
    collections = 0

    class Costly:
        def collect(self):
            nonlocal collections
            collections += 1
            yield GaugeMetricFamily("llmkube_demo", "A figure.", value=collections)

    registry = CollectorRegistry()
    registry.register(Costly())
    collections = 0
    first, second = MemoryListener(), MemoryListener()
    await nursery.start(run_server, probes_handler(lambda: (True, ""), registry), [first])
    await nursery.start(run_server, with_metrics(probes_handler(lambda: (True, ""), registry), registry), [second])
    formats = ["", "text/plain; version=1.0.0; escaping=dots"]
    formats += [f"application/openmetrics-text; version=1.0.{n}; escaping=values" for n in range(20)]
    for listener in (first, second):
        async with open_http_client(listener.connect) as client:

            async def scrape(accept, client=client, method="GET"):
                headers = Headers.of({"Accept": accept})
                return (await client.request(method, "http://probes:9090/metrics?x", headers=headers)).body

            before = collections
            bodies = [await scrape(each) for each in formats * 5]
            await scrape("", method="HEAD")
            assert collections - before == len(set(bodies)) == 2
            await trio.sleep(1)
            assert await scrape("") not in bodies
            assert collections - before == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/healthz/x", 404), ("POST", "/healthz", 405), ("HEAD", "/healthz", 200)],
)
async def test_nothing_else_is_here(ask, method, path, status):
    """Other paths are 404, other methods 405, and HEAD works."""
    with trio.fail_after(60):
        answer = await ask(method, path)
    assert answer.status == status
    assert (answer.headers.get("allow") == "GET, HEAD") is (status == 405)
    assert (answer.body == b"") is (method == "HEAD")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/metrics", 200), ("POST", "/metrics", 418), ("GET", "/", 418)]
)
async def test_metrics_next_to_another_handler(nursery, method, path, status):
    """A server with a handler of its own keeps every other path and method."""

    async def brew(exchange):
        await exchange.respond(Response.text(418, "short and stout"))

    listener = MemoryListener()
    await nursery.start(run_server, with_metrics(brew, CollectorRegistry()), [listener])
    async with open_http_client(listener.connect) as client:
        assert (await client.request(method, f"http://server:1{path}")).status == status
