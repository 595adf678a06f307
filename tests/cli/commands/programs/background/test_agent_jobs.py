"""The agent's launchd job: its content by its settings, and what a reinstall keeps."""

import plistlib
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from cli.commands.programs.background.launchd_model import job
from llmkube.base.settings import resolve
from llmkube.cli.commands.programs.background.agent_jobs import (
    added_flags,
    exit_seconds_of,
    given_settings,
    guarded_folder,
    plist_text,
)
from llmkube.programs.config import AgentConfig
from llmkube.supervisor.agent import stop_seconds
from llmkube.supervisor.values.settings import AgentSettings


def test_launchd_waits_longer_than_the_engines_take():
    """ExitTimeOut covers the drain, the engines' grace period and the withdrawal of endpoints."""
    assert plistlib.loads(plist_text(job()))["ExitTimeOut"] == 90
    assert plistlib.loads(plist_text(job(config=AgentConfig(drain_seconds=300.0))))["ExitTimeOut"] == 360


def test_added_flags_are_kept():
    """A reinstall keeps flags and variables that the owner added to the property list."""
    content = plistlib.loads(plist_text(job()))
    content["ProgramArguments"] += ["--host-ip", "192.168.1.50", "--memory-fraction=0.9", "--apple-power-enabled"]
    content["EnvironmentVariables"]["HTTPS_PROXY"] = "http://proxy:3128"
    added = added_flags(plistlib.dumps(content), set())
    assert added.arguments == ("--host-ip=192.168.1.50", "--memory-fraction=0.9", "--apple-power-enabled")
    assert dict(added.environ) == {"HTTPS_PROXY": "http://proxy:3128"}
    again = plistlib.loads(plist_text(job(added=added)))
    assert again["ProgramArguments"][-3:] == list(added.arguments)
    assert added_flags(plistlib.dumps(again), set()) == added  # idempotent
    assert plistlib.loads(plist_text(job(added=added)))["EnvironmentVariables"]["HTTPS_PROXY"] == "http://proxy:3128"


def test_flag_of_install_replaces_the_old_one():
    """A flag of `install` goes to config.toml, which an old flag in the property list would override."""
    content = plistlib.loads(plist_text(job()))
    content["ProgramArguments"] += ["--host-ip", "192.168.1.50"]
    assert added_flags(plistlib.dumps(content), {"host_ip"}).arguments == ()


def test_the_go_agent_s_job_of_the_same_name_is_taken_over():
    """Known flags are kept, with one dash or two; the others are reported."""
    old = {
        "Label": "com.llmkube.metal-agent",
        "ProgramArguments": [
            *("/usr/local/bin/llmkube-metal-agent", "-namespace", "default", "--model-store=/Users/ada/models"),
            *("--port", "9090", "--apple-power-enabled=true", "--omlx-bin", "/opt/homebrew/bin/omlx"),
            *("--omlx-startup-timeout", "120s"),
        ],
    }
    added = added_flags(plistlib.dumps(old), set())
    assert added.arguments == (
        "--namespace=default",
        "--model-store=/Users/ada/models",
        "--port=9090",
        "--apple-power-enabled",
        "--omlx-bin=/opt/homebrew/bin/omlx",
    )
    assert added.dropped == ("--omlx-startup-timeout",)


@pytest.mark.parametrize("content", [b"", b"<plist>", b"[]", b"\x00\x01"])
def test_a_file_that_is_no_job_is_refused(content):
    with pytest.raises(ValueError, match="not a property list of a job"):
        added_flags(content, set())


def test_install_settings_have_toml_types():
    """Paths are absolute, numbers are numbers; a launchd job gets no variables of the terminal."""
    flags = {"host_ip": "192.168.1.50", "port": "9191", "model_store": "models", "accelerator": ("metal",)}
    environ = {"LLMKUBE_LOG_LEVEL": "debug", "KUBECONFIG": "/Users/ada/lab:/Users/ada/.kube/config", "PATH": "/bin"}
    config = resolve(AgentConfig, flags=flags, environ=environ)
    assert given_settings(config, {**flags, "selector": None}, environ) == {
        "host_ip": "192.168.1.50",
        "port": 9191,
        "model_store": f"{Path.cwd()}/models",
        "accelerator": ["metal"],
        "log_level": "debug",
        "kubeconfig": "/Users/ada/lab",
    }
    assert given_settings(AgentConfig(kubeconfig=Path("/x")), {}, {"KUBECONFIG": "/y"}) == {}


def test_launchd_waits_longer_than_the_agent_takes_at_most():
    """That includes the grace period of an engine on Metal."""
    config = AgentConfig()
    settings = AgentSettings("m", Path("/s"), Path("/s"), "x", metal=True, drain_seconds=config.drain_seconds)
    assert stop_seconds(settings) > stop_seconds(attrs.evolve(settings, metal=False))
    assert exit_seconds_of(config) > stop_seconds(settings) + 5


TEXTS = ("Label", "WorkingDirectory", "ProcessType", "StandardOutPath", "StandardErrorPath", "UserName")
TYPES = dict.fromkeys(TEXTS, str) | {"ProgramArguments": list, "EnvironmentVariables": dict, "KeepAlive": dict}
TYPES |= {
    "RunAtLoad": bool,
    "AbandonProcessGroup": bool,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
}  # launchd.plist(5)


@pytest.mark.parametrize("daemon", [False, True])
def test_the_keys_are_launchd_s_and_their_values_of_its_types(daemon):
    """Unknown keys and wrong types would be ignored silently."""
    content = plistlib.loads(plist_text(job(daemon=daemon)))
    for key, value in content.items():
        assert type(value) is TYPES[key], key
    assert ("UserName" in content) is daemon
    assert content["KeepAlive"] == {"SuccessfulExit": False, "Crashed": True}
    assert content["ProcessType"] == "Interactive"
    assert content["ThrottleInterval"] >= 10
    assert content["EnvironmentVariables"]["HOME"] == "/Users/ada"
    assert all(isinstance(each, str) for each in content["ProgramArguments"])
    assert content["ProgramArguments"][0].startswith("/")
    assert content["StandardErrorPath"] == "/Users/ada/Library/Logs/llmkube/metal-agent.log"


def test_where_the_files_are():
    """An agent of a login and a system daemon have different files."""
    assert job().file == Path("/Users/ada/Library/LaunchAgents/com.llmkube.metal-agent.plist")
    assert job(daemon=True).file == Path("/Library/LaunchDaemons/com.llmkube.metal-agent.plist")


def test_folders_that_macos_keeps_from_jobs():
    """A terminal may read them, but a launchd job may not."""
    home = Path("/Users/ada")
    assert guarded_folder(home / "Documents" / "llmkube" / ".venv", home) == home / "Documents"
    assert guarded_folder(Path("/Volumes/big/models"), home) == Path("/Volumes")
    assert guarded_folder(home / "llmkube", home) is None


def test_the_template_in_the_tree_is_what_install_writes():
    """The file in `launchd/` is the installer's output for ada."""
    root = Path(__file__).parents[5]
    written = subprocess.run(
        [sys.executable, root / "tests" / "mac" / "launchd_template.py"], check=True, capture_output=True
    ).stdout
    assert (root / "launchd" / "com.llmkube.metal-agent.plist").read_bytes() == written
