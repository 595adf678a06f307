"""One reason, one meaning: the controller, `deploy`, `up --ask`, `status`, `list` and the gateway agree on each."""

import datetime

import pytest

from cli.cli_objects import condition, model, service
from llmkube.cli.view.describe import StatusView, last_error, remedy, summary, waits_for
from llmkube.cli.view.output import reason_of
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.service_status import assess_service, count_replicas, derive_service_status
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Meaning, Reason, is_failing
from llmkube.k8s.wire.service_health import State, service_health
from llmkube.programs.one_machine import AgentDirectory
from llmkube.supervisor.values.lifecycle import ServiceView

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOSTS = LiveHosts({"mac": frozenset({"cpu"})})
ACCEPTED = condition("Accepted", True, "Accepted")
FETCHED = condition("Fetched", True, "Fetched")

OF_ENGINES = [
    reason
    for reason in Reason
    if reason
    in {
        *(
            "Pending",
            "WaitingForModel",
            "InsufficientMemory",
            "ExceedsMemory",
            "MemoryCheckFailed",
            "Evicted",
            "Loading",
            "NotAnswering",
        ),
        *(
            "Restarting",
            "Stopping",
            "EngineExited",
            "CrashLoopBackOff",
            "LoadStalled",
            "Hung",
            "MetalError",
            "InternalError",
        ),
        *("PortTaken", "AddressMissing", "EngineNotFound", "EngineStuck", "JournalNotWritten"),
    }
]
OF_FILES = [
    reason
    for reason in list(Reason)[list(Reason).index(Reason.FETCH_FAILED) : list(Reason).index(Reason.NO_SPACE) + 1]
    if reason is not Reason.FETCHED
]


def reconciled(found, its_model):
    """Return the service as it is once the controller has judged it, with its phase and its conditions."""
    derived = derive_service_status(
        found, its_model, (), HOSTS, ControllerSettings(), holders=("mac",), now=NOW
    )  # fmt: skip
    manifest = {
        "metadata": {"name": "chat", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"modelRef": "chat"},
        "status": {"phase": derived["phase"]},
    }
    own = [
        {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
        for each in found.status.conditions
    ]
    manifest["status"]["conditions"] = [*own, *derived["conditions"]]
    return decode(InferenceService, manifest)


def readings(found, its_model):
    """Return whether the service fails, as each reader evaluates it."""
    seen = reconciled(found, its_model)
    verdict = assess_service(found, its_model, count_replicas(found, its_model, (), HOSTS), HOSTS, ("mac",))
    degraded = next(each for each in seen.status.conditions if each.type == "Degraded")
    health = service_health(seen, its_model)
    scene = StatusView(seen, its_model)
    return {
        "controller, phase": verdict.phase == "Failed",
        "controller, Degraded": degraded.status == "True",
        "deploy and up --ask": health.failing,
        "status, advice": bool(remedy(seen, its_model)),
        "status, no wait": not waits_for(scene) and bool(last_error(seen, its_model)) and health.failing,
        "list": seen.status.phase == "Failed" and bool(reason_of(seen)),
    }


@pytest.mark.parametrize("reason", OF_ENGINES)
def test_all_readers_agree_about_an_engine(reason):
    """Whatever an agent says of its engine fails for every reader or for none, as the reason's meaning has it."""
    found = service("chat", ACCEPTED, condition("Loaded", False, reason, f"why it is {reason}"))
    failing = readings(found, model("chat", FETCHED))
    assert failing == dict.fromkeys(failing, reason.meaning.is_failing)


@pytest.mark.parametrize("reason", OF_FILES)
def test_all_readers_agree_about_a_file(reason):
    """Whatever an agent says of the Model's file fails for every reader or for none."""
    waits = condition("Loaded", False, "WaitingForModel", "waiting for the file")
    failing = readings(service("chat", ACCEPTED, waits), model("chat", condition("Fetched", False, reason, "why")))
    assert failing == dict.fromkeys(failing, reason.meaning.is_failing)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.meaning is Meaning.USER])
def test_all_readers_agree_about_a_spec(reason):
    """A spec that makes no plan fails for every reader."""
    failing = readings(service("chat", condition("Accepted", False, reason, "spec.x: no")), model("chat", FETCHED))
    assert failing == dict.fromkeys(failing, True)


@pytest.mark.parametrize("reason", [*OF_ENGINES, *OF_FILES])
def test_a_reason_is_shown_the_same_by_all_readers(reason):
    """`status` and its watch name the reason or its message, and never neither."""
    found = service("chat", ACCEPTED, condition("Loaded", False, reason, f"why it is {reason}"))
    seen = reconciled(found, model("chat", FETCHED))
    assert str(reason) in summary(seen, model("chat", FETCHED))
    assert service_health(seen, model("chat", FETCHED)).state in {State.WAITING, State.FAILING}


@pytest.mark.parametrize("reason", OF_ENGINES)
def test_the_gateway_is_patient_exactly_while_waiting_helps(reason):
    """A failure that only a person can fix has no Retry-After."""
    directory = AgentDirectory(lambda: {Key("default", "chat"): ServiceView(reason, "no")}, lambda: 1)
    refusal = directory.lookup("chat")
    assert (refusal.retry_after_seconds is None) == (reason.meaning in {Meaning.USER, Meaning.HOST, Meaning.STOPPED})


def test_a_reason_of_another_program_is_unknown():
    """The kubelet's own words have no meaning here; the caller says what follows."""
    assert Reason.of("OutOfcpu") is None
    assert is_failing("OutOfcpu", unknown=True)
    assert not is_failing("OutOfcpu", unknown=False)
    assert is_failing("Hung", unknown=False)
