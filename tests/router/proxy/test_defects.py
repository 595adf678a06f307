"""Data path defects of the Go implementation and other gateways, by the number in the list."""

import json
import re

import pytest
import trio

from llmkube.router.proxy.router import LIMITS
from router.proxy import router_lab as rl
from router.written_routers import running


async def test_a_client_s_secrets_do_not_reach_a_provider(autojump_clock):
    """Cookies, keys and headers of the client are not forwarded."""
    async with rl.open_lab(rl.config_of(rl.cloud("a")), a=rl.answer()) as lab:
        secrets = {"cookie": "c=SECRET", "x-api-key": "SECRET", "authorization": "Bearer SECRET", "x-mine": "SECRET"}
        assert (await lab.ask(headers=secrets)).status == 200
        assert "SECRET" not in lab.players["a"].heads[0]


async def test_a_redirect_is_not_followed(autojump_clock):
    """The target of the redirect gets nothing of the request."""
    moved = rl.answer(307, lines=(b"Location: http://b/v1/chat/completions",))
    async with rl.open_lab(rl.config_of(rl.local("a")), a=moved, b=rl.answer()) as lab:
        assert (await lab.ask()).status != 200
        assert lab.players["b"].asked == []


async def test_an_error_names_no_address_of_these_networks(autojump_clock):
    """A backend's error has none, and the router's own errors have none."""
    refusal = rl.error(400, "no model at http://10.9.8.7:8081/v1")
    async with rl.open_lab(rl.config_of(rl.local("a")), a=(refusal, rl.error(500, "boom at 10.9.8.7"))) as lab:
        answers = [await lab.ask() for _ in range(2)]
    async with rl.open_lab(rl.config_of(rl.local("a")), players={"a": None}) as lab:
        answers.append(await lab.ask())
    assert [each.status for each in answers] == [400, 502, 502]
    for each in answers:
        assert not re.search(rb"10\.9|8081|\.svc|http:", each.body), each.body


async def test_a_stream_that_outlasts_every_limit_comes_whole(autojump_clock):
    """The limit of 2 s is for silence: a stream of ten minutes arrives completely; the audit log has its duration."""
    words = [rl.chunk(rl.piece("word "))] * 600
    script = rl.saying(rl.SSE, *words, rl.chunk(rl.piece("", "stop") + rl.DONE) + b"0\r\n\r\n", seconds=1)
    async with rl.open_lab(rl.config_of(rl.local("a", first_byte_seconds=2), first_byte_seconds=2), a=script) as lab:
        status, body, clean = await lab.read()
        (line,) = lab.audit
    assert (status, clean, body.count(b"word "), body.endswith(rl.DONE)) == (200, True, 600, True)
    assert (line["outcome"], line["latencyMs"] >= 600_000) == ("ok", True)


@pytest.mark.parametrize(
    "url", ["http://a.internal", "http://a.internal/", "http://a.internal/v1", "http://a.internal/v1/"]
)
async def test_a_base_url_does_not_double_its_path(url):
    """With or without /v1 and a trailing slash, a backend is asked at /v1/chat/completions."""
    gateway = f'{{ provider: litellm, model: x, url: "{url}" }}'
    backends = f"backends: [{{ name: a, external: {gateway}, tier: cloud }}]\ndefaultRoute: a\n"
    async with rl.open_lab(running(backends), **{"a.internal": rl.answer()}) as lab:
        assert (await lab.ask()).status == 200
        (head,) = lab.players["a.internal"].heads
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")


async def test_one_request_of_many_tries_a_backend_that_was_shut(autojump_clock):
    """Of twenty that come when its pause is over, nineteen use the other backend at once."""
    slow = rl.saying(b"", rl.answer(), seconds=5)
    async with rl.open_lab(
        rl.config_of(rl.local("a"), rl.local("b")), a=(*[rl.error(500)] * 3, slow), b=rl.answer()
    ) as lab:
        for _ in range(3):
            await lab.ask()
        await trio.sleep(20)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lab.ask)
        assert len(lab.players["a"].asked) == 4
        assert len(lab.players["b"].asked) == 3 + 19


async def test_a_failure_is_counted_and_the_health_becomes_0(autojump_clock):
    """Names are the router's; failed attempts of an answered request are counted, too."""
    async with rl.open_lab(rl.config_of(rl.cloud("a")), {"a": None}) as lab:
        assert lab.metric("llmkube_router_backend_health", backend="a") == 1
        for _ in range(4):
            await lab.ask()
        labels = {"rule": "all", "backend": "none", "classification": "none"}
        failed = lab.metric("llmkube_router_requests_total", **labels, outcome="all_backends_failed")
        alone = lab.metric("llmkube_router_requests_total", **labels, outcome="no_backend_available")
        assert (failed, alone) == (3, 1)
        assert lab.metric("llmkube_router_attempts_total", backend="a", result="connect_error") == 3
        assert lab.metric("llmkube_router_backend_health", backend="a") == 0
        assert lab.metric("llmkube_router_active_backends", tier="cloud") == 0


async def test_a_client_makes_up_no_series():
    """A thousand made-up data classes, models, paths and complexities add no label value."""
    async with rl.open_lab(rl.config_of(rl.local("a")), a=rl.answer()) as lab:

        async def ask(number):
            headers = {"x-llmkube-classification": f"made-up-{number}", "x-llmkube-task-complexity": f"c{number}"}
            await lab.ask(rl.ASKED | {"model": f"m{number}"}, headers=headers)
            await lab.ask(path=f"/v1/{number}")
            return sum(len(metric.samples) for metric in lab.registry.collect())

        series = await ask(0)
        assert [await ask(number) for number in range(1, 50)] == [series] * 49
        values = {
            value for metric in lab.registry.collect() for each in metric.samples for value in each.labels.values()
        }
    assert "other" in values
    assert not [each for each in values if "made-up" in each]


async def test_a_client_s_trace_continues_at_the_backend():
    """The audit log and the provider have the same trace id."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with rl.open_lab(rl.config_of(rl.cloud("a")), a=rl.answer()) as lab:
        await lab.ask(headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
        assert f"traceparent: 00-{trace}-" in lab.players["a"].heads[0]
        assert lab.audit[0]["traceID"] == trace


async def test_a_reload_drops_no_stream_and_forgets_nothing(autojump_clock):
    """A running stream is completed; the circuit of an unchanged backend stays open."""
    slow = rl.saying(
        rl.stream(rl.piece("one"), end=b""), rl.chunk(rl.piece("", "stop") + rl.DONE) + b"0\r\n\r\n", seconds=9
    )
    read = []
    async with (
        rl.open_lab(
            rl.config_of(rl.local("bad"), rl.local("a")), bad=rl.error(500), a=(*[rl.answer()] * 3, slow, rl.answer())
        ) as lab,
        trio.open_nursery() as nursery,
    ):
        for _ in range(3):
            await lab.ask()

        async def stream_() -> None:
            read.append(await lab.read())

        nursery.start_soon(stream_)
        await trio.sleep(1)
        lab.config, lab.stamp = rl.config_of(rl.local("bad"), rl.local("a"), first_byte_seconds=7), (2, 0, 0)
        await trio.sleep(2)
        assert (await lab.ask()).status == 200
        assert lab.audit[-1]["attempts"][0]["result"] == "circuit_open"
    ((status, _, clean),) = read
    assert (status, clean, len(lab.players["bad"].asked)) == (200, True, 3)


async def test_a_router_that_can_ask_no_backend_is_not_ready():
    """Its process is live; the original answered ok to both probes."""
    async with rl.open_lab(rl.config_of(rl.local("a", base_url="", missing="there is no InferenceService a"))) as lab:
        assert (await lab.ask(path="/readyz", method="GET")).status == 503
        assert (await lab.ask(path="/healthz", method="GET")).status == 200


async def test_a_rotated_key_is_used_at_the_next_request(tmp_path):
    """The file is read without a restart; the old key is no longer sent."""
    key = tmp_path / "key"
    key.write_text("old")
    async with rl.open_lab(rl.config_of(rl.cloud("a", key_file=str(key))), a=rl.answer()) as lab:
        await lab.ask()
        key.write_text("fresh")
        await lab.ask()
    assert ["Bearer old" in head for head in lab.players["a"].heads] == [True, False]
    assert "Bearer fresh" in lab.players["a"].heads[1]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/messages", "/api/chat"])
async def test_there_is_more_than_chat_completions(path):
    """The same rules choose the backend of each path."""
    body = rl.MESSAGE | {"stream": False, "prompt": "p", "input": "i", "query": "q", "documents": ["d"]}
    async with rl.open_lab(rl.MAC, mac=rl.answer(body=rl.ANSWER)) as lab:
        assert (await lab.ask(body, path)).status == 200


async def test_a_body_that_is_too_large_is_413_and_a_stream_is_not_held_back():
    """The first event reaches the client while the backend still writes."""
    async with rl.open_lab(
        rl.config_of(rl.local("a")), a=rl.saying(rl.stream(rl.WHOLE_STREAM[:-14], end=b""), then=rl.until_gone)
    ) as lab:
        large = await lab.ask(rl.ASKED | {"user": "x" * LIMITS.max_body_bytes})
        assert (large.status, lab.players["a"].asked) == (413, [])
        async with await lab.front.connect("router", 80) as client:
            data = json.dumps(rl.ASKED | {"stream": True}).encode()
            await client.send_all(
                b"POST %b HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % (rl.CHAT.encode(), len(data))
            )
            await client.send_all(data)
            received = b""
            while b'"one"' not in received:
                received += await client.receive_some()
