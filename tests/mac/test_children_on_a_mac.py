"""Run the agent's tests of engine processes again with kqueue and psutil in place of pidfds and /proc."""

import pytest

from llmkube.supervisor.host import processes
from supervisor.engine.conftest import left_process  # noqa: F401 - a fixture
from supervisor.engine.test_child import *  # noqa: F403
from supervisor.engine.test_child_habits import *  # noqa: F403

# These rely on Linux: inspecting a process costs a descriptor there, and others' children have no exit status.
del (
    test_without_descriptors_helpers_still_end_with_the_engine,  # noqa: F821
    test_the_exit_of_an_adopted_process_is_an_event,  # noqa: F821
    test_a_process_that_cannot_be_inspected_is_waited_for,  # noqa: F821
    test_a_process_that_could_not_be_inspected_is_ended_anyway,  # noqa: F821
)

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


@pytest.fixture(autouse=True)
def on_a_mac(monkeypatch, kqueue):
    monkeypatch.setattr(processes, "sys", type("Mac", (), {"platform": "darwin"}))
    monkeypatch.setattr(processes, "Kqueue", lambda: kqueue)
