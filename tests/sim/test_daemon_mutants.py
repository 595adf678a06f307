"""Deliberate bugs about an Ollama that services share: the books see each, and no other violation without it."""

import attrs
import pytest
import trio

from llmkube.cli.daemon_engine import keeping, unloading
from llmkube.cli.daemon_engine.seen import Seen
from llmkube.cli.daemon_engine.steps import Act, Step
from llmkube.supervisor.service import attempt
from sim import score
from sim.mutation import acts, is_booked

ON_OLLAMA = (1.0, "create", 1)
"""These dice make a service of the runtime ollama; `test_the_service_is_on_ollama` looks."""


def blind_to_what_is_not_listed(original):
    """Only processes of what the daemon lists are looked at."""

    def decide(state, seen, now):
        return original(state, seen if seen.listed else attrs.evolve(seen, holders=(), orphans=()), now)

    return decide


async def never_asks(*_):
    await trio.sleep_forever()


MUTANTS = {
    "what Ollama lists is believed without a process": (
        Seen,
        "loaded",
        property(lambda self: self.listed),
        acts(ON_OLLAMA, (100.0, "ollamas-process-killed")),
        "false ready",
    ),
    "a model that was lost stays published": (
        attempt,
        "watch_model",
        never_asks,
        acts(ON_OLLAMA, (100.0, "ollama-restarts", 11)),
        "false ready",
    ),
    "a model is loaded beside the process that still has it": (
        keeping,
        "decide",
        blind_to_what_is_not_listed(keeping.decide),
        acts(ON_OLLAMA, (100.0, "ollama-keeps-what-it-unloads", 2), (101.0, "ollama-is-used-by-others")),
        "double",
    ),
    "an engine ends without unloading its model": (
        unloading,
        "unload",
        lambda seen, since, asked_at, now: Step(Act.DONE),
        acts(ON_OLLAMA, (100.0, "delete")),
        "orphans",
    ),
}
"""A bug, the timeline that shows it, and the column of the scorecard in which it does."""


def test_the_service_is_on_ollama():
    """Otherwise none of these timelines would have anything to break."""
    result = score.play(acts(ON_OLLAMA, (100.0, "ollamas-process-killed")), quiet_minutes=3)
    assert result.faults["ollamas-process-killed"] == 1
    assert not result.violations


@pytest.mark.ci
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_booked(name, monkeypatch):
    """The books of a run see this bug, and without it the same timeline is clean."""
    owner, attribute, replacement, timeline, column = MUTANTS[name]
    with monkeypatch.context() as patched:
        patched.setattr(owner, attribute, replacement)
        assert is_booked(timeline, column)
    assert not score.play(timeline, quiet_minutes=3).violations
