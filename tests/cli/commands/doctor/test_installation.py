"""Detection of the installed program and its settings."""

import os
import plistlib

import pytest

from llmkube.cli.commands.doctor.installation import find_installation, given_flags
from llmkube.programs.state_location import ENGINES_LOCK, SERVER_LOCK, hold_lock


@pytest.mark.parametrize(
    ("program", "words", "flags"),
    [
        ("agent", "/py -m llmkube agent --memory-fraction=0.5 --port 9191", {"memory_fraction": "0.5", "port": "9191"}),
        ("agent", "/py -m llmkube agent --start-limit=5 --insecure-lan", {"insecure_lan": True}),
        ("agent", "/usr/local/bin/llmkube-metal-agent --host-ip 10.0.0.5", {"host_ip": "10.0.0.5"}),
        ("up", "llmkube up --state-dir /s --no-insecure-lan", {"state_dir": "/s", "insecure_lan": False}),
        ("up", "llmkube up --of-another-version", {}),
        ("agent", "", {}),
    ],
)
def test_a_command_line_s_settings_are_read_as_the_program_reads_them(program, words, flags):
    """Arguments that are no settings of this version are ignored."""
    found = given_flags(program, words.split())
    assert {name: str(value) if name == "state_dir" else value for name, value in found.items()} == flags


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LLMKUBE_STATE_DIR", raising=False)
    return tmp_path


def test_missing_installation_is_a_stopped_up(home):
    """The folder is not created."""
    here = find_installation(home / "state")
    assert (here.program, here.pid, here.job, here.problem) == ("up", None, None, "")
    assert not here.folder.exists()


def test_running_program_is_found_by_its_locks(home):
    """Both locks mean `up`, the engines' lock alone means an agent."""
    state = home / "state"
    state.mkdir(mode=0o700)
    with hold_lock(state / ENGINES_LOCK):
        assert find_installation(state).program == "agent"
        with hold_lock(state / SERVER_LOCK):
            here = find_installation(state)
    assert (here.program, here.pid) == ("up", os.getpid())


def test_flags_of_a_stopped_job_are_read(home, monkeypatch):
    """With launchd, flags that the owner added to the property list apply."""
    tools = home / "bin"
    tools.mkdir()
    (tools / "launchctl").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    job = home / "Library" / "LaunchAgents" / "com.llmkube.metal-agent.plist"
    job.parent.mkdir(parents=True)
    words = ["/opt/python", "-m", "llmkube", "agent", "--memory-fraction=0.5"]
    job.write_bytes(plistlib.dumps({"Label": "com.llmkube.metal-agent", "ProgramArguments": words}))
    here = find_installation(home / "state")
    assert (here.program, here.job, here.daemon, here.job_program) == ("agent", job, False, "/opt/python")
    assert here.config.memory_fraction == 0.5
    job.write_bytes(b"damaged")
    assert find_installation(home / "state").config.memory_fraction == 0


def test_settings_that_cannot_be_read_are_reported_and_the_defaults_taken(home):
    """The other checks still run."""
    state = home / "state"
    state.mkdir(mode=0o700)
    (state / "config.toml").write_text("[up]\ngateway_prot = 1\n")
    here = find_installation(state)
    assert "gateway_prot" in here.problem
    assert here.config.gateway_port == 8080
