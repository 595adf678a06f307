"""The phase of a service in pods, as a table from the top row to the last."""

import attrs
import pytest

from controller.objects import NOW
from controller.podcluster import open_pods
from controller.podobjects import deployment_of, gpu_plan, plan, pod_service, unscheduled, waiting
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.pod_service_status import ServiceFacts, assess_pods, derive_pod_status
from llmkube.k8s.crd.definitions import crd_manifest
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.label_selectors import parse_selector
from llmkube.k8s.wire.conditions import Verdict
from llmkube.k8s.workloads import Deployment

FETCHED = Verdict("Ready", "ModelReady", "4 GiB")
FETCHING = Verdict("Downloading", "DownloadStarted", "12 %")
LOST = Verdict("Failed", "SourceNotFound", "no such file")
SERVING = ServiceFacts(model=FETCHED, plan=plan(), deployment=deployment_of(1, ready=1))
STARTING = ServiceFacts(model=FETCHED, plan=plan(), deployment=deployment_of(1))
STUCK = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]
MOVING = [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "is progressing"}]
REFUSED = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]

VIOLATIONS = 'runAsNonRoot != true (pod or container "vllm" must set securityContext.runAsNonRoot=true)'
FORBIDDEN = f'pods "chat-1" is forbidden: violates PodSecurity "restricted:latest": {VIOLATIONS}'
CLOSED = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": FORBIDDEN}]


def derived(service, facts, settings=ControllerSettings(), **more):  # noqa: B008 (a frozen value)
    return derive_pod_status(service, facts, settings, verdict=assess_pods(service, facts), now=NOW, **more)


def scene(base=STARTING, **facts):
    return attrs.evolve(base, **facts)


@pytest.mark.parametrize(
    ("spec", "given", "where"),
    [
        ({"suspend": True}, SERVING, "Suspended/Suspended"),
        ({}, ServiceFacts(), "Pending/ModelNotFound"),
        ({}, scene(SERVING, model=None, plan=None), "Progressing/ModelNotFound"),
        ({}, scene(refusal="spec.runtime: no"), "Failed/Invalid"),
        ({}, scene(SERVING, refusal="spec.runtime: no"), "Ready/InferenceReady"),
        ({}, scene(refusal="not allowed", refusal_reason="NotAllowed"), "Failed/NotAllowed"),
        ({}, scene(SERVING, refusal="not allowed", refusal_reason="NotAllowed"), "Ready/InferenceReady"),
        ({}, scene(obstacle="taken"), "Failed/NameTaken"),
        ({"replicas": 0}, scene(deployment=deployment_of(0)), "Stopped/ManuallyScaledToZero"),
        ({"replicas": 0}, SERVING, "Progressing/Creating"),
        ({}, SERVING, "Ready/InferenceReady"),
        ({}, scene(SERVING, deployment=deployment_of(1, ready=1, observed=0)), "Progressing/Creating"),
        ({}, scene(SERVING, deployment=deployment_of(1, ready=1, updated=0)), "Progressing/Creating"),
        ({}, scene(SERVING, model=FETCHING), "Progressing/DownloadStarted"),
        ({}, scene(SERVING, model=LOST), "Progressing/SourceNotFound"),
        ({}, ServiceFacts(model=FETCHING, plan=plan()), "Pending/DownloadStarted"),
        ({}, ServiceFacts(model=LOST, plan=plan()), "Failed/SourceNotFound"),
        ({}, scene(plan=gpu_plan(), pods=(unscheduled(),)), "WaitingForGPU/WaitingForGPU"),
        ({}, scene(pods=(unscheduled(),)), "Creating/Unschedulable"),
        ({}, scene(pods=(waiting("CrashLoopBackOff"),)), "Failed/CrashLoopBackOff"),
        (
            {"replicas": 2},
            scene(deployment=deployment_of(2, ready=1), pods=(waiting("ErrImagePull"),)),
            "Progressing/ErrImagePull",
        ),
        ({}, scene(deployment=deployment_of(0, conditions=REFUSED)), "Failed/ReplicaFailure"),
        ({}, scene(deployment=deployment_of(0, conditions=[*STUCK, *REFUSED])), "Failed/ReplicaFailure"),
        ({}, scene(deployment=deployment_of(0, conditions=[*STUCK, *CLOSED])), "Failed/PodSecurity"),
        (
            {},
            scene(SERVING, deployment=deployment_of(1, ready=1, updated=0, conditions=CLOSED)),
            "Progressing/PodSecurity",
        ),
        ({}, scene(deployment=deployment_of(1, conditions=STUCK)), "Failed/ProgressDeadlineExceeded"),
        ({}, scene(deployment=deployment_of(1, conditions=STUCK, observed=0)), "Creating/Creating"),
        ({}, scene(deployment=deployment_of(1, conditions=MOVING)), "Creating/Creating"),
        ({}, scene(deployment=deployment_of(1, conditions=STUCK), pods=(unscheduled(),)), "Creating/Unschedulable"),
        (
            {"replicas": 2},
            scene(deployment=deployment_of(2, ready=1, conditions=STUCK)),
            "Progressing/ProgressDeadlineExceeded",
        ),
        ({"replicas": 2}, scene(deployment=deployment_of(2, ready=1)), "Progressing/Creating"),
        ({}, scene(deployment=None), "Creating/Creating"),
        ({}, STARTING, "Creating/Creating"),
    ],
)
def test_the_first_row_that_fits_decides(spec, given, where):
    verdict = assess_pods(pod_service(**spec), given)
    assert f"{verdict.phase}/{verdict.reason}" == where


@pytest.mark.parametrize("ready", [0, 1])
@pytest.mark.parametrize("model", [None, FETCHED, FETCHING, LOST])
@pytest.mark.parametrize("spec", [{}, {"suspend": True}, {"replicas": 0}, {"replicas": 3}])
def test_available_holds_exactly_while_something_answers(spec, model, ready):
    """Available is True if and only if a replica is ready and one is wanted, for any other state."""
    given = scene(model=model, deployment=deployment_of(1, ready=ready))
    status = derived(pod_service(**spec), given)
    [available] = [one for one in status["conditions"] if one["type"] == "Available"]
    wanted = ready and not spec.get("suspend") and spec.get("replicas", 1)
    assert available["status"] == ("True" if wanted else "False")


@pytest.mark.parametrize(
    ("violations", "way_out"),
    [
        (VIOLATIONS, "use an image that runs without root, and set its user in spec.podSecurityContext.runAsUser"),
        ('hostPath volumes (volume "v")', "remove these fields"),
    ],
)
def test_a_namespace_that_is_closed_to_root_is_reported(violations, way_out):
    """S3: the standard, the pods' violations and the label that would open the namespace are in the condition."""
    words = FORBIDDEN.replace(VIOLATIONS, violations)
    closed = deployment_of(0, conditions=[{**CLOSED[0], "message": words}])
    conditions = derived(pod_service(), scene(deployment=closed))["conditions"]
    [degraded] = [one for one in conditions if one["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "PodSecurity")
    for part in ('"restricted"', violations, way_out):
        assert part in degraded["message"]


def test_a_refusal_that_an_operator_could_lift_is_not_an_error():
    given = scene(refusal="not allowed", refusal_reason="NotAllowed")
    conditions = derived(pod_service(), given)["conditions"]
    states = {one["type"]: (one["status"], one["reason"], one["message"]) for one in conditions}
    assert states["Accepted"] == ("False", "NotAllowed", "not allowed")
    assert states["Degraded"] == ("True", "NotAllowed", "not allowed")


@pytest.mark.parametrize("given", [SERVING, STARTING, ServiceFacts(), scene(refusal="no")])
def test_every_condition_is_always_there(given):
    """The same six conditions, once each, with the observed generation."""
    conditions = derived(pod_service(), given)["conditions"]
    kinds = ["Available", "Progressing", "Degraded", "Suspended", "Accepted", "SpecHonoured"]
    assert [one["type"] for one in conditions] == kinds
    assert {one["observedGeneration"] for one in conditions} == {1}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (STARTING, ("True", "Honoured")),
        (scene(plan=plan(not_honoured=("spec.x",))), ("False", "FieldsIgnored")),
        (scene(unmet=("spec.slo (no Pyrra)",)), ("False", "FieldsIgnored")),
        (scene(plan=None, refusal="spec.runtime: no"), ("False", "NotPlanned")),
        (ServiceFacts(), ("False", "NotPlanned")),
    ],
)
def test_fields_are_called_honoured_only_where_there_is_a_plan(given, refused):
    """The fields with an effect are unknown for a spec that is refused, or has no Model yet."""
    conditions = derived(pod_service(), given)["conditions"]
    assert [(one["status"], one["reason"]) for one in conditions if one["type"] == "SpecHonoured"] == [refused]


def test_waiting_for_a_gpu_reports_resource_and_position():
    """Position, resource and the scheduler's message are in the status, and removed when it has a node."""
    given = scene(plan=gpu_plan(2), pods=(unscheduled(),))
    status = derived(pod_service(), given, position=2)
    assert (status["queuePosition"], status["waitingFor"]) == (2, "nvidia.com/gpu: 2")
    assert status["schedulingStatus"] == "InsufficientGPU"
    assert "position 2 in the queue" in status["schedulingMessage"]
    assert "0/3 nodes" in status["schedulingMessage"]
    after = derived(pod_service(), SERVING, position=2)
    assert not {"queuePosition", "waitingFor", "schedulingStatus", "schedulingMessage"} & after.keys()


@pytest.mark.parametrize("given", [SERVING, ServiceFacts()], ids=["planned", "without a Model yet"])
def test_the_endpoint_is_that_of_the_service(given):
    """Name, namespace, port and path are those that a client in the cluster uses."""
    service = pod_service("a.b", endpoint={"port": 9000})
    status = derived(service, given, ControllerSettings(cluster_domain="k.local"))
    head, _, tail = status["endpoint"].partition(".ml.svc.k.local:9000")
    assert head.startswith("http://a-b-")
    assert tail == "/v1/chat/completions"


async def test_the_selector_of_the_status_is_that_of_the_pods(autojump_clock):
    """The scale subresource's selector selects the pods' template, and nothing that an edit changes."""
    [version] = crd_manifest(InferenceService)["spec"]["versions"]
    path = version["subresources"]["scale"]["labelSelectorPath"]
    assert path == ".status.selector"
    async with open_pods() as hands:
        await hands.bring_up(podLabels={"team": "a"})
        text = (await hands.cluster.service()).status.selector
        live = (await hands.json(Deployment))["spec"]
        assert dict(pair.split("=") for pair in text.split(",")) == live["selector"]["matchLabels"]
        assert parse_selector(text).matches(live["template"]["metadata"]["labels"])
        assert "team" not in text
