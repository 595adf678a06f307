import attrs

from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.nouns.ports import Shutdown
from llmkube.supervisor.service.ending import Outcome
from llmkube.supervisor.service.engine_status import EngineStatus, Leader
from supervisor.service.known import LOADED, LOADING

SUCCESSOR = attrs.evolve(LOADED, pid=43, port=4712)


class Manager:
    """Collects the snapshots that are written."""

    def __init__(self):
        self.views = []
        self.heard = 0

    def update(self, change, view, **_):
        self.views.append(view)

    async def wait_endpoint_heard(self):
        self.heard += 1

    class settings:  # noqa: N801 - an attribute of the real one
        withdraw_seconds = 2.0


class Allocation:
    """Memory that is not short."""

    urgent = False


def new_engines():
    """The status of two engines of one service, of which the first leads."""
    manager, leader = Manager(), Leader()
    old, new = EngineStatus(manager, leader), EngineStatus(manager, leader)
    old.lead()
    return manager, old, new


def test_only_the_engine_that_leads_is_heard():
    """What the other one has said is written when it takes over."""
    manager, old, new = new_engines()
    old.set_view(LOADED)
    new.set_view(LOADING)
    assert manager.views == [LOADED]
    new.lead()
    old.set_reason(Reason.STOPPING)
    assert manager.views == [LOADED, LOADING]


async def left(outcome, *, keep=False, leads=True):
    """Leave `withdrawn` with this outcome; return what is written, and whether the API server was waited for."""
    manager, old, new = new_engines()
    old.set_view(LOADED)
    if not leads:
        new.lead()
    manager.views.clear()
    async with old.withdrawn(outcome, Allocation(), Shutdown(keep)):
        pass
    return [view.reason for view in manager.views], manager.heard


async def test_what_is_published_is_withdrawn_on_the_way_out():
    """And the API server is waited for."""
    assert await left(Outcome(published=True)) == ([Reason.STOPPING], 1)


async def test_what_was_never_published_is_not_withdrawn():
    """An engine that never served has nothing to take back."""
    assert await left(Outcome()) == ([], 0)


async def test_an_engine_that_stays_keeps_its_endpoint():
    """The next agent goes on with it."""
    assert await left(Outcome(published=True), keep=True) == ([], 0)


async def test_an_engine_that_was_replaced_has_nothing_to_withdraw():
    """The endpoint is its successor's."""
    assert await left(Outcome(published=True), leads=False) == ([], 0)
