"""What is known of a host's power at one moment, and of each service's part."""

import pytest
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.power import meter
from llmkube.supervisor.power.meter import EngineUse, PowerMeter, ServicePower
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
        for pid, (name, share) in enumerate(cores.items()):
            self.start(Key("ns", name), pid, share)
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
            for pid, share in self.cores.items():
                if pid in self.took:
                    self.took[pid] += 2 * share
            self.others_took += 2 * self.others
            self.meter.take(sample)

    def of(self, key):
        return self.meter.view().services[key]


async def test_an_old_figure_is_not_told_as_new(autojump_clock):
    """Power is forgotten when no sample has come for a while, energy is kept."""
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


async def test_a_problem_is_told_until_a_sample_comes(autojump_clock):
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


async def test_cores_that_draw_nothing_while_they_compute_are_not_told(autojump_clock):
    """Nor is a sum without them, nor a service's part of it; the GPU's figure stays, and the reason is told."""
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


async def test_cores_that_rest_may_draw_nothing(autojump_clock):
    """Less than a milliwatt is zero."""
    host = Host(a=0.001)
    await host.live(20, STALLED)
    view = host.meter.view()
    assert (view.watts, view.problem) == (STALLED.watts, None)


async def test_mutant_what_stands_still_is_taken_for_a_figure(autojump_clock, monkeypatch):
    """Without the rule a chip at work draws nothing."""
    monkeypatch.setattr(meter, "without_stalled", lambda sample, busy_cores: sample)
    with pytest.raises(AssertionError):
        await test_cores_that_draw_nothing_while_they_compute_are_not_told(autojump_clock)


async def test_two_engines_share_what_is_drawn(autojump_clock):
    """By processor time, and beside a compiler that takes as much of the cores as both."""
    host = Host(a=0.3, b=0.1)
    host.others = 0.4
    await host.live(20)
    assert host.of(A).watts == pytest.approx(0.75 * 10 + 0.375 * 2)
    assert host.of(B).watts == pytest.approx(0.25 * 10 + 0.125 * 2)
    assert host.of(A).joules == pytest.approx(18 * host.of(A).watts), "the first sample has nothing to compare with"


async def test_a_service_at_rest_draws_nothing(autojump_clock):
    """Its gauge says 0, as its engine is there and measured; what the chip draws is no service's then."""
    host = Host(a=0.0)
    await host.live(10)
    assert host.of(A) == ServicePower(0.0, 0.0, None)


async def test_an_engine_that_was_adopted_does_not_pay_for_its_past(autojump_clock):
    """What a process took before it was first seen belongs to no interval."""
    host = Host(a=0.5)
    await host.live(10)
    host.start(B, 9, 0.5, took=1e6)
    await host.live(2)
    assert host.of(B).watts == 0.0
    await host.live(2)
    assert host.of(B).watts == pytest.approx(host.of(A).watts)


async def test_what_has_gone_leaves_nothing(autojump_clock):
    """An engine that ends, a process that cannot be looked at, and a service that is deleted."""
    host = Host(a=1.0, b=1.0)
    await host.live(10)
    del host.took[0]
    await host.live(2)
    assert host.of(A).watts == 0.0
    assert host.of(B).watts == 12.0
    del host.uses[B]
    await host.live(2)
    assert B not in host.meter.view().services
    assert B not in host.meter._sums


async def test_joules_per_token_are_those_of_the_engine_that_runs(autojump_clock):
    """Known after two counts, absent while no engine runs, and begun anew with the next one."""
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
