"""An answer whose engine dies is continued by another in the same stream, or ends with an error."""

from functools import partial

import attrs
import pytest
import trio
import trio.testing

from lengths import SOAK, sample_rows
from llmkube.router.config.routing_config import Budget, Match, Rule
from llmkube.router.continuation import joined_answer
from llmkube.router.dispatch import dispatcher
from router.continuation.llama_script import (
    CHAT,
    COMPLETIONS,
    PIECES,
    PROMPT,
    PROMPT_TOKENS,
    TEXT,
    TOKENS,
    answer,
    text_in,
)
from router.proxy import router_lab as rl

ASKED = rl.STREAMED | {"stream_options": {"include_usage": True}, "temperature": 0}
TWINS = (rl.local("a", model_digest="x", first_byte_seconds=20), rl.local("b", model_digest="x", first_byte_seconds=20))
END = b"0\r\n\r\n"


def script_of(player, name, path=CHAT, **more):
    """Return the chunked stream of this engine's answer to its last request."""
    return rl.SSE + b"".join(map(rl.chunk, answer(path, player.bodies[-1], name, **more))) + END


def engine(name, path=CHAT, **more):
    """Return an engine that completes each answer."""
    return dying(name, None, path, **more)


def dying(name, *cuts, path=CHAT, then=None, **more):
    """Return a backend whose n-th answer ends after this many bytes; later answers, and those with None, are complete.

    `then` runs instead of the end of the connection.
    """
    player = rl.Player(())

    async def play(connection):
        at = len(player.asked) - 1
        cut = cuts[at] if at < len(cuts) else None
        await connection.send_all(script_of(player, name, path, **more)[:cut])
        if cut is not None and then is not None:
            await then(connection)

    player.scripts = (play,)
    return player


def engine_at(name, path=CHAT, **more):
    return dying(name, path=path, **more)


def place_of(name, event, path=CHAT, body=ASKED):
    """Return the number of bytes before the end of the answer's n-th event."""
    sent = body | {"timings_per_token": True}
    return len(rl.SSE + b"".join(map(rl.chunk, list(answer(path, sent, name))[:event])))


async def stream_of(config, players, body=ASKED, path="/v1/chat/completions"):
    async with rl.open_lab(config, players) as lab:
        status, data, whole = await lab.read(body, path)
    return lab, status, data, whole


def timeless(data):
    found = []
    for line in data.split(b"\n\n"):
        at, end = line.find(b',"timings":{'), line.find(b"}", line.find(b',"timings":{'))
        found.append(line if at < 0 else line[:at] + line[end + 1 :])
    return b"\n\n".join(found)


async def undisturbed(path, body, name="a"):
    _, status, data, whole = await stream_of(rl.config_of(*TWINS[:1]), {"a": engine_at(name, path)}, body, f"/v1{path}")
    assert (status, whole) == (200, True)
    return timeless(data)


REQUESTS = {
    "chat": (CHAT, ASKED),
    "limit": (CHAT, ASKED | {"max_tokens": 8}),
    "prompt": (COMPLETIONS, {"model": "m", "prompt": PROMPT, "stream": True, "temperature": 0}),
}


@pytest.mark.parametrize("name", sample_rows(REQUESTS))
async def test_a_cut_after_any_byte_leaves_no_trace(name, autojump_clock):
    """If the first engine's stream is cut at any byte, the client reads the same bytes and a clean end."""
    path, body = REQUESTS[name]
    by_a, by_b = await undisturbed(path, body), await undisturbed(path, body, "b")
    first = len(rl.chunk(next(iter(answer(path, body | {"timings_per_token": True}, "a")))))
    sent = body | {"timings_per_token": True}
    most = len(rl.SSE + b"".join(map(rl.chunk, answer(path, sent, "a"))))
    cuts = list(range(0, most, 1 if SOAK else 17))
    players = {"a": dying("a", *cuts, path=path), "b": engine_at("b", path)}
    async with rl.open_lab(rl.config_of(*TWINS), players) as lab:
        for cut in cuts:
            lab.router.listed_fields.dispatcher.calls.circuits.keep_only(frozenset())
            status, data, whole = await lab.read(body, f"/v1{path}")
            # Before the end of the first event nothing was sent: the second engine is asked as if it were the first
            expected = by_a if cut >= len(rl.SSE) + first - 2 else by_b
            assert (status, whole, timeless(data)) == (200, True, expected), cut
    assert all(line["outcome"] == "ok" for line in lab.audit)
    assert sum(line["continuations"] for line in lab.audit) == lab.metric(
        "llmkube_router_continuations_total", outcome="continued"
    )


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat"])
async def test_dialects_get_the_joined_stream(path, autojump_clock):
    """After a cut at each event the bytes are as undisturbed, except for the times."""
    body = {"model": "m", "max_tokens": 99, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    whole = None
    for event in (None, *range(1, len(PIECES) + 3)):
        cut = None if event is None else place_of("a", event)
        players = {"a": dying("a", cut), "b": engine_at("b")}
        lab, _, data, clean = await stream_of(rl.config_of(*TWINS), players, body, path)
        assert clean
        lines = [words for words in data.decode().splitlines() if "_duration" not in words]
        whole = lines if whole is None else whole
        assert lines == whole, event
        assert lab.audit[0]["outcome"] == "ok"


# -- how engines die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["broken", "cut", "silent"])
async def test_the_answer_continues_however_an_engine_dies(how, autojump_clock):
    """The connection ends, the stream ends without an end event, or it is silent for the first byte's limit."""

    async def then(connection):
        if how == "cut":
            await connection.send_all(END)
        elif how == "silent":
            await rl.until_gone(connection)

    players = {"a": dying("a", place_of("a", 4), then=then), "b": engine_at("b")}
    lab, _, data, whole = await stream_of(rl.config_of(*TWINS), players)
    assert (text_in(data), whole) == (TEXT, True)
    assert trio.current_time() == pytest.approx(20 if how == "silent" else 0, abs=0.1)
    assert lab.audit[0]["outcome"] == "ok"


async def test_the_next_engine_is_asked_for_the_rest_and_everything_is_written_down(autojump_clock):
    """Text, limit, permits, circuits, queue, audit and metrics equal those of a request to one engine."""
    backends = [rl.local(name, model_digest="x", slots=1) for name in "ab"]
    players = {"a": dying("a", place_of("a", 5)), "b": engine_at("b")}
    async with rl.open_lab(rl.config_of(*backends), players) as lab:
        await lab.read(ASKED | {"max_tokens": 50})
        dispatcher = lab.router.listed_fields.dispatcher
        failures = [dispatcher.calls.circuits.of(name).failures for name in "ab"]
        running = [dispatcher.calls.turns.queue_of(each).queue.running for each in backends]
        assert lab.router.in_flight() == 0
    prefix = "".join(text for text, _ in PIECES[:4])
    (rest,) = players["b"].bodies
    assert rest["messages"][-1] == {"role": "assistant", "content": prefix}
    assert rest["max_tokens"] == 50 - sum(tokens for _, tokens in PIECES[:4])
    assert (failures, running) == ([1, 0], [0, 0])
    (line,) = lab.audit
    assert [(each["backend"], each["result"]) for each in line["attempts"]] == [("a", "answered"), ("b", "answered")]
    assert (line["backend"], line["continuations"], line["notContinued"]) == ("b", 1, "")
    assert (line["promptTokens"], line["completionTokens"]) == (PROMPT_TOKENS, TOKENS + 1)
    assert lab.metric("llmkube_router_continuations_total", outcome="continued") == 1


async def test_the_prompt_is_charged_once(autojump_clock):
    """The charge is that of the undisturbed answer."""
    budget = Budget(name="all", scope="router", window_seconds=600, max_tokens=100_000)
    players = {"a": dying("a", place_of("a", 5)), "b": engine_at("b")}
    async with rl.open_lab(rl.config_of(*TWINS, budgets=(budget,)), players) as lab:
        await lab.read(ASKED | {"max_tokens": 50})
        used = lab.router.budgets()[0]["tokensUsed"]
    assert used == PROMPT_TOKENS + TOKENS + 1


async def test_one_that_has_had_all_its_tokens_is_ended_without_another_engine(autojump_clock):
    """Its engine died between the last token and the end."""
    players = {"a": dying("a", place_of("a", 4, body=ASKED | {"max_tokens": 3})), "b": engine_at("b")}
    _, _, data, whole = await stream_of(rl.config_of(*TWINS), players, ASKED | {"max_tokens": 3})
    assert timeless(data) == await undisturbed(CHAT, ASKED | {"max_tokens": 3})
    assert (whole, players["b"].asked) == (True, [])


# -- where it is continued ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["loading", "not_ready"])
async def test_the_same_engine_is_waited_for(autojump_clock, result):
    """It is tried once a second until it answers; the client gets comments, and its circuit counts one failure.

    This also applies to an engine that crashes repeatedly according to the gateway.
    """
    player = dying("a", place_of("a", 5))
    up_at = 12.5
    scripts = player.scripts

    async def script(connection):
        if len(player.asked) > 1 and trio.current_time() < up_at:
            crashed = {"code": "model_not_ready", "reason": "CrashLoopBackOff"} if result == "not_ready" else {}
            await connection.send_all(rl.error(503, "Loading model", **crashed))
            return
        at = player.asked
        if trio.current_time() >= up_at:
            player.asked = [*at[:1], at[-1]]
        await scripts[0](connection)

    player.scripts = (script,)
    async with rl.open_lab(rl.config_of(TWINS[0]), {"a": player}) as lab:
        _, data, whole = await lab.read(ASKED)
        assert trio.current_time() == pytest.approx(13, abs=0.1)
        assert lab.router.listed_fields.dispatcher.calls.circuits.of("a").failures == 0
    assert (text_in(data), whole, data.count(b": the model is loading")) == (TEXT, True, 2)
    assert [each["result"] for each in lab.audit[0]["attempts"]] == ["answered", result, "answered"]


async def test_an_engine_that_does_not_restart_ends_the_answer(autojump_clock):
    """After the limit of a first byte the client gets an error event and no clean end; the text so far is charged."""
    budget = Budget(name="all", scope="router", window_seconds=600, max_tokens=100_000)

    async def script(connection):
        if len(player.asked) == 1:
            await connection.send_all(script_of(player, "a")[: place_of("a", 5)])
            lab.players["a"] = None  # does not accept another connection

    player = rl.Player((script,))
    async with rl.open_lab(rl.config_of(TWINS[0], budgets=(budget,)), {"a": player}) as lab:
        _, data, whole = await lab.read(ASKED)
        assert 19 <= trio.current_time() <= 20.1
        used = lab.router.budgets()[0]["tokensUsed"]
    assert (whole, rl.events_of(data)[-1]["error"]["code"]) == (False, "stream_broken_off")
    assert used == PROMPT_TOKENS + sum(tokens for _, tokens in PIECES[:4])
    assert lab.audit[0]["outcome"] == "stream_broken_off"
    assert lab.audit[0]["notContinued"].startswith("no engine of its model continued it")
    assert lab.metric("llmkube_router_continuations_total", outcome="no_engine") == 1


@pytest.mark.parametrize("is_counted", [True, False])
async def test_an_engine_that_takes_requests_and_breaks_off_gets_two_at_most(autojump_clock, is_counted):
    """The request may have ended it twice, with a budget or without."""
    budget = Budget(name="all", scope="router", window_seconds=600, max_tokens=100_000)

    async def script(connection):
        if len(player.asked) == 1:
            await connection.send_all(script_of(player, "a")[: place_of("a", 5)])

    player = rl.Player((script,))
    config = rl.config_of(TWINS[0], budgets=(budget,) if is_counted else ())
    _, _, data, whole = await stream_of(config, {"a": player})
    assert (whole, rl.events_of(data)[-1]["error"]["code"]) == (False, "ended_engines")
    assert len(player.asked) == 1 + 1


async def test_it_continues_only_at_permitted_backends(autojump_clock):
    """An identical engine outside the rule, one of another model, and a provider are not used."""
    backends = (*TWINS, rl.local("other", model_digest="y"), rl.cloud("cloud", model_digest="x"))
    names = ("a", "other", "cloud")
    players = {"a": dying("a", *[place_of("a", 2)] * 9)} | {each: engine_at(each) for each in ("b", "other", "cloud")}
    rules = (Rule(name="all", match=Match(), backends=names),)
    _, _, _, whole = await stream_of(rl.config_of(*backends, rules=rules), players)
    assert [len(players[each].asked) for each in ("b", "other", "cloud")] == [0, 0, 0]
    assert not whole


async def test_an_answer_is_continued_three_times_at_most(autojump_clock):
    """Engines that are silent one after another end it; the bytes so far are those of the answer."""
    cuts = [place_of("a", 3)] * 9
    players = {name: dying(name, *cuts, then=rl.until_gone) for name in "ab"}
    lab, _, data, whole = await stream_of(rl.config_of(*TWINS), players)
    assert sum(len(each.asked) for each in players.values()) == 4
    assert (TEXT.startswith(text_in(data)), text_in(data) != "", whole) == (True, True, False)
    assert rl.events_of(data)[-1]["error"]["code"] == "stream_backend_silent"
    assert lab.audit[0]["notContinued"] == "the answer was already continued 3 times"


THREE = (*TWINS, rl.local("c", model_digest="x", first_byte_seconds=20))
AGAIN = ASKED | {"tools": [{"type": "function", "function": {"name": "f"}}]}
LIMITED = ASKED | {"max_tokens": 1}


@pytest.mark.parametrize("event", [2, 3])
async def test_a_stream_that_ends_its_engines_is_tried_at_one_further_engine(event, autojump_clock):
    """Its client gets the cause, and it is then refused; other requests are not."""
    players = {name: dying(name, place_of("a", event)) for name in "abc"}
    async with rl.open_lab(rl.config_of(*THREE), players) as lab:
        _, data, whole = await lab.read(ASKED)
        assert (whole, rl.events_of(data)[-1]["error"]["code"]) == (False, "ended_engines")
        assert TEXT.startswith(text_in(data))
        assert lab.audit[0]["outcome"] == "ended_engines"
        response = await lab.ask(ASKED)
        assert (response.status, b"ended_engines" in response.body) == (400, True)
        assert [len(each.asked) for each in players.values()] == [1, 1, 0]
        assert (await lab.read(ASKED | {"user": "x"}))[2]
    assert lab.metric("llmkube_router_continuations_total", outcome="no_engine") == 1


@pytest.mark.parametrize(("body", "event", "wholes"), [(AGAIN, 3, [False, False]), (LIMITED, 2, [True, True])])
async def test_a_stream_that_cannot_be_continued_is_refused_after_two_engines(body, event, wholes, autojump_clock):
    """A client that repeats it ends no third engine, also if the answers had all their tokens."""
    cut = place_of("a", event, body=body)
    players = {name: dying(name, *[cut] * 9) for name in "abc"}
    async with rl.open_lab(rl.config_of(*THREE), players) as lab:
        assert [(await lab.read(body))[2] for _ in range(2)] == wholes
        assert (await lab.ask(body)).status == 400
        assert sum(len(each.asked) for each in players.values()) == 2
        assert lab.audit[-1]["outcome"] == "ended_engines"


async def test_streams_of_a_dead_engine_are_continued_one_at_a_time(autojump_clock):
    """None of them is blamed, and each is continued to its end; the next one waits a few seconds at most."""
    died = trio.Event()
    began = []

    async def wait(connection):
        await died.wait()

    async def script(connection, seconds):
        began.append(trio.current_time())
        wire = rl.SSE + b"".join(map(rl.chunk, answer(CHAT, players["b"].bodies[len(began) - 1], "b"))) + END
        await connection.send_all(wire[: place_of("b", 2)])
        await trio.sleep(seconds)
        await connection.send_all(wire[place_of("b", 2) :])

    wholes = []
    for seconds, starts in ((1, [0, 1, 2]), (9, [0, 5, 10])):
        players = {
            "a": dying("a", *[place_of("a", 3)] * 3, then=wait),
            "b": rl.Player((partial(script, seconds=seconds),)),
        }
        async with rl.open_lab(rl.config_of(*TWINS), players) as lab, trio.open_nursery() as nursery:

            async def ask(user):
                wholes.append((await lab.read(ASKED | {"user": user}))[2])

            for user in "xyz":
                nursery.start_soon(ask, user)
            await trio.testing.wait_all_tasks_blocked()
            died.set()
        assert [at - began[0] for at in began] == pytest.approx(starts, abs=0.1)
        assert [line["outcome"] for line in lab.audit] == ["ok"] * 3
        died, began = trio.Event(), []
    assert wholes == [True] * 6


@pytest.mark.parametrize(("limits", "most"), [({}, 5), ({"max_tokens": 50}, 5), ({"max_tokens": 3}, 3)])
async def test_a_continued_answer_has_at_most_the_tokens_of_the_service(limits, most, autojump_clock):
    """The next engine gets what is left of them; without a limit of the request, too."""
    backends = [attrs.evolve(each, max_answer_tokens=5) for each in TWINS]
    players = {"a": dying("a", place_of("a", 3)), "b": engine_at("b")}
    lab, _, _, whole = await stream_of(rl.config_of(*backends), players, ASKED | limits)
    written = sum(tokens for _, tokens in PIECES[:2])
    assert (players["b"].bodies[0]["max_tokens"], whole) == (most - written, True)
    assert lab.audit[0]["completionTokens"] <= most


async def test_an_engine_that_refuses_is_not_asked_again(autojump_clock):
    """It would refuse again: the client gets the error at once, and is charged for the text so far."""
    players = {"a": rl.Player(()), "b": rl.Player((rl.error(400, "prefill is not supported"),))}

    async def script(connection):
        if len(players["a"].asked) == 1:
            await connection.send_all(script_of(players["a"], "a")[: place_of("a", 5)])
        else:
            await connection.send_all(rl.error(400, "prefill is not supported"))

    players["a"].scripts = (script,)
    lab, _, data, whole = await stream_of(rl.config_of(*TWINS), players)
    assert (trio.current_time(), whole) == (pytest.approx(0, abs=0.1), False)
    assert rl.events_of(data)[-1]["error"]["code"] == "stream_broken_off"
    assert lab.audit[0]["completionTokens"] == sum(tokens for _, tokens in PIECES[:4])


async def test_another_answer_is_not_taken_for_the_rest(autojump_clock):
    """An engine that starts a new answer has read more tokens: the client gets an error and no text of it."""
    players = {"a": dying("a", place_of("a", 5)), "b": engine_at("b", extra_prompt=4)}
    lab, _, data, whole = await stream_of(rl.config_of(*TWINS), players)
    assert (whole, rl.events_of(data)[-1]["error"]["code"]) == (False, "stream_not_joined")
    assert text_in(data) == "".join(text for text, _ in PIECES[:4])
    assert lab.audit[0]["outcome"] == "stream_not_joined"
    assert lab.audit[0]["notContinued"].startswith("the engine read 16 tokens")
    assert lab.metric("llmkube_router_continuations_total", outcome="not_continuable") == 1


# -- not continued -----------------------------------------------------------------------------------------------------

DOES_NOT = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "a grammar": {"response_format": {"type": "json_object"}},
    "probabilities": {"logprobs": True},
    "several": {"n": 2},
}


@pytest.mark.parametrize("name", DOES_NOT)
async def test_what_cannot_be_continued_ends_with_an_error(name, autojump_clock):
    """No other engine is asked; the stream ends with an error event."""
    players = {"a": dying("a", place_of("a", 3, body=rl.STREAMED)), "b": engine_at("b")}
    _, _, data, whole = await stream_of(rl.config_of(*TWINS), players, ASKED | DOES_NOT[name])
    assert (whole, players["b"].asked) == (False, [])
    assert rl.events_of(data)[-1]["error"]["code"] == "stream_broken_off"


async def test_a_providers_answer_is_not_continued(autojump_clock):
    """A digest or a reported build makes no difference."""
    players = {"p": dying("p", place_of("a", 3, body=rl.STREAMED)), "b": engine_at("b")}
    backends = (rl.cloud("p", model_digest="x"), TWINS[1])
    lab, _, _, whole = await stream_of(rl.config_of(*backends), players)
    assert (whole, players["b"].asked, len(players["p"].asked)) == (False, [], 1)
    assert lab.metric("llmkube_router_continuations_total", outcome="not_continuable") == 1


async def test_a_backend_with_only_an_address_continues_its_own_answer(autojump_clock):
    """llama.cpp reports its build; a token limit requires a count, which is requested only with a digest."""
    for limit, ends in (({}, True), ({"max_tokens": 50}, False)):
        players = {"a": dying("a", place_of("a", 3, body=rl.STREAMED)), "b": engine_at("b")}
        backends = (rl.local("a", first_byte_seconds=20), rl.local("b", first_byte_seconds=20))
        _, _, data, whole = await stream_of(rl.config_of(*backends), players, ASKED | limit)
        assert (whole, text_in(data) == TEXT, players["b"].asked) == (ends, ends, [])
        assert "timings_per_token" not in players["a"].bodies[0]


async def test_a_client_that_leaves_ends_everything(autojump_clock):
    """The client may leave while the answer is continued, or while an engine is waited for."""
    silent, loading = rl.Player((rl.until_gone,)), dying("a", place_of("a", 4))
    loading.scripts += (rl.error(503, "Loading model"),)
    for players in ({"a": dying("a", place_of("a", 4)), "b": silent}, {"a": loading}):
        async with rl.open_lab(rl.config_of(*TWINS[: len(players)]), players) as lab:
            with trio.move_on_after(2.5):
                await lab.read(ASKED)
            left_at = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            assert lab.router.in_flight() == 0
            assert lab.audit[-1]["outcome"] == "client_gone"
        assert all(gone - left_at < 0.1 for player in players.values() for gone in player.gone_at)


# -- deliberate bugs --------------------------------------------------------------------------------------------------


async def _play():
    """Run the timelines that each bug of the data path must fail."""
    players = {"a": dying("a", place_of("a", 5)), "b": engine_at("b")}
    lab, _, data, whole = await stream_of(rl.config_of(*TWINS), players)
    assert (text_in(data), whole, data.count(b'"role"')) == (TEXT, True, 1)
    assert [len(each.asked) for each in players.values()] == [1, 1]
    backends = (*TWINS[:1], rl.local("other", model_digest="y"))
    players = {"a": dying("a", *[place_of("a", 2)] * 9, then=rl.until_gone), "other": engine_at("other")}
    lab, _, data, whole = await stream_of(rl.config_of(*backends), players)
    assert (players["other"].asked, whole) == ([], False)
    assert lab.audit[0]["notContinued"] == "the answer was already continued 3 times"
    assert "error" in rl.events_of(data)[-1]


MUTANTS = {
    "every backend may continue": (dispatcher, "continuation_targets", lambda order, _broken: order),
    "only the dead one may": (dispatcher, "continuation_targets", lambda _order, broken: (broken,)),
    "it continues forever": (joined_answer, "MAX_CONTINUATIONS", 9),
    "the text is forgotten": (joined_answer, "next_request", lambda _path, body, _text, _tokens: dict(body)),
    "nothing can be continued": (joined_answer, "obstacle", lambda _path, _body: "no"),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_each_mutant_is_caught(name, monkeypatch, autojump_clock):
    """If a mutant passed, the timelines would prove nothing."""
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError):
        await _play()


@pytest.mark.soak
async def test_without_a_mutant_they_pass(autojump_clock):
    """So a failure with a mutant is caused by the mutant."""
    await _play()
