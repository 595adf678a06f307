"""The guide's commands, in order, with a launchctl that runs jobs as launchd does: from the clone to an answer."""

import contextlib
import json
import os
import plistlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import trio

from e2e.addresses import own_address
from e2e.separate_programs import open_cluster
from e2e.up_process import engines_in
from free_ports import free_port
from llmkube.cli.commands.programs.background.agent_jobs import START_LIMIT
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import ENGINES_LOCK, SERVER_LOCK
from waiting import until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
LABEL = "com.llmkube.metal-agent"


class Mac:
    """A home directory, a launchd, and a terminal."""

    def __init__(self, folder, kubeconfig):
        self.home = folder / "ada smith"
        self.state = self.home / ".local" / "share" / "llmkube"
        self.jobs = folder / "launchd"
        self.plist = self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.prefix = folder / "usr"
        self.jobs.mkdir()
        self.home.mkdir()
        tools = folder / "bin"
        tools.mkdir()
        (tools / "launchctl").symlink_to(ROOT / "tests" / "mac" / "launchctl")
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "KUBECONFIG": str(kubeconfig),
            "LAUNCHD_MODEL": str(self.jobs),
            "NO_COLOR": "1",
            "COLUMNS": "80",
        }

    async def types(self, *words, code=0):
        """Run a command and return what it printed."""
        done = await trio.run_process(
            words, env=self.environ, cwd=ROOT, check=False, capture_stdout=True, stderr=subprocess.STDOUT
        )
        text = done.stdout.decode()
        assert done.returncode == code, f"{words}: {text}"
        return text

    async def llmkube(self, *words, code=0):
        return await self.types(sys.executable, "-m", "llmkube", *words, code=code)

    def end(self):
        """Stop everything, whatever the result of the test."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("LAUNCHD_MODEL") == str(self.jobs) or str(self.state) in " ".join(
                    process.cmdline()
                ):
                    process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def opened_mac(folder, kubeconfig):
    mac = Mac(folder, kubeconfig)
    try:
        yield mac
    finally:
        mac.end()


@pytest.mark.ci
async def test_the_guide_from_the_clone_to_an_answer(tmp_path):
    """Install, check, edit the job by hand, reload, deploy, query, restart, reinstall, uninstall."""
    address = own_address()
    port = str(free_port())
    async with open_cluster(tmp_path) as cluster:
        with opened_mac(tmp_path, cluster.kubeconfig) as mac:
            flags = f"--accelerator cpu --host-name box --host-ip {address} --allow-from 203.0.113.0/24 --port {port}"
            text = await mac.types(
                "make",
                "--silent",
                "install-metal-agent",
                f"ARGS={flags}",
                f"PREFIX={mac.prefix}",
            )
            assert f"http://127.0.0.1:{port}/healthz  {{" in text
            assert "llmkube agent install --daemon" in text
            assert "no key required from: this machine, --allow-from (203.0.113.0/24); no list of nodes" in text
            link = mac.prefix / "bin" / "llmkube-metal-agent"
            assert link.is_symlink()

            listed = await mac.types("launchctl", "list")
            pid, status, _ = next(line for line in listed.splitlines() if LABEL in line).split("\t")
            assert (pid.isdecimal(), status) == (True, "0")
            assert await mac.types("curl", "-s", f"http://localhost:{port}/healthz") == '{"status":"ok"}'
            log = mac.home / "Library" / "Logs" / "llmkube" / "metal-agent.log"
            assert '"msg":"agent started"' in log.read_text()
            assert f'host_ip = "{address}"' in (mac.state / "config.toml").read_text()

            # step 4 of the guide: a flag written into the job, and unload, load
            job = plistlib.loads(mac.plist.read_bytes())
            job["ProgramArguments"] += ["--memory-fraction", "0.5"]
            mac.plist.write_bytes(plistlib.dumps(job))
            await mac.types("launchctl", "unload", str(mac.plist))
            await mac.types("launchctl", "load", str(mac.plist))

            await cluster.apply_demo()
            await cluster.wait_ready()
            body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "What is LLMKube?"}]})
            before = engines_in(mac.state)
            assert len(before) == 1

            assert "agent restarted" in await mac.llmkube("agent", "restart")
            assert [each.pid for each in engines_in(mac.state)] == [before[0].pid]  # adopted, not started again
            status_text = await mac.llmkube("agent", "status")
            assert "agent       running (pid" in status_text
            assert "starts      1" in status_text
            assert "admitted    this machine, --allow-from (203.0.113.0/24); no list of nodes" in status_text
            await until(lambda: '"msg":"adopted inference service"' in log.read_text())
            assert '"msg":"adopted inference service"' in await mac.llmkube("agent", "logs")

            await mac.llmkube("agent", "install", "--log-level", "debug")  # a reinstall over an installation
            assert "--memory-fraction=0.5" in plistlib.loads(mac.plist.read_bytes())["ProgramArguments"]
            assert 'log_level = "debug"' in (mac.state / "config.toml").read_text()
            assert [each.pid for each in engines_in(mac.state)] == [before[0].pid]
            _, host, at = await cluster.slice()
            url = f"http://{host}:{at}/v1/chat/completions"
            answer = await mac.types("curl", "-s", "--fail-with-body", url, "--json", body)
            assert json.loads(answer)["choices"][0]["message"]["content"]
            assert (await mac.llmkube("chat", "demo", "What is LLMKube?")).strip()

            text = await mac.types("make", "--silent", "uninstall-metal-agent", f"PREFIX={mac.prefix}")
            assert "removed, the agent and its engines stopped" in text
            assert f"{mac.state} kept" in text
            assert not link.is_symlink()
            assert not mac.plist.exists()
            assert engines_in(mac.state) == []
            assert LABEL not in await mac.types("launchctl", "list")
            assert "not running" in await mac.llmkube("agent", "status", code=3)


@pytest.mark.ci
async def test_an_agent_that_cannot_start_is_no_longer_restarted_and_reported(tmp_path):
    """Launchd has no limit: after five failed starts the agent exits with 0; `start` tries again after the fix."""
    async with open_cluster(tmp_path) as cluster:
        with opened_mac(tmp_path, cluster.kubeconfig) as mac:
            await mac.llmkube("agent", "install", "--accelerator", "cpu", "--port", str(free_port()))
            good = mac.plist.read_bytes()
            job = plistlib.loads(good)
            job["ProgramArguments"] += ["--llama-server=/nowhere/llama-server"]
            mac.plist.write_bytes(plistlib.dumps(job))
            text = await mac.llmkube("agent", "restart", code=4)
            assert "/nowhere/llama-server" in text
            starts = mac.state / "failed-starts"
            await until(lambda: json.loads(starts.read_text())["count"] == START_LIMIT)
            log = mac.home / "Library" / "Logs" / "llmkube" / "metal-agent.log"
            await until(lambda: "start limit reached" in log.read_text())
            text = await mac.llmkube("agent", "status", code=3)
            assert f"failed      {START_LIMIT} consecutive starts: " in text
            assert "agent       not running" in text
            mac.plist.write_bytes(good)
            assert "agent started" in await mac.llmkube("agent", "start")
            assert "agent is already running" in await mac.llmkube("agent", "start")
            assert "agent       running" in await mac.llmkube("agent", "status")

            record = mac.state / "interpreter.json"
            installed = json.loads(record.read_text())
            assert installed["path"] == plistlib.loads(good)["ProgramArguments"][0]
            assert "python " not in await mac.llmkube("agent", "status")
            record.write_text(json.dumps(installed | {"version": "3.10.1"}))
            assert "and was 3.10.1 when the job was installed" in await mac.llmkube("agent", "status")
            await mac.llmkube("agent", "restart")
            assert "interpreter changed" in log.read_text()


@pytest.mark.ci
async def test_a_fatal_setting_is_refused_by_the_install_before_it_changes_anything(tmp_path):
    """A missing kubeconfig, a missing engine and a reserved log file are refused."""
    with opened_mac(tmp_path, tmp_path / "nowhere") as mac:
        text = await mac.llmkube("agent", "install", "--accelerator", "cpu", code=1)
        assert "nowhere" in text
        text = await mac.llmkube("agent", "install", "--log-file", "/x", code=1)
        assert "--log-file" in text
        assert not mac.plist.exists()
        assert "install the agent with `llmkube agent install`" in await mac.llmkube("agent", "start", code=3)
        assert "not found" in await mac.llmkube("agent", "uninstall", code=3)


@pytest.mark.ci
async def test_a_running_up_is_not_touched(tmp_path):
    """No agent can run on the folder of a `llmkube up`, and no agent command stops that program."""
    with opened_mac(tmp_path, tmp_path / "nowhere") as mac:
        mac.plist.parent.mkdir(parents=True)
        mac.plist.write_bytes(plistlib.dumps({"Label": LABEL, "ProgramArguments": ["/x"]}))
        with hold_state_dir(mac.state, ENGINES_LOCK, SERVER_LOCK):
            for command in ("install", "uninstall", "start", "restart"):
                text = await mac.llmkube("agent", command, code=1)
                assert f"`llmkube up` (pid {os.getpid()}), not by an agent; stop it with `llmkube up stop`" in " ".join(
                    text.split()
                )
        assert mac.plist.exists()
