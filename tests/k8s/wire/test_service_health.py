import attrs
import pytest

from cli.cli_objects import condition, model, service
from llmkube.k8s.wire.service_health import State, model_health, pods_of, service_health, unready_condition

ACCEPTED = condition("Accepted", True, "Accepted")
LOADED = condition("Loaded", True, "Loaded")
FETCHED = condition("Fetched", True, "Fetched")
NEWEST = condition("UpToDate", True, "UpToDate")
HERE = model("chat", FETCHED)
REPLACING = condition("UpToDate", False, "Replacing", "loading")
NOT_REPLACED = condition("UpToDate", False, "CrashLoopBackOff", "serves on: exit code 1\nerror: no memory")

READY, STOPPED, WAITING, FAILING = State.READY, State.STOPPED, State.WAITING, State.FAILING


def loaded(reason, message=""):
    return condition("Loaded", False, reason, message)


def fetched(reason, message=""):
    return model("chat", condition("Fetched", False, reason, message))


@pytest.mark.parametrize(
    ("found", "its_model", "state", "done", "reason"),
    [
        (service(), None, FAILING, 0, "ModelNotFound"),
        (service(), model(), WAITING, 0, "Pending"),
        (service("chat", condition("Accepted", False, "Invalid", "spec.x")), model(), FAILING, 0, "Invalid"),
        (service(), fetched("FileNotFound"), FAILING, 0, "FileNotFound"),
        (service(), fetched("FetchFailed"), WAITING, 0, "FetchFailed"),
        (service(), fetched("Fetching"), WAITING, 0, "Fetching"),
        (service("chat", condition("Available", False, "NoHost")), model(), FAILING, 0, "NoHost"),
        (service(), HERE, WAITING, 1, "Pending"),
        (service("chat", ACCEPTED, loaded("Loading")), HERE, WAITING, 1, "Loading"),
        (service("chat", ACCEPTED, loaded("Restarting")), HERE, WAITING, 1, "Restarting"),
        (service("chat", ACCEPTED, loaded("CrashLoopBackOff")), HERE, FAILING, 1, "CrashLoopBackOff"),
        (service("chat", loaded("CrashLoopBackOff")), fetched("Fetching"), WAITING, 0, "Fetching"),
        (service("chat", LOADED, phase="Ready"), HERE, WAITING, 1, "Pending"),
        (service("chat", ACCEPTED, LOADED, phase="Creating"), HERE, WAITING, 2, "Pending"),
        (
            service("chat", ACCEPTED, LOADED, condition("Progressing", True, "NoHost", "1 of 2"), phase="Progressing"),
            HERE,
            WAITING,
            2,
            "NoHost",
        ),
        (service("chat", ACCEPTED, LOADED, phase="Ready"), HERE, READY, 3, "Loaded"),
        (service("chat", ACCEPTED, LOADED, NEWEST, phase="Ready"), HERE, READY, 3, "Loaded"),
        (service("chat", ACCEPTED, loaded("Idle"), NEWEST, phase="Idle"), HERE, READY, 3, "Idle"),
        (service("chat", ACCEPTED, loaded("Idle"), NEWEST, phase="Creating"), HERE, WAITING, 2, "Pending"),
        (service("chat", ACCEPTED, loaded("Idle"), NEWEST, phase="Idle"), fetched("Fetching"), WAITING, 0, "Fetching"),
        (service("chat", ACCEPTED, LOADED, REPLACING, phase="Ready"), HERE, WAITING, 1, "Replacing"),
        (service("chat", ACCEPTED, LOADED, NOT_REPLACED, phase="Ready"), HERE, FAILING, 1, "CrashLoopBackOff"),
        (
            service("chat", ACCEPTED, LOADED, condition("Published", False, "NoAddress", "no address")),
            HERE,
            FAILING,
            1,
            "NoAddress",
        ),
    ],
)
def test_a_service_on_a_host_is_judged_by_its_agent(found, its_model, state, done, reason):
    """Each state of the conditions is so many steps done, and a failure exactly when waiting is no plan."""
    health = service_health(found, its_model)
    assert (health.state, health.done, health.reason) == (state, done, reason)


def in_pods(phase, *conditions, ready=0, model_ready=True):
    return service("chat", ACCEPTED, *conditions, phase=phase, readyReplicas=ready, modelReady=model_ready,
                   selector="app=chat")  # fmt: skip


def not_available(reason, message, *, degraded=False, progressing=False, word=""):
    return (
        condition("Available", False, word or reason, message),
        condition("Progressing", progressing, reason, message),
        condition("Degraded", degraded, reason, message),
    )


@pytest.mark.parametrize(
    ("found", "state", "done", "reason"),
    [
        (in_pods("Ready", condition("Available", True, "InferenceReady"), ready=1), READY, 3, "InferenceReady"),
        (
            in_pods("Failed", *not_available("ImagePullBackOff", "no such image", degraded=True)),
            FAILING,
            1,
            "ImagePullBackOff",
        ),
        (
            in_pods("WaitingForGPU", *not_available("WaitingForGPU", "waits for nvidia.com/gpu: 1", progressing=True)),
            WAITING,
            1,
            "WaitingForGPU",
        ),
        (
            in_pods("Creating", *not_available("Unschedulable", "0/3 nodes", progressing=True, word="NoReadyReplicas")),
            WAITING,
            1,
            "Unschedulable",
        ),
        (
            in_pods("Failed", *not_available("OutOfcpu", "the node says no", degraded=True), model_ready=False),
            FAILING,
            0,
            "OutOfcpu",
        ),
        (
            in_pods(
                "Progressing",
                condition("Available", True, "InferenceReady"),
                condition("Progressing", True, "Creating", "1 of 2 replicas ready"),
                ready=1,
            ),
            WAITING,
            2,
            "InferenceReady",
        ),
    ],
)
def test_a_service_in_pods_is_judged_by_the_controller(found, state, done, reason):
    """Only agents write `Loaded` and `Fetched`; without them the controller's conditions say how a service does."""
    health = service_health(found, model())
    assert (health.state, health.done, health.reason) == (state, done, reason)


@pytest.mark.parametrize(("phase", "state"), [("Stopped", STOPPED), ("Suspended", STOPPED), ("Progressing", WAITING)])
def test_what_is_not_wanted_is_stopped_once_nothing_runs(phase, state):
    """With `spec.replicas` 0 the service has arrived when it is Stopped, whatever its engine did before."""
    found = service("chat", loaded("CrashLoopBackOff"), phase=phase)
    found = attrs.evolve(found, spec=attrs.evolve(found.spec, replicas=0))
    assert service_health(found, model()).state is state


def edited(found, generation=2):
    """The object after an edit, with the conditions that it had."""
    return attrs.evolve(found, metadata=attrs.evolve(found.metadata, generation=generation))


def seen_by_one(observed):
    """The condition, said of the first generation."""
    return observed | {"observedGeneration": 1}


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "EngineExited", "Restarting", "InsufficientMemory"])
def test_messages_about_an_older_spec_are_not_those_of_the_newest(reason):
    """After an edit of the service or of its Model, nothing is said in the words of the engine before."""
    old = service("chat", seen_by_one(ACCEPTED), seen_by_one(loaded(reason, "exit code 1: no memory")))
    its_model = model("chat", seen_by_one(FETCHED))
    assert service_health(old, its_model).message == "exit code 1: no memory"
    for pair in ((edited(old), its_model), (old, edited(its_model))):
        health = service_health(*pair)
        assert (health.state, health.reason) == (WAITING, "Pending")
        assert health.message == "waiting for the agent to process it"


def test_a_replacement_is_judged_once_the_agent_has_seen_the_edit():
    """After a second edit, `UpToDate` about the first says nothing of what is asked for now."""
    accepted = ACCEPTED | {"observedGeneration": 2}
    for observed in (NEWEST, NOT_REPLACED):
        serves = edited(service("chat", accepted, LOADED, seen_by_one(observed), phase="Ready"))
        health = service_health(serves, HERE)
        assert (health.state, health.done, health.reason) == (WAITING, 1, "Pending")
        assert health.message == "waiting for the agent to process it"


def test_a_wait_that_an_edit_does_not_affect_keeps_its_message():
    """The agent has accepted the edit and says nothing new of the wait for memory: that is what it still waits for."""
    accepted = ACCEPTED | {"observedGeneration": 2}
    waits = edited(service("chat", accepted, seen_by_one(loaded("InsufficientMemory", "needs 2 GiB"))))
    assert service_health(waits, HERE).message == "needs 2 GiB"
    fails = edited(service("chat", accepted, seen_by_one(loaded("CrashLoopBackOff", "exit code 1"))))
    assert service_health(fails, HERE).message == "waiting for the agent to process it"


def test_a_failure_about_an_older_spec_is_not_held_against_the_newest():
    """An edit ends a refusal and a crash loop until the agent has judged the new spec."""
    refused = condition("Accepted", False, "Invalid", "no") | {"observedGeneration": 1}
    crashed = loaded("CrashLoopBackOff", "3 failures") | {"observedGeneration": 1}
    found = service("chat", refused, crashed)
    assert service_health(found, HERE).reason == "Invalid"
    edited = attrs.evolve(found, metadata=attrs.evolve(found.metadata, generation=2))
    assert service_health(edited, HERE).state is WAITING


def test_a_refused_spec_beats_a_running_engine():
    """A spec that is refused is a failure although the last good one still runs: the question is about the new one."""
    refused = condition("Accepted", False, "Invalid", "no")
    health = service_health(service("chat", LOADED, refused, phase="Ready"), HERE)
    assert (health.failing, health.faulty_kind) == (True, "InferenceService")


def test_a_failure_names_its_start_and_cause():
    """The time is that of the condition; the kind at fault is the one whose spec is wrong."""
    health = service_health(service(), fetched("DigestMismatch", "it has abc\nmore"))
    assert (health.since, health.faulty_kind, health.headline) == ("x", "Model", "it has abc")
    assert not service_health(service("chat", ACCEPTED, loaded("Hung")), HERE).faulty_kind


def test_a_host_that_released_a_service_no_longer_reports_on_it():
    """After `Released` the controller's word counts again."""
    claimed = condition("Available", False, "NotClaimed", "no machine serves it yet")
    assert service_health(service("chat", loaded("Released"), claimed), model()).reason == "NotClaimed"


@pytest.mark.parametrize(
    ("found", "state", "done"),
    [
        (model(), WAITING, 0),
        (model("m", FETCHED), READY, 1),
        (fetched("Fetching"), WAITING, 0),
        (fetched("NoSpace"), FAILING, 0),
        (fetched("SomethingNew"), FAILING, 0),
        (model("m", condition("Available", True, "ModelReady")), READY, 1),
        (model("m", condition("Available", False, "DownloadStarted")), WAITING, 0),
        (
            model("m", condition("Available", False, "PVCNotFound"), condition("Degraded", True, "PVCNotFound")),
            FAILING,
            0,
        ),
    ],
)
def test_a_model_is_judged_by_who_brings_its_file(found, state, done):
    """A host's word counts where there is one, else the controller's."""
    health = model_health(found)
    assert (health.state, health.done) == (state, done)


def test_the_most_specific_condition_explains_why_a_service_is_not_ready():
    """`NoReadyReplicas` only says that nothing answers; `Progressing` says why."""
    plain = not_available("Unschedulable", "0/3 nodes", progressing=True, word="NoReadyReplicas")
    assert unready_condition(service("chat", *plain)).reason == "Unschedulable"
    assert unready_condition(service("chat", condition("Available", False, "NoHost"))).reason == "NoHost"
    assert unready_condition(service("chat", condition("Available", True, "InferenceReady"))) is None
    assert unready_condition(service()) is None


def test_pods_are_known_by_their_selector():
    """A service in pods has a selector; one that an agent reports about has none, whatever its status says."""
    assert pods_of(service(selector="app=chat")) == "app=chat"
    assert not pods_of(service("chat", LOADED, selector="app=chat"))
    assert not pods_of(service())
