"""What is found of an oMLX on this machine, over time on a virtual clock."""

import pytest
import trio

from llmkube.base.http.message import Response
from llmkube.cli.commands.doctor.omlx import EMPTY_BYTES, Omlx
from llmkube.cli.commands.doctor.probes import omlx_probe
from llmkube.cli.commands.doctor.probes.omlx_probe import look_at, port_of
from programs.daemon_engine.fake_omlx import NAME, OWN_BYTES, PID, FakeOmlx, reached

URL = "http://127.0.0.1:8000"


def holding(**facts):
    fake = FakeOmlx(**facts)
    fake.sizes[NAME] = 2 * EMPTY_BYTES
    return fake


async def found(fake):
    async with reached(fake) as client:
        return await look_at(client, 8000, fake)


async def test_what_is_loaded_is_told_without_a_key(autojump_clock):
    """Its count is the server's word, what the process holds the kernel's."""
    fake = holding(key="of its owner")
    fake.put(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=1, pid=PID, held_bytes=OWN_BYTES + 2 * EMPTY_BYTES)


async def test_memory_that_stays_is_told(autojump_clock):
    """It lists nothing, and holds on."""
    fake = holding(lies=True)
    fake.put(NAME)
    fake.drop(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=0, pid=PID, held_bytes=OWN_BYTES + 2 * EMPTY_BYTES)


async def test_an_unload_that_is_under_way_is_waited_for(autojump_clock):
    """One look alone would take it for memory that stays."""
    fake = holding(lag_seconds=2.0)
    fake.put(NAME)
    fake.drop(NAME)
    assert (await found(fake)).held_bytes == OWN_BYTES


async def test_an_unload_that_is_under_way_would_be_told_by_a_hasty_one(autojump_clock, monkeypatch):
    """The bug that the test above is for."""
    monkeypatch.setattr(omlx_probe, "AGAIN_SECONDS", 0.5)
    with pytest.raises(AssertionError):
        await test_an_unload_that_is_under_way_is_waited_for(autojump_clock)


async def test_processes_that_are_not_seen_are_none(autojump_clock):
    """Another user's: its word stands alone."""
    fake = holding(hidden=True)
    fake.put(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=1)


@pytest.mark.parametrize(
    "answer", [Response(404), Response(200, body=b"<html>"), Response.json(200, {"engine_pool": {"loaded_count": "x"}})]
)
async def test_another_program_at_its_port_is_none(autojump_clock, answer):
    """Nothing is said of it."""
    assert await found(FakeOmlx(faults={"/health": [answer]})) == Omlx(url=URL)


async def test_what_does_not_answer_is_none(autojump_clock):
    """Whether nothing listens, or something hangs."""
    assert await found(FakeOmlx(answers=False)) == Omlx(url=URL)
    with trio.fail_after(10):
        assert await found(FakeOmlx(hangs=True)) == Omlx(url=URL)


def test_its_port_is_that_of_its_own_variable():
    """Else its usual one."""
    assert [port_of({"OMLX_PORT": said}) for said in ("8001", "", "x")] == [8001, 8000, 8000]
