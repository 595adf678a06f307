"""Deliberate bugs about a shared Ollama or oMLX: the monitor or a timeline catches each of them."""

import math
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from llmkube.base.backoff import Backoff
from llmkube.programs.daemon_engine import decisions, omlx_model
from llmkube.programs.daemon_engine.decisions import Act, DaemonSample, Step
from llmkube.programs.daemon_engine.keeper import UNLOAD_LIMIT_SECONDS, Keeper
from llmkube.programs.daemon_engine.ollama_program import OllamaModel
from llmkube.programs.daemon_engine.omlx_model import OmlxModel
from llmkube.supervisor.engine import health
from llmkube.supervisor.service import attempt
from llmkube.supervisor.service.engine_status import EngineStatus
from llmkube.supervisor.values import need
from pressure import test_shared_daemons as pressed
from sim import score
from sim import test_daemon_sharing as sharing
from sim import test_shared_daemon as shared
from sim.daemons import RUNTIMES
from sim.mutation import assert_caught, assert_recorded, rows, steps

ON = {"ollama": (1.0, "create", 4), "omlx": (1.0, "create", 0)}
"""These seeds create a service of the runtime, which `test_the_service_is_on_it` checks."""


def on(*happenings):
    """Return a timeline of a service on the runtime that it is called with."""
    return lambda runtime: steps(ON[runtime], *happenings)


def blind_to_what_is_not_listed(original):
    """Check only the processes of listed models."""

    def decide(state, sample, now):
        return original(state, sample if sample.listed else attrs.evolve(sample, holders=(), orphans=()), now)

    return decide


async def never_asks(*_):
    await trio.sleep_forever()


def as_if_ours(original):
    """Stop a borrowed daemon like our own."""
    return lambda sample, *rest: original(attrs.evolve(sample, owned=True), *rest)


async def found_by_name(self, entries):
    """Take any model of this name for ours."""
    await trio.lowlevel.checkpoint()
    return next((each for each in entries if each.id == (self.name or "one")), None)


async def unloads_what_it_knows(self):
    """Unload only models that were found before the stop."""
    if self.name:
        await self.api.unload(self.name)


async def unloads_nothing(context, launch):
    """Leave the model of a killed engine to the daemon's owner."""
    await trio.sleep_forever()


async def waits_for_no_other(self):
    """Unload the model when a front exits, even if others use it."""
    with trio.move_on_after(UNLOAD_LIMIT_SECONDS, shield=True):
        return await self._unload()


async def clears_nothing(self):
    """Do not record that the model was unloaded in order."""
    with trio.move_on_after(UNLOAD_LIMIT_SECONDS, shield=True):
        return not await self.lock.exclusive() or await self._unload()


async def does_not_ask_who_uses_it(self):
    """Take every loaded copy of the model for one that a killed engine has left."""
    return await self._unload()


@asynccontextmanager
async def unloads_first(context, launch, refused):
    """Also what would fit beside it is unloaded."""
    await attempt.unload_leftover(context, launch)
    yield


async def unloads_all(self):
    """Unload all models."""
    api = self.api
    names = await api.loaded() if hasattr(api, "loaded") else [each.id for each in await api.models() if each.loaded]
    for name in names:
        await api.unload(name.removesuffix(":latest"))


async def loads_unasked(self):
    """Take any model with this name for the right one."""
    await self.api.load(self.name)


def only_once(original, known):
    """Look up a model once, whatever happens to the daemon."""

    async def prepare(self):
        if not known(self):
            await original(self)
        await trio.lowlevel.checkpoint()

    return prepare


def never_scans_again(original):
    """Use the first scan of processes forever."""

    async def holders(self, names):
        if self._last_scan is not None and self._last_scan.server is not None:
            return self._last_scan.holders, self._last_scan.server
        return await original(self, names)

    return holders


def gives_up_what_was_taken(state, now):
    """Do not load a model again that another client has unloaded."""
    return attrs.evolve(state, ready=False, unconfirmed=False, not_before=math.inf)


def done_when_asked(original):
    """Take an unload for complete when it was requested."""

    def unload(sample, since, requested_at, now):
        return Step(Act.DONE) if requested_at is not None else original(sample, since, requested_at, now)

    return unload


def silent_at_first(original):
    asked = set()

    async def build(self):
        if self.url in asked:
            return await original(self)
        asked.add(self.url)
        await trio.lowlevel.checkpoint()
        return ""

    return build


def blind_to_builds(original):
    return lambda self, health, build="": original(self, health)


MUTANTS = {
    (steps(ON["ollama"], (100.0, "daemons-process-killed")), "false ready"): {
        "what Ollama lists is believed without a process": (DaemonSample, "loaded", property(lambda self: self.listed))
    },
    (on((100.0, "daemon-restarts", 11)), "false ready"): {
        "a model that {runtime} has lost stays published": (attempt, "watch_model", never_asks)
    },
    (on((100.0, "daemon-keeps-what-it-unloads", 2), (101.0, "daemon-is-used-by-others")), "double"): {
        "a model is loaded next to the old copy in {runtime}": (
            decisions,
            "decide",
            blind_to_what_is_not_listed(decisions.decide),
        )
    },
    (on((100.0, "delete")), "orphans"): {
        "an engine ends without unloading its model from {runtime}": (
            decisions,
            "unload",
            lambda sample, since, requested_at, now: Step(Act.DONE),
        )
    },
    (on((100.0, "daemon-keeps-what-it-unloads", 2), (101.0, "delete")), "needless"): {
        "the owner's {runtime} is ended like one of ours": (decisions, "unload", as_if_ours(decisions.unload))
    },
    (steps(ON["omlx"], (100.0, "daemon-keeps-what-it-unloads", 2), (101.0, "delete")), "orphans"): {
        "what oMLX does not list is not there": (omlx_model, "is_still_held", lambda history, shot: False)
    },
    (steps(ON["omlx"], (100.0, "daemon-has-another-model", 3)), "false ready"): {
        "another model under the name of ours is taken for it": (OmlxModel, "find_model", found_by_name)
    },
}
"""Timelines with a column of the scorecard, and the bugs that the monitor records there."""

CAUGHT = {
    shared.test_the_status_follows_an_upgrade: {
        "{runtime}'s build of the start is reported forever": (
            EngineStatus,
            "set_model",
            blind_to_builds(EngineStatus.set_model),
        )
    },
    partial(shared.test_the_status_follows_an_upgrade, runtime="ollama"): {
        "an engine begins to serve in the build that was started": (
            health.Engine,
            "build",
            silent_at_first(health.Engine.build),
        )
    },
    shared.test_a_daemon_at_another_port_is_reported_and_replaced: {
        "{runtime} is waited for at its old port forever": (decisions, "LOST_SECONDS", math.inf)
    },
    shared.test_a_changed_key_is_reported_and_one_of_our_own_serves: {
        "a daemon that refuses the key is waited for forever": (decisions, "LATE_SECONDS", math.inf)
    },
    partial(shared.test_a_daemon_that_upgrades_itself_costs_no_engine, runtime="ollama"): {
        "the state of an Ollama before its upgrade is believed to be there": (
            OllamaModel,
            "prepare",
            only_once(OllamaModel.prepare, lambda self: self.blob),
        )
    },
    partial(shared.test_a_daemon_that_upgrades_itself_costs_no_engine, runtime="omlx"): {
        "a model keeps its name through an upgrade of oMLX": (
            OmlxModel,
            "prepare",
            only_once(OmlxModel.prepare, lambda self: self.name),
        )
    },
    shared.test_a_model_that_an_omlx_has_lost_is_served_by_one_of_our_own: {
        "the default model of an oMLX that has lost ours is loaded in its place": (OmlxModel, "load", loads_unasked)
    },
    shared.test_a_model_that_another_client_unloads_is_loaded_again: {
        "a model that another client has unloaded from {runtime} stays away": (
            decisions,
            "after_loss",
            gives_up_what_was_taken,
        )
    },
    shared.test_a_stop_before_the_first_check_unloads_the_model_of_a_killed_front: {
        "a stop before the first look leaves what an earlier front has loaded": (
            OmlxModel,
            "unload",
            unloads_what_it_knows,
        )
    },
    sharing.test_the_model_of_a_killed_engine_does_not_delay_the_next_one: {
        "what a killed engine has left in {runtime} is not unloaded": (attempt, "unload_leftover", unloads_nothing)
    },
    sharing.test_a_model_left_while_no_agent_ran_does_not_delay_the_next_engine: {
        "what was left in {runtime} while no agent ran is not unloaded": (attempt, "unload_leftover", unloads_nothing)
    },
    sharing.test_an_unload_that_is_not_answered_is_repeated: {
        "what a killed engine has left is unloaded once or never": (attempt, "RETRY", Backoff(1e9, 1e9))
    },
    sharing.test_a_model_that_its_owner_has_loaded_stays_while_a_service_waits: {
        "what its owner has loaded since is taken for what a killed engine has left": (Keeper, "unload", clears_nothing)
    },
    sharing.test_the_model_of_a_killed_engine_stays_while_another_service_uses_it: {
        "what a killed engine has left is unloaded below another service": (
            Keeper,
            "unload_leftover",
            does_not_ask_who_uses_it,
        )
    },
    sharing.test_a_model_that_fits_is_taken_over: {
        "a model that would fit next to the old copy in {runtime} is loaded again": (
            attempt,
            "unloading_leftover",
            unloads_first,
        )
    },
    sharing.test_two_services_on_one_folder_do_not_disturb_each_other: {
        "the first of two services on one folder that ends unloads it": (Keeper, "unload", waits_for_no_other)
    },
    sharing.test_an_engine_that_replaces_another_one_keeps_their_model: {
        "an engine on {runtime} that was replaced unloads the model of the new one": (
            Keeper,
            "unload",
            waits_for_no_other,
        )
    },
    pressed.test_an_eviction_gives_the_memory_back: {
        "under pressure, what {runtime} holds of a service is not its own": (
            need,
            "holds_elsewhere",
            lambda runtime: False,
        )
    },
    pressed.test_a_reported_unload_that_frees_nothing_takes_the_next_victim: {
        "under pressure, an unload that {runtime} reports is believed": (
            decisions,
            "unload",
            done_when_asked(decisions.unload),
        )
    },
    partial(pressed.test_a_daemon_that_restarts_in_the_middle_of_an_eviction_loads_nothing_again, runtime="ollama"): {
        "under pressure, the processes of an Ollama that has restarted are not looked at again": (
            OllamaModel,
            "find_holders",
            never_scans_again(OllamaModel.find_holders),
        )
    },
    pressed.test_a_new_model_of_others_is_not_taken_for_ours: {
        "memory that comes for a model of others as ours goes is taken for ours": (
            omlx_model,
            "growth_of_others",
            lambda earlier, later: 0,
        )
    },
    **{
        partial(pressed.test_an_eviction_gives_the_memory_back, runtime=runtime): {
            f"under pressure, models of other clients of {runtime} go with ours": (model, "unload", unloads_all)
        }
        for runtime, model in (("ollama", OllamaModel), ("omlx", OmlxModel))
    },
}
"""Timelines, and the bugs that fail them."""


def by_runtime(table, bind):
    """Yield the rows of a table; one with `{runtime}` in its name once for each, its timeline bound to that."""
    for row in rows(table):
        *bug, timeline = row.values[0]
        for runtime in RUNTIMES if "{runtime}" in row.id else ():
            yield pytest.param((*bug, bind(timeline, runtime=runtime)), id=row.id.format(runtime=runtime))
        if "{runtime}" not in row.id:
            yield row


@pytest.mark.ci
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_service_is_on_it(runtime):
    """Otherwise none of these timelines would have a daemon."""
    result = score.play(steps(ON[runtime], (100.0, "daemon-restarts", 11)), quiet_minutes=3)
    assert result.faults["daemon-restarts"] == 1
    assert not result.violations


@pytest.mark.soak
@pytest.mark.parametrize("row", tuple(by_runtime(MUTANTS, lambda shown, runtime: (shown[0](runtime), shown[1]))))
def test_a_mutant_is_booked(row, monkeypatch):
    """The monitor records this bug, and the same timeline is clean without it."""
    assert_recorded(monkeypatch, row)


@pytest.mark.soak
@pytest.mark.parametrize("row", tuple(by_runtime(CAUGHT, partial)))
def test_a_mutant_is_caught(row, monkeypatch):
    """With this bug its timeline fails; without it, the timeline is a separate test."""
    assert_caught(monkeypatch, row)
