import datetime

import attrs

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import EndpointSlice, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.status_manager import StatusManager
from sim.world import agent_settings
from supervisor.service.known import HEADER, LOADED, WEIGHTS, new_facts, wish

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Recorder:
    """Has no use for Events; `test_events` looks at them."""

    def emit_nowait(self, about, reason, message, *, type):  # noqa: A002 (as the real one)
        pass


class Applier:
    """Collects what is written, in order."""

    def __init__(self):
        self.written = []

    def apply_nowait(self, slot, manifest, *, followed=False):
        self.written.append(slot.kind.__name__)

    def delete_nowait(self, slot, *, followed=False):
        self.written.append(slot.kind.__name__.lower())

    def forget(self, slot):
        self.written.append(f"({slot.kind.__name__})")

    forget_once_applied = forget

    def take(self):
        """Return the kinds that were applied since the last time, deleted ones in lower case, forgotten ones in ()."""
        taken, self.written = self.written, []
        return taken


def new_manager(**given):
    applier = Applier()
    facts = attrs.evolve(new_facts(), reach=Reach(None))
    reach = Mailbox(Reach("192.0.2.1", "192.0.2.1", "given"))
    return StatusManager(
        facts, agent_settings(), applier, Recorder(), lambda: NOW, Mailbox(None), reach, **given
    ), applier


SERVICE, SLICE = Service.__name__, EndpointSlice.__name__
STATUS, MODEL = InferenceService.__name__, Model.__name__


def test_what_follows_is_written_once():
    """A start says that nothing is ready and takes every other form back; news writes what it changes, and no more."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    assert applier.take() == ["endpoints", SLICE.lower(), STATUS, SERVICE, SLICE]
    manager.update(Facts.with_file, WEIGHTS, HEADER)
    assert applier.take() == [MODEL]
    manager.update(Facts.with_engine, LOADED, newest=True)
    assert applier.take() == [STATUS, SLICE]
    manager.update(Facts.with_engine, LOADED, newest=True)
    assert applier.take() == []


def test_what_an_earlier_agent_said_of_an_engine_stands_while_it_is_adopted():
    """Other forms are taken back; there is no status before the engine was asked."""
    manager, applier = new_manager()
    manager.start(adopting=True)
    manager.update(Facts.with_plan, ())
    assert applier.take() == ["endpoints", SLICE.lower()]
    manager.update(Facts.with_view, LOADED)
    assert applier.take() == [STATUS, SERVICE, SLICE]


def test_one_of_several_hosts_speaks():
    """The others publish their endpoints and write no status, until it is theirs to write."""
    manager, applier = new_manager(speaks=False)
    manager.start(adopting=False)
    manager.update(Facts.with_file, WEIGHTS, HEADER)
    assert {STATUS, MODEL}.isdisjoint(applier.take())
    manager.speak(True)
    assert applier.take() == [STATUS, MODEL]
    manager.speak(False)
    assert applier.take() == [f"({STATUS})", f"({MODEL})"]


def test_another_object_of_the_same_name_is_told_everything():
    """Its predecessor's words are forgotten, and said again under its own uid."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.follow(wish(uid="s2"))
    assert applier.take() == [f"({STATUS})", STATUS, SERVICE, SLICE]


def test_another_address_family_is_another_slice():
    """What was said at the old address is taken back in the same breath."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.reach.put_nowait(Reach("2001:db8::1", "2001:db8::1"))
    manager.update(Facts.with_reach, manager.reach.value)
    assert applier.take() == [SLICE.lower(), SLICE]


def test_the_last_words_take_the_endpoint_back():
    """The status says which host does not serve it any more, once; nothing of the Model's is taken back."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.finish()
    assert applier.take() == [STATUS, SLICE.lower(), f"({SERVICE})", f"({STATUS})", f"({MODEL})"]
    assert manager.view.reason == Reason.RELEASED


def test_a_change_of_the_snapshot_is_announced():
    """Those who show snapshots look again; other facts are no reason to."""
    manager, _ = new_manager()
    manager.update(Facts.with_view, LOADED)
    assert manager.changed.version == 1
    manager.update(Facts.with_plan, ())
    assert manager.changed.version == 1
