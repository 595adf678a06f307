import random
from pathlib import Path

import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.nouns.ports import Ports
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.slot import Slot
from llmkube.supervisor.services import Roster
from sim.world import utcnow

CHAT = Key("ns", "chat")


class Known(dict):
    """A reflector's cache whose content is given."""

    def __init__(self, *objects):
        super().__init__({one.key: one for one in objects})
        self.synced = trio.Event()
        self.synced.set()
        self.doubted = set()

    def expect(self, keys):
        assert not keys


class Forgetful:
    """A journal of which only the forgetting is used."""

    async def remove(self, key):
        await trio.lowlevel.checkpoint()


class Slow:
    """Model files that nobody lives to see."""

    async def preview(self, model):
        await trio.sleep_forever()


class Alone:
    """Claims on a host that has no rivals."""

    synced = True

    def may_run(self, wish, *, running):
        return True

    def reports(self, wish):
        return True

    def release(self, key, *, unlisted=False):
        pass


def new_roster(address="192.0.2.1"):
    service = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
    spec = {"source": "builtin://demo", "hardware": {"accelerator": "metal"}}
    model = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": spec})
    settings = AgentSettings("host", Path("/sim"), Path("/sim/store"), "/sim/llama-server")
    rng = random.Random(0)
    ports = Ports(None, Slow(), Forgetful(), None, utcnow, rng)
    claims = Alone()
    events = EventRecorder("test", "host", utcnow, rng)
    return Roster(settings, ports, Applier(rng), events, Known(model), Known(service), claims, Mailbox(Reach(address)))


async def test_two_marks_before_the_first_step_make_one_task():
    """A service that is marked again before its task has run for the first time still has one task only."""
    roster = new_roster()
    async with trio.open_nursery() as nursery:
        roster._reconcile(CHAT, nursery)
        roster._reconcile(CHAT, nursery)
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()
    assert roster.running == {}


async def test_a_service_that_goes_before_its_first_step_leaves_nothing():
    """A service that is deleted before its task has run for the first time is forgotten, and its endpoint withdrawn."""
    roster = new_roster()
    async with trio.open_nursery() as nursery:
        roster._reconcile(CHAT, nursery)
        roster.services.clear()
        roster._reconcile(CHAT, nursery)
    assert roster.running == {}


async def test_who_publishes_nothing_waits_for_nobody(autojump_clock):
    """Where no endpoint is published its word is heard at once, also while another service's is still on its way."""
    roster = new_roster(None)
    roster.applier.apply_nowait(Slot(InferenceService, Key("ns", "other"), "status"), {})
    async with trio.open_nursery() as nursery:
        roster._reconcile(CHAT, nursery)
        with trio.fail_after(2):
            await roster.running[CHAT].status_manager.wait_endpoint_heard()
        nursery.cancel_scope.cancel()
