"""The charge of a request for every way its attempts end; deliberate bugs prove that each is checked."""

import json

import pytest
import trio

from llmkube.router.budgets.meter import DEFAULT_TOKENS, Consumption
from llmkube.router.config.routing_config import Budget
from llmkube.router.dispatch import attempt_charges
from llmkube.router.dispatch.attempt_charges import AttemptCharges, charge_of
from router.continuation.llama_script import TEXT, text_in
from router.proxy import router_lab as rl
from router.proxy.test_continuations import ASKED as CONTINUED
from router.proxy.test_continuations import TWINS, dying, engine_at, place_of

SMALL = {"max_tokens": 10}
PLAIN, BY_EVENTS = rl.ASKED | SMALL, rl.STREAMED | SMALL
COUNTED = rl.ANSWER["usage"]["total_tokens"]
NOT_COUNTED = rl.answer(body={name: each for name, each in rl.ANSWER.items() if name != "usage"})
WRITTEN_THEN_ERROR = rl.stream(rl.piece("one") + b'data: {"error": {"message": "no", "code": 500}}\n\n')
SILENT = rl.saying(b"", then=rl.until_gone)


def budgeted(*backends, tokens=100_000, **changes):
    return rl.config_of(
        *backends, budgets=(Budget(name="b", scope="router", window_seconds=3600, max_tokens=tokens),), **changes
    )


def taken(lab):
    return lab.router.budgets()[0]["tokensUsed"]


def reserve_of(body):
    """Return the amount that is reserved for this request."""
    return len(json.dumps(body)) + body.get("max_tokens", DEFAULT_TOKENS)


async def undisturbed():
    """Return the charge of an answer from one engine."""
    async with rl.open_lab(budgeted(TWINS[0]), {"a": engine_at("a")}) as lab:
        await lab.read(CONTINUED)
        return taken(lab)


async def charged(first, body=PLAIN, **changes):
    """Return the charge besides the answer, if the first backend ends like this and the second answers."""
    counted = rl.piece("", "stop", usage=rl.ANSWER["usage"])
    second = rl.stream(counted, rl.DONE) if body.get("stream") else rl.answer()
    a = rl.local("a", first_byte_seconds=3, **changes)
    async with rl.open_lab(budgeted(a, rl.local("b")), **({"a": first} if first else {}), b=second) as lab:
        status, _, _ = await lab.read(body)
        assert (status, len(lab.players["b"].asked)) == (200, 1)
        return taken(lab) - COUNTED


async def unreserved(self):
    await trio.lowlevel.checkpoint()


ENDINGS = {
    "no connection": (None, PLAIN, 0),
    "429": (rl.error(429), PLAIN, 0),
    "500": (rl.error(500), PLAIN, 0),
    "an error with 200": (rl.answer(body={"error": {"message": "no", "code": 503}}), PLAIN, 0),
    "a redirect": (rl.answer(307, lines=(b"Location: http://b/",)), PLAIN, 0),
    "silence": (SILENT, PLAIN, 1),
    "the end of the connection": (rl.saying(b""), PLAIN, 1),
    "half an answer": (rl.saying(rl.answer()[:-9]), PLAIN, 1),
    "an answer that cannot be read": (rl.answer(body=b"{"), PLAIN, 1),
    "half a stream's beginning": (rl.saying(rl.SSE), BY_EVENTS, 1),
    "an error after a piece in one read": (WRITTEN_THEN_ERROR, BY_EVENTS, 1),
}


async def each_ending(name):
    """A sent attempt without a countable answer costs its reservation; a refused one is free."""
    script, body, reserves = ENDINGS[name]
    assert await charged(script, body) == reserves * reserve_of(body)


async def nothing_is_sent_that_is_not_reserved():
    """A second attempt needs a second reservation: if it does not fit, the client gets 429, and no backend is asked."""
    room = 2 * reserve_of(PLAIN) - 1
    config = budgeted(*(rl.local(name, first_byte_seconds=3) for name in "abc"), tokens=room)
    async with rl.open_lab(config, a=SILENT, b=rl.answer(), c=rl.answer()) as lab:
        refused = await lab.ask(PLAIN)
        assert (refused.status, len(lab.players["b"].asked), len(lab.players["c"].asked)) == (429, 0, 0)
        assert b"budget_exhausted" in refused.body
        assert int(refused.headers.get("retry-after")) > 0
        assert taken(lab) == reserve_of(PLAIN)
        assert lab.audit[0]["outcome"] == "budget_exhausted"
        assert [each["result"] for each in lab.audit[0]["attempts"]] == ["timeout", "budget_exhausted"]


async def a_client_that_leaves_before_anything_is_sent_is_free():
    """A queued request has cost no engine anything; a request that was sent is charged."""
    config = budgeted(rl.local("a", slots=1, first_byte_seconds=60))
    async with rl.open_lab(config, a=SILENT) as lab, trio.open_nursery() as clients:
        clients.start_soon(lab.read, PLAIN)
        await trio.sleep(1)
        with trio.move_on_after(1):
            await lab.read(PLAIN)
        await trio.sleep(1)
        assert taken(lab) == reserve_of(PLAIN)
        clients.cancel_scope.cancel()


async def a_continued_answer_is_charged_once():
    """Text of a dead engine is not charged again by the next one, and nothing stays reserved."""
    async with rl.open_lab(budgeted(*TWINS), {"a": dying("a", place_of("a", 5)), "b": engine_at("b")}) as lab:
        _, data, whole = await lab.read(CONTINUED)
        assert (text_in(data), whole) == (TEXT, True)
        assert taken(lab) == await undisturbed()


async def an_engine_that_fails_to_continue_is_charged_as_well():
    """It was sent the whole request without a result, so its reservation is charged besides the answer."""
    twins = (TWINS[0], rl.local("b", model_digest="x", first_byte_seconds=3), rl.local("c", model_digest="x"))
    players = {"a": dying("a", place_of("a", 5)), "b": rl.Player((SILENT,)), "c": engine_at("c")}
    async with rl.open_lab(budgeted(*twins), players) as lab:
        _, data, whole = await lab.read(CONTINUED)
        assert (text_in(data), whole) == (TEXT, True)
        assert taken(lab) == reserve_of(CONTINUED) + await undisturbed()


MUTANTS = {
    "what was sent and has no answer is free": (
        attempt_charges,
        "charge_of",
        lambda **ending: charge_of(**ending) or Consumption(),
        lambda: each_ending("silence"),
    ),
    "a refusal costs what was reserved": (
        attempt_charges,
        "charge_of",
        lambda **ending: charge_of(**ending | {"status": 0}),
        lambda: each_ending("429"),
    ),
    "a sent request is treated as not sent": (
        AttemptCharges,
        "mark_sent",
        lambda self: None,
        lambda: each_ending("the end of the connection"),
    ),
    "an attempt that was not sent is charged": (
        attempt_charges,
        "charge_of",
        lambda **ending: charge_of(**ending | {"is_sent": True}),
        lambda: each_ending("no connection"),
    ),
    "the second attempt is sent without a reservation": (
        AttemptCharges,
        "begin",
        unreserved,
        nothing_is_sent_that_is_not_reserved,
    ),
    "a client that leaves a queue is charged": (
        attempt_charges,
        "charge_of",
        lambda **ending: None,
        a_client_that_leaves_before_anything_is_sent_is_free,
    ),
    "each engine of an answer is charged in full": (
        AttemptCharges,
        "mark_interrupted",
        lambda self: self.failed(0),
        a_continued_answer_is_charged_once,
    ),
    "an engine that fails to continue is free": (
        AttemptCharges,
        "failed",
        lambda self, status: None,
        an_engine_that_fails_to_continue_is_charged_as_well,
    ),
}
"""Deliberate bugs, each with the timeline that must fail."""


TIMELINES = [
    nothing_is_sent_that_is_not_reserved,
    a_client_that_leaves_before_anything_is_sent_is_free,
    a_continued_answer_is_charged_once,
    an_engine_that_fails_to_continue_is_charged_as_well,
]


@pytest.mark.parametrize("name", ENDINGS)
async def test_each_ending(name, autojump_clock):
    """The end of an attempt determines its charge."""
    await each_ending(name)


@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda one: one.__name__)
async def test_timelines(timeline, autojump_clock):
    """Each timeline's docstring holds."""
    await timeline()


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_deliberate_bug_is_caught(name, autojump_clock, monkeypatch):
    """The timeline fails with it."""
    place, attribute, bug, timeline = MUTANTS[name]
    monkeypatch.setattr(place, attribute, bug)
    is_caught = False
    try:
        await timeline()
    except* AssertionError:
        is_caught = True
    assert is_caught
