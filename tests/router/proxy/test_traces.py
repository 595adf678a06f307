"""Traces as an OpenTelemetry collector receives them, and what happens without one."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trio
import trio.testing

from llmkube.base.errors import UserError
from llmkube.router import traces as exporting
from llmkube.router.traces import Traces, are_on, open_traces
from router.proxy import router_lab as rl
from router.proxy.test_continuations import ASKED, TWINS, dying, engine, place_of

PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "routing.md"


class Collector:
    """An OTLP receiver (HTTP, protobuf) on a port of its own; each span it has received is a dict."""

    def __init__(self):
        self.spans, self.paths, self.resources = [], [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
                    ExportTraceServiceRequest,
                )

                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.paths.append(self.path)
                outer.raw = body
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.resources.append(_values(group.resource.attributes))
                    outer.spans += [_span(each) for scope in group.scope_spans for each in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_exc):
        self.server.shutdown()
        self.server.server_close()


def _values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _span(span):
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "kind": span.kind,
        "failed": span.status.code == 2,
        "from": span.start_time_unix_nano,
        "to": span.end_time_unix_nano,
        **_values(span.attributes),
    }


@pytest.fixture
def collector(monkeypatch):
    with Collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def rows_of(spans):
    """Return a received trace as lines: the tree, without IDs and times, as the docs print it."""
    children = {}
    for each in spans:
        children.setdefault(each["parent"], []).append(each)
    shown = ("llmkube.backend", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "error.type")

    def lines(span, depth):
        named = (*shown, "llmkube.continuations", "llmkube.timed_by")
        facts = [f"{name}={span[name]}" for name in named if name in span]
        yield f"{'  ' * depth}{span['name']:{20 - 2 * depth}}{' '.join(facts)}".rstrip()
        for child in sorted(children.get(span["id"], ()), key=lambda each: each["from"]):
            yield from lines(child, depth + 1)

    root = next(each for each in spans if each["parent"] == PARENT[1])
    return "\n".join(lines(root, 0))


async def test_the_trace_of_a_continued_answer_reaches_the_collector(collector):
    """Client, router and both engines share one trace; the docs show it as received; no prompt or answer is in it."""
    players = {"a": dying("a", place_of("a", 5)), "b": engine("b")}
    headers = {"traceparent": f"00-{PARENT[0]}-{PARENT[1]}-01", "tracestate": "v=1"}
    async with open_traces(lambda: rl.NOW) as traces, rl.open_lab(rl.config_of(*TWINS), players, traces=traces) as lab:
        status, _, whole = await lab.read(ASKED, headers=headers)
    assert (status, whole) == (200, True)
    root, attempt, again = (
        next(each for each in collector.spans if each["name"] == name) for name in ("chat m", "attempt", "continuation")
    )
    assert {each["trace"] for each in collector.spans} == {PARENT[0], lab.audit[0]["traceID"]}
    for span, player in ((attempt, players["a"]), (again, players["b"])):
        assert f"traceparent: 00-{PARENT[0]}-{span['id']}-01" in player.heads[0]
        assert "tracestate: v=1" in player.heads[0]
        assert root["from"] <= span["from"] <= span["to"] <= root["to"]
    assert attempt["to"] <= again["from"] + 1000
    assert (root["gen_ai.operation.name"], root["gen_ai.request.model"]) == ("chat", "m")
    assert collector.paths == ["/v1/traces"]
    assert collector.resources[0]["service.name"] == "llmkube"
    for word in (b"hi<", b"world", b"Hel"):
        assert word not in collector.raw
    received = rows_of(collector.spans)
    printed = re.search(r"```trace\n(.*?)\n```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert printed is not None, received
    assert printed[1] == received


async def test_a_trace_that_is_not_sampled_says_so_to_the_engine(collector, monkeypatch):
    """With a sampler of none, nothing is exported and engines do not sample; a sampled parent is exported."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    async with (
        open_traces(lambda: rl.NOW) as traces,
        rl.open_lab(rl.config_of(rl.local("a")), a=rl.answer(), traces=traces) as lab,
    ):
        await lab.ask()
        assert re.search(r"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-00", lab.players["a"].heads[0])
        await lab.ask(headers={"traceparent": f"00-{PARENT[0]}-{PARENT[1]}-01"})
    assert [each["name"] for each in collector.spans] == ["chat m", "attempt"]


async def test_a_dead_collector_delays_no_request_and_drops_are_counted(monkeypatch):
    """A collector that hangs all the time: the queue is bounded, requests are answered, the stop does not wait."""
    monkeypatch.setattr(exporting, "FLUSH_SECONDS", 0.01)
    entered, release = threading.Event(), threading.Event()

    def hang(batch, offset):
        del batch, offset
        entered.set()
        release.wait()
        return False

    traces = Traces(hang, lambda *_: True, lambda: rl.NOW, rl.random.Random(1), 0.0, max_waiting=4, batch=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(traces.run)
        async with rl.open_lab(rl.config_of(rl.local("a")), a=rl.answer(), traces=traces) as lab:
            for _ in range(5):
                assert (await lab.ask()).status == 200
            await trio.to_thread.run_sync(entered.wait)
        nursery.cancel_scope.cancel()
    release.set()
    counts = {each.labels["result"]: each.value for family in traces.collect() for each in family.samples}
    assert counts == {"exported": 0, "dropped": 10}


def test_traces_are_off_without_an_endpoint_and_wrong_variables_are_named():
    """A protocol that is not supported is refused with the fix."""
    assert not are_on({})
    assert not are_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_SDK_DISABLED": "true"})
    assert not are_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_TRACES_EXPORTER": "none"})
    with pytest.raises(UserError, match="http/protobuf"):
        are_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
