"""Sixteen faults of providers, and the result of a request that meets each.

If another backend may answer, it does, and the client does not see the fault. If the client has a part of the answer,
the stream ends with an error event and no clean end. An answer passes as one.
"""

import json
import socket
import struct

import attrs
import pytest
import trio

from lengths import sample_rows
from llmkube.base.http.dial import dial
from router.proxy import router_lab as rl

HALF = rl.stream(rl.piece("one"), end=b"")


async def drip(connection):
    """Send a byte every nine seconds, forever."""
    await connection.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{")
    while True:
        await trio.sleep(9)
        await connection.send_all(b" ")


async def drip_events(connection):
    """Send half an event, a byte every nine seconds."""
    await connection.send_all(rl.SSE)
    while True:
        await trio.sleep(9)
        await connection.send_all(rl.chunk(b"d"))


async def endless(connection):
    """Send an event without an end."""
    await connection.send_all(rl.SSE)
    while True:
        await connection.send_all(rl.chunk(b"x" * 1_000_000))


@attrs.frozen
class Fault:
    """The fault of the first of two backends, and the client's result.

    `cause` is the reason to try the second one; without it the first one's reply is the answer, with this status and
    code.
    """

    cause: str = ""
    plain: object = None
    streamed: object = None
    status: int = 200
    code: str = ""
    after: object = None  # the same after the first event has passed: how the stream ends
    ends: str = ""


FAULTS = {
    "silent": Fault(
        "timeout", rl.until_gone, rl.until_gone, after=rl.saying(HALF, then=rl.until_gone), ends="backend_silent"
    ),
    "half-open": Fault("broken_off", rl.saying(b""), rl.saying(rl.SSE), after=rl.saying(HALF), ends="broken_off"),
    "truncated": Fault(
        "broken_off",
        rl.saying(rl.answer()[:-9]),
        rl.saying(rl.SSE + b"5\r\nda"),
        after=rl.saying(HALF, b"20\r\ndata", seconds=1),
        ends="broken_off",
    ),
    "lying length": Fault(
        "malformed",
        rl.answer(200, json.dumps(rl.ANSWER).encode()).replace(b"Content-Length: 2", b"Content-Length: 1"),
        rl.saying(rl.SSE + b"zz\r\n"),
        after=rl.saying(HALF, b"5\r\nfar more than five\r\n0\r\n\r\n", seconds=1),
        ends="broken_off",
    ),
    "200 with an error body": Fault(
        "server_error",
        rl.answer(200, {"error": {"message": "boom", "code": 500}}),
        rl.stream(b'data: {"error":{"message":"boom","code":500}}\n\n'),
        after=rl.saying(HALF, rl.chunk(b'data: {"error":{"message":"boom","code":500}}\n\n'), seconds=1),
        ends="",
    ),
    "cut stream": Fault(
        "broken_off", rl.saying(rl.answer()[:60]), rl.stream(), after=rl.stream(rl.piece("one")), ends="cut_short"
    ),
    "garbage SSE": Fault(
        "malformed",
        rl.answer(200, b"<html>"),
        rl.stream(b"data: {not json\n\n"),
        after=rl.saying(HALF, rl.chunk(b"data: \xff\xfe\n\n"), seconds=1),
        ends="malformed",
    ),
    "slow drip": Fault(
        "timeout", drip, drip_events, after=rl.saying(HALF, *[rl.chunk(b"d")] * 30, seconds=9), ends="backend_silent"
    ),
    "429 storm": Fault("rate_limited", rl.error(429, lines=[b"Retry-After: 9"]), rl.error(429)),
    "redirect": Fault(
        "redirect",
        rl.answer(302, b"", [b"Location: http://b/v1/chat/completions"]),
        rl.answer(308, b"", [b"Location: https://elsewhere/"]),
    ),
    "wrong model": Fault(
        "",
        rl.error(404, "no model gpt", code="model_not_found"),
        rl.error(404, "no", code="model_not_found"),
        404,
        "model_not_found",
    ),
    "auth failure": Fault(
        "", rl.error(401, "wrong key sk-secret"), rl.error(403, "not for you"), 502, "backend_refused_credentials"
    ),
    "content filter": Fault(
        "",
        rl.error(400, code="content_filter"),
        rl.stream(b'data: {"error":{"code":"content_filter"}}\n\n'),
        400,
        "content_filter",
    ),
    "oversized": Fault("broken_off", rl.saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000), endless),
    "reset": Fault(
        "broken_off",
        rl.saying(rl.answer()[:20]),
        rl.saying(rl.SSE[:30]),
        after=rl.saying(HALF, b"7", seconds=1),
        ends="broken_off",
    ),
    "DNS": Fault("connect_error"),
}
CAUSES = {("oversized", "streamed"): "malformed", ("lying length", "streamed"): "broken_off"}
CAUSES |= {("cut stream", "streamed"): "broken_off", ("oversized", "plain"): "broken_off"}


def test_there_are_sixteen():
    assert len(FAULTS) == 16


@pytest.mark.parametrize("kind", ["plain", "streamed"])
@pytest.mark.parametrize("name", sample_rows(FAULTS))
async def test_a_fault_before_the_first_byte(autojump_clock, name, kind):
    """The second backend answers within the first one's limit, or the first one's reply is the answer."""
    fault, script = FAULTS[name], getattr(FAULTS[name], kind)
    scripts = {"a": script} if script is not None else {}
    good = rl.answer() if kind == "plain" else rl.stream(rl.WHOLE_STREAM)
    config = rl.config_of(rl.cloud("a"), rl.cloud("b"), first_byte_seconds=60)
    async with rl.open_lab(config, **scripts, b=good) as lab:
        started_at = trio.current_time()
        status, body, clean = await lab.read(rl.ASKED if kind == "plain" else rl.STREAMED)
        seconds = trio.current_time() - started_at
        (line,) = lab.audit
        asked = len(lab.players["b"].asked)
        dialled = lab.players["b"].listener.dialled
    assert status == fault.status
    assert seconds <= 61
    if not fault.cause:
        assert json.loads(body)["error"]["code"] == fault.code
        assert b"sk-secret" not in body
        assert not asked
        return
    cause = CAUSES.get((name, kind), fault.cause)
    assert [(each["backend"], each["result"]) for each in line["attempts"]] == [("a", cause), ("b", "answered")]
    assert lab.metric("llmkube_router_attempts_total", backend="a", result=cause) == 1
    assert asked == 1
    assert len(dialled) == 1
    if kind == "plain":
        assert json.loads(body) == rl.ANSWER
    else:
        assert (body, clean) == (rl.WHOLE_STREAM, True)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.after is not None])
async def test_a_fault_after_the_first_byte(autojump_clock, name):
    """The text so far passes; then come an error event that OpenAI's clients know, no `[DONE]`, and no clean end."""
    fault = FAULTS[name]
    config = rl.config_of(rl.cloud("a"), rl.cloud("b"), first_byte_seconds=60)
    async with rl.open_lab(config, a=fault.after, b=rl.stream(rl.WHOLE_STREAM)) as lab:
        status, body, clean = await lab.read()
        (line,) = lab.audit
        asked = lab.players["b"].asked
    events = body.strip().split(b"\n\n")
    assert (status, clean) == (200, False)
    assert events[0] == rl.piece("one").strip()
    error_ = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert set(error_) >= {"message", "type", "code"}
    assert b"[DONE]" not in body
    assert not asked
    if fault.ends:
        assert error_["code"] == f"stream_{fault.ends}"
    assert line["outcome"] == f"stream_{fault.ends or 'backend_error'}"
    outcome = {"rule": "all", "backend": "a", "classification": "none", "outcome": "stream_broken"}
    assert lab.metric("llmkube_router_requests_total", **outcome) == 1


@pytest.mark.parametrize("end", [b"", rl.DONE])
async def test_a_finished_stream_is_complete(end):
    """`[DONE]`, or a finish reason with a clean end, completes it; the client gets `[DONE]` in both cases."""
    async with rl.open_lab(rl.config_of(rl.cloud("a")), a=rl.stream(rl.piece("one", "stop"), end)) as lab:
        _, body, clean = await lab.read()
    assert (body, clean) == (rl.piece("one", "stop") + rl.DONE, True)


async def test_a_real_reset_and_a_real_disconnect():
    """On sockets, a reset leads to the next backend; a disconnect reaches the backend within 100 ms."""
    gone = trio.Event()

    async def reset(connection):
        await connection.receive_some()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await connection.aclose()

    async def wait(connection):
        await connection.receive_some()
        await connection.send_all(rl.SSE + rl.chunk(rl.piece("one")))
        while await connection.receive_some():
            pass
        gone.set()

    async with trio.open_nursery() as nursery:
        ports = {}
        for name, play in (("a", reset), ("b", wait)):
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            ports[name] = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, play, listeners)
        backends = [rl.cloud(name, base_url=f"http://127.0.0.1:{port}/v1") for name, port in ports.items()]
        async with rl.open_lab(rl.config_of(*backends), connect=dial) as lab:
            client = await lab.front.connect("router", 80)
            body = json.dumps(rl.STREAMED).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body)
            await client.send_all(head + body)
            received = b""
            while b'"one"' not in received:
                received += await client.receive_some()
            await client.aclose()
            with trio.fail_after(60):
                await gone.wait()
        nursery.cancel_scope.cancel()
    assert [each["result"] for each in lab.audit[0]["attempts"]] == ["broken_off", "answered"]
