"""The checks of `promises.toml`, by name: each returns what it observed, or raises an error for a broken promise."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import psutil
import trio

from llmkube.cli.commands.programs.background.agent_jobs import AddedSettings, agent_job, plist_text
from llmkube.cli.commands.programs.background.lan_access import lan_peers, read_neighbors
from llmkube.cli.commands.programs.background.launchctl import current_user, parse_job_state
from llmkube.cli.commands.tools import files
from llmkube.programs.config import AgentConfig, UpConfig
from llmkube.programs.host_settings import detect_devices, find_llama_server
from llmkube.runtimes.devices import preferred
from llmkube.supervisor.engine import keep_awake
from llmkube.supervisor.host import devices, processes
from llmkube.supervisor.host.darwin import DarwinMemory, open_darwin_memory
from llmkube.supervisor.host.mach import LibSystem, MetalFramework, decode_footprint, recommended_working_set
from llmkube.supervisor.host.pressure_level import DEFAULTS
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.power.powermetrics import PowerReader, power_command
from llmkube.weights.store.disk import free_bytes, important_capacity

T = TypeVar("T")

LLMKUBE: Final = (sys.executable, "-m", "llmkube")
SECONDS: Final = 120.0
"""Timeout of a program that a check runs."""

_SLEEP: Final = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_SPEED: Final = re.compile(r"^(?!.*prompt).* eval time = .*?([\d.]+) tokens per second", re.MULTILINE)


class NotApplicableError(Exception):
    """The promise says nothing about this machine; the message says why."""


def require(seen: T | Literal[False] | None, otherwise: object, error: type[Exception] = AssertionError) -> T:
    """Return what was seen; raise an error if that is false, empty or None."""
    if not seen:
        raise error(otherwise)
    return seen


def output(*argv: str, **options: Any) -> str:
    """Run a program and return its standard output; blocks."""
    return str(subprocess.run(argv, capture_output=True, text=True, check=False, timeout=SECONDS, **options).stdout)  # noqa: S603 - argv is below


def memory() -> str:
    """Read the kernel's memory counters a thousand times."""
    looked = DarwinMemory(LibSystem())
    samples = [looked.read_sample(float(number)) for number in range(1000)]
    require(all(0 < each.available_bytes <= each.total_bytes for each in samples), samples[-1])
    return f"{samples[-1].available_bytes >> 20} of {samples[-1].total_bytes >> 20} MiB left"


def level() -> str:
    """Read `kern.memorystatus_vm_pressure_level`."""
    sample = DarwinMemory(LibSystem()).read_sample(0.0)
    return require(sample.level is not Level.UNKNOWN and f"{sample.level.name} {sample.why}", sample.why)


def pages() -> str:
    """Compare the kernel's page size with the one that vm_stat prints."""
    size, text = LibSystem().page_bytes(), output("vm_stat")
    return require(f"page size of {size} bytes" in text and str(size), f"{size}, {text[:80]!r}")


def footprint() -> str:
    """Read the footprint of this process from its resource usage."""
    size = decode_footprint(LibSystem().usage(os.getpid()))
    return require(1 << 20 < size < psutil.virtual_memory().total and f"{size >> 20} MiB", size)


def default_device() -> str:
    """Ask Metal for its default device."""
    hidden = "SSH_CONNECTION" in os.environ or "TMUX" in os.environ
    error, shown = NotApplicableError if hidden else AssertionError, bool(MetalFramework().default_device())
    return require(shown and "it does", "nil, as expected in ssh and tmux only", error)


def all_devices() -> str:
    """List Metal's devices and read the recommended working set."""
    metal = MetalFramework()
    require(metal.all_devices(), "the list is empty")
    return f"{recommended_working_set(metal) >> 20} MiB"


def child() -> str:
    """Start two children that exit with 3, and wait for one of them only after its end."""

    async def code_after(pause: float) -> int:
        process = await trio.lowlevel.open_process([sys.executable, "-c", "raise SystemExit(3)"])
        await trio.sleep(pause)
        with trio.fail_after(SECONDS):
            return (await processes.wait_child(process))[0]

    found = [trio.run(code_after, pause) for pause in (0.0, 0.5)]
    return require(found == [3, 3] and "3 and 3", found)


def adopted() -> str:
    """Kill a grandchild and wait for its exit."""
    started = f"subprocess.Popen({list(_SLEEP)!r}, start_new_session=True, stdout=-3, stderr=-3)"
    pid = int(output(sys.executable, "-c", f"import subprocess; print({started}.pid)"))

    async def end() -> int | None:
        async with processes.open_exit_watch(pid) as wait:
            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(SECONDS):
                return (await wait()).code

    found = trio.run(end)
    return require(found == -signal.SIGKILL and str(found), found)


@contextlib.contextmanager
def _started(*argv: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, **variables}
    with subprocess.Popen(argv, start_new_session=True, env=environment, stdout=-1, stdin=-1, text=True) as process:  # noqa: S603 - as above
        try:
            yield process
        finally:
            process.kill()


def _line_of(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline() if process.stdout else ""


def zombies() -> str:
    """Kill a child, and signal its group before its exit status is read."""
    with _started(*_SLEEP) as process:
        _line_of(process)
        started = processes.start_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        _line_of(process)  # returns when it has ended
        processes.send_group(process.pid, started, signal.SIGTERM)
    return "no error"


def start_time() -> str:
    """Read the start time of a shell before and after it runs another program in its place."""
    with _started("/bin/sh", "-c", "echo; read line; exec /bin/sh -c 'echo; sleep 600'") as process:
        _line_of(process)
        before = processes.start_of(process.pid)
        print(file=process.stdin, flush=True)
        _line_of(process)
        return require(before == processes.start_of(process.pid) and before, before)


def environment() -> str:
    """Start a child with a variable, and search all processes for it."""
    with _started(*_SLEEP, LLMKUBE_VERIFY="sought") as process:
        _line_of(process)
        found = [each.pid for each in processes.find_marked("LLMKUBE_VERIFY", "sought")]
        return require(found == [process.pid] and "found", found)


def pressure_events() -> str:
    """Register for the kernel's events of memory pressure."""

    async def opened() -> bool:
        async with open_darwin_memory(DEFAULTS) as looked:
            return looked.wait_change is not trio.sleep_forever

    is_open = trio.run(opened)
    return require(is_open and "registered", "the event was refused")


def disk() -> str:
    """Compare Core Foundation's figure with the one that downloads use."""
    important = important_capacity(Path.home()) or 0
    return require(0 < important <= free_bytes(Path.home()) and f"{important >> 20} MiB", important)


def caffeinate() -> str:
    """Hold the assertion of `--keep-awake` for a second, and look for it in `pmset -g assertions`."""

    async def held() -> str:
        async with keep_awake.keeping_awake(keep_awake.PowerAssertion(keep_awake.caffeinate, always=True)):
            await trio.sleep(1)
            return await trio.to_thread.run_sync(output, "pmset", "-g", "assertions")

    return require("caffeinate" in trio.run(held) and "held", "pmset shows no assertion of caffeinate")


def powermetrics() -> str:
    """Read one sample of powermetrics, if sudo allows it without a password."""
    may = os.getuid() == 0 or "NOPASSWD" in output("sudo", "-n", "-l")
    require(may, "sudo would ask for a password; `make install-powermetrics-sudo` allows it", NotApplicableError)
    reader, argv = PowerReader(), power_command(os.getuid())

    async def sampled() -> Mapping[str, float]:
        process, rest = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE), ""
        async with require(process.stdout, "no output") as stdout:  # closing its output ends powermetrics
            with trio.fail_after(SECONDS):
                async for chunk in stdout:
                    *lines, rest = (rest + chunk.decode()).split("\n")
                    for sample in filter(None, map(reader.feed, lines)):
                        return sample.watts
        return {}

    return str(require(trio.run(sampled), "no sample"))


def daemon() -> str:
    """Print macOS's own job com.apple.mDNSResponder."""
    text = output("launchctl", "print", "system/com.apple.mDNSResponder")
    return str(require(parse_job_state(text).pid and parse_job_state(text), text or "it says nothing"))


def plist() -> str:
    """Write both files into a temporary folder and check them with plutil."""
    with tempfile.TemporaryDirectory() as name:
        file, results = Path(name) / "job.plist", ""
        for as_daemon in (False, True):
            job = agent_job(current_user(), Path(name), AgentConfig(), AddedSettings(), daemon=as_daemon)
            file.write_bytes(plist_text(job))
            results += output("/usr/bin/plutil", "-lint", str(file))
    return require(results.count(": OK") == 2 and "OK, OK", results)


def neighbors() -> str:
    """Read the tables of arp and route; the report has no address."""
    found = lan_peers(None, *trio.run(read_neighbors))
    return f"{len(require(found, 'none: this Mac is alone in its network', NotApplicableError))} of them"


def sudo() -> str:
    """Run `sudo -n -v` without a terminal."""
    output("sudo", "-n", "-v", stdin=subprocess.DEVNULL, start_new_session=True)
    return "it has ended"


@functools.cache
def _findings() -> Sequence[dict[str, str]]:
    found: Sequence[dict[str, str]] = json.loads(output(*LLMKUBE, "doctor", "--json"))["findings"]
    return found


def doctor_line(name: str) -> str:
    """Return a line of `llmkube doctor`, which has to say what it found."""
    line = next((each for each in _findings() if each["name"] == name), {"verdict": "fail", "found": "no such line"})
    unknown = line["verdict"] == "fail" or re.search("does not show|no answer within", line["found"])
    return require(not unknown and line["found"], line["found"])


def doctor() -> str:
    """Run `llmkube doctor --json`."""
    failed = ", ".join(each["name"] for each in _findings() if each["verdict"] == "fail")
    return f"{len(_findings())} lines; fail: {failed or 'none'}"


def cordon() -> str:
    """Cordon and uncordon an agent in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        where = ("--state-dir", folder)
        text = output(*LLMKUBE, "agent", "cordon", "--for", "2h", *where)
        require("serves nothing until" in output(*LLMKUBE, "agent", "status", *where), text)
        output(*LLMKUBE, "agent", "uncordon", *where)
        require("cordon" not in output(*LLMKUBE, "agent", "status", *where), text)
    return text


def cpu() -> str:
    """Run `llmkube up --ask` with the demo's model in a temporary folder, on free ports; read the engine's log."""
    return f"{_serve('cpu')[1]} tokens per second"


def gpu() -> str:
    """Do the same on the GPU, and compare its free memory before and after, where a driver reports it."""
    here = detect_devices(UpConfig(), find_llama_server(None))
    require(here.found, "this machine has no GPU", NotApplicableError)
    require(here.usable, f"found {here.found}, but the engine lists {here.listed}")
    layers, speed = _serve(preferred(here.kinds))
    after = devices.find_devices()
    lost = max((was.free_bytes or 0) - (now.free_bytes or 0) for was, now in zip(here.found, after, strict=True)) >> 20
    require(layers and layers[0] == layers[1] and lost < 64, f"offloaded {layers}, {lost} MiB are not returned")
    return (
        f"{'; '.join(map(str, here.usable))}: {' of '.join(layers)} layers, {speed} tokens per second, {lost} MiB kept"
    )


def _serve(accelerator: str) -> tuple[tuple[str, ...], str]:
    """Serve the demo's model, and return the offloaded and all layers, and the tokens per second of an answer."""
    text = Path(files.__file__).parents[2].joinpath("demo.yaml").read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="llmkube-verify-") as name:
        manifest = Path(name, "demo.yaml")
        manifest.write_text(text.replace("accelerator: cpu", f"accelerator: {accelerator}"), "utf-8")
        ports = [word for each in ("api", "gateway", "probe") for word in (f"--{each}-port", "0")]
        ask = ("-f", str(manifest), "--ask", "What is LLMKube?")
        require(output(*LLMKUBE, "up", "--state-dir", f"{name}/state", *ports, *ask), "no answer")
        log = "".join(each.read_text("utf-8", "replace") for each in Path(name).glob("state/logs/**/*.log"))
    layers, speed = _OFFLOADED.search(log), require(_SPEED.findall(log), "the engine's log has no speed")
    return layers.groups() if layers else (), speed[-1]
