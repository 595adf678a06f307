"""Whether an engine that says nothing is frozen: by what it answers to questions, never by how long a request takes."""

import random

import pytest

from llmkube.router.health.silence import (
    EVERY_SECONDS,
    FROZEN_QUESTIONS,
    FROZEN_SECONDS,
    LLAMA_SERVER,
    PATIENCE_SECONDS,
    Silence,
)

KNOWN = Silence().heard(LLAMA_SERVER)


def watched(silence, answers, at=0.0):
    """Play questions, each answered (by a name) or not (None), as the watch asks them; yield time and state."""
    for answer in answers:
        asked_at = at
        if answer is None:
            at += silence.patience(asked_at)
            silence = silence.asked_in_vain(asked_at)
        else:
            silence = silence.heard(answer)
        yield at, silence
        at += EVERY_SECONDS


def test_an_engine_that_answers_nothing_is_frozen_within_ten_seconds():
    """From the moment of the request, a second before the first question; and not before eight have passed."""
    seen = [(at, state.is_frozen(at)) for at, state in watched(KNOWN, [None] * 9, at=EVERY_SECONDS)]
    first = next(at for at, frozen in seen if frozen)
    assert FROZEN_SECONDS <= first <= 10
    assert all(frozen == (at >= first) for at, frozen in seen)


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_that_answers_now_and_then_is_never_frozen(seed):
    """An hour with two thirds of the questions lost, but never all of eight seconds."""
    dice, at = random.Random(seed), 0.0
    silence = KNOWN
    while at < 3600:
        lost = dice.randrange(FROZEN_QUESTIONS)
        seen = list(watched(silence, [None] * lost + [LLAMA_SERVER], at=at))
        assert not any(state.is_frozen(when) for when, state in seen)
        at, silence = seen[-1]
        at += EVERY_SECONDS


def test_of_other_servers_nothing_is_concluded():
    """One that computes in the thread that answers is silent while it does its work."""
    for name in ("", "uvicorn", "nginx"):
        for at, silence in watched(Silence().heard(name), [None] * 100):
            assert not silence.is_frozen(at)


def test_what_was_said_once_is_known():
    """A proxy in front may answer for an engine: that it is llama.cpp's is not forgotten for it."""
    assert KNOWN.heard("").is_llama
    assert not KNOWN.asked_in_vain(1).heard("").unanswered


def test_a_pause_of_this_process_is_held_against_no_engine():
    """After a minute of sleep one question is late, however long ago it was asked."""
    late = KNOWN.asked_in_vain(10.0)
    assert not late.is_frozen(70.0)
    assert not late.asked_in_vain(70.0).is_frozen(72.0)
    assert late.asked_in_vain(70.0).patience(72.0) == PATIENCE_SECONDS


@pytest.mark.parametrize("patched", ["FROZEN_QUESTIONS", "FROZEN_SECONDS"])
def test_both_bounds_count(monkeypatch, patched):
    """A mutant without one of them takes a pause, or three quick refusals, for a frozen engine."""
    pause, refusals = KNOWN.asked_in_vain(10.0), KNOWN.asked_in_vain(0.0).asked_in_vain(1.0).asked_in_vain(2.0)
    assert (pause.is_frozen(70.0), refusals.is_frozen(3.0)) == (False, False)
    monkeypatch.setattr(f"llmkube.router.health.silence.{patched}", 0)
    assert pause.is_frozen(70.0) or refusals.is_frozen(3.0)
