"""Deliberate bugs in what workers share, each with the timeline that must fail with it."""

import pytest
import trio
import trio.testing

from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.budgets.meter import Took
from llmkube.router.dispatch.circuits import Circuits
from llmkube.router.queue.turns import Turns
from llmkube.router.responses.shelf import OwnShelf
from llmkube.router.workers.link import Link
from llmkube.router.workers.linked_circuits import LinkedCircuits
from llmkube.router.workers.linked_turns import LinkedTurns
from llmkube.router.workers.shared_state import SharedState
from router.workers import timelines


async def own_say(self, name, now):  # noqa: ASYNC124 (in the place of one that waits)
    return self.admit(name, now)


async def no_fence(self, asker):
    await trio.lowlevel.checkpoint()


def free(settle):
    def mutant(self, reservation, took):
        settle(self, reservation, Took() if took is None else took)

    return mutant


def silent(send, *kinds):
    def mutant(self, kind, /, **fields):
        if kind not in kinds:
            send(self, kind, **fields)

    return mutant


def told_to_nobody(self, name, change):
    change()


def own_queue(self, backend, tenant, tokens, on_call=None):
    return QUEUES.setdefault(id(self), Turns()).turn(backend, tenant, tokens, on_call)


QUEUES = {}

MUTANTS = {
    "each worker has a queue of its own": (LinkedTurns, "turn", own_queue, timelines.one_queue),
    "a turn that ends is not given back": (
        Link,
        "send_nowait",
        silent(Link.send_nowait, "end"),
        timelines.a_cancelled_turn,
    ),
    "each worker tries a backend again": (LinkedCircuits, "enter", own_say, timelines.one_probe),
    "what fails is told to nobody": (SharedState, "change_circuit", told_to_nobody, timelines.one_probe),
    "each worker counts failures alone": (
        Link,
        "send_nowait",
        silent(Link.send_nowait, "circuit"),
        timelines.one_probe,
    ),
    "the leave of a dead worker is never given back": (
        Circuits,
        "abandoned",
        lambda self, name: None,
        timelines.one_probe,
    ),
    "what a dead worker had reserved is free": (
        KeptBudgets,
        "settle",
        free(KeptBudgets.settle),
        timelines.a_dead_workers_reservations,
    ),
    "what was reserved in vain stays": (
        Link,
        "send_nowait",
        silent(Link.send_nowait, "settle"),
        timelines.a_client_that_leaves_while_it_reserves,
    ),
    "what comes too late stays reserved": (
        Link,
        "send_nowait",
        silent(Link.send_nowait, "settle"),
        timelines.a_parent_that_takes_too_long,
    ),
    "a miss asks no other worker": (SharedState, "fence", no_fence, timelines.one_shelf),
    "a continued conversation is held for good": (
        OwnShelf,
        "release",
        lambda self, number: None,
        timelines.what_is_continued_stays,
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("bug", MUTANTS)
async def test_a_bug_is_caught(bug, monkeypatch, autojump_clock):
    """The timeline fails, or does not come to its end."""
    owner, name, mutant, timeline = MUTANTS[bug]
    monkeypatch.setattr(owner, name, mutant)
    is_caught = False
    try:
        with trio.fail_after(3600):
            await timeline()
    except* (AssertionError, trio.TooSlowError):
        is_caught = True
    assert is_caught
