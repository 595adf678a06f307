"""What is scaled, and how many pods may go at a time, follows from the spec."""

import pytest

from controller.podobjects import plan, pod_service
from llmkube.controller.render.manifests import autoscaler, disruption_budget


@pytest.mark.parametrize(
    ("spec", "starting", "most"),
    [
        ({}, True, 0),
        ({}, False, None),
        ({"replicas": 2}, True, 0),
        ({"replicas": 2}, False, 1),
        ({"disruption": {}}, True, 0),
        ({"disruption": {}}, False, None),
        ({"disruption": {}, "replicas": 3}, False, 1),
        ({"disruption": {"protectAlways": True}}, False, 0),
        ({"disruption": {"protectStartup": False}}, True, None),
        ({"autoscaling": {"maxReplicas": 2}}, False, 1),
    ],
)
def test_disruption_is_bounded_where_that_helps(spec, starting, most):
    """What loads, or is protected always, may not go; of several that have loaded one at a time; a single one may."""
    budget = disruption_budget(pod_service(**spec), plan(), starting=starting)
    assert (budget["spec"]["maxUnavailable"] if budget else None) == most


@pytest.mark.parametrize("spec", [{}, {"autoscaling": {"maxReplicas": 2}, "suspend": True},
                                  {"autoscaling": {"maxReplicas": 2}, "replicas": 0}])  # fmt: skip
def test_nothing_is_scaled_that_shall_not_run(spec):
    """No autoscaler without the wish for one, and none that would start what is stopped."""
    assert autoscaler(pod_service(**spec), plan()) is None
