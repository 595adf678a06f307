"""What a reconcile reads counts as a change, and nothing else does."""

import pytest

from llmkube.controller.event_handlers import Change, change_of
from llmkube.controller.informer import Informer
from llmkube.k8s.client import Listing
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import WatchEvent

CHAT = Key("ml", "chat")


class Told:
    """An informer that is told of one service, version after version, and how much has changed each time."""

    def __init__(self):
        self.informer = Informer(InferenceService)
        self.cache = self.informer.cache
        self.cache.replace(Listing(InferenceService, (), "1"))
        self.changes = []
        self.version = 1
        self.raw = {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"namespace": "ml", "name": "chat", "uid": "a", "generation": 1},
            "spec": {"modelRef": "phi"},
        }

    def tell(self, kind="MODIFIED", /, spec=None, status=None, **metadata):
        self.version += 1
        metadata = {**self.raw["metadata"], **metadata, "resourceVersion": str(self.version)}
        self.raw = {**self.raw, "metadata": metadata, "spec": spec or self.raw["spec"], "status": status or {}}
        self.cache.apply(WatchEvent(InferenceService, kind, self.raw))
        self.informer._deliver(lambda event: self.changes.append(change_of(event)), CHAT)
        return self.changes[-1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Change.NONE),
        ({"labels": {"a": "b"}}, Change.NONE),
        ({"annotations": {"a": "b"}}, Change.NONE),
        ({"status": {"phase": "Ready"}}, Change.STATE),
        ({"deletionTimestamp": "2025-06-01T00:00:00Z"}, Change.STATE),
        ({"finalizers": ["somebody/else"]}, Change.STATE),
        ({"generation": 2}, Change.SPEC),
        ({"uid": "b"}, Change.SPEC),
    ],
)
def test_only_what_a_reconcile_reads_counts(change, expected):
    """The first sight is a change, the same again is none, and neither are labels and annotations."""
    told = Told()
    assert told.tell("ADDED") is Change.SPEC
    assert told.tell() is Change.NONE
    assert told.tell(**change) is expected
    assert told.tell(**change) is Change.NONE


def test_what_has_gone_is_a_change_and_so_is_its_return():
    """A deletion is told once; an object of the same name after it is another one."""
    told = Told()
    told.tell("ADDED")
    assert told.tell("DELETED") is Change.SPEC
    assert told.tell("ADDED") is Change.SPEC


def test_after_what_cannot_be_read_everything_counts():
    """A state that cannot be read is a change; and so is the next one, although the cache shows nothing new."""
    told = Told()
    told.tell("ADDED")
    for _ in range(2):
        assert told.tell(status={"replicas": "many"}) is Change.STATE
        assert told.cache.decode_error(CHAT)
    assert told.tell() is Change.SPEC
    assert told.tell() is Change.NONE
