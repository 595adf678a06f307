import datetime

import attrs
import pytest

from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.meta import APIKeySecretRef
from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.devices import Offload
from llmkube.supervisor.cluster.status import SERVICE_CONDITIONS, Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.service.events import (
    cut_short_event,
    displacing_event,
    events,
    model_conditions,
    service_conditions,
)
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import Failure, ServiceView
from supervisor.service.known import HEADER, LOADED, LOADING, WEIGHTS, desired, new_facts

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SERVICE = Slot(Service, Key("ns", "chat"))
FACTS = new_facts()
SERVING = FACTS.with_engine(LOADED, newest=True)
EXIT = Failure(Reason.ENGINE_EXITED, "exit code 1")
SHORT = ServiceView(Reason.INSUFFICIENT_MEMORY, "1 GiB is free")
EVICT = Eviction(FACTS.key, Cause.WARNING, "memory is short")
NO_FILE = FACTS.without_file(ExternalError("gone"))
MODEL = FACTS.desired.model
CUDA = attrs.evolve(MODEL, spec=attrs.evolve(MODEL.spec, hardware=Hardware(accelerator="cuda")))
GPU = FACTS.with_desired(attrs.evolve(FACTS.desired, model=CUDA)).with_plan(())
METAL = attrs.evolve(MODEL, spec=attrs.evolve(MODEL.spec, hardware=Hardware(accelerator="metal")))
ANY_HOST = FACTS.with_desired(attrs.evolve(FACTS.desired, model=METAL)).with_plan(())


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (FACTS, FACTS, []),
        (FACTS, FACTS.with_desired(desired(generation=2)), []),
        (FACTS, FACTS.with_plan(("gpu",)), []),
        (FACTS, FACTS.without_plan(UserError("no")), ["Invalid"]),
        (FACTS, NO_FILE, ["FetchFailed"]),
        (NO_FILE, NO_FILE.without_file(ExternalError("gone")), ["FetchFailed"]),
        (NO_FILE, NO_FILE.with_file(WEIGHTS, HEADER), []),
        (FACTS, FACTS.with_host_address(HostAddress(None, problem="no route")), ["NoAddress"]),
        (FACTS, FACTS.with_refusal(SERVICE, UserError("no")), ["NotPublished"]),
        (FACTS.with_refusal(SERVICE, UserError("no")), FACTS.with_refusal(SERVICE, UserError("no")), []),
        (FACTS, FACTS.with_view(SHORT), [Reason.INSUFFICIENT_MEMORY]),
        (FACTS.with_view(SHORT), FACTS.with_view(attrs.evolve(SHORT, message="2 GiB are free")), []),
        (FACTS, FACTS.with_failure(EXIT, 1, 0, NOW), ["EngineExited"]),
        (SERVING, SERVING.with_replace_failure(EXIT, 1, 0, NOW), ["NotReplaced"]),
        (SERVING, SERVING.with_newest_failure(EXIT, 1, 0, NOW), ["EngineExited"]),
        (FACTS, SERVING, ["Loaded"]),
        (SERVING, SERVING.with_view(attrs.evolve(LOADED, message="the engine answers again")), []),
        (SERVING, SERVING.with_eviction(EVICT), ["Evicted"]),
        (SERVING, SERVING.with_eviction(attrs.evolve(EVICT, cause=Cause.DISPLACED)), ["Displaced"]),
        (
            SERVING.with_eviction(EVICT),
            SERVING.with_eviction(EVICT).with_engine(LOADED, newest=True),
            ["Loaded", "Returned"],
        ),
    ],
)
def test_changes_that_are_events(before, after, reasons):
    """Changes that users need are one Event each; their consequences are conditions."""
    assert [one.reason for one in events(before, after)] == reasons


def test_the_log_has_each_error_of_a_fetch_once():
    """The Event is repeated with each try."""
    (first,), (second,) = events(FACTS, NO_FILE), events(NO_FILE, NO_FILE.without_file(ExternalError("gone")))
    assert (first.log, second.log) == ("model not fetched", "")


def test_a_fetch_that_waits_is_one_event():
    """It names the reason; further attempts of the same wait are none, and neither is a fetch that continues."""
    moves = FACTS.with_fetch_progress("downloading: 5 B")
    waits = moves.with_fetch_progress("waiting since T: h: refused; next attempt at T", "h: refused")
    (event,) = events(moves, waits)
    assert (event.reason, event.message) == ("FetchDelayed", "file not fetched yet: h: refused; retrying")
    assert (event.type, event.log) == ("Warning", "fetch delayed")
    assert events(waits, waits.with_fetch_progress("waiting since T", "h: no route")) == ()
    assert events(waits, moves) == ()
    assert waits.without_file(ExternalError("gone")).fetch_delay == ""


def test_an_eviction_reports_what_happens_to_requests():
    """They may finish first unless memory is urgently short."""
    gentle, urgent = (
        events(SERVING, SERVING.with_eviction(attrs.evolve(EVICT, cause=cause)))[0]
        for cause in (Cause.WARNING, Cause.CRITICAL)
    )
    assert gentle.message == "memory is short; requests in flight may finish first"
    assert urgent.message == "memory is short; requests in flight are cut short"


def test_the_endpoint_is_in_the_log():
    """The endpoint is logged once, with the address that clients use."""
    (loaded,) = events(FACTS, SERVING)
    assert (loaded.message, loaded.type) == ("loaded in 3.0 s on mac", "Normal")
    assert (loaded.log, dict(loaded.fields)) == ("registered endpoint", {"hostIP": "192.0.2.1", "port": 4711})


def test_events_without_a_change():
    """Requests are interrupted; a service is evicted for another one, and a different namespace is named."""
    assert cut_short_event("late").message == "requests in flight cut short: late"
    assert displacing_event(Key("ns", "chat"), EVICT).message == "chat is evicted to make room for this service"
    assert displacing_event(Key("other", "chat"), EVICT).message.startswith("ns/chat is evicted")


def condition_of(facts, kind):
    """Return the status and the reason of one condition."""
    return next(((one.holds, str(one.reason)) for one in service_conditions(facts) if one.type == kind), None)


@pytest.mark.parametrize(
    ("facts", "kind", "statement"),
    [
        (FACTS, "Accepted", None),
        (FACTS.with_plan(()), "Accepted", (True, "Accepted")),
        (FACTS.with_plan(()), "SpecHonoured", (True, "Honoured")),
        (FACTS.with_plan(("gpu",)), "SpecHonoured", (False, "FieldsIgnored")),
        (GPU.with_view(attrs.evolve(LOADED, offload=Offload("CPU", 0, 33))), "SpecHonoured", (False, "FieldsIgnored")),
        (GPU.with_view(attrs.evolve(LOADED, offload=Offload("CUDA0", 1, 33))), "SpecHonoured", (True, "Honoured")),
        (GPU.with_view(LOADED), "SpecHonoured", (True, "Honoured")),
        (ANY_HOST.with_view(attrs.evolve(LOADED, offload=Offload("CPU", 0, 33))), "SpecHonoured", (True, "Honoured")),
        (FACTS.with_plan(()).without_plan(UserError("no")), "Accepted", (False, "Invalid")),
        (FACTS.with_plan(()).without_plan(UserError("no")), "SpecHonoured", (True, "Honoured")),
        (FACTS, "Loaded", None),
        (FACTS.with_view(LOADING), "Loaded", (False, "Loading")),
        (FACTS.with_view(LOADED), "Loaded", (True, "Loaded")),
        (FACTS, "UpToDate", None),
        (FACTS.with_view(LOADING).with_outdated("Replacing", ""), "UpToDate", (None, "NotServing")),
        (FACTS.with_view(LOADED).with_outdated("Replacing", ""), "UpToDate", (False, "Replacing")),
        (FACTS.with_view(LOADED), "UpToDate", (True, "UpToDate")),
        (FACTS, "MemoryPressure", None),
        (FACTS.with_memory(Level.CRITICAL, None, ""), "MemoryPressure", (True, "Critical")),
        (FACTS.with_memory(Level.NORMAL, None, ""), "MemoryPressure", (False, "Normal")),
        (FACTS.with_memory(Level.UNKNOWN, None, ""), "MemoryPressure", (None, "Unknown")),
        (FACTS, "Published", None),
        (FACTS.with_refusal(SERVICE, UserError("no")), "Published", (False, "Refused")),
        (FACTS.with_refusal(SERVICE, UserError("no")).with_refusal(SERVICE, None), "Published", (True, "Published")),
    ],
)
def test_the_conditions_of_a_service(facts, kind, statement):
    """Each condition follows from the facts alone; an unknown one is left out."""
    assert condition_of(facts, kind) == statement


@pytest.mark.parametrize(
    ("facts", "statement"),
    [
        (FACTS, None),
        (FACTS.with_fetch_progress("12 %"), (False, "Fetching", "12 %")),
        (FACTS.with_file(WEIGHTS, HEADER), (True, "Fetched", "the file is on mac")),
        (
            FACTS.with_file(attrs.evolve(WEIGHTS, choice="Q4_K_M, one of 4 in o/r"), HEADER),
            (True, "Fetched", "the file is on mac: Q4_K_M, one of 4 in o/r"),
        ),
        (FACTS.without_file(ExternalError("gone")), (False, "FetchFailed", "gone")),
    ],
)
def test_the_conditions_of_a_model(facts, statement):
    """Its file is here, on its way, or not available."""
    found = [(one.holds, one.reason, one.message) for one in model_conditions(facts)]
    assert found == ([statement] if statement else [])


def test_a_condition_has_the_generation_that_it_was_derived_from():
    """After an edit, conditions from before keep the generation of the older spec."""
    facts = FACTS.with_plan(()).with_view(LOADED).with_desired(desired(generation=2)).with_plan(())
    generations = {one.type: one.generation for one in service_conditions(facts)}
    assert generations == {"Accepted": 2, "SpecHonoured": 2, "Loaded": 1, "UpToDate": 1}
    newest = facts.with_newest_plan()
    assert {one.type: one.generation for one in service_conditions(newest)}["UpToDate"] == 2


def test_every_condition_that_agents_state_can_be_stated():
    """Every condition in the contract follows from some fact."""
    facts = FACTS.with_plan(()).with_view(ServiceView(Reason.PENDING)).with_memory(Level.NORMAL, None, "")
    refused = facts.with_refusal(SERVICE, UserError("no"))
    assert tuple(one.type for one in service_conditions(refused)) == SERVICE_CONDITIONS


def test_a_service_that_pods_cannot_use_without_a_key_reports_it():
    """If no network is admitted, unless the service has keys; reported while it lasts."""
    host_address = attrs.evolve(FACTS.host_address, closed="no list of nodes")
    closed = FACTS.with_host_address(host_address)
    message = "given; requests without a key are refused (401): no list of nodes"
    assert {one.message for one in service_conditions(closed) if one.type == "Published"} == {message}
    opened = closed.with_host_address(FACTS.host_address)
    assert {one.message for one in service_conditions(opened) if one.type == "Published"} == {"given"}
    spec = attrs.evolve(FACTS.desired.service.spec, api_key_secret_ref=APIKeySecretRef(name="keys"))
    keyed = FACTS.with_desired(attrs.evolve(FACTS.desired, service=attrs.evolve(FACTS.desired.service, spec=spec)))
    assert keyed.with_host_address(host_address).published is None
