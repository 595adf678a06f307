"""Backend health reported by a router's pods, and the merged status of several pods."""

import pytest

from llmkube.controller.reconcile.pod_polling import merge, read_health
from llmkube.controller.status.router_status import BackendHealth


def test_an_answer_is_read():
    """Name, state and reason."""
    text = '{"backends": [{"name": "a", "healthy": true}, {"name": "b", "healthy": false, "message": "refused"}]}'
    assert read_health(text) == {
        "a": BackendHealth(healthy=True),
        "b": BackendHealth(healthy=False, message="refused"),
    }


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"backends": [1]}', '{"backends": [{"name": "a"}]}', "9" * 5000]
)
def test_an_invalid_response_is_ignored(text):
    """Every program that may create a pod may use this label: an invalid response is ignored."""
    assert read_health(text) is None


def test_one_pod_that_cannot_reach_a_backend_is_enough():
    """The worst result applies."""
    up, down = BackendHealth(healthy=True), BackendHealth(healthy=False, message="refused")
    assert merge([{"a": up, "b": down}, {"a": down, "b": up}]) == {"a": down, "b": down}
