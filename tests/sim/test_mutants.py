"""Deliberate bugs: each must make a timeline fail, or the timeline proves nothing."""

from functools import partial

import attrs
import pytest
import trio

from llmkube.base.backoff import Backoff
from llmkube.k8s.reflector import Cache
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor import services
from llmkube.supervisor.agent import AgentView
from llmkube.supervisor.cluster import status
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.engine import health
from llmkube.supervisor.service import attempt, planner, status_manager
from llmkube.supervisor.service import runner as service
from llmkube.supervisor.service.attempt import EngineJournal
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.services import Services
from llmkube.supervisor.values.desired import Desired, Idle
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import RestartState, ServiceView
from sim import machine, test_hangs
from sim import test_adoption as adoption
from sim import test_limits as limits
from sim.machine import Machine, Script, SimChild
from sim.mutation import (
    CREATED,
    BrokenMutantError,
    assert_caught,
    assert_recorded,
    do_nothing,
    is_caught,
    keep_what_is_gone,
    never_yields,
    play,
    rows,
    steps,
)
from sim.world import open_world


async def serve_crash_and_edit(world):
    """Run one service through load, crash, edit and a crash loop, with assertions at each point."""
    world.machine.default = Script(load_seconds=30)
    await world.apply()
    await trio.sleep(20)
    assert await world.ready_addresses() == 0, "ready before the engine answers"
    await trio.sleep(20)
    assert await world.ready_addresses() == 1, "not ready although the engine answers"
    world.machine.kill("chat")
    await trio.sleep(1)
    assert await world.ready_addresses() == 0, "ready although the engine is dead"
    await trio.sleep(60)
    assert await world.ready_addresses() == 1, "not restarted"
    await world.apply(contextSize=512)
    await trio.sleep(60)
    assert "512" in world.machine.live("chat")[0].argv, "an edit was lost"
    world.machine.default = Script(load_seconds=1, life_seconds=0.5)
    world.machine.kill("chat")
    before = len(world.machine.spawned)
    await trio.sleep(60)
    assert len(world.machine.spawned) - before < 12, "a crash loop without back-off"
    world.machine.default = Script()
    await trio.sleep(100)
    await world.delete()
    await trio.sleep(30)
    assert not world.machine.live(), "an engine outlived its object"


async def run():
    """Run the first timeline, in the form of the other ones."""
    async with open_world() as world:
        await serve_crash_and_edit(world)


async def ready_at_once(http, url):
    await trio.lowlevel.checkpoint()


async def silent_exit(child):
    await trio.sleep_forever()


def always_ready(*args, original=status_manager.slice_manifest, **kwargs):
    return original(*args, **{**kwargs, "ready": True})


def greeted_as_new(original):
    def start(self, *, adopting):
        original(self, adopting=adopting)
        self.update(Facts.with_view, ServiceView(Reason.PENDING, "as if nothing ran"))

    return start


def planned_first(original):
    """Publish a plan before the runner checks for the first time."""
    return lambda replan, runner, first: original(replan, runner, Idle(Reason.PENDING))


def without_build(original):
    def dump(entry):
        data = original(entry)
        return data | {"engine": data["engine"] and data["engine"] | {"build": ""}}

    return dump


def always_loaded(original):
    return lambda service, conditions, view: original(service, conditions, attrs.evolve(view, reason=Reason.LOADED))


MUTANTS = {
    run: {
        "ready before the engine answers": (health, "wait_ready", ready_at_once),
        "no restart and no withdrawal after an exit": (SimChild, "wait", silent_exit),
        "the endpoint stays ready after an exit": (status_manager, "slice_manifest", always_ready),
        "no back-off": (service, "after_failure", lambda state, failure, rng: (RestartState(1), 0.0)),
        "a new plan looks like the old one": (LaunchPlan, "digest", "constant"),
    },
    adoption.test_a_new_agent_reports_the_serving_engine: {
        "the journal forgets which build was started": (machine, "dump", without_build(machine.dump)),
        "an exited engine is reported as serving": (status, "service_status", always_loaded(status.service_status)),
    },
    adoption.test_a_killed_agent_costs_nothing: {
        "the journal is not written": (Machine, "write", do_nothing),
        "an adopted engine is announced as not ready first": (
            StatusManager,
            "start",
            greeted_as_new(StatusManager.start),
        ),
    },
    adoption.test_a_suspended_service_does_not_come_back_with_a_new_agent: {
        "the journal is never cleared": (Machine, "remove", do_nothing)
    },
    adoption.test_an_edit_while_no_agent_runs_replaces_the_engine_once: {
        "an adopted engine of another plan stays": (LaunchPlan, "digest", "constant")
    },
    adoption.test_an_engine_that_was_still_loading_is_adopted_without_being_called_ready: {
        "an adopted engine is not probed before it is called ready": (health, "wait_ready", ready_at_once)
    },
    adoption.test_an_empty_list_right_after_the_start_ends_nothing: {
        "the first empty list is believed": (Cache, "is_suspect", lambda self, listing: False)
    },
    adoption.test_an_agent_without_an_api_server_serves_the_last_known_services: {
        "without an API server nothing is started": (Services, "synced", lambda self: True)
    },
    adoption.test_requests_in_flight_end_before_the_engine_does: {
        "a stop does not wait for requests": (health.Engine, "wait_idle", do_nothing)
    },
    adoption.test_an_edit_that_restarts_nothing_is_known_to_the_next_agent: {
        "the journal does not follow the spec": (EngineJournal, "save_desired", do_nothing)
    },
    partial(adoption.test_a_suspension_in_the_last_moments_of_an_agent_is_carried_out, online=False): {
        "a suspension is not taken over first": (services, "run_service", planned_first(services.run_service))
    },
    adoption.test_no_route_at_the_start_of_an_agent_ends_no_engine: {
        "an address without a route is lost": (
            HostAddress,
            "serves",
            lambda reach, host: host == reach.bind or (reach.address is not None and host in reach.own),
        )
    },
    adoption.test_a_slow_first_scan_of_the_network_ends_no_engine: {
        "an address before the first scan is lost": (
            HostAddress,
            "serves",
            lambda reach, host: host == reach.bind or host in reach.own,
        )
    },
    partial(limits.test_an_agent_without_descriptors_condemns_no_engine, has_proc=False): {
        "an engine that cannot be probed is gone": (health, "LOCAL_CONNECT_ERRNOS", frozenset())
    },
    partial(limits.test_a_lack_of_resources_is_reported, lack="disk_full", why=Reason.JOURNAL_NOT_WRITTEN): {
        "a lack of resources has no reason of its own": (attempt, "reason_of", lambda error: Reason.ENGINE_NOT_FOUND)
    },
    adoption.test_an_agent_that_exits_with_keep_changes_nothing: {
        "a shutdown with keep withdraws the endpoint": (AgentView, "keep_engines", lambda self: None)
    },
}
"""Bugs by the timeline that catches them: object, attribute and faulty value."""


# -- bugs that the monitor of a random timeline must record -------------------------------------------------------


def unseen(original):
    """Hide the running engines from the new agent."""

    def match_processes(self, settings):
        return {key: attrs.evolve(entry, engine=None) for key, entry in original(self, settings).items()}

    return match_processes


def strays_stay(original):
    def match_processes(self, settings):
        known = {entry.engine.cookie for entry in self.entries.values() if entry.engine}
        everybody, self.spawned = self.spawned, [child for child in self.spawned if child.cookie in known]
        try:
            return original(self, settings)
        finally:
            self.spawned = everybody

    return match_processes


def flapping(original):
    def step(watch, look, now, limits):
        watch, verdict = original(watch, look, now, limits)
        return watch, attrs.evolve(verdict, reachable=now // 60 % 2 == 0)

    return step


def broken(*_):
    raise KeyError("oh")


def endless_pause(**_):
    return Backoff(base_seconds=1e6, cap_seconds=1e6)


def untold(original):
    def replace(self, listing):
        original(self, listing)
        return []

    return replace


BOOKED = {
    (steps(*CREATED, (100.0, "bad-flag")), "false ready"): {
        "an endpoint outlives its engine": (status_manager, "slice_manifest", always_ready)
    },
    (steps(*CREATED, (100.0, "journal-lost")), "orphans"): {
        "strays are not stopped": (Machine, "match_processes", strays_stay(Machine.match_processes))
    },
    (steps(*CREATED, (100.0, "agent-killed")), "double"): {
        "nothing is adopted": (Machine, "match_processes", unseen(Machine.match_processes))
    },
    (steps(*CREATED, (100.0, "source")), "lost"): {
        "an edit changes nothing that runs": (LaunchPlan, "digest", "constant")
    },
    (steps(*CREATED, (100.0, "start-with-an-empty-list")), "needless"): {
        "a new agent believes the first list": (Cache, "is_suspect", lambda self, listing: False)
    },
    (steps(*CREATED, (100.0, "agent-upgraded")), "needless"): {
        "an agent that is replaced ends its engines": (AgentView, "keep_engines", lambda self: None)
    },
    (steps(*CREATED, (100.0, "long-prompt")), "needless"): {
        "an engine that answers late is replaced": (health, "step", test_hangs.judged(test_hangs.silence_is_enough))
    },
    (steps(*CREATED, (100.0, "massacre")), "stuck"): {
        "the second failure is the last": (service, "after_failure", lambda state, failure, rng: (RestartState(1), 1e5))
    },
    (steps(*CREATED), "restless"): {"an engine is reachable and not in turn": (health, "step", flapping(health.step))},
    (steps(*CREATED, (100.0, "massacre")), "bugs"): {"a bug in a service's task": (service, "after_failure", broken)},
    (steps(*CREATED, (1300.0, "partition"), hosts=2), "double"): {
        "a host that was cut off does not yield": (ClaimManager, "may_run", never_yields(ClaimManager.may_run))
    },
    (steps(*CREATED, (100.0, "delete-while-cut-off")), "lost"): {
        "what a list lacks is still there": (Cache, "replace", keep_what_is_gone)
    },
    (steps(*CREATED, (100.0, "compaction"), (101.0, "source")), "lost"): {
        "a list is no news": (Cache, "replace", untold(Cache.replace))
    },
    (steps(*CREATED, (100.0, "suspend", 2)), "double"): {"a suspended service runs": (Desired, "running", True)},
    (steps(*CREATED, (100.0, "store-away", 1)), "lost"): {"a fetch is tried once": (planner, "Backoff", endless_pause)},
}
"""Timelines with a column of the scorecard, and the bugs that the monitor records there."""


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(BOOKED))
def test_a_mutant_is_booked(row, monkeypatch):
    """The monitor records this bug, and the same timeline is clean without it."""
    assert_recorded(monkeypatch, row)


@pytest.mark.soak
def test_the_timeline_holds_without_a_mutant():
    """The timeline for the mutants passes on the real code; the others are separate tests."""
    play(run)


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_a_mutant_is_caught(row, monkeypatch):
    """A program with this bug fails the timeline."""
    assert_caught(monkeypatch, row)


@pytest.mark.soak
def test_a_mutant_that_does_not_fit_is_no_proof(monkeypatch):
    """A mutant that crashes at each call fails every timeline, whatever that asserts."""
    monkeypatch.setattr(planner, "check", lambda service: None)  # it is called with more arguments
    with pytest.raises(BrokenMutantError, match="were given"):
        is_caught(partial(play, run))
