"""Probe results that make a backend unhealthy, and healthy again.

A silent engine is frozen if it does not answer queries, however long a request takes.
The use of a KV cache is computed from /slots of llama.cpp's server.
"""

import json
import random

import pytest

from llmkube.router.health.health_state import (
    FROZEN_CHECKS,
    FROZEN_SECONDS,
    INTERVAL_SECONDS,
    LLAMA_SERVER,
    TIMEOUT_SECONDS,
    UNHEALTHY_AFTER,
    CacheUse,
    ProbeState,
    Reply,
    Silence,
    cache_use,
)

PATH = "/health"


def after(*found):
    state = ProbeState()
    for each in found:
        state = state.failed("no answer") if each is None else state.replied(each, PATH)
    return state


OK, BAD, LOADING = Reply(200), Reply(500), Reply(503, is_loading=True)


@pytest.mark.parametrize(
    ("found", "healthy", "failures"),
    [
        ((), True, 0),
        ((OK,), True, 0),
        ((BAD,) * (UNHEALTHY_AFTER - 1), True, UNHEALTHY_AFTER - 1),
        ((BAD,) * UNHEALTHY_AFTER, False, UNHEALTHY_AFTER),
        ((BAD, None, BAD), False, 3),
        ((BAD, BAD, OK, BAD, BAD), True, 2),
        ((BAD, BAD, BAD, OK), True, 0),
        ((BAD, BAD, LOADING, BAD), False, 3),
        ((LOADING,) * 9, True, 0),
        ((BAD, BAD, BAD, LOADING), False, 3),
    ],
)
def test_failures_in_a_row(found, healthy, failures):
    """Three of them make it unhealthy; a success resets the count, an engine that loads does not change it."""
    assert (after(*found).is_healthy, after(*found).failures) == (healthy, failures)


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 429, 500, 503])
def test_no_other_status_is_a_good_answer(status):
    """Redirects are not followed. The reason has status and path, and no address."""
    assert after(Reply(status)).cause == f"status {status} at /health"


@pytest.mark.parametrize("status", [200, 204])
def test_2xx_is(status):
    assert after(BAD, Reply(status)) == ProbeState()


KNOWN = Silence().responded(LLAMA_SERVER)


def watched(silence, answers, at=0.0):
    """Play queries, each answered (with a name) or not (None), as the watch sends them; yield time and state."""
    for answer in answers:
        sent_at = at
        if answer is None:
            at += silence.timeout_seconds(sent_at)
            silence = silence.timed_out(sent_at)
        else:
            silence = silence.responded(answer)
        yield at, silence
        at += INTERVAL_SECONDS


def test_an_engine_that_answers_nothing_is_frozen_within_ten_seconds():
    """Ten seconds start with the request, a second before the first query; eight seconds must have passed."""
    seen = [(at, state.is_frozen(at)) for at, state in watched(KNOWN, [None] * 9, at=INTERVAL_SECONDS)]
    first = next(at for at, frozen in seen if frozen)
    assert FROZEN_SECONDS <= first <= 10
    assert all(frozen == (at >= first) for at, frozen in seen)


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_that_answers_now_and_then_is_never_frozen(seed):
    """In an hour, two thirds of the queries are lost, but never all within eight seconds."""
    dice, at = random.Random(seed), 0.0
    silence = KNOWN
    while at < 3600:
        lost = dice.randrange(FROZEN_CHECKS)
        seen = list(watched(silence, [None] * lost + [LLAMA_SERVER], at=at))
        assert not any(state.is_frozen(when) for when, state in seen)
        at, silence = seen[-1]
        at += INTERVAL_SECONDS


def test_of_other_servers_nothing_is_concluded():
    """A server that computes in the thread that answers is silent while it computes."""
    for name in ("", "uvicorn", "nginx"):
        for at, silence in watched(Silence().responded(name), [None] * 100):
            assert not silence.is_frozen(at)


def test_the_server_name_is_remembered():
    """A proxy in front may answer for an engine that was identified as llama.cpp's."""
    assert KNOWN.responded("").is_llama
    assert not KNOWN.timed_out(1).responded("").unanswered


def test_a_pause_of_this_process_is_held_against_no_engine():
    """After a minute of sleep only one query is late, however old it is."""
    late = KNOWN.timed_out(10.0)
    assert not late.is_frozen(70.0)
    assert not late.timed_out(70.0).is_frozen(72.0)
    assert late.timed_out(70.0).timeout_seconds(72.0) == TIMEOUT_SECONDS


@pytest.mark.parametrize("patched", ["FROZEN_CHECKS", "FROZEN_SECONDS"])
def test_both_limits_are_necessary(monkeypatch, patched):
    """A mutant without one of them takes a pause, or three quick refusals, for a frozen engine."""
    pause, refusals = KNOWN.timed_out(10.0), KNOWN.timed_out(0.0).timed_out(1.0).timed_out(2.0)
    assert (pause.is_frozen(70.0), refusals.is_frozen(3.0)) == (False, False)
    monkeypatch.setattr(f"llmkube.router.health.health_state.{patched}", 0)
    assert pause.is_frozen(70.0) or refusals.is_frozen(3.0)


IDLE = {"id": 0, "n_ctx": 512, "speculative": False, "is_processing": False}
LAST = IDLE | {"id_task": 1, "n_prompt_tokens": 453, "n_prompt_tokens_processed": 53, "n_prompt_tokens_cache": 400}
BUSY = LAST | {"is_processing": True, "next_token": [{"has_next_token": True, "n_decoded": 11}]}
"""/slots of llama.cpp's server in the middle of an answer: 400 tokens were cached, 53 read, 11 written."""


@pytest.mark.parametrize(
    ("slots", "splits", "use"),
    [
        ([IDLE], True, CacheUse(0, 512)),
        ([LAST], True, CacheUse(0, 512)),  # an idle slot's cache is free for the next request
        ([BUSY], True, CacheUse(464, 512)),
        ([BUSY, IDLE], True, CacheUse(464, 1024)),
        ([BUSY, BUSY], True, CacheUse(928, 1024)),
        ([BUSY, IDLE], False, CacheUse(464, 512)),
        ([BUSY, BUSY], False, CacheUse(512, 512)),  # one cache for both: full, not more than full
        ([BUSY], None, CacheUse(464, 512)),
        ([BUSY, IDLE], None, None),  # one cache or two: unknown
        ([BUSY | {"next_token": {"n_decoded": 11}}], True, CacheUse(464, 512)),  # other builds
        ([BUSY | {"next_token": [{"n_decoded": 9999}]}], True, CacheUse(512, 512)),  # the context has been shifted
        ([{"is_processing": True, "runner_cpu_seconds": 3.5}], True, None),  # Ollama
        ([{"is_processing": False, "n_ctx": 0}], True, None),
        ([BUSY | {"n_prompt_tokens_cache": None}], True, None),
        ([BUSY | {"n_prompt_tokens_processed": True}], True, None),
        ([BUSY | {"n_ctx": -4}], True, None),
        ([BUSY | {"next_token": []}], True, None),
        ([IDLE | {"is_processing": "no"}], True, None),
        ([], True, None),
        ([7], True, None),
        ({"error": {"message": "this server does not support slots endpoint"}}, True, None),
    ],
)
def test_cache_use_of_slots(slots, splits, use):
    """If a part is missing, there is no value."""
    assert cache_use(json.dumps(slots).encode(), splits) == use


def test_invalid_json_has_no_cache_use():
    """A truncated answer has none, either."""
    assert cache_use(json.dumps([BUSY]).encode()[:-1], True) is None


def test_cache_use_is_a_fraction():
    """The endpoint picker reads it as a fraction."""
    assert CacheUse(464, 512).share == 0.90625
