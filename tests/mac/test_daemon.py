"""A launchd daemon: sudo is checked before anything changes, runs three programs only, and gets no secret."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from e2e.separate_programs import open_cluster
from free_ports import free_port
from mac.test_guide import LABEL, opened_mac

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
HF_TOKEN = "hf_abcdefghijklmnop"

AS_ADA = """
import os, sys, types
from pathlib import Path
from llmkube.cli.commands.programs.background import launchctl
from llmkube.cli.commands.programs.background import agent_jobs

class Os:
    geteuid = staticmethod(lambda: 501)
    __getattr__ = lambda self, name: getattr(os, name)

def account(uid):
    return types.SimpleNamespace(pw_uid=uid, pw_name="ada", pw_dir=os.environ["HOME"])

launchctl.os, launchctl.pwd = Os(), types.SimpleNamespace(getpwuid=account)
agent_jobs.DAEMONS = launchctl.DAEMONS = Path(os.environ["DAEMONS"])
from llmkube.cli.main import main
sys.argv[0] = "llmkube"
sys.exit(main())
"""
"""The program run as a user who is not root, on a machine whose daemons are in a folder of the test."""

AT_A_TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


class Ada:
    """A user of a Mac whose sudo requires her password."""

    def __init__(self, mac, folder):
        self.mac = mac
        self.log = folder / "sudo.log"
        self.daemons = folder / "LaunchDaemons"
        self.daemons.mkdir()
        (folder / "bin" / "sudo").symlink_to(ROOT / "tests" / "mac" / "sudo")
        mac.environ |= {"SUDO_LOG": str(self.log), "SUDO_ASKS": "1", "DAEMONS": str(self.daemons)}

    @property
    def plist(self):
        return self.daemons / f"{LABEL}.plist"

    def asked(self):
        """Return the commands that sudo was asked to run since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(each) for each in lines]

    async def types(self, *words, terminal=True, code=0):
        before = [sys.executable, "-c", AT_A_TERMINAL] if terminal else []
        done = await trio.run_process(
            [*before, sys.executable, "-c", AS_ADA, *words],
            env=self.mac.environ,
            cwd=ROOT,
            check=False,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # without the terminal of the test run
        )
        text = done.stdout.decode()
        assert done.returncode == code, f"{words}: {text}"
        return text


@pytest.mark.ci
async def test_a_daemon_is_installed_by_three_root_programs_that_get_no_secret(tmp_path):
    """`-v` comes first; then launchctl, install and rm; a file with a secret is named, and not read into an argv."""
    async with open_cluster(tmp_path) as cluster:
        with opened_mac(tmp_path, cluster.kubeconfig) as mac:
            ada = Ada(mac, tmp_path)
            secret = tmp_path / "hf-token"
            secret.write_text(HF_TOKEN)
            secret.chmod(0o600)
            port = str(free_port())
            flags = ("--accelerator", "cpu", "--port", port, "--hf-token-file", str(secret))
            assert "/healthz  {" in await ada.types("agent", "install", "--daemon", *flags)
            asked = ada.asked()
            assert asked[0] == ["-v"]
            assert {Path(words[0]).name for words in asked[1:]} == {"launchctl", "install"}
            (written,) = (words for words in asked if words[0] == "install")
            assert written[:7] + written[8:] == ["install", "-o", "root", "-g", "wheel", "-m", "0644", str(ada.plist)]
            assert {words[2].partition("/")[0] for words in asked if words[0].endswith("launchctl")} == {"system"}

            await ada.types("agent", "restart")
            asked += ada.asked()
            await ada.types("agent", "uninstall")
            last = ada.asked()
            assert (last[0], last[-1]) == (["-v"], ["rm", "-f", str(ada.plist)])
            assert not ada.plist.exists()
            assert HF_TOKEN not in json.dumps(asked + last)


@pytest.mark.ci
async def test_without_a_terminal_nothing_changes_and_the_line_to_type_is_printed(tmp_path):
    """If sudo needs a password, the same command with its flags is printed, to be pasted."""
    async with open_cluster(tmp_path) as cluster:
        with opened_mac(tmp_path, cluster.kubeconfig) as mac:
            ada = Ada(mac, tmp_path)
            store = str(tmp_path / "ada's models")
            words = ("agent", "install", "--daemon", "--accelerator", "cpu", "--model-store", store)
            text = await ada.types(*words, "--port", "0", terminal=False, code=1)
            assert "nothing was changed" in text
            line = text.splitlines()[-1].strip()
            there = tmp_path / "there"
            await trio.run_process(["sh", "-c", f'llmkube() {{ printf "%s\\n" "$@" >"{there}"; }}; {line}'])
            assert there.read_text().splitlines() == [*words, "--port", "0"]
            assert ada.asked() == [["-n", "-v"]]
            assert not mac.state.exists()
            assert not ada.plist.exists()

            del mac.environ["SUDO_ASKS"]  # a line of sudoers with NOPASSWD
            await ada.types(*words, "--port", "0", terminal=False)
            assert ada.plist.exists()
            mac.environ["SUDO_ASKS"] = "1"
            ada.asked()
            assert "starts      1" in await ada.types("agent", "status", terminal=False)
            assert ada.asked() == []  # launchd shows every user the job
            for command in ("restart", "uninstall"):
                text = await ada.types("agent", command, terminal=False, code=1)
                assert text.splitlines()[-1].strip() == f"llmkube agent {command}"
            assert ada.asked() == [["-n", "-v"]] * 2
            assert ada.plist.exists()
            assert "agent       running" in await ada.types("agent", "status")
            await ada.types("agent", "uninstall")
