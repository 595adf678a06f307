"""Messages between parent and worker: in order, whole, and an end that both sides read."""

import socket

import pytest
import trio
import trio.testing

from llmkube.router.workers import link as link_module
from llmkube.router.workers.link import Link, LinkError


def pair():
    return tuple(Link(each) for each in socket.socketpair())


async def test_messages_come_in_their_order_however_large(autojump_clock):
    """What the kernel does not take at once follows."""
    one, other = pair()
    got = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, got.append)
        nursery.start_soon(other.run, got.append)
        for size in (0, 10, 3_000_000, 1, 8_000_000, 2):
            other.send_nowait("text", text="é" * size)
        with trio.fail_after(60):
            while len(got) < 6:  # noqa: ASYNC110 (what comes is handed to a function)
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert [len(message["text"]) for message in got] == [0, 10, 3_000_000, 1, 8_000_000, 2]


async def test_a_call_gets_its_own_answer_or_none_in_time(autojump_clock):
    """Answers come in any order; one that comes too late is nobody's."""
    one, other = pair()
    asked = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, asked.append)
        nursery.start_soon(other.run, lambda message: None)
        said = {}

        async def ask(name):
            said[name] = (await other.call("ask", 5.0, name=name))["name"]

        async with trio.open_nursery() as asking:
            for name in ("a", "b", "c"):
                asking.start_soon(ask, name)
            await trio.sleep(1)
            for message in reversed(asked):
                one.answer_nowait(message, name=message["name"])
        assert said == {"a": "a", "b": "b", "c": "c"}
        with pytest.raises(LinkError, match="no answer within 2 s"):
            await other.call("ask", 2.0, name="d")
        one.answer_nowait(asked[-1], name="d")
        await trio.sleep(1)
        assert not other.lost
        nursery.cancel_scope.cancel()


async def test_the_end_of_one_side_ends_the_calls_of_the_other(autojump_clock):
    """At once, and every later one; nothing is sent to who is gone."""
    one, other = pair()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def die_later():
            with scope:
                await one.run(lambda message: None)

        async def ask():
            with pytest.raises(LinkError, match="has ended"):
                await other.call("ask", 1000.0)

        nursery.start_soon(other.run, lambda message: None)
        nursery.start_soon(die_later)
        nursery.start_soon(ask)
        await trio.sleep(1)
        scope.cancel()
    assert (trio.current_time() < 10, other.lost, one.lost) == (True, True, True)
    with pytest.raises(LinkError, match="has ended"):
        await other.call("ask", 1000.0)
    other.send_nowait("x")


async def test_who_does_not_read_is_given_up(autojump_clock, monkeypatch):
    """What waits for it is bounded: then it counts as gone."""
    monkeypatch.setattr(link_module, "MOST_WAITING_BYTES", 1 << 20)
    one, other = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.run, lambda message: None)
        for _ in range(100):
            other.send_nowait("text", text="x" * 100_000)
        await trio.sleep(1)
    assert other.lost
    await one.run(lambda message: None)  # what the kernel has taken is read, and then the end


async def test_what_is_no_message_ends_the_link(autojump_clock):
    """A length that no message has."""
    ours, theirs = socket.socketpair()
    link = Link(ours)
    theirs.sendall(b"\xff" * 100)
    await link.run(lambda message: None)
    assert link.lost
    theirs.close()
