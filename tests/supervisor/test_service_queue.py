import trio
import trio.testing

from llmkube.k8s.resource import Key
from llmkube.supervisor.service_queue import ServiceQueue

CHAT, EMBED = Key("ns", "chat"), Key("ns", "embed")


async def test_a_service_is_taken_once_however_often_it_was_added():
    """What was added before is one turn's work, and what is added after that is the next one's."""
    queue = ServiceQueue()
    for key in (CHAT, EMBED, CHAT):
        queue.add(key)
    assert await queue.take() == ({CHAT, EMBED}, False)
    queue.add(CHAT)
    queue.add_all()
    assert await queue.take() == ({CHAT}, True)


async def test_an_empty_queue_is_waited_for(autojump_clock):
    """A turn begins when there is something to do."""
    queue = ServiceQueue()
    with trio.move_on_after(1) as bound:
        await queue.take()
    assert bound.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.take)
        await trio.testing.wait_all_tasks_blocked()
        queue.add(CHAT)
