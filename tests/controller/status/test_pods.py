"""Problems of pods are reported in the words of their source, the one that needs a person first."""

import pytest

from controller.podobjects import fetch_pod, pod, unscheduled, waiting
from llmkube.controller.status.pods import shortage_message, terminated_state, trouble_of

OOM = {"exitCode": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("seen", "reason", "words", "transient"),
    [
        (waiting("ImagePullBackOff", "Back-off pulling image x"), "ImagePullBackOff", "Back-off pulling", False),
        (waiting("ErrImagePull", "manifest unknown"), "ErrImagePull", "manifest unknown", False),
        (waiting("CreateContainerConfigError", 'secret "t" not found'), "CreateContainerConfigError", "secret", False),
        (
            waiting("CrashLoopBackOff", last={"exitCode": 1, "message": "loading\nunknown model architecture: 'x'"}),
            "CrashLoopBackOff",
            "container llama-server exited with code 1: unknown model architecture: 'x'; started 4 times",
            False,
        ),
        (waiting("CrashLoopBackOff", last=OOM), "OOMKilled", "more memory", False),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff", "keeps exiting", False),
        (unscheduled("0/3 nodes are available"), "Unschedulable", "0/3 nodes", True),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted", "low on memory", True),
        (fetch_pod(1, "gone"), "ContainerFailed", "exited with code 1: gone", True),
    ],
)
def test_each_problem_has_its_reason(seen, reason, words, transient):
    """The reason is Kubernetes' own, and the message is that of its source."""
    trouble = trouble_of([seen])
    assert trouble is not None
    assert (trouble.reason, trouble.transient) == (reason, transient)
    assert words in trouble.message


@pytest.mark.parametrize(
    "seen", [waiting("ContainerCreating"), pod(phase="Running"), unscheduled(deleted=True), fetch_pod(0)]
)
def test_a_pod_in_progress_is_no_problem(seen):
    """Creating a container, running, ending well and being deleted are not problems."""
    assert trouble_of([seen]) is None


RAN = {"running": {"startedAt": "2025-06-01T12:00:00Z"}}
CRASHED = {"exitCode": 1, "message": "no such file", "startedAt": "2025-06-01T11:50:00Z"}
BRIEF, LONG = CRASHED | {"finishedAt": "2025-06-01T11:50:03Z"}, CRASHED | {"finishedAt": "2025-06-01T12:00:00Z"}


@pytest.mark.parametrize("state", [RAN, {"waiting": {"reason": "ContainerCreating"}}, {"terminated": BRIEF}])
@pytest.mark.parametrize(
    ("restarts", "ready", "last", "loops"),
    [
        (2, False, BRIEF, True),
        (7, False, CRASHED, True),
        (1, False, BRIEF, False),
        (2, True, BRIEF, False),
        (2, False, LONG, False),
        (2, False, {"exitCode": 0, "finishedAt": "2025-06-01T11:50:03Z"}, False),
    ],
)
def test_a_crash_loop_lasts_until_the_container_is_ready(state, restarts, ready, last, loops):
    """A restarted container has not recovered; a first crash, and one after a long run, may be transient."""
    if "terminated" in state:
        state, ready = {"terminated": last}, False
        loops = loops or (restarts == 2 and last is BRIEF)
    engine = {"name": "llama-server", "restartCount": restarts, "ready": ready, "state": state}
    trouble = trouble_of([pod(phase="Running", containerStatuses=[{**engine, "lastState": {"terminated": last}}])])
    assert (trouble is not None and not trouble.transient and trouble.reason == "CrashLoopBackOff") is loops


def test_problems_that_need_a_person_come_first():
    """An image that cannot be pulled precedes a crash, a crash a missing node."""
    image, crash = waiting("ImagePullBackOff", "no"), waiting("CrashLoopBackOff")
    assert trouble_of([unscheduled(), crash, image]).reason == "ImagePullBackOff"
    assert trouble_of([unscheduled(), crash]).reason == "CrashLoopBackOff"


def test_an_evicted_pod_is_reported_only_while_there_is_no_other():
    """Evicted pods stay until they are deleted: the problem of their successor matters."""
    evicted = pod(phase="Failed", reason="Evicted", message="A: low on ephemeral-storage")
    assert trouble_of([evicted, unscheduled("Z: untolerated taint")]).reason == "Unschedulable"
    assert trouble_of([evicted, pod(name="chat-2", phase="Running")]) is None
    assert trouble_of([evicted, pod(name="chat-2", deleted=True)]).reason == "Evicted"


def test_messages_hold_no_secrets_and_stay_short():
    """A token in an engine's last lines is redacted, and a long line is cut."""
    last = {"exitCode": 1, "message": "Authorization: Bearer abcdefghijklmnop " + "x" * 5000}
    trouble = trouble_of([waiting("CrashLoopBackOff", last=last)])
    assert "abcdefghijklmnop" not in trouble.message
    assert len(trouble.message) <= 1024


def test_a_missing_gpu_is_distinguished_from_missing_memory():
    """Only the resource that the service requests is reported, even if a node lacks others."""
    assert shortage_message([unscheduled()], "nvidia.com/gpu").startswith("0/3")
    assert shortage_message([unscheduled("3 Insufficient memory")], "nvidia.com/gpu") == ""
    assert shortage_message([unscheduled()], "amd.com/gpu") == ""
    assert shortage_message([unscheduled()], "") == ""


def test_the_end_of_a_container_is_found_by_its_name():
    """A container that runs, or is missing, has not ended."""
    assert terminated_state(fetch_pod(2), "fetch").exit_code == 2
    assert terminated_state(fetch_pod(None), "fetch") is None
    assert terminated_state(fetch_pod(2), "other") is None
