"""Random timelines of a host whose services are loaded on request: no invariant is broken, and bugs are recorded.

`python -m tests.sim --on-request` runs any number of seeds, and replays one by its number.
"""

import math
from functools import partial

import attrs
import pytest

from lengths import ACTIVATION_SEEDS, QUIET_MINUTES
from llmkube.router.dispatch.holds import HeldRequest
from llmkube.supervisor import services
from llmkube.supervisor.memory import admission
from llmkube.supervisor.service.attempt import Attempt
from llmkube.supervisor.service.gate import Gate
from llmkube.supervisor.values.activation import Activation
from sim import machine, score
from sim import test_activation as activation
from sim import test_upgrade as upgrade
from sim.faults_activation import ACTIVATION_FAULTS, ACTIVATION_USERS
from sim.mutation import assert_caught, assert_recorded, rows
from sim.mutation import steps as any_steps

steps = partial(any_steps, on_request=True)

A, B, C = 1, 7, 6
"""Seeds that draw the name of a service."""

THREE = ((1.0, "create", A), (10.0, "create", B), (20.0, "create", C))


@pytest.mark.parametrize("seed", range(ACTIVATION_SEEDS))
def test_a_seed_violates_nothing(seed):
    """Requests are answered or refused in time, and nothing is loaded or unloaded without a reason."""
    result = score.run_seed(seed, on_request=True, quiet_minutes=QUIET_MINUTES)
    assert not result.violations, f"replay it with: python -m tests.sim --on-request --seed {seed}"


@pytest.mark.ci
@pytest.mark.parametrize("name", sorted(ACTIVATION_FAULTS))
def test_each_fault_is_repaired(name):
    """Each fault is injected twice, without others."""
    happenings = (*THREE, (60.0, name, 3), (500.0, "ask", 8), (600.0, name, 4))
    result = score.play(steps(*happenings), quiet_minutes=2)
    assert not result.violations
    assert result.faults[name], "the fault found nothing to break"


def test_timelines_of_the_scorecard_have_such_hosts():
    """Some of its seeds load services on request, with the events of these hosts."""
    drawn = [timeline for seed in range(60) if (timeline := score.timeline_of(seed)).on_request]
    assert len(drawn) >= 10
    names = {happening.name for timeline in drawn for happening in timeline.happenings}
    assert names.issuperset(ACTIVATION_FAULTS.keys() | ACTIVATION_USERS.keys())


# -- deliberate bugs ----------------------------------------------------------------------------------------------


def changed(original, **how):
    """Return a change of an activation that also sets these fields."""
    return lambda self, *args, **kwargs: attrs.evolve(original(self, *args, **kwargs), **how)


def without_idle(original):
    return lambda entry: original(entry) | {"idle": False}


def load_always(self, before, desired, default, original=Activation.with_spec):
    return original(self, before, desired, default).load()


def due_while_used(self, busy_at):
    return self.used_at + self.limit_seconds


def a_minute(self):
    return 60.0 if self.on_request and self.wanted else math.inf


def never_used(original):
    return lambda engine, host: attrs.evolve(original(engine, host), uses=0)


def wake_at_once(self, now, tenant=""):
    return attrs.evolve(self, requests=self.requests + 1, wanted=True)


def keep_loading(self, now, *, has_memory, tenant=""):
    return attrs.evolve(self, requests=self.requests - 1, used_at=now)


MUTANTS = {
    activation.test_five_models_and_memory_for_two: {
        "a displaced service waits to return": (Activation, "displace", lambda self, **_: self),
        "the target does not follow a request": (Gate, "change", Gate.set_activation),
    },
    activation.test_no_model_with_a_request_is_displaced: {
        "a service in use is displaced": (admission, "_resident", never_used(admission._resident)),
        "a client that leaves withdraws nothing": (Activation, "end", keep_loading),
        "the end of a request is not recorded": (Gate, "end_request", lambda self, tenant="": None),
    },
    activation.test_an_eviction_cuts_a_request_only_if_memory_is_critically_short: {
        "an unload has the time limit of a stop": (Attempt, "unload", lambda self, why: self.scope.cancel(reason=why)),
        "an engine that exits is one that stays": (Activation, "end", keep_loading),
    },
    activation.test_idle_timeout_pin_and_unload: {
        "a service is unloaded in the middle of a request": (Activation, "due_at", due_while_used),
        "a pin is not kept": (Activation, "keep", lambda self, seconds: self),
        "an unload keeps the pin": (Activation, "unload", lambda self: attrs.evolve(self, wanted=False)),
    },
    activation.test_a_failed_load_is_not_repeated_by_itself: {
        "a failed load is repeated": (Activation, "fail", lambda self, retry_at, failure: self),
        "a request during the back-off loads": (Activation, "begin", wake_at_once),
    },
    activation.test_a_restart_keeps_what_is_resident_and_idle: {
        "the journal does not know what is idle": (machine, "dump", without_idle(machine.dump))
    },
    activation.test_what_does_not_wake: {"every edit loads": (Activation, "with_spec", load_always)},
    activation.test_a_service_that_is_always_loaded: {
        "every service is loaded on request": (services, "mode_of", lambda desired, default: default)
    },
    upgrade.test_an_up_without_activation_is_upgraded: {
        "a new agent loads everything": (Activation, "with_spec", load_always)
    },
}
"""Bugs by the timeline that catches them."""


RECORDED = {
    (steps(*THREE, (60.0, "slow-load"), (65.0, "ask", 213), (66.0, "ask", 221), (67.0, "ask", 200)), "late"): {
        "a request waits for ever": (HeldRequest, "deadline", lambda self, hold_seconds: math.inf),
    },
    (steps(*THREE, (60.0, "unload", C), (90.0, "edit", C), (120.0, "edit", 10)), "uncalled"): {
        "an edit loads what is idle": (Activation, "with_spec", load_always),
    },
    (steps(*THREE, (60.0, "unload", C), (100.0, "agent-killed")), "uncalled"): {
        "the journal does not know what is idle": (machine, "dump", without_idle(machine.dump)),
    },
    (steps(*THREE), "needless"): {
        "each service is unloaded after a minute": (Activation, "limit_seconds", property(a_minute))
    },
    (steps(*THREE, (60.0, "bad-flag", 1)), "stuck"): {
        "a failed load is the last": (Activation, "begin", changed(Activation.begin, wanted=False)),
    },
    (steps(*THREE), "out of memory"): {
        "everything fits": (admission, "find_refusal", lambda request, host: None),
    },
}
"""Timelines with a column of the scorecard, and the bugs that the monitor records there."""


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_a_mutant_is_caught(row, monkeypatch):
    """A program with this bug fails the timeline."""
    assert_caught(monkeypatch, row)


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(RECORDED))
def test_a_mutant_is_recorded(row, monkeypatch):
    """The monitor records this bug, and the same timeline is clean without it."""
    assert_recorded(monkeypatch, row)
