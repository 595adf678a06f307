"""The agent's job: what its settings make of it, and what stays of the one before."""

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
    """Else it would kill the agent in the middle of a drain: 30 s, the engines' grace, and what is withdrawn."""
    assert plistlib.loads(plist_text(job()))["ExitTimeOut"] == 90
    assert plistlib.loads(plist_text(job(config=AgentConfig(drain_seconds=300.0))))["ExitTimeOut"] == 360


def test_what_an_owner_has_added_stays():
    """The guide has `--host-ip` written into the file: a reinstall keeps it, whichever way it is written."""
    content = plistlib.loads(plist_text(job()))
    content["ProgramArguments"] += ["--host-ip", "192.168.1.50", "--memory-fraction=0.9", "--apple-power-enabled"]
    content["EnvironmentVariables"]["HTTPS_PROXY"] = "http://proxy:3128"
    added = added_flags(plistlib.dumps(content), set())
    assert added.arguments == ("--host-ip=192.168.1.50", "--memory-fraction=0.9", "--apple-power-enabled")
    assert dict(added.environ) == {"HTTPS_PROXY": "http://proxy:3128"}
    again = plistlib.loads(plist_text(job(added=added)))
    assert again["ProgramArguments"][-3:] == list(added.arguments)
    assert added_flags(plistlib.dumps(again), set()) == added  # once more, and nothing is there twice
    assert plistlib.loads(plist_text(job(added=added)))["EnvironmentVariables"]["HTTPS_PROXY"] == "http://proxy:3128"


def test_what_is_set_again_replaces_what_stood_there():
    """A flag of `install` goes into config.toml, which an old flag in the file would outrank."""
    content = plistlib.loads(plist_text(job()))
    content["ProgramArguments"] += ["--host-ip", "192.168.1.50"]
    assert added_flags(plistlib.dumps(content), {"host_ip"}).arguments == ()


def test_the_go_agent_s_job_of_the_same_name_is_taken_over():
    """Its flags have one dash or two; those that we have stay, the others are named."""
    old = {
        "Label": "com.llmkube.metal-agent",
        "ProgramArguments": [
            "/usr/local/bin/llmkube-metal-agent",
            "-namespace",
            "default",
            "--model-store=/Users/ada/models",
            "--port",
            "9090",
            "--apple-power-enabled=true",
            "--omlx-bin",
            "/opt/homebrew/bin/omlx",
            "--omlx-startup-timeout",
            "120s",
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
    """It is left where it is."""
    with pytest.raises(ValueError, match="not a property list of a job"):
        added_flags(content, set())


def test_settings_of_an_install_are_written_as_toml_has_them():
    """Paths as seen from anywhere, numbers as numbers; a job of launchd gets no variable of the terminal."""
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
    """The grace of an engine on Metal is part of that."""
    config = AgentConfig()
    settings = AgentSettings("m", Path("/s"), Path("/s"), "x", metal=True, drain_seconds=config.drain_seconds)
    assert stop_seconds(settings) > stop_seconds(attrs.evolve(settings, metal=False))
    assert exit_seconds_of(config) > stop_seconds(settings) + 5


TYPES = {  # launchd.plist(5)
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "WorkingDirectory": str,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "AbandonProcessGroup": bool,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "UserName": str,
}


@pytest.mark.parametrize("daemon", [False, True])
def test_the_keys_are_launchd_s_and_their_values_of_its_types(daemon):
    """A key that launchd does not know, or a value of another type, it would ignore in silence."""
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
    """An agent of a login, and a daemon of the machine."""
    assert job().file == Path("/Users/ada/Library/LaunchAgents/com.llmkube.metal-agent.plist")
    assert job(daemon=True).file == Path("/Library/LaunchDaemons/com.llmkube.metal-agent.plist")


def test_folders_that_macos_keeps_from_jobs():
    """A terminal may read them, and a job of launchd may not."""
    home = Path("/Users/ada")
    assert guarded_folder(home / "Documents" / "llmkube" / ".venv", home) == home / "Documents"
    assert guarded_folder(Path("/Volumes/big/models"), home) == Path("/Volumes")
    assert guarded_folder(home / "llmkube", home) is None


def test_the_template_in_the_tree_is_what_install_writes():
    """`launchd/` shows a reader each step: its file is the installer's, with ada in it."""
    root = Path(__file__).parents[5]
    written = subprocess.run(
        [sys.executable, root / "tests" / "mac" / "launchd_template.py"], check=True, capture_output=True
    ).stdout
    assert (root / "launchd" / "com.llmkube.metal-agent.plist").read_bytes() == written
