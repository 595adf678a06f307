"""Heavy requests leave the event loop to others; light ones are not sent through a thread."""

import json
import sys
import time

import pytest
import trio

from llmkube.apiserver.heavy_work import LIGHT_VALUES, Threaded, is_heavy, is_large
from llmkube.base.http.message import Headers, Request


def request(body: bytes, media: str = "application/json") -> Request:
    return Request("PATCH", "/x", Headers.of({"Content-Type": media}), body)


@pytest.mark.parametrize(
    ("body", "media", "heavy"),
    [
        (b"", "", False),
        (json.dumps({"spec": {"replicas": 1}}).encode(), "application/json", False),
        (json.dumps({"a": list(range(LIGHT_VALUES + 2))}).encode(), "application/json", True),
        (b'{"a":"%b"}' % (b"x" * 100_000), "application/json", True),
        (b"[]", "application/json-patch+json", True),  # a few words may copy much
        (b"a: b\n", "application/yaml", False),
        (b"a: b\n" * 200, "application/apply-patch+yaml", True),  # YAML is read slowly
    ],
)
def test_what_is_heavy(body: bytes, media: str, heavy: bool):
    """A body's length, the number of its values and its format decide."""
    assert is_heavy(request(body, media)) is heavy


def test_a_large_stored_object_makes_a_small_change_heavy():
    """What is not there weighs nothing."""
    assert not is_large(None)
    assert not is_large({"metadata": {"name": "a"}})
    assert is_large({"data": {f"key-{number}": "v" for number in range(LIGHT_VALUES + 2)}})


async def test_the_event_loop_goes_on_beside_heavy_work():
    """Python that runs for a quarter of a second in a thread costs other tasks no such pause."""
    usual, turns = sys.getswitchinterval(), 0

    def busy() -> str:
        end = time.perf_counter() + 0.25
        while time.perf_counter() < end:
            pass
        return "done"

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.005)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        assert await Threaded()(busy) == "done"
        nursery.cancel_scope.cancel()
    assert turns >= 5, "on the loop it would have been none"
    assert sys.getswitchinterval() == usual


async def test_heavy_work_is_done_one_at_a_time():
    """Two heavy requests at once take turns as wholes: the interpreter is shared by two threads, not by many."""
    work, inside, most = Threaded(), 0, 0

    def count() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work, count)
    assert most == 1
