"""The agent's side of the door, with the lines of a door that is not there."""

import trio
import trio.testing

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.resource import Key
from llmkube.supervisor.service.door_link import DoorLink
from llmkube.supervisor.values.door_state import DoorEntry, DoorReport, dump_line
from llmkube.supervisor.values.ports import Shutdown
from supervisor.service.known import LOADED, Door

CHAT = Key("default", "chat")
ENTRIES = {CHAT: DoorEntry(LOADED, "127.0.0.1")}


async def test_an_engine_is_unused_once_the_door_has_reported_that(nursery, mock_clock):
    """A new agent does not know the requests of the door that an earlier one has left until it is connected."""
    door, ended = Door(), trio.Event()
    link = DoorLink(door, lambda: ENTRIES, lambda _: None, Mailbox(None), Shutdown(), trio.sleep_forever)

    async def wait():
        await link.wait_unused(CHAT, LOADED.port)
        ended.set()

    nursery.start_soon(link.run)
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not ended.is_set()
    door.is_open.set()
    await trio.testing.wait_all_tasks_blocked()
    for running, engine, is_unused in ((1, LOADED.port, False), (1, 0, False), (0, 0, True)):
        report = DoorReport(requests=1, arrived=1, running=running, engine=engine)
        await door.stream.send_all(dump_line(CHAT, report))
        await trio.testing.wait_all_tasks_blocked()
        assert ended.is_set() is is_unused
    nursery.cancel_scope.cancel()
