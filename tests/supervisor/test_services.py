import random
from pathlib import Path

import trio
import trio.testing

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.services import ServiceQueue, Services
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.ports import Ports
from llmkube.supervisor.values.settings import AgentSettings
from sim.world import utcnow

CHAT = Key("ns", "chat")


class Known(dict):
    """A reflector's cache whose content is given."""

    def __init__(self, *objects):
        super().__init__({one.key: one for one in objects})
        self.synced = trio.Event()
        self.synced.set()
        self.unconfirmed = set()


class Forgetful:
    """A journal of which only the removal is used."""

    async def remove(self, key):
        await trio.lowlevel.checkpoint()


class Slow:
    """Model files that are never read in time."""

    async def has(self, model):
        await trio.sleep_forever()

    async def preview(self, model):
        await trio.sleep_forever()


class Alone:
    """Claims on a host that has no rivals."""

    synced = True

    def may_run(self, desired, *, running, has_engine):
        return True

    def reports(self, desired):
        return True

    def release(self, key, *, unlisted=False):
        pass


def new_services(address="192.0.2.1"):
    service = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
    spec = {"source": "builtin://demo", "hardware": {"accelerator": "metal"}}
    model = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": spec})
    settings = AgentSettings("host", Path("/sim"), Path("/sim/store"), "/sim/llama-server")
    services = Services(None, settings, Ports(None, Slow(), Forgetful(), None, utcnow, random.Random(0)))
    services.services, services.models, services.claims = Known(service), Known(model), Alone()
    services.host_address.put_nowait(HostAddress(address))
    return services


async def test_two_marks_before_the_first_step_make_one_task():
    """A service that is marked again before its task has run for the first time still has one task only."""
    services = new_services()
    async with trio.open_nursery() as nursery:
        services._reconcile(CHAT, nursery)
        services._reconcile(CHAT, nursery)
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()
    assert services.running.by_key == {}


async def test_a_service_that_goes_before_its_first_step_leaves_nothing():
    """A service that is deleted before its task has run for the first time is forgotten, and its endpoint withdrawn."""
    services = new_services()
    async with trio.open_nursery() as nursery:
        services._reconcile(CHAT, nursery)
        services.services.clear()
        services._reconcile(CHAT, nursery)
    assert services.running.by_key == {}


async def test_a_service_without_an_endpoint_does_not_wait(autojump_clock):
    """Without a published endpoint its status applies at once, even while another service's write is in progress."""
    services = new_services(None)
    services.applier.apply_nowait(Slot(InferenceService, Key("ns", "other"), "status"), {})
    async with trio.open_nursery() as nursery:
        services._reconcile(CHAT, nursery)
        with trio.fail_after(2):
            await services.running.by_key[CHAT].status_manager.wait_endpoint_applied()
        nursery.cancel_scope.cancel()


CHAT, EMBED = Key("ns", "chat"), Key("ns", "embed")


async def test_a_service_is_taken_once_however_often_it_was_added():
    """All additions before are one turn's work, and later ones are the next turn's."""
    queue = ServiceQueue()
    for key in (CHAT, EMBED, CHAT):
        queue.add(key)
    assert await queue.take() == ({CHAT, EMBED}, False)
    queue.add(CHAT)
    queue.add_all()
    assert await queue.take() == ({CHAT}, True)


async def test_an_empty_queue_is_waited_for(autojump_clock):
    """A turn starts when there is work."""
    queue = ServiceQueue()
    with trio.move_on_after(1) as bound:
        await queue.take()
    assert bound.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.take)
        await trio.testing.wait_all_tasks_blocked()
        queue.add(CHAT)
