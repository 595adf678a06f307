import pytest

from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.supervisor.nouns.slot import Slot


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (Slot(EndpointSlice, Key("default", "chat.mac")), "EndpointSlice default/chat.mac"),
        (Slot(InferenceService, Key("default", "chat"), "status"), "InferenceService default/chat/status"),
    ],
)
def test_a_slot_reads_as_an_object_in_a_log_line(slot, words):
    """Its kind, its key, and the subresource where it is one."""
    assert str(slot) == words
