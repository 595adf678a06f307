"""Timing of a request, reported to the client in the head of an answer and at the end of a stream."""

import copy
import re

import attrs
import pytest
import trio

from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch import backend_call
from llmkube.router.dispatch.record import AttemptRecord, Record, Request, server_timing
from router.proxy import router_lab as rl

TIMED = {"timings": {"cache_n": 40, "prompt_n": 3, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 70.25}}
LOADING = rl.error(503, "Loading model", code=503, type="unavailable_error")


def parts_of(timing):
    """Return the parts by name: milliseconds as a number, or a text."""
    found = {}
    for part in timing.split(", "):
        name, kind, value = re.fullmatch(r'([a-z]+);(dur|desc)="?([^"]*?)"?', part).groups()
        found[name] = float(value) if kind == "dur" else value
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "total;dur=2000.0"),
        ({"queue_seconds": 0.0}, "total;dur=2000.0, queue;dur=0.0"),
        ({"load_seconds": 1.5}, "total;dur=2000.0, load;dur=1500.0"),
        (
            {"tries": [AttemptRecord("a", "answered", "", 0.25, 200)]},
            'total;dur=2000.0, backend;dur=250.0, attempts;desc="1"',
        ),
        ({"usage": Usage(9, 5)}, "total;dur=2000.0"),
        ({"usage": Usage(9, 5, 4)}, 'total;dur=2000.0, cached;desc="4"'),
        ({"usage": Usage(9, 5, 0, 12.0, 3.0)}, 'total;dur=2000.0, cached;desc="0", prefill;dur=12.0, decode;dur=3.0'),
    ],
)
async def test_only_known_times_are_reported(changes, expected, autojump_clock):
    """A backend that reports no times and no cache has none, not 0."""
    await trio.lowlevel.checkpoint()
    request = Request(request_id="x", path="/", method="POST", peer="", started_at=trio.current_time() - 2, trace={})
    record = Record(request, attempts=changes.get("tries", []))
    record.update(**{name: each for name, each in changes.items() if name != "tries"})
    assert server_timing(record, trio.current_time()) == expected


async def test_a_whole_answer_reports_all_times_in_its_head():
    """Cached tokens, prefill and decode are llama.cpp's own values."""
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=1)), mac=rl.answer(body=rl.ANSWER | TIMED)) as lab:
        timing = parts_of((await lab.ask()).headers.get("server-timing"))
    assert list(timing) == ["total", "queue", "backend", "attempts", "cached", "prefill", "decode"]
    assert (timing["cached"], timing["prefill"], timing["decode"]) == ("40", 12.5, 70.2)


async def test_the_wait_for_a_turn_is_reported(autojump_clock):
    """The second request waits 12 s for the first; the stream's end reports it, since its head was sent before."""
    slow = rl.saying(b"", rl.stream(rl.piece("one"), rl.piece(" two", "stop", **TIMED), rl.DONE), seconds=12)
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=1)), mac=slow) as lab:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.read)
            await trio.sleep(1)
            status, data, clean = await lab.read()
        (timing,) = lab.timings
    parts = parts_of(timing)
    assert (status, clean, data.startswith(b": the request waits")) == (200, True, True)
    assert parts["queue"] == pytest.approx(11_000, abs=50)
    assert parts["total"] == pytest.approx(23_000, abs=50)
    assert "load" not in parts
    assert (parts["cached"], parts["prefill"], parts["decode"]) == ("40", 12.5, 70.2)


async def test_the_loading_of_an_engine_is_reported(autojump_clock):
    """After 30 s of loading, a whole answer reports it in its head, a stream at its end; a warm engine reports none."""
    cold = (*[LOADING] * 30, rl.answer(body=rl.ANSWER | TIMED))
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=1)), mac=cold) as lab:
        whole = parts_of((await lab.ask()).headers.get("server-timing"))
        warm = parts_of((await lab.ask()).headers.get("server-timing"))
    async with rl.open_lab(rl.MAC, mac=(*[LOADING] * 30, rl.stream(rl.piece("one", "stop"), rl.DONE))) as lab:
        await lab.read()
        streamed = parts_of(lab.timings[0])
    for parts in (whole, streamed):
        assert parts["load"] == pytest.approx(30_000, abs=50)
        assert parts["total"] == pytest.approx(30_000, abs=50)
    assert whole["queue"] == pytest.approx(0, abs=50)
    assert "load" not in warm


async def test_a_refusal_reports_its_waits(autojump_clock):
    """The refusal names an engine that never loaded, and the attempts."""
    async with rl.open_lab(rl.config_of(rl.local("mac"), first_byte_seconds=20), mac=LOADING) as lab:
        refused = await lab.ask()
    parts = parts_of(refused.headers.get("server-timing"))
    assert (refused.status, parts["attempts"]) == (503, "1")
    assert parts["load"] == pytest.approx(19_000, abs=50)


@pytest.mark.parametrize(
    ("path", "body", "comes"),
    [
        ("/v1/chat/completions", rl.STREAMED, b"data: [DONE]"),
        ("/v1/completions", {"model": "m", "prompt": "x", "stream": True}, b"data: [DONE]"),
        ("/v1/messages", rl.MESSAGE | {"stream": True}, b"event: message_delta"),
        ("/v1/responses", {"model": "m", "input": "x", "stream": True}, b"event: response.completed"),
        ("/api/chat", {"model": "m", "messages": rl.MESSAGE["messages"]}, b""),
    ],
)
async def test_the_times_of_a_stream_come_before_its_last_event(path, body, comes, monkeypatch):
    """It is a comment if the client reads server-sent events; JSON lines have none."""
    monkeypatch.setattr("router.proxy.router_lab.without_times", lambda data: data)
    stream = (
        rl.piece("one", "stop") if path != "/v1/completions" else rl.piece("one", "stop").replace(b'"delta"', b'"text"')
    )
    async with rl.open_lab(rl.MAC, mac=rl.stream(stream, rl.DONE)) as lab:
        _, data, clean = await lab.read(body, path)
    assert clean
    comment, _, rest = data.partition(b": server-timing ")[2].partition(b"\n")
    assert (data.count(b"server-timing"), comes in rest) == (1 if comes else 0, True)
    assert comment.startswith(b"total;dur=" if comes else b"")


async def test_a_stream_that_breaks_off_reports_no_times():
    """Its end is the error."""
    async with rl.open_lab(rl.MAC, mac=rl.saying(rl.stream(rl.piece("one"), end=b""))) as lab:
        _, data, clean = await lab.read()
    assert (clean, lab.timings, b"error" in data) == (False, [], True)


# -- deliberate bugs --------------------------------------------------------------------------------------------------


MUTANTS = {
    "queue_seconds": test_the_wait_for_a_turn_is_reported,
    "load_seconds": test_the_loading_of_an_engine_is_reported,
    "usage": test_the_wait_for_a_turn_is_reported,
}
"""Members of a record that a bug leaves out, with the test that must fail."""


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_each_deliberate_bug_is_seen(name, monkeypatch, autojump_clock):
    """If a bug passed, the timelines would prove nothing."""

    def timing(record, now):
        without = copy.copy(record)
        without.answer = attrs.evolve(record.answer, **{name: None})
        return server_timing(without, now)

    monkeypatch.setattr(backend_call, "server_timing", timing)
    with pytest.raises((AssertionError, KeyError)):
        await MUTANTS[name](autojump_clock)
