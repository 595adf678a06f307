import math
import os
import signal
import subprocess
import sys
from functools import partial

import attrs
import psutil
import pytest
import trio
from structlog.testing import capture_logs

from cookies import new_cookie
from llmkube.base.backoff import Backoff
from llmkube.supervisor.engine import keep_awake
from llmkube.supervisor.engine.keep_awake import PowerAssertion, keeping_awake
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
from llmkube.supervisor.values.settings import AgentSettings
from sim.world import open_world
from waiting import until


@pytest.fixture
def caffeinate(tmp_path):
    """A stand-in for caffeinate that writes its arguments and waits for the process that it is given."""
    path = tmp_path / "caffeinate"
    code = """
import os, sys, time
print(os.getpid(), *sys.argv[1:], file=open(sys.argv[0] + '.ran', 'w'), flush=True)
while '-w' not in sys.argv or os.path.exists('/proc/' + sys.argv[-1]):
    time.sleep(0.05)
"""
    path.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    path.chmod(0o700)
    return path


async def read_arguments(path):
    ran = path.with_name("caffeinate.ran")
    await until(lambda: ran.exists() and ran.read_text("utf-8").endswith("\n"))
    pid, *arguments = ran.read_text("utf-8").split()
    return int(pid), arguments


@pytest.mark.e2e
async def test_caffeinate_gets_the_pid_and_ends_with_the_block(caffeinate):
    """It gets the pid of the process to watch, and has exited when the block is left."""
    program = (str(caffeinate), "-i", "-s", "-w")
    assertion = PowerAssertion(partial(keep_awake.caffeinate, program), always=True)
    async with keeping_awake(assertion):
        pid, arguments = await read_arguments(caffeinate)
        assert arguments == ["-i", "-s", "-w", str(os.getpid())]
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


@pytest.mark.e2e
async def test_caffeinate_that_is_killed_is_started_again(caffeinate):
    """It is started again after a second."""
    async with keeping_awake(PowerAssertion(partial(keep_awake.caffeinate, (str(caffeinate),)), always=True)):
        pid, _ = await read_arguments(caffeinate)
        caffeinate.with_name("caffeinate.ran").unlink()
        os.kill(pid, signal.SIGKILL)
        assert (await read_arguments(caffeinate))[0] != pid


@pytest.mark.e2e
@pytest.mark.parametrize("held", [True, False])
async def test_the_setting_enables_caffeinate(tmp_path, caffeinate, held):
    """An engine has its caffeinate, which ends with the agent, if the setting is on."""
    settings = AgentSettings("studio", tmp_path / "state", tmp_path / "store", sys.executable, keep_awake=held)
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    log = tmp_path / "logs" / "ns" / "chat.log"
    command = Command(argv, {}, tmp_path / "work", log, cookie=new_cookie())
    engines = LocalEngines(settings)
    assert (engines.awake is not None) is held
    if held:
        engines.awake = partial(keep_awake.caffeinate, (str(caffeinate), "-w"))
    async with engines.open_child(command, Shutdown(), Grace(0.2, 0.2)) as child:
        if held:
            assert (await read_arguments(caffeinate))[1] == ["-w", str(os.getpid())]
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
    assert caffeinate.with_name("caffeinate.ran").exists() is held


AGENT = """
import os, sys
from functools import partial
import trio
from llmkube.supervisor.engine import keep_awake
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
from llmkube.supervisor.values.settings import AgentSettings
from pathlib import Path

async def main(folder, program, cookie):
    engines = LocalEngines(AgentSettings("studio", folder / "state", folder / "store", sys.executable, keep_awake=True))
    engines.awake = partial(keep_awake.caffeinate, (program, "-w"))
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    command = Command(argv, {}, folder / "work", folder / "logs" / "ns" / "chat.log", cookie=cookie)
    async with engines.open_child(command, Shutdown(), Grace(0.2, 0.2)) as child:
        print(child.pid, flush=True)
        await trio.sleep_forever()

trio.run(main, Path(sys.argv[1]), *sys.argv[2:])
"""


async def outlives_a_killed_agent(code, folder, caffeinate, *, seconds):
    """Return whether caffeinate still runs some time after its agent was killed and left an engine."""
    agent = await trio.lowlevel.open_process(
        [sys.executable, "-c", code, str(folder), str(caffeinate), new_cookie()], stdout=subprocess.PIPE
    )
    engine = int(await agent.stdout.receive_some())
    try:
        pid, _ = await read_arguments(caffeinate)
        agent.kill()
        await agent.wait()
        with trio.move_on_after(seconds):
            await until(lambda: not psutil.pid_exists(pid))
        assert psutil.pid_exists(engine)
        if outlives := psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
        return outlives
    finally:
        os.kill(engine, signal.SIGKILL)


@pytest.mark.e2e
async def test_an_agent_that_is_killed_leaves_an_engine_and_no_assertion(tmp_path, caffeinate):
    """Without an agent the engine's work is unknown, and the Mac may sleep."""
    assert not await outlives_a_killed_agent(AGENT, tmp_path, caffeinate, seconds=60)


@pytest.mark.soak
@pytest.mark.e2e
async def test_mutant_an_assertion_that_waits_for_another_process_than_the_agent(tmp_path, caffeinate):
    """It would keep the Mac awake for as long as that process runs."""
    assert await outlives_a_killed_agent("import os; os.getpid = os.getppid\n" + AGENT, tmp_path, caffeinate, seconds=2)


@attrs.define(eq=False)
class Program:
    """A record of caffeinate's runs; it ends by itself after some seconds, or cannot be started."""

    lives: float = math.inf
    error: OSError | None = None
    ran: list[list[float]] = attrs.field(factory=list)

    async def hold(self):
        if self.error is not None:
            self.ran.append([trio.current_time()] * 2)
            raise self.error
        self.ran.append([trio.current_time(), math.inf])
        try:
            await trio.sleep(min(self.lives, 1e9))
        finally:
            self.ran[-1][1] = trio.current_time()

    def seconds(self, since):
        return [tuple(round(at - since) for at in times) for times in self.ran]


async def played(program, *, always=False, works_at=(), until=1000.0):
    """Simulate an engine that works at these seconds, and return when caffeinate ran."""
    assertion, begun = PowerAssertion(program.hold, always), trio.current_time()
    async with keeping_awake(assertion):
        for at in works_at:
            await trio.sleep_until(begun + at)
            assertion.record_activity()
        await trio.sleep_until(begun + until)
    return program.seconds(begun)


@pytest.mark.parametrize(
    ("works_at", "held"),
    [
        ((), []),
        ((100,), [(100, 160)]),
        ((100, 105, 110, 150), [(100, 210)]),
        ((100, 300), [(100, 160), (300, 360)]),
    ],
)
async def test_it_is_held_while_an_engine_works_and_a_minute_longer(autojump_clock, works_at, held):
    assert await played(Program(), works_at=works_at) == held


async def test_with_the_flag_it_is_held_all_the_time(autojump_clock):
    """From the start of the engine to its end."""
    assert await played(Program(), always=True) == [(0, 1000)]


@pytest.mark.parametrize("program", [Program(lives=0.0), Program(error=FileNotFoundError(2, "no such file"))])
async def test_one_that_dies_is_started_again_ever_more_slowly(autojump_clock, program):
    """A program that always ends at once, or does not exist, is tried 9 to 12 times in 1,000 s, and logged once."""
    with capture_logs() as logs:
        assert 9 <= len(await played(program, always=True)) <= 12
    assert [line["event"] for line in logs] == ["power assertion lost; this Mac may sleep"]


@pytest.mark.soak
async def test_mutant_one_that_dies_stays_dead(autojump_clock, monkeypatch):
    """Without the loop a Mac falls asleep during the next request."""
    monkeypatch.setattr(keep_awake, "RETRY", Backoff(base_seconds=1e6, cap_seconds=1e6))
    with pytest.raises(AssertionError):
        assert len(await played(Program(lives=300.0), always=True)) > 1
    monkeypatch.undo()
    assert len(await played(Program(lives=300.0), always=True)) > 1


async def test_an_engine_with_requests_is_working(autojump_clock):
    """With a request in flight the engine is reported as working, every five seconds; an idle one is not."""
    async with open_world() as world:
        await world.apply()
        await world.until(world.ready_addresses, 1)
        (child,) = world.machine.live("chat")
        await trio.sleep(60)
        child.worked_at.clear()
        await trio.sleep(300)
        assert child.worked_at == []
        child.in_flight = 1
        await trio.sleep(300)
        assert len(child.worked_at) >= 50
        child.in_flight = 0
