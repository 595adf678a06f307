"""A change is a change of the fields that a reconcile reads, and nothing else."""

import pytest

from llmkube.controller.event_handlers import Change, change_of
from llmkube.k8s.client import Listing
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.informer import Informer
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import WatchEvent

CHAT = Key("ml", "chat")


class Feed:
    """An informer that delivers versions of one service, and classifies each change."""

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

    def deliver(self, kind="MODIFIED", /, spec=None, status=None, **metadata):
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
def test_only_fields_that_a_reconcile_reads_are_changes(change, expected):
    """The first version is a change, the same again is none, and neither are labels and annotations."""
    feed = Feed()
    assert feed.deliver("ADDED") is Change.SPEC
    assert feed.deliver() is Change.NONE
    assert feed.deliver(**change) is expected
    assert feed.deliver(**change) is Change.NONE


def test_a_deletion_is_a_change_and_so_is_a_new_object():
    """A deletion is reported once; an object of the same name after it is another one."""
    feed = Feed()
    feed.deliver("ADDED")
    assert feed.deliver("DELETED") is Change.SPEC
    assert feed.deliver("ADDED") is Change.SPEC


def test_after_an_invalid_state_everything_is_a_change():
    """An invalid state is a change; and so is the next one, although the cache shows nothing new."""
    feed = Feed()
    feed.deliver("ADDED")
    for _ in range(2):
        assert feed.deliver(status={"replicas": "many"}) is Change.STATE
        assert feed.cache.decode_error(CHAT)
    assert feed.deliver() is Change.SPEC
    assert feed.deliver() is Change.NONE
