"""End of a stream: complete, or the same error for client, audit log, budgets and circuits."""

import json

import pytest
import trio
import trio.testing

from llmkube.router.config.routing_config import Budget
from router.proxy import router_lab as rl

MESSAGES = "/v1/messages"

# -- answers that the client's dialect cannot express ------------------------------------------------------------------


def tool_piece(arguments, index=0, finish=None):
    """Return one event of a stream: a piece of a call."""
    call = {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": arguments}}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


HALF_A_CALL = ("/api/chat", rl.stream(tool_piece('{"a": ', finish="tool_calls"), rl.DONE))
UNTRANSLATABLE = {
    "half a call": HALF_A_CALL,
    "calls in turns": (
        "/v1/messages",
        rl.stream(*[tool_piece("{", at) for at in (0, 1, 0)], rl.piece("", "stop"), rl.DONE),
    ),
    "a call that is no object": ("/v1/messages", rl.stream(rl.piece("a"), b'data: {"choices": [7]}\n\n', rl.DONE)),
    "arguments that are no text": ("/api/chat", rl.stream(tool_piece(["x"]), rl.piece("", "stop"), rl.DONE)),
}


@pytest.mark.parametrize("name", UNTRANSLATABLE)
async def test_a_stream_that_cannot_be_translated_ends_like_every_other_broken_one(name):
    """It ends with an error event in audit and metrics; the reservation is charged, and no circuit counts it."""
    path, parts = UNTRANSLATABLE[name]
    budget = Budget(name="all", scope="router", window_seconds=60, max_tokens=100_000)
    async with rl.open_lab(rl.config_of(rl.local("mac"), budgets=(budget,)), mac=parts) as lab:
        status, data, whole = await lab.read(rl.MESSAGE | {"stream": True}, path)
        used = lab.router.budgets()[0]["tokensUsed"]
        failures = lab.router.listed_fields.dispatcher.calls.circuits.of("mac").failures
    last = json.loads(data.splitlines()[-1]) if path == "/api/chat" else rl.events_of(data)[-1]
    assert (status, whole, "error" in last) == (200, False, True)
    assert b"message_stop" not in data
    assert b'"done":true' not in data
    assert [line["outcome"] for line in lab.audit] == ["stream_untranslatable"]
    labels = {"rule": "all", "backend": "mac", "classification": "none", "outcome": "stream_broken"}
    assert lab.metric("llmkube_router_requests_total", **labels) == 1
    assert used > 0
    assert failures == 0


async def test_a_whole_answer_that_cannot_be_translated_is_502_everywhere():
    """The client, the audit log and the metrics have it; the reservation is charged."""
    call = {"function": {"name": "f", "arguments": '{"a": '}}
    completion = {"choices": [{"message": {"tool_calls": [call]}}]}
    budget = Budget(name="all", scope="router", window_seconds=60, max_tokens=100_000)
    async with rl.open_lab(rl.config_of(rl.local("mac"), budgets=(budget,)), mac=rl.answer(body=completion)) as lab:
        got = await lab.ask(rl.MESSAGE, MESSAGES)
        used = lab.router.budgets()[0]["tokensUsed"]
    assert (got.status, json.loads(got.body)["error"]["type"]) == (502, "api_error")
    assert [(line["status"], line["outcome"]) for line in lab.audit] == [(502, "untranslatable")]
    assert used > 0


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat"])
async def test_a_backend_that_falls_silent_ends_a_stream_of_a_dialect(path, autojump_clock):
    """The limit ends it with an error in the client's shape and no clean end."""
    script = rl.saying(rl.stream(rl.piece("one"), end=b""), then=rl.until_gone)
    async with rl.open_lab(rl.config_of(rl.local("mac", first_byte_seconds=60)), mac=script) as lab:
        _, data, whole = await lab.read(rl.MESSAGE | {"stream": True}, path)
        assert trio.current_time() == pytest.approx(60, abs=0.1)
    last = json.loads(data.splitlines()[-1]) if path == "/api/chat" else rl.events_of(data)[-1]
    assert (whole, "error" in last) == (False, True)
    assert [line["outcome"] for line in lab.audit] == ["stream_backend_silent"]


@pytest.mark.parametrize("path", [rl.CHAT, "/v1/messages", "/api/chat"])
async def test_a_client_that_leaves_cancels_the_backend_at_once(path, autojump_clock):
    """This is so before the first byte and in the middle of a stream; both are logged."""
    for script in (rl.until_gone, rl.saying(rl.stream(rl.piece("x"), end=b""), then=rl.until_gone)):
        async with rl.open_lab(rl.MAC, mac=script) as lab:
            with trio.move_on_after(5):
                await lab.read(rl.MESSAGE | {"stream": True}, path)
            left_at = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            (gone_at,) = lab.players["mac"].gone_at
            assert gone_at - left_at < 0.1
            assert [line["outcome"] for line in lab.audit] == ["client_gone"]
