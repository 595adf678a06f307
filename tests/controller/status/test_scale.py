"""The number of a service's pods, and who decides it."""

import pytest

from controller.podobjects import deployment_of, plan, pod_service
from llmkube.controller.status.scale import activation_obstacle, desired_replicas, is_patched, next_replicas

ON_REQUEST = {"activation": {"mode": "OnRequest", "idleTimeout": "1m"}}
AUTOSCALED = ON_REQUEST | {"autoscaling": {"maxReplicas": 9, "minReplicas": 0}}


@pytest.mark.parametrize(
    ("spec", "live", "desired"),
    [
        ({"replicas": 3}, None, 3),
        ({"replicas": 3}, 7, 3),
        ({"replicas": 3, "suspend": True}, 7, 0),
        ({"autoscaling": {"maxReplicas": 9}}, 7, 7),
        ({"autoscaling": {"maxReplicas": 9}}, 0, 1),
        ({"autoscaling": {"maxReplicas": 9, "minReplicas": 2}}, None, 2),
        ({"autoscaling": {"maxReplicas": 9}, "replicas": 0}, 7, 0),
        (ON_REQUEST, None, 0),
        (ON_REQUEST | {"replicas": 2}, 1, 2),
        (AUTOSCALED, 0, 0),
        (AUTOSCALED | {"suspend": True}, 1, 0),
        (ON_REQUEST | {"hosts": {"modelRef": "phi-metal"}}, None, 1),
    ],
)
def test_an_autoscaler_chooses_unless_the_service_is_stopped(spec, live, desired):
    """The spec's count applies without an autoscaler; with one, its last choice, until the service is stopped."""
    assert desired_replicas(pod_service(**spec), None if live is None else deployment_of(live)) == desired


@pytest.mark.parametrize(
    ("spec", "live", "wanted", "idle", "after"),
    [
        (ON_REQUEST | {"replicas": 2}, 0, True, 0, 2),
        (ON_REQUEST | {"replicas": 2}, 2, False, 59, 2),
        (ON_REQUEST | {"replicas": 2}, 2, True, 61, 2),
        (ON_REQUEST | {"replicas": 2}, 2, False, 61, 0),
        (AUTOSCALED | {"replicas": 2}, 0, True, 0, 1),
        (AUTOSCALED, 3, False, 999, 3),  # the autoscaler's, until it has chosen 1
        (AUTOSCALED, 1, False, 61, 0),
        (ON_REQUEST | {"autoscaling": {"maxReplicas": 9}}, 1, False, 999, 1),
        ({"replicas": 2}, 2, False, 999, 2),
        (AUTOSCALED | {"suspend": True}, 0, True, 0, 0),
    ],
)
def test_requests_start_the_first_pods_and_idleness_ends_the_last(spec, live, wanted, idle, after):
    """From one up nothing but the spec or the autoscaler changes the number."""
    assert next_replicas(pod_service(**spec), live, wanted=wanted, idle_seconds=idle) == after


def test_the_manifest_has_the_number_only_where_nothing_else_writes_it():
    """A suspended service has its 0 in the manifest."""
    assert not is_patched(pod_service(replicas=2))
    assert is_patched(pod_service(autoscaling={"maxReplicas": 3}))
    assert is_patched(pod_service(**ON_REQUEST))
    assert not is_patched(pod_service(**AUTOSCALED, suspend=True))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ""),
        ({"activation": {"mode": "Always"}}, ""),
        (ON_REQUEST, ""),
        ({"activation": {"mode": "OnRequest", "pin": True}}, ""),
        ({"activation": {"idleTimeout": "1m"}}, "set mode OnRequest"),
        (ON_REQUEST | {"autoscaling": {"maxReplicas": 3}}, "autoscaling.minReplicas is 1: set 0"),
        (ON_REQUEST | {"multiNode": {"members": [{"node": "a"}]}}, "a group over several nodes"),
    ],
)
def test_an_activation_without_effect_is_reported(spec, words):
    """With the field to set."""
    found = activation_obstacle(pod_service(**spec), plan(busy_metrics=("llamacpp:requests_processing",)))
    assert words in found
    assert bool(words) == bool(found)
    unknown = activation_obstacle(pod_service(**ON_REQUEST), plan(runtime="generic"))
    assert unknown == "spec.activation.idleTimeout (generic has no metric for requests)"
