"""What a router's pods say of its backends, and what the status makes of several pods' words."""

import pytest

from llmkube.controller.reconcile.pod_polling import merge, read_health
from llmkube.controller.status.router_status import BackendHealth


def test_an_answer_is_read():
    """Name, state, and why."""
    said = '{"backends": [{"name": "a", "healthy": true}, {"name": "b", "healthy": false, "message": "refused"}]}'
    assert read_health(said) == {
        "a": BackendHealth(healthy=True),
        "b": BackendHealth(healthy=False, message="refused"),
    }


@pytest.mark.parametrize(
    "said", ["", "no JSON", "[]", '{"backends": [1]}', '{"backends": [{"name": "a"}]}', "9" * 5000]
)
def test_what_a_pod_says_may_be_anything(said):
    """Whoever may make a pod may label it so: nothing of it is believed that is no answer."""
    assert read_health(said) is None


def test_one_pod_that_cannot_reach_a_backend_is_enough():
    """The worst answer counts."""
    up, down = BackendHealth(healthy=True), BackendHealth(healthy=False, message="refused")
    assert merge([{"a": up, "b": down}, {"a": down, "b": up}]) == {"a": down, "b": down}
