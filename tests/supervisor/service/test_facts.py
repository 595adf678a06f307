import datetime

import attrs
import pytest

from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.builtins import Service
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.service.facts import Facts, Problem
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import Failure, ServiceView
from supervisor.service.known import HEADER, LOADED, LOADING, WEIGHTS, desired, new_facts

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EXIT = Failure(Reason.ENGINE_EXITED, "exit code 1")
HUNG = Failure(Reason.HUNG, "the engine hangs")
SERVICE = Slot(Service, Key("ns", "chat"))


def test_an_edit_keeps_facts_under_their_generation():
    """Facts of the first generation do not apply to the second one before they are known again."""
    facts = new_facts().with_plan(()).with_view(LOADED).with_desired(desired(generation=2))
    assert (facts.problem.generation, facts.view.generation) == (1, 1)
    assert facts.with_plan(()).problem.generation == 2


def test_another_object_of_the_same_name_inherits_only_the_engine():
    """Snapshot and memory still apply; whether its spec makes a plan is unknown."""
    before = new_facts().with_desired(desired(generation=7)).with_plan(("gpu",)).with_view(LOADED)
    after = before.with_memory(Level.NORMAL, None, "fine").with_desired(desired(uid="s2"))
    assert (after.problem, after.ignored) == (None, None)
    assert [each.generation for each in (after.view, after.outdated, after.pressure)] == [1, 1, 1]
    assert after.view.value == LOADED


@pytest.mark.parametrize(
    ("newer", "known"),
    [
        (desired(model_uid="m2"), True),
        (desired(model_uid="m2", source="/other.gguf"), False),
        (desired(source="/other.gguf"), True),
    ],
)
def test_another_model_of_the_same_file_need_not_fetch_it(newer, known):
    """Its file is here if the spec is the same; after an edit of the Model, its status stays until the next update."""
    assert (new_facts().with_file(WEIGHTS, HEADER).with_desired(newer).fetch is not None) is known


def test_a_file_that_was_here_is_only_checked_again():
    """A file that is here has no progress."""
    facts = new_facts().with_file(WEIGHTS, HEADER)
    assert facts.with_fetch_progress("hashing") is facts
    edited = facts.with_desired(desired(source="/other.gguf")).with_fetch_progress("12 %")
    assert (edited.fetch.value.present, edited.fetch.value.message) == (False, "12 %")
    assert edited.unplanned.reason == Reason.FETCHING


def test_a_file_that_cannot_be_had_is_fetched_from_the_start():
    """The failure is counted, and the file is not here any more."""
    facts = new_facts().with_file(WEIGHTS, HEADER).without_file(ExternalError("gone"))
    assert (facts.fetched, facts.fetch_failures, facts.fetch_error) == (None, 1, "gone")
    assert facts.with_file(WEIGHTS, HEADER).fetch_error == ""


def test_the_endpoint_is_that_of_the_last_engine_that_was_ready():
    """An engine that loads, or has exited, changes no endpoint."""
    facts = new_facts().with_view(LOADED)
    assert (facts.endpoint_host, facts.endpoint_port) == ("192.0.2.1", 4711)
    assert facts.with_view(attrs.evolve(LOADING, port=5000)).endpoint_port == 4711


def test_the_same_snapshot_is_no_change():
    """Nothing changes, and the condition keeps the generation in which it was derived."""
    facts = new_facts().with_view(LOADED).with_desired(desired(generation=2))
    assert facts.with_view(LOADED) is facts


@pytest.mark.parametrize(
    ("failure", "failures", "delay", "reason", "words"),
    [
        (EXIT, 1, 0, Reason.RESTARTING, "restarting at once: exit code 1"),
        (EXIT, 3, 2, Reason.CRASH_LOOP, "3 failures in a row; next attempt at 2026-01-01T00:00:02Z: exit code 1"),
        (HUNG, 1, 0, Reason.HUNG, "restarting at once: the engine hangs"),
    ],
)
def test_a_failure_reports_when_the_next_attempt_starts(failure, failures, delay, reason, words):
    """The reason is the failure's own, if it has one."""
    facts = new_facts().with_failure(failure, failures, delay, NOW)
    assert facts.view.value == ServiceView(reason, words, restarts=1)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (
            Facts.with_replace_failure,
            Reason.RESTARTING,
            "the engine of the older spec keeps serving; restarting at once",
        ),
        (
            Facts.with_newest_failure,
            Reason.RESTARTING,
            "falling back to the engine of an older spec; restarting at once",
        ),
    ],
)
def test_a_failure_of_the_newest_spec_is_why_an_older_one_serves(change, reason, words):
    """It is reported besides the engine that serves."""
    outdated = change(new_facts().with_view(LOADED), EXIT, 1, 0, NOW).outdated.value
    assert outdated == Problem(reason, f"{words}: exit code 1")


def test_an_engine_of_the_newest_plan_is_up_to_date_unless_the_newest_spec_makes_none():
    """A planning failure is reported again when an engine starts to serve; one of an older plan changes nothing."""
    facts = new_facts().with_outdated("Replacing", "the engine of the newest spec is loading")
    assert facts.with_engine(LOADED, newest=True).outdated.value == Problem()
    assert facts.with_engine(LOADED, newest=False).outdated.value.reason == "Replacing"
    unplanned = facts.with_unplanned("Invalid", "no such field")
    assert unplanned.with_engine(LOADED, newest=True).outdated.value == Problem("Invalid", "no such field")


def test_a_wait_for_memory_is_one_wait_for_each_of_its_reasons():
    """It is over when the service is in another state."""
    facts = new_facts().with_view(ServiceView(Reason.INSUFFICIENT_MEMORY, "1 GiB is free"))
    facts = facts.with_view(ServiceView(Reason.INSUFFICIENT_MEMORY, "2 GiB are free"))
    assert facts.waits == {Reason.INSUFFICIENT_MEMORY}
    assert facts.with_view(LOADING).waits == set()


def test_other_figures_of_the_same_memory_level_are_no_change():
    """The level, and an eviction that it has caused, are."""
    facts = new_facts().with_memory(Level.NORMAL, None, "9 GiB are free")
    assert facts.with_memory(Level.NORMAL, None, "8 GiB are free") is facts
    evict = Eviction(facts.key, Cause.WARNING, "memory is short")
    assert facts.with_memory(Level.NORMAL, evict, "").pressure.value.reason == "Evicted"
    assert facts.with_memory(Level.UNKNOWN, None, "").pressure.value.short is None


def test_a_refused_object_is_a_problem_until_it_is_taken():
    """The host's own problem comes first; without any problem nothing is reported."""
    facts = new_facts()
    assert facts.with_host_address(facts.host_address).published is None
    refused = facts.with_refusal(SERVICE, UserError("no"))
    assert (refused.publish_problem.reason, refused.published) == ("Refused", 1)
    assert refused.with_host_address(HostAddress(None, problem="no route")).publish_problem.reason == "NoAddress"
    taken = refused.with_refusal(SERVICE, None)
    assert (taken.publish_problem.reason, taken.published) == ("", 1)
