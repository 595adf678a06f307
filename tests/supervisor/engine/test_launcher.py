"""Location of a runtime's program, and the message when there is none."""

import gc
import json
import os
import signal
import sys
from pathlib import Path

import attrs
import psutil
import pytest
import trio

from cookies import new_cookie
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine import child as owned
from llmkube.supervisor.engine import launcher
from llmkube.supervisor.engine.launcher import (
    EngineNotFoundError,
    EngineStuckError,
    LocalEngines,
    explain_early_kill,
    find_program,
    read_head,
)
from llmkube.supervisor.engine.orphans import STUCK_FOLDER, StuckEngines
from llmkube.supervisor.host import processes
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
from llmkube.supervisor.values.settings import AgentSettings
from waiting import until

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def engines(tmp_path):
    return LocalEngines(AgentSettings("h", tmp_path, tmp_path, sys.executable, grace_seconds=0.2))


def command(tmp_path, name="chat"):
    work, log = tmp_path / "work" / "default" / name, tmp_path / "logs" / "default" / f"{name}.log"
    return Command((sys.executable, "-c", STUBBORN), {}, work, log, cookie=new_cookie())


ASKED = """#!/bin/sh
echo "$1" >> "$0.asked"
sleep 0.2
test -e "$0.broken" && exit 3
echo '  --api-key-file FNAME   keys'
"""


@pytest.mark.e2e
async def test_an_engine_inherits_no_secret_and_loads_no_tool(tmp_path, monkeypatch):
    """An engine inherits a few variables of the agent, and those that disable libomp's tools."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OMP_TOOL_LIBRARIES", "/evil.so")
    wanted = command(tmp_path)
    is_explained = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
    wanted = attrs.evolve(wanted, argv=(sys.executable, "-c", is_explained), env={"OMP_NUM_THREADS": "2"})
    local = engines(tmp_path)
    local.settings = attrs.evolve(local.settings, variables={"OMLX_PORT": "8001"})
    async with local.open_child(wanted, Shutdown(), Grace(0.2, 0.2)):
        with trio.fail_after(60):
            await until(lambda: wanted.log_path.exists() and "}" in wanted.log_path.read_text())
    found = json.loads(wanted.log_path.read_text())
    assert (found["OMP_TOOL"], found["OMP_NUM_THREADS"]) == ("disabled", "2")
    assert found["OMLX_PORT"] == "8001"
    assert not {"HF_TOKEN", "OMP_TOOL_LIBRARIES"} & found.keys()


@pytest.mark.e2e
async def test_a_program_is_queried_once_for_all(tmp_path):
    """Services that start together query the program once; a replaced one is queried again, whatever its mtime."""
    program = tmp_path / "llama-server"
    asked = tmp_path / "llama-server.asked"
    found = LocalEngines(AgentSettings("h", tmp_path, tmp_path, str(program)))

    def install(text):
        program.unlink(missing_ok=True)
        program.write_text(text)
        program.chmod(0o755)
        os.utime(program, (1, 1))  # as in a store where all files have the same mtime

    async def ask():
        with trio.CancelScope() as scope:
            scopes.append(scope)
            answers.append(await found.info())

    install(ASKED)
    scopes, answers = [], []
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
        await until(lambda: asked.exists() and asked.read_text())  # it is created before it is written to
        scopes[0].cancel()  # the task that runs the query may be cancelled: another one runs it instead
    assert len(answers) == 19
    assert sorted(set(asked.read_text().split())) == ["--help", "--version"]
    assert len(asked.read_text().split()) == 3
    install(f"{ASKED}# newer\n")
    await found.info()
    assert len(asked.read_text().split()) == 5


@pytest.mark.e2e
async def test_a_program_that_fails_is_queried_once_for_all(tmp_path):
    """All tasks that wait get the same error, and the next one queries again."""
    program, failures = tmp_path / "llama-server", []
    program.write_text(ASKED)
    program.chmod(0o755)
    (tmp_path / "llama-server.broken").touch()
    found = LocalEngines(AgentSettings("h", tmp_path, tmp_path, str(program)))

    async def ask():
        try:
            await found.info()
        except EngineNotFoundError as error:
            failures.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert len(failures) == 20
    assert "exit code 3" in failures[0]
    assert (tmp_path / "llama-server.asked").read_text().split() == ["--help"]
    await ask()
    assert len((tmp_path / "llama-server.asked").read_text().split()) == 2


@pytest.mark.e2e
@pytest.mark.usefixtures("left_process")  # nothing waits for a process that does not end
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_no_engine_is_started_next_to_one_that_does_not_end(tmp_path, monkeypatch):
    """After grace and KILL the stop is over; this agent and the next start no other engine for that service."""
    monkeypatch.setattr(owned, "KILL_SECONDS", 0.3)
    signals = []
    real = processes.send_group

    def stuck(pid, started, number):
        signals.append(number)
        if number != signal.SIGKILL:
            real(pid, started, number)

    first, stubborn = engines(tmp_path), command(tmp_path)
    monkeypatch.setattr(processes, "send_group", stuck)
    monkeypatch.setattr(processes, "send", lambda process, number: signals.append(number))
    with trio.fail_after(60):
        async with first.open_child(stubborn, Shutdown(), Grace(0.2, 0.2)) as child:
            await until(lambda: "up" in stubborn.log_path.read_text())
    assert signal.SIGKILL in signals
    assert psutil.pid_exists(child.pid)
    monkeypatch.undo()
    try:
        for agent in (first, engines(tmp_path)):
            with pytest.raises(EngineStuckError, match=rf"default/chat \(pid {child.pid}\) did not exit"):
                async with agent.open_child(stubborn, Shutdown(), Grace(0.2, 0.2)):
                    pass
        async with first.open_child(command(tmp_path, "other"), Shutdown(), Grace(0.2, 0.2)) as other:
            assert other.pid != child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
    await until(lambda: not StuckEngines(tmp_path / STUCK_FOLDER).of("default/chat"))
    async with first.open_child(stubborn, Shutdown(), Grace(0.2, 0.2)) as again:
        assert again.pid != child.pid


@pytest.mark.e2e
async def test_a_command_is_dropped_once_its_engine_runs(tmp_path):
    """The environment of a command takes kilobytes, and an agent may run hundreds of engines."""
    wanted = attrs.evolve(command(tmp_path), argv=(sys.executable, "-c", "import time; time.sleep(600)"))
    cookie = wanted.cookie
    opening = engines(tmp_path).open_child(wanted, Shutdown(), Grace(0.2, 0.2))
    del wanted
    async with opening:
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Command) and each.cookie == cookie]


@pytest.mark.parametrize(
    ("code", "platform", "is_explained"),
    [(-9, "darwin", True), (-9, "linux", False), (1, "darwin", False), (-6, "darwin", False)],
)
def test_a_program_that_macos_kills_at_once_is_not_signed(code, platform, is_explained):
    """SIGKILL before the first output is a code signature problem on macOS, and unknown elsewhere."""
    assert ("codesign" in explain_early_kill(code, platform)) is is_explained


MLX = HOST_RUNTIMES["mlx-lm"]
SETTINGS = AgentSettings("h", Path("/s"), Path("/s"), "/llama-server")


def test_a_program_that_is_installed_later_is_found_later(tmp_path, monkeypatch):
    """PATH is searched each time; a program that the owner names has priority."""
    monkeypatch.setattr(launcher, "HOMEBREW", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineNotFoundError, match=r"no mlx_lm.server on this machine; install it with pip install"):
        find_program(SETTINGS, MLX)
    (tmp_path / "mlx_lm.server").write_text("#!/bin/sh\n")
    (tmp_path / "mlx_lm.server").chmod(0o755)
    assert find_program(SETTINGS, MLX) == str(tmp_path / "mlx_lm.server")
    assert find_program(attrs.evolve(SETTINGS, programs={"mlx-lm": "/mine"}), MLX) == "/mine"
    assert find_program(SETTINGS, HOST_RUNTIMES["llamacpp"]) == "/llama-server"


async def test_an_engine_of_the_owners_is_not_run_to_describe_itself(tmp_path):
    """Its build is its name, and one that is no longer configured is not started from the journal."""
    program = tmp_path / "speechd"
    program.write_text("#!/bin/sh\nexit 1\n")
    local = engines(tmp_path)
    local.settings = attrs.evolve(local.settings, programs={"generic/speech": str(program)})
    found = await local.info("generic/speech")
    assert (found.program, found.version) == (str(program), "speech")
    with pytest.raises(EngineNotFoundError, match=r"no generic/other on this machine; add it to config.toml"):
        await local.info("generic/other")
    program.unlink()
    with pytest.raises(EngineNotFoundError, match=r"no generic/speech at .*speechd \(No such file"):
        await local.info("generic/speech")


def test_a_script_that_cannot_be_read_is_reported(tmp_path):
    """It is an environment error, and is checked again."""
    with pytest.raises(EngineNotFoundError, match="cannot read"):
        read_head(str(tmp_path / "gone"))
