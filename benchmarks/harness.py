"""What every benchmark shares: conditions with each figure, contenders interleaved, JSON beside the table, a page.

A benchmark is a script beside this one. It measures, and hands a `Report` to `finish`, which prints it and keeps it in
`results/`. Run as a program, this file runs all of them, then writes docs/benchmarks.md from what is in `results/`:

    python benchmarks/harness.py                  every benchmark, then the page
    python benchmarks/harness.py NAME…            these, then the page
    python benchmarks/harness.py --page           the page alone

Nothing here asserts anything about time. A figure that is worse than a contender's stands in its table like any other.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "results"
PAGE: Final = HERE.parent / "docs" / "benchmarks.md"
ORDER: Final = ("reaction", "gguf_header", "gguf_verdicts", "bench_cache_memory", "download")
"""How the page is ordered; what is not named here comes last."""


@attrs.frozen
class Conditions:
    """What a figure depends on besides the code."""

    date: str
    python: str
    system: str
    processor: str
    cores: int
    load_before: float
    load_after: float
    seed: int
    versions: dict[str, str]

    @property
    def line(self) -> str:
        """One line to stand beside every table."""
        listed = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.date}, {self.system}, {self.processor}, {self.cores} cores, "
            f"load {self.load_before:.2f} before and {self.load_after:.2f} after, seed {self.seed}, "
            f"Python {self.python}, {listed}"
        )


@attrs.frozen
class Table:
    """Rows of text; the first column names what is measured."""

    columns: list[str]
    rows: list[list[str]]
    caption: str = ""

    @property
    def markdown(self) -> str:
        """The table as a page has it: numbers to the right."""
        widths = [max(len(row[at]) for row in (self.columns, *self.rows)) for at in range(len(self.columns))]

        def line(cells: Sequence[str]) -> str:
            padded = [
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return f"| {' | '.join(padded)} |"

        rule = "|".join("-" * (width + 2) if not at else "-" * (width + 1) + ":" for at, width in enumerate(widths))
        head = [self.caption, ""] if self.caption else []
        return "\n".join([*head, line(self.columns), f"|{rule}|", *(line(row) for row in self.rows)])


@attrs.frozen
class Report:
    """One benchmark's outcome: what was asked, the tables, and the samples that they were made from."""

    name: str
    title: str
    about: str
    tables: list[Table]
    conditions: Conditions
    samples: dict[str, Any] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)

    @property
    def markdown(self) -> str:
        """Its section of the page."""
        parts = [
            f"## {self.title}",
            self.about,
            f"```\npython benchmarks/{self.name}.py --seed {self.conditions.seed}\n```",
        ]
        parts += [table.markdown for table in self.tables]
        if self.notes:
            parts.append("\n".join(f"* {note}" for note in self.notes))
        return "\n\n".join([*parts, f"Measured {self.conditions.line}."])


@attrs.define(eq=False)
class Run:
    """The frame around one benchmark: note the conditions before, and again at `finish`."""

    name: str
    packages: tuple[str, ...]
    seed: int = 0
    quick: bool = False
    load_before: float = attrs.field(factory=lambda: os.getloadavg()[0])

    @property
    def rng(self) -> random.Random:
        """The same numbers for the same seed."""
        return random.Random(self.seed)

    def finish(
        self, title: str, about: str, tables: list[Table], samples: Mapping[str, Any], notes: Sequence[str] = ()
    ) -> None:
        """Print the report and keep it for the page; a quick run is not kept, since it measures too little."""
        conditions = Conditions(
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
            processor=processor(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            load_before=self.load_before,
            load_after=os.getloadavg()[0],
            seed=self.seed,
            versions={package: importlib.metadata.version(package) for package in self.packages},
        )
        report = Report(self.name, title, " ".join(about.split()), tables, conditions, dict(samples), list(notes))
        print(report.markdown)
        if not self.quick:
            RESULTS.mkdir(exist_ok=True)
            text = json.dumps(cattrs.unstructure(report), indent=1)
            (RESULTS / f"{self.name}.json").write_text(text + "\n", "utf-8")


def begin(name: str, *packages: str) -> Run:
    """Read the options that every benchmark has, and note the conditions."""
    parser = argparse.ArgumentParser(f"benchmarks/{name}.py")
    parser.add_argument("--seed", type=int, default=1, help="what all randomness comes from (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a few rounds to see that it works; nothing is kept")
    given = parser.parse_args()
    return Run(name, ("llmkube", *packages), given.seed, given.quick)


def interleaved(contenders: Mapping[str, Callable[[], Any]], rounds: int, rng: random.Random) -> dict[str, list[Any]]:
    """Call each contender once per round, in an order drawn anew for each, so that none has the quiet moments alone."""
    samples: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in rng.sample(list(contenders), len(contenders)):
            samples[name].append(contenders[name]())
    return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least that many per cent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1).__int__()]


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def in_child(script: str, *arguments: str) -> dict[str, Any]:
    """Run a piece of Python in a fresh interpreter and return the JSON object that it prints last."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def processor() -> str:
    """Return the processor's name for people."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


HEAD: Final = """# Benchmarks

Written by `make bench`; each section says how its table was made and under which conditions. Compare figures within a
table, not between machines: contenders took turns in one run. Where somebody else is faster, the table says so.
"""


def write_page() -> None:
    """Write docs/benchmarks.md from the results that are here."""
    converter = cattrs.Converter()
    reports = [converter.structure(json.loads(path.read_text("utf-8")), Report) for path in RESULTS.glob("*.json")]
    reports.sort(key=lambda report: (ORDER.index(report.name) if report.name in ORDER else len(ORDER), report.name))
    PAGE.write_text("\n\n".join([HEAD.strip(), *(report.markdown for report in reports)]) + "\n", "utf-8")


def main() -> int:
    """Run what was asked for, then write the page."""
    parser = argparse.ArgumentParser("benchmarks/harness.py")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all by default")
    parser.add_argument("--page", action="store_true", help="write the page from earlier results, run nothing")
    given = parser.parse_args()
    scripts = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    known = {path.stem: path for path in scripts if "def main" in path.read_text("utf-8")}
    if unknown := set(given.names) - set(known):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    failed = []
    for name in [] if given.page else given.names or sorted(known):
        print(f"\n=== {name}", flush=True)
        if subprocess.run([sys.executable, known[name]], check=False).returncode:
            failed.append(name)
    write_page()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
