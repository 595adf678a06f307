"""What an operator may tune decides which controllers are one controller's rivals."""

from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.resource import Key

LEADER = Key("llmkube-system", "llmkube-controller")


def test_controllers_of_different_namespaces_do_not_wait_for_each_other():
    """Each choice of namespaces has a Lease of its own."""
    assert ControllerSettings().leader_lease == LEADER
    assert ControllerSettings(namespace="ml").leader_lease == Key("llmkube-system", "llmkube-controller.ml")
