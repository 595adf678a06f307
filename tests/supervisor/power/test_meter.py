"""The meter: a host's power at one moment, and each service's part.

Energy between samples is exact while they cover the time, and bounded in gaps.

The kernel's processor time divides the energy among services.
"""

import os
import subprocess
import sys

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from llmkube.k8s.resource import Key
from llmkube.supervisor.power import meter
from llmkube.supervisor.power.meter import (
    MAX_GAP_SECONDS,
    CpuTime,
    EngineUse,
    Interval,
    Point,
    PowerMeter,
    ServicePower,
    integrate,
    share,
)
from llmkube.supervisor.power.sample import STALE_SECONDS, PowerProblem, PowerSample
from llmkube.supervisor.power.token_energy import TokenCount

A, B = Key("ns", "a"), Key("ns", "b")
SAMPLE = PowerSample({"cpu": 2.0, "gpu": 10.0, "combined": 12.0}, 2.0)


class Host:
    """Engines, each a process that takes a share of a core, and the other programs."""

    def __init__(self, **cores):
        self.uses = {}
        self.cores = {}
        self.took = {}
        self.others = 0.0
        self.others_took = 0.0
        for pid, (name, part) in enumerate(cores.items()):
            self.start(Key("ns", name), pid, part)
        self.meter = PowerMeter("apple", ("cpu", "gpu", "ane"), lambda: self.uses, self)

    def start(self, key, pid, share=1.0, took=0.0):
        self.uses[key], self.cores[pid], self.took[pid] = EngineUse(pid), share, took

    def of_process(self, pid):
        return self.took.get(pid)

    def of_host(self):
        return sum(self.took.values()) + self.others_took

    async def live(self, seconds, sample=SAMPLE):
        """Let time pass, with a sample every two seconds."""
        for _ in range(int(seconds // 2)):
            await trio.sleep(2)
            for pid, part in self.cores.items():
                if pid in self.took:
                    self.took[pid] += 2 * part
            self.others_took += 2 * self.others
            self.meter.take(sample)

    def of(self, key):
        return self.meter.view().services[key]


async def test_an_old_figure_is_not_reported_as_new(autojump_clock):
    """Power is dropped when no sample has come for a while, energy is kept."""
    host = Host(a=1.0)
    assert host.meter.view().watts == {}
    assert host.meter.view().joules == {"cpu": 0.0, "gpu": 0.0, "ane": 0.0}
    await host.live(20)
    assert host.meter.view().watts == SAMPLE.watts
    before = host.of(A)
    assert before.watts == 12.0
    await trio.sleep(STALE_SECONDS)
    view = host.meter.view()
    assert (view.watts, view.joules["gpu"]) == ({}, 200.0)
    assert view.services[A] == ServicePower(None, before.joules, None)


async def test_a_problem_is_reported_until_a_sample_comes(autojump_clock):
    """While the newest sample is fresh there is no problem, and after the next one none is left."""
    host = Host()
    host.meter.failed(PowerProblem.NOT_PERMITTED)
    assert host.meter.view().problem is PowerProblem.NOT_PERMITTED
    await host.live(2)
    assert host.meter.view().problem is None
    host.meter.failed(PowerProblem.ENDED)
    assert host.meter.view().problem is None
    await trio.sleep(STALE_SECONDS)
    assert host.meter.view().problem is PowerProblem.ENDED


STALLED = PowerSample({"cpu": 0.0, "gpu": 10.0, "combined": 10.0}, 2.0)


async def test_cores_that_draw_nothing_while_they_compute_are_not_reported(autojump_clock):
    """Nor is a sum without them, nor a service's part; the GPU's figure stays, and the reason is reported."""
    host = Host(a=1.0)
    await host.live(20)
    before = host.of(A).joules
    await host.live(20, STALLED)
    view = host.meter.view()
    assert view.watts == {"gpu": 10.0}
    assert view.problem is PowerProblem.STALLED
    assert view.joules["cpu"] == 40.0
    assert host.of(A) == ServicePower(None, before, None)
    await host.live(2)
    view = host.meter.view()
    assert (view.watts, view.problem) == (SAMPLE.watts, None)
    assert host.of(A).watts == 12.0


async def test_idle_cores_may_draw_nothing(autojump_clock):
    """Less than a milliwatt is zero."""
    host = Host(a=0.001)
    await host.live(20, STALLED)
    view = host.meter.view()
    assert (view.watts, view.problem) == (STALLED.watts, None)


@pytest.mark.soak
async def test_mutant_a_constant_figure_is_accepted(autojump_clock, monkeypatch):
    """Without the rule a busy chip draws nothing."""
    monkeypatch.setattr(meter, "without_stalled", lambda sample, busy_cores: sample)
    with pytest.raises(AssertionError):
        await test_cores_that_draw_nothing_while_they_compute_are_not_reported(autojump_clock)


async def test_two_engines_share_the_power(autojump_clock):
    """By processor time, next to a compiler that takes as much of the cores as both."""
    host = Host(a=0.3, b=0.1)
    host.others = 0.4
    await host.live(20)
    assert host.of(A).watts == pytest.approx(0.75 * 10 + 0.375 * 2)
    assert host.of(B).watts == pytest.approx(0.25 * 10 + 0.125 * 2)
    assert host.of(A).joules == pytest.approx(18 * host.of(A).watts), "the first sample has nothing to compare with"


async def test_an_idle_service_draws_nothing(autojump_clock):
    """Its gauge is 0, as its engine runs and is measured; the chip's power is no service's then."""
    host = Host(a=0.0)
    await host.live(10)
    assert host.of(A) == ServicePower(0.0, 0.0, None)


async def test_an_engine_that_was_adopted_does_not_pay_for_its_past(autojump_clock):
    """Processor time before the first sample of a process belongs to no interval."""
    host = Host(a=0.5)
    await host.live(10)
    host.start(B, 9, 0.5, took=1e6)
    await host.live(2)
    assert host.of(B).watts == 0.0
    await host.live(2)
    assert host.of(B).watts == pytest.approx(host.of(A).watts)


async def test_removed_objects_leave_nothing(autojump_clock):
    """An engine that exits, a process that cannot be inspected, and a service that is deleted."""
    host = Host(a=1.0, b=1.0)
    await host.live(10)
    del host.took[0]
    await host.live(2)
    assert host.of(A).watts == 0.0
    assert host.of(B).watts == 12.0
    del host.uses[B]
    await host.live(2)
    assert B not in host.meter.view().services
    assert B not in host.meter._total_joules


async def test_joules_per_token_are_those_of_the_engine_that_runs(autojump_clock):
    """Known after two counts, absent while no engine runs, and reset by the next one."""
    host = Host(a=1.0)
    for count in range(4):
        host.uses[A] = EngineUse(0, TokenCount(0, count * 30.0, trio.current_time()))
        await host.live(30)
    assert host.of(A).joules_per_token == pytest.approx(12.0, rel=0.07)
    host.uses[A] = EngineUse(None, host.uses[A].tokens)
    await host.live(2)
    assert host.of(A).joules_per_token is None
    host.start(A, 5)
    host.uses[A] = EngineUse(5, TokenCount(0, 1e6, trio.current_time()))
    await host.live(30)
    assert host.of(A).joules_per_token is None, "the count of another process"


def sample(watts, seconds=2.0):
    return PowerSample({"gpu": watts, "combined": 99.0}, seconds)


@pytest.mark.parametrize(
    ("before", "now", "seconds", "expected"),
    [
        (None, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0)),
        (98.0, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0)),
        (96.0, 100.0, 2.0, Interval({"gpu": 20.0 + 2 * (30 + 10) / 2}, 4.0)),
        (40.0, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0)),
        (98.0, 100.0, 3600.0, Interval({"gpu": 20.0}, 2.0)),
        (None, 100.0, 3600.0, Interval({"gpu": 10.0 * MAX_GAP_SECONDS}, MAX_GAP_SECONDS)),
        (100.0, 100.0, 2.0, Interval({"gpu": 0.0}, 0.0)),
        (101.0, 100.0, 2.0, Interval({"gpu": 0.0}, 0.0)),
    ],
    ids=["first", "whole", "one lost", "many lost", "a sleep in it", "first after a sleep", "at once", "backwards"],
)
def test_an_interval(before, now, seconds, expected):
    """The energy of a sample of 10 W after one of 30 W; the sum of the domains is not counted again."""
    point = None if before is None else Point(before, {"gpu": 30.0})
    after, interval = integrate(point, sample(10.0, seconds), now)
    assert interval == expected
    assert (after.at, after.watts["gpu"]) == (now, 10.0)


def test_a_domain_that_appears_has_no_hole_of_another():
    """The time before a domain's first measurement has its own power."""
    _, interval = integrate(Point(96.0, {"cpu": 5.0}), sample(10.0), 100.0)
    assert interval.joules == {"gpu": 40.0}


A, B = Key("ns", "a"), Key("ns", "b")
DRAWN = {"cpu": 10.0, "gpu": 100.0}


@pytest.mark.parametrize(
    ("took", "host", "expected"),
    [
        ({}, 5.0, {}),
        ({A: 0.0}, 5.0, {}),
        ({A: 0.015}, 5.0, {}),
        ({A: 1.0}, 1.0, {A: 110.0}),
        ({A: 1.0}, 0.0, {A: 110.0}),
        ({A: 1.0}, 4.0, {A: 102.5}),
        ({A: 3.0, B: 1.0}, 4.0, {A: 82.5, B: 27.5}),
        ({A: 1.0, B: 0.001}, 1.0, {A: 110.0}),
    ],
    ids=["no engine", "at rest", "health checks", "alone", "host unknown", "a compiler next to it", "two", "one rests"],
)
def test_a_share(took, host, expected):
    """The GPU is the engines'; of the cores each gets its part of all computation."""
    assert share(DRAWN, took, host_cpu_seconds=host, seconds=2.0) == pytest.approx(expected)


@given(
    st.dictionaries(st.sampled_from(["cpu", "gpu", "ane", "package", "dram"]), st.floats(0, 1e6)),
    st.dictionaries(st.sampled_from([A, B]), st.floats(0, 1e4)),
    st.floats(0, 1e4),
)
def test_shares_do_not_exceed_the_whole(joules, took, host):
    """For any counts, the sum of the shares is at most the whole, and none is negative."""
    shares = share(joules, took, host_cpu_seconds=host, seconds=2.0)
    assert sum(shares.values()) <= sum(joules.values()) * (1 + 1e-9)
    assert all(each >= 0 for each in shares.values())


def test_the_time_of_this_process_is_counted_in_both():
    """Its own time grows with its work, and that of all programs by no less, but for the kernel's ticks."""
    cpu = CpuTime()
    own, host = cpu.of_process(os.getpid()), cpu.of_host()
    while cpu.of_process(os.getpid()) < own + 0.5:
        sum(range(100_000))
    assert cpu.of_host() - host > 0.3


def test_a_process_that_has_ended_has_none():
    """Its pid may be another process's soon."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert CpuTime().of_process(child.pid) is None
