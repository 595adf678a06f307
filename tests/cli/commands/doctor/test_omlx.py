"""Memory of an oMLX next to LLMKube's engines, also over time on a virtual clock."""

import attrs
import pytest
import trio

from llmkube.base.http.message import Response
from llmkube.cli.commands.doctor.daemons import EMPTY_BYTES, Omlx, assess_omlx, inspect_omlx, port_of
from llmkube.cli.commands.doctor.findings import Verdict
from programs.daemon_engine.fake_omlx import NAME, OWN_BYTES, PID, FakeOmlx, client_of

GIB = 1 << 30
URL = "http://127.0.0.1:8000"
FINE = Omlx(url=URL, loaded=1, reported_bytes=4 * GIB, pid=7, held_bytes=5 * GIB)
EMPTY = attrs.evolve(FINE, loaded=0, reported_bytes=0)


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (FINE, "pass", "1 model loaded (it reports 4.0 GiB); its process holds 5.0 GiB"),
        (attrs.evolve(EMPTY, held_bytes=GIB), "pass", "0 models loaded; its process holds 1.0 GiB"),
        (attrs.evolve(EMPTY, held_bytes=EMPTY_BYTES), "pass", "0 models loaded"),
        (attrs.evolve(FINE, loaded=2, pid=None), "pass", "2 models loaded (it reports 4.0 GiB)"),
        (EMPTY, "warn", "no model is loaded, but its process holds 5.0 GiB (pid 7)"),
        (EMPTY, "warn", "quit oMLX and start it again"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """A pass names the loaded models; a warning names the process and the fix."""
    (finding,) = assess_omlx(fact)
    assert finding.verdict is Verdict(verdict)
    assert words in f"{finding.found} {finding.why} {finding.fix}"


def test_a_machine_without_omlx_has_no_line():
    assert list(assess_omlx(Omlx(url=URL))) == []


def holding(**facts):
    fake = FakeOmlx(**facts)
    fake.sizes[NAME] = 2 * EMPTY_BYTES
    return fake


async def found(fake):
    async with client_of(fake) as client:
        return await inspect_omlx(client, 8000, fake)


async def test_what_is_loaded_is_reported_without_a_key(autojump_clock):
    """The count comes from the server, the memory of the process from the kernel."""
    fake = holding(key="of its owner")
    fake.put(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=1, pid=PID, held_bytes=OWN_BYTES + 2 * EMPTY_BYTES)


async def test_memory_that_stays_is_reported(autojump_clock):
    """The server lists no model but keeps the memory."""
    fake = holding(lies=True)
    fake.put(NAME)
    fake.drop(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=0, pid=PID, held_bytes=OWN_BYTES + 2 * EMPTY_BYTES)


async def test_an_unload_that_is_under_way_is_waited_for(autojump_clock):
    """A single sample would report the memory as leaked."""
    fake = holding(lag_seconds=2.0)
    fake.put(NAME)
    fake.drop(NAME)
    assert (await found(fake)).held_bytes == OWN_BYTES


async def test_hidden_process_is_not_reported(autojump_clock):
    """Another user's process is hidden: only the server's count is known."""
    fake = holding(hidden=True)
    fake.put(NAME)
    assert await found(fake) == Omlx(url=URL, loaded=1)


@pytest.mark.parametrize(
    "answer", [Response(404), Response(200, body=b"<html>"), Response.json(200, {"engine_pool": {"loaded_count": "x"}})]
)
async def test_another_program_at_its_port_is_ignored(autojump_clock, answer):
    assert await found(FakeOmlx(faults={"/health": [answer]})) == Omlx(url=URL)


async def test_silent_omlx_is_not_reported(autojump_clock):
    """Nothing listens, or the server hangs."""
    assert await found(FakeOmlx(answers=False)) == Omlx(url=URL)
    with trio.fail_after(10):
        assert await found(FakeOmlx(hangs=True)) == Omlx(url=URL)


def test_its_port_is_that_of_its_own_variable():
    """The default port is used otherwise."""
    assert [port_of({"OMLX_PORT": value}) for value in ("8001", "", "x")] == [8001, 8000, 8000]
