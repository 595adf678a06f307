"""Common parts of the benchmarks: conditions, interleaved contenders, tables with their JSON, the page.

A benchmark is a script in this folder. It measures, and hands its tables and aims to `Run.finish`, which prints them
and keeps them in `results/`. Run as a program, this file runs benchmarks, then writes their sections of
docs/reference/benchmarks.md again; the sections of others stay unchanged:

    python benchmarks/harness.py                  every benchmark
    python benchmarks/harness.py NAME…            these
    python benchmarks/harness.py --page [NAME…]   none; the sections from what is in `results/`

Nothing here asserts anything about time. A figure that is worse than a contender's, or than what was aimed at, stands
in its table like any other, and every missed aim is listed at the top of the page.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import random
import re
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
PAGE: Final = HERE.parent / "docs" / "reference" / "benchmarks.md"
ORDER: Final = (
    "reaction",
    "adoption",
    "estimate",
    "pressure",
    "swap",
    "scale",
    "controller",
    "version",
    "listing",
    "download",
    "gguf_header",
    "gguf_verdicts",
    "api_server",
    "api_hostile",
    "http_proxy",
    "router",
    "router_profile",
    "router_faults",
    "killed_engines",
    "affinity",
    "fairness",
    "tenants",
    "flood",
    "floods",
    "cluster",
    "bench_cache_memory",
)
"""Order of the page; benchmarks that are not named here come last."""


DEFAULT_SEED: Final = 1
MISSED: Final = "**no**"


@attrs.frozen
class Conditions:
    """Conditions on which a figure depends besides the code."""

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
        """The line below every table."""
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
        """The table in Markdown, with numbers aligned to the right."""
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
class Aim:
    """A target of a figure, and the measured value."""

    what: str
    wanted: str
    measured: str
    met: bool


@attrs.frozen
class Report:
    """One benchmark's outcome: what was asked, the tables, and the samples that they were made from."""

    name: str
    title: str
    about: str
    tables: list[Table]
    conditions: Conditions
    aims: list[Aim] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    samples: dict[str, Any] = attrs.field(factory=dict)

    @property
    def markdown(self) -> str:
        """Its section of the page."""
        seed = "" if self.conditions.seed == DEFAULT_SEED else f" --seed {self.conditions.seed}"
        command = f"python benchmarks/{self.name}.py{seed}" if seed else f"make bench BENCH={self.name}"
        parts = [
            f"## {self.title}",
            self.about,
            f"```console not run: it takes minutes and prints figures\n$ {command}\n```",
        ]
        parts += [table.markdown for table in self.tables]
        if self.aims:
            rows = [[aim.what, aim.wanted, aim.measured, "yes" if aim.met else MISSED] for aim in self.aims]
            parts.append(Table(["aim", "wanted", "measured", "met"], rows).markdown)
        if self.notes:
            parts.append("\n".join(f"* {note}" for note in self.notes))
        return "\n\n".join([*parts, f"Measured {self.conditions.line}."])


@attrs.define(eq=False)
class Run:
    """The frame around one benchmark: note the conditions before, and again at `finish`.

    Attributes:
        rng: Source of all randomness: the same sequence for the same seed.
    """

    name: str
    packages: tuple[str, ...]
    seed: int = 0
    quick: bool = False
    options: frozenset[str] = frozenset()
    load_before: float = attrs.field(factory=lambda: os.getloadavg()[0])
    rng: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def finish(
        self,
        title: str,
        about: str,
        tables: list[Table],
        samples: Mapping[str, Any],
        *,
        aims: Sequence[Aim] = (),
        notes: Sequence[str] = (),
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
        about = " ".join(about.split())
        report = Report(self.name, title, about, tables, conditions, list(aims), list(notes), dict(samples))
        print(report.markdown)
        if not self.quick:
            RESULTS.mkdir(exist_ok=True)
            text = json.dumps(cattrs.unstructure(report), indent=1)
            (RESULTS / f"{self.name}.json").write_text(text + "\n", "utf-8")


def begin(name: str, *packages: str, options: Mapping[str, str] = {}) -> Run:
    """Read the options that every benchmark has, and those of this one, and note the conditions."""
    parser = argparse.ArgumentParser(f"benchmarks/{name}.py")
    text = f"seed of all random numbers (default: {DEFAULT_SEED})"
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=text)
    parser.add_argument("--quick", action="store_true", help="a few rounds to see that it works; nothing is kept")
    for option, about in options.items():
        parser.add_argument(f"--{option}", action="append_const", dest="options", const=option, default=[], help=about)
    given = parser.parse_args()
    return Run(name, ("llmkube", *packages), given.seed, given.quick, frozenset(getattr(given, "options", ())))


def interleaved(contenders: Mapping[str, Callable[[], Any]], rounds: int, rng: random.Random) -> dict[str, list[Any]]:
    """Call each contender once per round, in a new random order, so that idle moments are shared evenly."""
    samples: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in rng.sample(list(contenders), len(contenders)):
            samples[name].append(contenders[name]())
    return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least that many per cent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


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

Written by `make bench`; each section describes how its table was measured and under which conditions. Compare
figures within a table, not between machines: contenders took turns in one run. Where a contender is faster, the
table shows it.
"""
_SECTION: Final = re.compile(r"^<!-- (\w+) -->\n(.*?)(?=^<!-- \w+ -->\n|\Z)", re.MULTILINE | re.DOTALL)
_MISSED_ROW: Final = re.compile(rf"^\| (.+?) \| +(.+?) \| +(.+?) \| +{re.escape(MISSED)} \|$", re.MULTILINE)


def page(earlier: str, reports: Sequence[Report]) -> str:
    """Return the page with the sections of these reports put in, and all others as they were."""
    sections = {name: body.strip() for name, body in _SECTION.findall(earlier)}
    sections |= {report.name: report.markdown for report in reports}
    ordered = sorted(sections, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    missed = [
        f"* {what.strip()}: {wanted.strip()} wanted, {measured.strip()} measured"
        for name in ordered
        for what, wanted, measured in _MISSED_ROW.findall(sections[name])
    ]
    summary = "\n".join(["Targets that were not reached:", "", *missed]) if missed else "All targets were reached."
    parts = [HEAD.strip(), summary, *(f"<!-- {name} -->\n{sections[name]}" for name in ordered)]
    return "\n\n".join(parts) + "\n"


def write_page(names: Sequence[str]) -> None:
    """Rewrite the sections of the benchmarks that have results."""
    converter = cattrs.Converter()
    paths = [path for name in names if (path := RESULTS / f"{name}.json").exists()]
    reports = [converter.structure(json.loads(path.read_text("utf-8")), Report) for path in paths]
    earlier = PAGE.read_text("utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(earlier, reports), "utf-8")


def main() -> int:
    """Run what was asked for, then write the page."""
    parser = argparse.ArgumentParser("benchmarks/harness.py")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all by default")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from earlier results")
    given = parser.parse_args()
    scripts = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    known = {path.stem: path for path in scripts if "def main" in path.read_text("utf-8")}
    if unknown := set(given.names) - set(known):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    names, failed = given.names or sorted(known), []
    for name in [] if given.page else names:
        print(f"\n=== {name}", flush=True)
        if subprocess.run([sys.executable, known[name]], check=False).returncode:
            failed.append(name)
    write_page([name for name in names if name not in failed])
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
