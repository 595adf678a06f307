"""A Deployment replaces its pods when its restart time changes."""

from controller.podobjects import SETTINGS, plan, pod_service
from llmkube.controller.render.labels import RESTARTED, TEMPLATE
from llmkube.controller.render.manifests import WantedPods, deployment


def test_another_restart_time_is_another_template():
    """A restart changes the pods' template and its digest; a policy about replacing them does not."""
    service = pod_service(maxPodLifetimeSeconds=60)
    before = deployment(service, plan(), SETTINGS, WantedPods())
    after = deployment(service, plan(), SETTINGS, WantedPods(restarted="2025-06-01T12:00:00Z"))
    assert before["metadata"]["annotations"][TEMPLATE] != after["metadata"]["annotations"][TEMPLATE]
    assert after["spec"]["template"]["metadata"]["annotations"][RESTARTED] == "2025-06-01T12:00:00Z"
    plain = deployment(pod_service(), plan(), SETTINGS, WantedPods())
    assert plain["metadata"]["annotations"][TEMPLATE] == before["metadata"]["annotations"][TEMPLATE]
    assert RESTARTED not in plain["metadata"]["annotations"]
