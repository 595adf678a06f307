from prometheus_client import generate_latest

from llmkube.k8s.resource import Key
from llmkube.supervisor.lifecycle import Reason, ServiceView
from llmkube.supervisor.metrics import agent_registry


class Agent:
    def __init__(self, **views):
        self.views = views

    def services(self):
        return {Key("ns", name): view for name, view in self.views.items()}


def scrape(agent):
    return generate_latest(agent_registry(agent)).decode()


def test_figures_are_those_of_the_snapshot():
    """Each service has its health, its restarts and the reason that it is in, and no other series."""
    text = scrape(
        Agent(
            chat=ServiceView(Reason.LOADED, port=1, pid=5, restarts=2),
            bad=ServiceView(Reason.CRASH_LOOP, restarts=7),
        )
    )
    assert "llmkube_metal_agent_managed_processes 1.0" in text
    assert 'llmkube_metal_agent_process_healthy{name="chat",namespace="ns"} 1.0' in text
    assert 'llmkube_metal_agent_process_healthy{name="bad",namespace="ns"} 0.0' in text
    assert 'llmkube_metal_agent_process_restarts_total{name="bad",namespace="ns"} 7.0' in text
    assert 'service_state{name="bad",namespace="ns",reason="CrashLoopBackOff"} 1.0' in text


def test_a_service_that_is_gone_leaves_no_series():
    """A deleted service does not haunt the metrics."""
    agent = Agent(chat=ServiceView(Reason.LOADED))
    registry = agent_registry(agent)
    generate_latest(registry)
    agent.views = {}
    assert 'name="chat"' not in generate_latest(registry).decode()
