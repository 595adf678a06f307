"""Time of `llmkube --version`, and of the most common commands without a server."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import Aim, Table, begin, interleaved, median, percentile

ROUNDS = 20
AIM_MS = 100.0
LLMKUBE = str(Path(sys.executable).with_name("llmkube"))
COMMANDS = {
    "llmkube --version": [LLMKUBE, "--version"],
    "llmkube --help": [LLMKUBE, "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -I -S -E -c pass": [sys.executable, "-I", "-S", "-E", "-c", "pass"],
}


def timed(argv: list[str]) -> Callable[[], float]:
    """Return a contender: one run, in milliseconds from start to exit."""

    def run() -> float:
        started = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        return 1000 * (time.perf_counter() - started)

    return run


def main() -> None:
    """Measure, print, keep."""
    run = begin("version")
    contenders = {name: timed(argv) for name, argv in COMMANDS.items()}
    interleaved(contenders, 1, run.rng)  # not counted: what is on the disk comes into memory
    samples = interleaved(contenders, 3 if run.quick else ROUNDS, run.rng)
    medians = {name: median(found) for name, found in samples.items()}
    floor = medians["python -c pass"]
    rows = [
        [name, f"{medians[name]:.0f} ms", f"{percentile(found, 99):.0f} ms", f"{medians[name] / floor:.2f}"]
        for name, found in samples.items()
    ]
    version = medians["llmkube --version"]
    run.finish(
        "Start time of the command line",
        f"""The median of {len(samples["python -c pass"])} runs from start to exit, with everything in the file
        system's cache. An interpreter that does nothing is the lower limit.""",
        [Table(["command", "median", "slowest", "times an empty Python"], rows)],
        {"milliseconds": samples},
        aims=[Aim("`llmkube --version`", f"under {AIM_MS:.0f} ms", f"{version:.0f} ms", version < AIM_MS)],
    )


if __name__ == "__main__":
    main()
