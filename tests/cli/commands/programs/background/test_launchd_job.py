"""What a job says."""

import plistlib
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands.programs.background.launchd_model import job
from llmkube.cli.commands.programs.background.launchd_job import guarded_folder, plist_text

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
