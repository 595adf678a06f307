from types import SimpleNamespace

import pytest

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Service
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.book import UnreturnedMemory
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction, Skip
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.services import RunningService, RunningServices
from llmkube.supervisor.values.activation import Activation

CHAT, EMBED = Key("ns", "chat"), Key("ns", "embed")
EVICT = Eviction(CHAT, Cause.WARNING, "memory is short", winner=EMBED)
REFUSED = UserError("no")


class StatusManager:
    """A recorder of a service's notifications."""

    def __init__(self, key):
        self.key = key
        self.notified = []

    def emit(self, event):
        self.notified.append(event.reason)

    def update(self, change, *args):
        self.notified.append(change)


class Book:
    """A book with one memory sample and no evictions."""

    decision = Decision(Level.NORMAL)

    def __init__(self):
        self.unreturned = UnreturnedMemory(1)

    def evicted(self, key):
        return None


class Runner:
    """A counter of address changes, of a service that is always loaded."""

    changes = 0
    context = SimpleNamespace(gate=SimpleNamespace(activation=Activation(), change=lambda after: None))

    def address_changed(self):
        self.changes += 1


def new_running():
    """Two services, and their notifications."""
    by_key = {key: RunningService(Mailbox(None), None, StatusManager(key), Runner()) for key in (CHAT, EMBED)}
    return RunningServices(Book(), by_key), SimpleNamespace(
        chat=by_key[CHAT].status_manager.notified, embed=by_key[EMBED].status_manager.notified
    )


@pytest.mark.parametrize(
    ("decision", "before", "events"),
    [
        (Decision(Level.NORMAL), None, []),
        (Decision(Level.NORMAL), Decision(Level.NORMAL), []),
        (Decision(Level.WARNING), Decision(Level.NORMAL), ["MemoryPressureLevelChanged"]),
        (Decision(Level.UNKNOWN), Decision(Level.NORMAL), []),
        (Decision(Level.NORMAL), Decision(Level.UNKNOWN), []),
        (Decision(Level.WARNING, skip=Skip.DISABLED), None, ["EvictionSkipped"]),
        (Decision(Level.WARNING, skip=Skip.DISABLED), Decision(Level.WARNING, skip=Skip.DISABLED), []),
        (Decision(Level.WARNING, skip=Skip.COOL_DOWN), None, []),
    ],
)
def test_every_service_is_notified_of_the_memory(decision, before, events):
    """The level is always sent; an Event is for a level that changed, and for a problem that a person can fix."""
    running, notified = new_running()
    running.notify_memory(decision, before)
    assert notified.chat == notified.embed == [Facts.with_memory, *events]


def test_unreturned_memory_is_reported_once_and_again_when_it_grows():
    """Each service gets the Event; a decrease is none."""
    running, notified = new_running()
    for size in (0, 5, 5, 7, 6, 0):
        running.book.unreturned.size_bytes = size
        running.notify_memory(Decision(Level.NORMAL), None)
    assert [each for each in notified.chat if each == "MemoryNotReturned"] == ["MemoryNotReturned"] * 2
    assert notified.embed == notified.chat


def test_an_eviction_is_reported_to_both_services():
    """To the victim, and to the service that it is evicted for."""
    running, notified = new_running()
    running.notify_evicted(EVICT)
    assert notified.chat == [Facts.with_eviction, Facts.with_memory]
    assert notified.embed == ["Displacing"]


def test_a_refused_object_is_reported_to_its_service():
    """A stopped service is not notified."""
    running, notified = new_running()
    running.notify_refused(CHAT, Slot(Service, CHAT), REFUSED)
    running.notify_refused(Key("ns", "gone"), Slot(Service, CHAT), REFUSED)
    assert (notified.chat, notified.embed) == ([Facts.with_refusal], [])


def test_the_host_changes_under_every_service():
    """Another address is sent to the runners, another engine program to the planners."""
    running, _ = new_running()
    running.notify_address_changed()
    running.notify_engine_upgraded()
    assert [one.runner.changes for one in running.by_key.values()] == [1, 1]
    assert [one.replan.version for one in running.by_key.values()] == [1, 1]
