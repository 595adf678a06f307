"""Time of the commands that show state compared with `kubectl get`, against the same API server; memory of `up`.

And time of the counterparts of Ollama's commands, each typed in a terminal of 80 columns.
"""

import contextlib
import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import psutil

from harness import Aim, Table, begin, interleaved, median

ROUNDS = 30
TYPED_ROUNDS = 5
AIM = 3.0
DOCTOR_SECONDS = 1.0
IDLE_SECONDS = 20.0
IDLE_MIB = 80.0
LLMKUBE = str(Path(sys.executable).with_name("llmkube"))
COMMANDS = {
    "kubectl get isvc": ["kubectl", "get", "isvc"],
    "llmkube list isvc": [LLMKUBE, "list", "isvc"],
    "llmkube list": [LLMKUBE, "list"],
    "llmkube status demo": [LLMKUBE, "status", "demo"],
    "llmkube ps": [LLMKUBE, "ps"],
    "llmkube doctor": [LLMKUBE, "doctor"],
    "python -c 'import trio'": [sys.executable, "-c", "import trio"],
}
COLUMNS = 80
PORTS = ("--api-port", "0", "--gateway-port", "0", "--probe-port", "0")
TYPED = (
    ("ollama serve", "llmkube up start"),
    ("ollama pull NAME", "llmkube pull builtin://demo"),
    ('ollama run NAME "…"', 'llmkube run demo "What is LLMKube?"'),
    ("ollama list", "llmkube list"),
    ("ollama ps", "llmkube ps"),
    ("ollama show NAME", "llmkube show demo"),
    ("ollama cp NAME NEW", "llmkube cp demo other"),
    ("ollama stop NAME", "llmkube stop demo"),
    ("ollama create NAME", "llmkube deploy mine --source builtin://demo --context-size 512"),
    ("ollama rm NAME", "llmkube rm demo other mine --with-model"),
)
"""Ollama's commands and our counterparts, in the order of their use; each round begins without a model."""


@attrs.frozen
class Sample:
    """One run: seconds from start to exit, and of a processor."""

    wall: float
    processor: float


@contextmanager
def serving(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Run `llmkube up` with one served model; yields the environment of its users, and its MiB before it served one."""
    env = dict(os.environ) | {"HOME": str(folder), "KUBECONFIG": str(folder / "state" / "kubeconfig")}
    words = [LLMKUBE, "up", "--state-dir", str(folder / "state"), *PORTS]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        try:
            while not (folder / "state" / "kubeconfig").exists():
                time.sleep(0.1)
            time.sleep(IDLE_SECONDS)
            used: Any = psutil.Process(up.pid).memory_full_info()  # pss is known on Linux only
            idle = {"PSS": used.pss / 2**20, "RSS": used.rss / 2**20}
            deploy = [LLMKUBE, "deploy", "demo", "--source", "builtin://demo", "--context-size", "512"]
            subprocess.run(deploy, env=env, check=True, capture_output=True)
            yield env, idle
        finally:
            up.terminate()


def timed(argv: list[str], env: dict[str, str]) -> Callable[[], Sample]:
    """Return a contender: one run."""

    def run() -> Sample:
        started = time.perf_counter()
        with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{argv} ended with {process.returncode}")
        return Sample(time.perf_counter() - started, used.ru_utime + used.ru_stime)

    return run


def typed(line: str, env: dict[str, str], *flags: str) -> float:
    """Return the seconds from start to exit of a command in a terminal of 80 columns.

    Raises:
        RuntimeError: It has failed.
    """
    argv = [LLMKUBE, *shlex.split(line)[1:], *flags]
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    started, drawn = time.perf_counter(), bytearray()
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=end, stderr=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # the end of the last process that has the terminal
            while found := os.read(terminal, 65536):
                drawn += found
    seconds = time.perf_counter() - started
    os.close(terminal)
    if process.returncode:
        raise RuntimeError(f"{line} ended with {process.returncode}: {drawn.decode(errors='replace')}")
    return seconds


def type_all(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each command of `TYPED` in each round, on an `up` of its own."""
    seconds: dict[str, list[float]] = {line: [] for _, line in TYPED}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            env = {name: each for name, each in os.environ.items() if not name.startswith(("KUBECONFIG", "XDG_"))}
            env |= {"HOME": folder, "TERM": "xterm-256color"}
            try:
                for _, line in TYPED:
                    seconds[line].append(typed(line, env, *(PORTS if line == "llmkube up start" else ())))
            finally:
                subprocess.run([LLMKUBE, "up", "stop"], env=env, check=False, capture_output=True)
    return seconds


def main() -> None:
    """Measure, print, keep."""
    run = begin("listing")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (env, idle):
        contenders = {name: timed(argv, env) for name, argv in COMMANDS.items()}
        interleaved(contenders, 1, run.rng)  # not counted: what is on the disk comes into memory
        samples = interleaved(contenders, 3 if run.quick else ROUNDS, run.rng)
    everyday = type_all(1 if run.quick else TYPED_ROUNDS)
    wall = {name: 1000 * median([each.wall for each in found]) for name, found in samples.items()}
    processor = {name: 1000 * median([each.processor for each in found]) for name, found in samples.items()}
    floor = processor["kubectl get isvc"]
    rows = [
        [name, f"{wall[name]:.0f} ms", f"{processor[name]:.0f} ms", f"{processor[name] / floor:.1f}"]
        for name in COMMANDS
    ]
    times = {name: processor[name] / floor for name in COMMANDS if name.split()[1] in {"list", "status", "ps"}}
    doctor = wall["llmkube doctor"] / 1000
    run.finish(
        "Commands that show state, compared with kubectl",
        f"""The median of {len(samples["llmkube list"])} runs against one `llmkube up` with one model, with everything
        in the file system's cache, contenders in turns. The ratio is that of processor time, without other load on
        the machine. kubectl is a compiled program; in the last row an interpreter loads only Trio.""",
        [
            Table(["command", "start to exit", "of a processor", "times kubectl's"], rows),
            Table(
                ["typed in a terminal of 80 columns", "Ollama's", "start to exit"],
                [[f"`{ours}`", f"`{theirs}`", f"{median(everyday[ours]):.2f} s"] for theirs, ours in TYPED],
                f"Ollama's most used commands: the median of {len(everyday['llmkube ps'])} rounds, each with a new "
                "`llmkube up` and the model that ships with LLMKube.",
            ),
        ],
        {
            "samples": {name: [attrs.astuple(each) for each in found] for name, found in samples.items()},
            "typed": everyday,
        },
        aims=[
            *(
                Aim(f"`{name}`, times kubectl's", f"at most {AIM:g}", f"{had:.1f}", had <= AIM)
                for name, had in times.items()
            ),
            Aim("`llmkube doctor`", f"at most {DOCTOR_SECONDS:g} s", f"{doctor:.2f} s", doctor <= DOCTOR_SECONDS),
            Aim(
                "`llmkube up`, idle, PSS",
                f"at most {IDLE_MIB:g} MiB",
                f"{idle['PSS']:.0f} MiB",
                idle["PSS"] <= IDLE_MIB,
            ),
        ],
        notes=[f"`llmkube up` without models uses {idle['RSS']:.0f} MiB (RSS) after {IDLE_SECONDS:g} s."],
    )


if __name__ == "__main__":
    main()
