"""What another agent of another implementation has left is told from everybody else's."""

import pytest

from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import decode
from llmkube.supervisor.cluster.applier import is_predecessors, names_service

THEIRS = {"llmkube.ai/managed-by": "metal-agent", "llmkube.ai/inference-service": "chat"}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}


@pytest.mark.parametrize(
    ("labels", "owners", "theirs"),
    [
        (THEIRS, [], True),
        ({}, [], False),
        ({"llmkube.ai/managed-by": "somebody"}, [], False),
        (THEIRS, [OWNER], False),
    ],
)
def test_only_what_is_marked_and_belongs_to_nothing_is_an_earlier_agents(labels, owners, theirs):
    """Another label, none, or an owner: it belongs to another program, and stays."""
    found = decode(Service, {"metadata": {"name": "chat", "labels": labels, "ownerReferences": owners}})
    assert is_predecessors(found.metadata) is theirs


def test_a_service_is_adopted_for_its_own_name_alone():
    """`a.b` and `a-b` had one Service there: the label says whose it was."""
    found = decode(Service, {"metadata": {"name": "a-b", "labels": {**THEIRS, "llmkube.ai/inference-service": "a.b"}}})
    assert names_service(found.metadata, "a.b")
    assert not names_service(found.metadata, "a-b")
