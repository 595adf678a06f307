"""Finding S1: two variables of libomp make an engine write a file that another program executes.

`OMP_TOOL_LIBRARIES` names libraries to load, and `OMP_TOOL_VERBOSE_INIT` the file for libomp's output while it loads
them. Libomp truncates that file and writes the value of the first variable into it, line breaks included. The next
Python that starts executes each `.pth` file in its package folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from cookies import new_cookie
from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process.environment import plan_environment
from llmkube.supervisor.engine import launcher
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
from llmkube.supervisor.values.settings import AgentSettings
from security.openmp_runtime import INSTALL_HINT, find_libomp
from sim.world import open_world
from waiting import until

ENGINE = (
    "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]).omp_get_max_threads(); print('up', flush=True); time.sleep(60)"
)
PAYLOAD = "x\nimport pathlib; pathlib.Path({proof!r}).write_text('run')\n#"
WRITTEN = "packages/attack.pth"


@pytest.fixture(scope="module")
def libomp(tmp_path_factory):
    found = find_libomp(tmp_path_factory.mktemp("libomp"))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(INSTALL_HINT)
    return found


def attack(tmp_path):
    """Return the variables of the attack; the path is relative to the engine's working directory."""
    (tmp_path / "packages").mkdir(exist_ok=True)
    libraries = PAYLOAD.format(proof=str(tmp_path / "proof"))
    return {"OMP_TOOL_LIBRARIES": libraries, "OMP_TOOL_VERBOSE_INIT": f"../../../{WRITTEN}"}


async def play(tmp_path, libomp, env):
    """Run an engine that is linked with libomp as the agent does; return the content of the file afterwards."""
    settings = AgentSettings("h", tmp_path, tmp_path, sys.executable, grace_seconds=0.2)
    work, log = tmp_path / "work" / "default" / "chat", tmp_path / "logs" / "default" / "chat.log"
    command = Command((sys.executable, "-c", ENGINE, str(libomp)), env, work, log, cookie=new_cookie())
    async with LocalEngines(settings).open_child(command, Shutdown(), Grace(0.2, 0.2)):
        with trio.fail_after(60):
            await until(lambda: log.exists() and "up" in log.read_text())
    written = tmp_path / WRITTEN
    return written.read_text() if written.exists() else ""


def start_python(tmp_path):
    """Start another program whose package folder has the file; return whether it executed the attack."""
    code = f"import site; site.addsitedir({str(tmp_path / 'packages')!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    return (tmp_path / "proof").exists()


@pytest.mark.ci
@pytest.mark.e2e
async def test_s1_without_the_check_the_chain_runs_code(tmp_path, libomp, monkeypatch):
    """The attack is real: with unchecked variables and an engine that loads tools, a file is written and executed."""
    monkeypatch.setattr(launcher, "FIXED_VARIABLES", {})
    assert "import pathlib" in await play(tmp_path, libomp, attack(tmp_path))
    assert start_python(tmp_path)


@pytest.mark.e2e
async def test_s1_our_engine_loads_no_tool(tmp_path, libomp):
    """Even if the host's owner allows both variables, nothing of their text is written or loaded."""
    assert "import pathlib" not in await play(tmp_path, libomp, attack(tmp_path))
    assert not start_python(tmp_path)


@pytest.mark.parametrize("name", ["OMP_TOOL_LIBRARIES", "OMP_TOOL_VERBOSE_INIT"])
def test_s1_no_service_may_set_the_variables(tmp_path, name):
    """The judgement names the variable and what it would do."""
    with pytest.raises(PlanError, match=f"{name} (loads code|names a file)"):
        plan_environment([EnvVar(name=name, value=attack(tmp_path)[name])])


def test_s1_no_allowed_variable_can_carry_the_attack(tmp_path):
    """Neither the text with its line breaks nor the path is a valid value of a variable that a service may set."""
    for value in attack(tmp_path).values():
        for name in ("OMP_NUM_THREADS", "OMP_PLACES", "KMP_AFFINITY", "GGML_VK_VISIBLE_DEVICES", "TZ", "LANG"):
            with pytest.raises(PlanError):
                plan_environment([EnvVar(name=name, value=value)])


async def test_s1_the_edit_is_refused_and_the_running_engine_continues(tmp_path, autojump_clock):
    """The conditions of the service state the reason; no engine is ever started with the variables."""
    env = [{"name": name, "value": value} for name, value in attack(tmp_path).items()]
    async with open_world() as world:
        await world.serve()
        await world.apply(env=env)
        await world.until(world.condition, lambda seen: seen and seen[0] == "False", "Accepted")
        _, reason, message = await world.condition("Accepted")
        assert reason == "Invalid"
        assert message.startswith("spec.env: OMP_TOOL_LIBRARIES loads code; remove it, or allow it on this machine")
        assert "--allow-engine-variable OMP_TOOL_LIBRARIES" in message
        await trio.sleep(600)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1
        await world.apply("new", env=env)
        await trio.sleep(600)
        assert await world.phase("new") == "Failed"
        assert len(world.machine.spawned) == 1


def test_s1_the_attack_writes_no_file_of_ours():
    """The attack writes only below the test's own folder."""
    assert not Path(WRITTEN).exists()
