"""`llmkube doctor` on the simulated Mac: its kernel from `libsystem.c`, its tools from recorded outputs.

One run has fourteen deliberate faults and names them all; without them it names none.
"""

import errno
import json
import os
import plistlib
import socket
import sys
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from cli.commands.doctor.limited_api import TOKEN, open_limited_api
from e2e.addresses import own_address
from e2e.test_downloads import small_disk
from llmkube.cli.commands.programs.background.lan_access import record_lan_access
from llmkube.programs.state_dir import hold_state_dir
from llmkube.supervisor.values.journal import FileJournal
from mac.test_guide import LABEL, Mac, opened_mac
from supervisor.values.entries import ENGINE, entry
from waiting import until

pytestmark = pytest.mark.e2e

PMSET = """System-wide power settings:
Currently in use:
 standby              1
 womp                 1
 autorestart          {autorestart}
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                {sleep} (sleep prevented by sharingd)
 hibernatemode        3
 displaysleep         10
 tcpkeepalive         1
 lowpowermode         {lowpowermode}
"""
MAINS = "Now drawing from 'AC Power'"
BATTERY = (
    "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=4653155)\t74%; discharging; 5:12 remaining present: true"
)

ENGINE_SCRIPT = """#!/bin/sh
case "$1" in
--version) echo 'version: 6900 (abc)' ;;
--list-devices) printf 'Available devices:\\n%s' "$DEVICES" ;;
*) printf '  --api-key-file F   keys\\n  --list-devices   list\\n' ;;
esac
"""
ON = "Firewall is enabled. (State = 1)"
GPU = "  MTL0: Apple M3 Ultra (98304 MiB, 98303 MiB free)\n"


@attrs.define
class Tools:
    """Recorded outputs of macOS's own programs."""

    folder: Path
    sleep: int = 0
    autorestart: int = 1
    lowpowermode: int = 0
    source: str = MAINS
    file_vault: str = "FileVault is Off."
    firewall: str = "Firewall is disabled. (State = 0)"
    blocked: str = "Incoming connection to the application is permitted "
    block_all: str = "Firewall has block all state set to disabled."

    def write(self):
        settings = PMSET.format(sleep=self.sleep, autorestart=self.autorestart, lowpowermode=self.lowpowermode)
        self._tool("pmset", {"-g": settings}, {"-g batt": self.source})
        self._tool("fdesetup", {"status": self.file_vault})
        answers = {"--getglobalstate": self.firewall, "--getblockall": self.block_all, "--getappblocked": self.blocked}
        self._tool("socketfilterfw", answers)

    def _tool(self, name, by_first, by_all=None):
        lines = ["#!/bin/sh"]
        for words, (text, value) in [
            *((w, (s, '"$*"')) for w, s in (by_all or {}).items()),
            *((w, (s, '"$1"')) for w, s in by_first.items()),
        ]:
            file = self.folder / f"{name}{words.replace(' ', '_')}.txt"
            file.write_text(text)
            lines.append(f'[ {value} = "{words}" ] && exec cat "{file}"')
        path = self.folder / name
        path.write_text("\n".join([*lines, "exit 64"]) + "\n")
        path.chmod(0o755)


@contextmanager
def doctored(folder, libsystem, kubeconfig, **tools):
    """Return a Mac with these tools; `findings` reads its report."""
    with opened_mac(folder, kubeconfig) as mac:
        Tools(folder / "bin", **tools).write()
        mac.environ |= {"LD_PRELOAD": str(libsystem), "DEVICES": GPU, "MAC_RELEASE": "26"}
        engine = folder / "bin" / "llama-server"
        engine.write_text(ENGINE_SCRIPT)
        engine.chmod(0o755)
        mac.state.mkdir(parents=True, mode=0o700)
        yield mac


async def findings(mac: Mac, code, *args):
    """Return the findings by name; fail on another exit code."""
    text = await mac.llmkube("doctor", "--json", *args, code=code)
    assert TOKEN not in text
    found = {}
    for each in json.loads(text)["findings"]:
        found.setdefault(each["name"], each)
    return found


def check(found, name, verdict, *words):
    line = found[name]
    text = " ".join((line["found"], line["why"], line["fix"]))
    assert line["verdict"] == verdict, line
    for word in words:
        assert word in text, line


def settings(mac, **values):
    lines = ["[agent]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    (mac.state / "config.toml").write_text("\n".join(lines) + "\n")


def installed(mac, *flags, program=sys.executable):
    """Write the job's file without loading it into launchd."""
    mac.plist.parent.mkdir(parents=True)
    log = mac.home / "Library" / "Logs" / "llmkube" / "metal-agent.log"
    log.parent.mkdir(parents=True)
    mac.plist.write_bytes(
        plistlib.dumps(
            {
                "Label": LABEL,
                "ProgramArguments": [program, "-m", "llmkube", "agent", f"--state-dir={mac.state}", *flags],
                "WorkingDirectory": str(mac.home),
                "StandardOutPath": str(log),
                "ExitTimeOut": 5,
            }
        )
    )
    return log


async def loop_of(mac):
    """Have launchd start the job repeatedly; return once it has done so."""
    await mac.types("launchctl", "bootstrap", "gui/0", str(mac.plist))
    facts = mac.jobs / LABEL / "facts"
    await until(lambda: json.loads(facts.read_text())["runs"] >= 4)


@pytest.mark.soak
async def test_fourteen_deliberate_faults_are_all_named(tmp_path, libsystem):
    """Each line has the fault, and the command or the step that fixes it."""
    async with AsyncExitStack() as stack:
        refused = (("create", "leases"), ("patch", "endpointslices"))
        opening = open_limited_api(tmp_path, refused=refused, ahead_seconds=-600)
        kubeconfig = await stack.enter_async_context(opening)
        faults = {
            "sleep": 10,
            "autorestart": 0,
            "file_vault": "FileVault is On.",
            "firewall": ON,
            "blocked": "Incoming connection to the application is blocked ",
        }
        mac = stack.enter_context(doctored(tmp_path, libsystem, kubeconfig, **faults))
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = taken.getsockname()[1]
        mac.environ |= {"MAC_WIRED_LIMIT_MB": str(128 * 1024)}
        store = mac.home / "Documents" / "models"
        stack.enter_context(small_disk(store, 64))
        settings(mac, memory_fraction=1.0, port=port, llama_server="/nowhere/llama-server", insecure_lan=True)
        log = installed(mac, f"--model-store={store}", f"--kubeconfig={kubeconfig}", "--start-limit=5")
        await loop_of(mac)
        with log.open("a") as file:
            file.write(f"{store}: Operation not permitted\n")

        async def refuse(_):
            await trio.lowlevel.checkpoint()
            return errno.EHOSTUNREACH

        await record_lan_access(mac.state, [("192.168.1.2", 9), ("192.168.1.3", 9)], refuse)
        await FileJournal(mac.state / "journal", trio.CapacityLimiter(1)).write(
            entry(attrs.evolve(ENGINE, pid=os.getpid(), started="another boot:1"))
        )
        found = await findings(mac, 1)
    check(found, "ports", "fail", f"port {port} is in use", "--port")
    check(found, "disk", "fail", str(store), "`llmkube cache prune`")
    check(found, "rights", "fail", "create leases in llmkube-system", "patch endpointslices", "llmkube rbac agent")
    check(found, "clock", "fail", "ahead of the API server's", "sudo sntp -sS time.apple.com")
    check(found, "keys", "fail", "--insecure-lan", "--allow-from")
    check(found, "engine", "fail", "/nowhere/llama-server", "brew install llama.cpp")
    check(found, "last end", "warn", str(entry().key), "the largest was")
    check(found, "memory", "fail", "100 % of", "memory_fraction in config.toml")
    check(found, "launchd", "fail", "/nowhere/llama-server", "`llmkube agent start`")
    check(found, "GPU limit", "fail", "128.0 GiB of 128.0 GiB", "`sudo sysctl iogpu.wired_limit_mb=131072`")
    check(found, "local network", "fail", "errno 65", "Local Network Privacy", "`llmkube agent install --daemon`")
    check(found, "Full Disk Access", "fail", "Operation not permitted", "--model-store in", "Privacy & Security")
    check(found, "firewall", "fail", "it blocks connections to", "--unblockapp")
    check(found, "FileVault", "warn", "sudo fdesetup authrestart")
    check(found, "sleep", "warn", "after 10 min", "`sudo pmset -a sleep 0`")
    check(found, "power", "warn", "stays off", "`sudo pmset -a autorestart 1`")


@pytest.mark.ci
async def test_a_crash_loop_is_no_running_agent(tmp_path, libsystem):
    """Before the agent counts its own failed starts, launchd shows a job that it restarts repeatedly as loaded."""
    with doctored(tmp_path, libsystem, tmp_path / "nowhere") as mac:
        installed(mac, program="/bin/false")
        await loop_of(mac)
        assert LABEL in await mac.types("launchctl", "list")
        found = await findings(mac, 1)
        check(found, "launchd", "fail", "crash loop: the agent was started", "last exit with 1", "agent logs --tail 20")


@pytest.mark.ci
async def test_a_healthy_mac_has_no_line_to_fix(tmp_path, libsystem):
    """The same Mac without the faults: every line passes, and the running agent is found in its job."""
    async with open_limited_api(tmp_path) as kubeconfig:
        with doctored(tmp_path, libsystem, kubeconfig) as mac:
            mac.environ |= {"MAC_WIRED_LIMIT_MB": str(118 * 1024)}
            settings(mac, port=0, memory_fraction=0.5, host_ip=own_address())
            installed(mac, f"--kubeconfig={kubeconfig}", "--accelerator=cpu")
            await mac.types("launchctl", "bootstrap", "gui/0", str(mac.plist))
            await until(lambda: (mac.state / "lock").exists() and (mac.state / "host-name").exists())
            await record_lan_access(mac.state, [("192.168.1.2", 9)], reached)
            found = await findings(mac, 0)
    assert {each["name"]: each for each in found.values() if each["verdict"] != "pass"} == {}
    check(found, "system", "pass", "macOS 26.1, Apple silicon")
    check(found, "launchd", "pass", "a login job")
    check(found, "GPU limit", "pass", "118.0 GiB of 128.0 GiB by sysctl iogpu.wired_limit_mb")


async def reached(_):
    await trio.lowlevel.checkpoint()
    return 0


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [
        ({"MAC_CHIP": "intel"}, {}, "system", "fail", ("an Intel processor", "--accelerator cpu")),
        ({"MAC_CHIP": "rosetta"}, {}, "system", "fail", ("is for Intel", "/opt/homebrew/bin/python3")),
        ({"MAC_RELEASE": "12"}, {}, "system", "fail", ("macOS 13.3", "update macOS")),
        ({}, {}, "GPU limit", "warn", ("Metal shows this process no device", "sudo sysctl iogpu.wired_limit_mb=")),
        ({"MAC_WIRED_LIMIT_MB": "65536"}, {}, "GPU limit", "warn", ("64.0 GiB of 128.0 GiB", "115.2 GiB in total")),
        ({"DEVICES": ""}, {}, "engine", "warn", ("lists no GPU", "--list-devices")),
        ({}, {}, "engine", "pass", ("6900 (abc)", "Apple M3 Ultra")),
        ({}, {"source": BATTERY}, "power", "warn", ("battery",)),
        ({}, {"lowpowermode": 1}, "power", "warn", ("sudo pmset -a lowpowermode 0",)),
        ({}, {"file_vault": "an unknown text"}, "FileVault", "warn", ("check failed", "an unknown text")),
        (
            {},
            {"firewall": ON, "blocked": "The app is not part of the firewall"},
            "firewall",
            "warn",
            ("--add",),
        ),
        ({}, {"firewall": "Firewall is enabled. (State = 2)"}, "firewall", "fail", ("--setblockall off",)),
        ({}, {"firewall": ON}, "firewall", "pass", ("allows",)),
    ],
)
async def test_settings_of_a_mac(tmp_path, libsystem, case):
    """Each setting changes one line, with nothing installed."""
    environ, tools, name, verdict, words = case
    with doctored(tmp_path, libsystem, tmp_path / "nowhere", **tools) as mac:
        del mac.environ["KUBECONFIG"]
        mac.environ |= environ
        ports = "api_port = 0\ngateway_port = 0\nprobe_port = 0\n"
        (mac.state / "config.toml").write_text(f'[up]\naccelerator = ["metal"]\n{ports}')
        found = await findings(mac, int(verdict == "fail"))
        check(found, name, verdict, *words)


@pytest.mark.ci
async def test_an_up_that_runs_without_an_agent(tmp_path, libsystem):
    """A state directory that `llmkube up` holds is not an agent's, whatever jobs exist."""
    with doctored(tmp_path, libsystem, tmp_path / "nowhere") as mac:
        with hold_state_dir(mac.state):
            found = await findings(mac, 1)
        check(found, "running", "pass", f"llmkube agent (pid {os.getpid()})")
