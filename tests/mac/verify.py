"""Check on a Mac what only a Mac can show: each claim is a line that passes or fails; exit code 1 if any fails."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import trio

from llmkube.cli.commands.doctor import mac, programs
from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.installation import find_installation
from llmkube.cli.commands.programs.background.agent_jobs import AddedSettings, agent_job, plist_text
from llmkube.cli.commands.programs.background.lan_access import lan_peers, read_neighbors
from llmkube.cli.commands.programs.background.launchctl import current_user, parse_job_state
from llmkube.programs.config import AgentConfig
from llmkube.supervisor.engine import keep_awake
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.darwin import DarwinMemory, open_darwin_memory
from llmkube.supervisor.host.mach import LibSystem, MetalFramework, decode_footprint, recommended_working_set
from llmkube.supervisor.host.pressure_level import DEFAULTS
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.power.powermetrics import PowerReader, power_command
from llmkube.weights.store.disk import free_bytes, important_capacity

GIB: Final = 1 << 30
CLAIMS: list[tuple[str, Callable[[], str]]] = []
ANSWER_SECONDS: Final = 30.0
LLMKUBE: Final = (sys.executable, "-m", "llmkube")
SLEEPS: Final = (sys.executable, "-c", "import time; time.sleep(600)")


def claim(sentence: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a check; it returns what was measured, and raises where the claim does not hold."""

    def register(check: Callable[[], str]) -> Callable[[], str]:
        CLAIMS.append((sentence, check))
        return check

    return register


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS).stdout


@claim("the kernel reports its memory a thousand times without a refusal")
def memory() -> str:
    looked = DarwinMemory(LibSystem())
    samples = [looked.read_sample(float(number)) for number in range(1000)]
    assert all(0 < sample.available_bytes <= sample.total_bytes for sample in samples), samples[-1]
    return f"{samples[-1].available_bytes / GIB:.1f} of {samples[-1].total_bytes / GIB:.1f} GiB left"


@claim("the kernel's pressure level is one of its three")
def level() -> str:
    sample = DarwinMemory(LibSystem()).read_sample(0.0)
    assert sample.level is not Level.UNKNOWN, sample.why
    return f"{sample.level.name} {sample.why}"


@claim("pages are as large as vm_stat says")
def pages() -> str:
    kernel, text = LibSystem(), output("vm_stat")
    found = re.search(r"page size of (\d+) bytes", text)
    assert found is not None, text[:80]
    assert int(found[1]) == kernel.page_bytes(), found[0]
    return found[0]


@claim("the footprint of this process is between its smallest and all memory")
def footprint() -> str:
    size = decode_footprint(LibSystem().usage(os.getpid()))
    assert 1 << 20 < size < psutil.virtual_memory().total, size
    return f"{size >> 20} MiB"


@claim("Metal shows this process its default device")
def default_device() -> str:
    assert MetalFramework().default_device(), "nil: expected in ssh, tmux and daemons, and only there"
    return "it does"


@claim("Metal lists its devices, and one says how much it takes")
def all_devices() -> str:
    metal = MetalFramework()
    assert metal.all_devices(), "the list is empty"
    return f"{recommended_working_set(metal) / GIB:.1f} GiB"


@claim("the exit of a child is an event with its code, before and after it has ended")
def child() -> str:
    async def codes() -> list[int]:
        found = []
        for pause in (0.0, 0.5):
            process = await trio.lowlevel.open_process([sys.executable, "-c", "raise SystemExit(3)"])
            await trio.sleep(pause)
            with trio.fail_after(ANSWER_SECONDS):
                found.append((await processes.wait_child(process))[0])
        return found

    found = trio.run(codes)
    assert found == [3, 3], found
    return "3 and 3"


@claim("kqueue reports the exit status of a process that is no child of the agent")
def adopted() -> str:
    started = f"subprocess.Popen({list(SLEEPS)!r}, start_new_session=True, stdout=-3, stderr=-3)"
    pid = int(output(sys.executable, "-c", f"import subprocess; print({started}.pid)"))

    async def end() -> int | None:
        async with processes.open_exit_watch(pid) as wait:
            with trio.fail_after(ANSWER_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_kill_later, pid)
                    ended = await wait()
        return ended.code

    found = trio.run(end)
    assert found == -signal.SIGKILL, found
    return str(found)


async def _kill_later(pid: int) -> None:
    await trio.sleep(0.5)
    os.kill(pid, signal.SIGKILL)


@claim("a group of zombies may be signalled without an error")
def zombies() -> str:
    process = subprocess.Popen(SLEEPS, start_new_session=True)
    started = processes.start_of(process.pid)
    process.kill()
    time.sleep(0.5)
    processes.send_group(process.pid, started, signal.SIGTERM)
    process.wait()
    return "no error"


@claim("a process has a start time, and keeps it over exec")
def start_time() -> str:
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 1; exec sleep 600"])
    before = processes.start_of(process.pid)
    time.sleep(2)
    after = processes.start_of(process.pid)
    process.kill()
    process.wait()
    assert before == after != "", f"{before!r} and {after!r}"
    return before


@claim("the environment of a program of this user is readable, by which engines are found again")
def environment() -> str:
    process = subprocess.Popen(SLEEPS, env={**os.environ, "LLMKUBE_VERIFY": "sought"})
    time.sleep(0.5)
    found = [each.pid for each in processes.find_marked("LLMKUBE_VERIFY", "sought")]
    process.kill()
    process.wait()
    assert found == [process.pid], found
    return str(found)


@claim("the kernel gives an unprivileged program events of memory pressure")
def pressure_events() -> str:
    async def opened() -> bool:
        async with open_darwin_memory(DEFAULTS) as looked:
            return looked.wait_change is not trio.sleep_forever

    assert trio.run(opened), "the event was refused"
    return "registered"


@claim("free disk counts what APFS would purge")
def disk() -> str:
    important = important_capacity(Path.home())
    assert important, "Core Foundation gives no figure"
    assert free_bytes(Path.home()) >= important, important
    return f"{important / GIB:.1f} GiB"


@claim("caffeinate holds an assertion while an engine runs, and none afterwards")
def caffeinate() -> str:
    assertion = keep_awake.PowerAssertion(keep_awake.caffeinate, always=True)

    async def held() -> str:
        async with keep_awake.keeping_awake(assertion):
            await trio.sleep(1)
            return await trio.to_thread.run_sync(output, "pmset", "-g", "assertions")

    assert "caffeinate" in trio.run(held), "pmset shows no assertion of caffeinate"
    return "held"


@claim("powermetrics runs by the line of sudoers, and is understood")
def powermetrics() -> str:
    assert os.getuid() == 0 or "NOPASSWD" in output("sudo", "-n", "-l"), "run `make install-powermetrics-sudo` first"
    process = subprocess.Popen(power_command(os.getuid()), stdout=subprocess.PIPE, text=True)
    reader, ends_at = PowerReader(), time.monotonic() + ANSWER_SECONDS
    try:
        for line in process.stdout or ():
            if (sample := reader.feed(line)) is not None:
                return f"{sample.watts}"
            assert time.monotonic() < ends_at, "no sample in time"
    finally:
        (process.stdout or sys.stdin).close()
    raise AssertionError("it has ended without a sample")


@claim("the kernel says which macOS and which chip this is")
def macos() -> str:
    found, release = trio.run(mac.check_system, find_installation(None)).found, platform.mac_ver()[0]
    assert release != "", f"{found!r}"
    assert found.startswith(f"macOS {release}, "), f"{found!r} and {release!r}"
    return found


@claim("pmset says when this Mac sleeps")
def sleep() -> str:
    found, power = trio.run(mac.check_power, find_installation(None))
    assert "does not show" not in found.found, output("pmset", "-g")
    return f"{found.found}; {power.found}"


@claim("fdesetup says whether FileVault is on")
def file_vault() -> str:
    return trio.run(mac.check_file_vault).found


@claim("the firewall says whether it is on, to a user who is not root")
def firewall() -> str:
    return trio.run(mac.check_firewall, find_installation(None)).found


@claim("launchctl shows a job of the machine without root")
def daemon() -> str:
    text = output("launchctl", "print", "system/com.apple.mDNSResponder")
    state = parse_job_state(text)
    assert state.pid is not None, text or "it says nothing"
    return f"{state}"


@claim("plutil finds no mistake in the file of a job, of a login and of the machine")
def plist() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder, results = Path(name), ""
        for daemon in (False, True):
            job = agent_job(current_user(), folder, AgentConfig(), AddedSettings(), daemon=daemon)
            file = folder / ("daemon.plist" if daemon else "agent.plist")
            file.write_bytes(plist_text(job))
            results += output("/usr/bin/plutil", "-lint", str(file))
    assert results.count(": OK") == 2, results
    return "OK, OK"


@claim("arp and route name machines on this network, which a job tries to reach")
def neighbors() -> str:
    found = lan_peers(None, *trio.run(read_neighbors))
    assert found, "none; right for a Mac that is alone in its network"
    return f"{len(found)} of them"  # the report need not show addresses


@claim("sudo ends at once where there is no terminal at which it could ask")
def sudo() -> str:
    done = subprocess.run(
        ("sudo", "-n", "-v"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=ANSWER_SECONDS, start_new_session=True,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.returncode
    return done.stderr.strip().partition("\n")[0] or "it needs no password now"


@claim("the engine of this installation starts, and lists the GPU if it lists any")
def engine_devices() -> str:
    here = find_installation(None)
    found = trio.run(programs.check_engine, here)
    assert here.mac, "this is no Mac"
    assert found.verdict is not Verdict.FAIL, found.found
    assert found.verdict is Verdict.PASS, "none: expected in ssh, tmux and daemons, and only there"
    return found.found


@claim("llmkube doctor has a verdict on each of its lines")
def doctor() -> str:
    findings = json.loads(output(*LLMKUBE, "doctor", "--json"))["findings"]
    named = ", ".join(each["name"] for each in findings if each["verdict"] == "fail")
    return f"{len(findings)} lines; fail: {named or 'none'}"


@claim("a host is cordoned and serves again by the owner's word")
def cordon() -> str:
    with tempfile.TemporaryDirectory() as folder:
        text = output(*LLMKUBE, "agent", "cordon", "--for", "2h", "--state-dir", folder)
        assert "serves nothing until" in output(*LLMKUBE, "agent", "status", "--state-dir", folder), text
        output(*LLMKUBE, "agent", "uncordon", "--state-dir", folder)
        assert "cordon" not in output(*LLMKUBE, "agent", "status", "--state-dir", folder), text
    return text.strip()


def main() -> int:
    """Print a line for each claim."""
    print(f"macOS {platform.mac_ver()[0] or '(none)'} {platform.machine()}, Python {platform.python_version()}")
    print(f"program {psutil.Process().exe()}, psutil {psutil.__version__}, Trio {trio.__version__}")
    failures = 0
    for sentence, check in CLAIMS:
        try:
            seen, verdict = check(), "pass"
        except Exception as error:  # noqa: BLE001 - any error is the content of the line
            seen, verdict = f"{type(error).__name__}: {error}".splitlines()[0], "FAIL"
        failures += verdict == "FAIL"
        print(f"{verdict}  {sentence}: {seen}", flush=True)
    print(f"{len(CLAIMS) - failures} of {len(CLAIMS)} claims hold")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
