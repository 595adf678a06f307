"""The estimate of a model's memory against what a real llama.cpp says it allocates, for files of many shapes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

from buffers import CASES, Case, Loaded, drawn, load
from harness import Aim, Table, begin, percentile
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.weights.estimate.demand import Estimate
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.shape import GGUFFacts
from shapes import SHAPES

MEBIBYTE: Final = 2**20
ALLOWED_SHARE, ALLOWED_BYTES, ALLOWED_UNDER = 0.03, 50 * MEBIBYTE, 0.02
QUICK_CASES: Final = 4
DRAWN_CASES: Final = 14

ENGINE: Final = EngineInfo("llama-server", "", flags=frozenset())  # what it knows decides on caches that fill with use

PARTS: Final[Mapping[str, str]] = {
    "weights": "model",
    "repacked weights": "CPU_REPACK",
    "KV cache": "KV",
    "recurrent state": "RS",
    "compute buffer": "compute",
    "output buffer": "output",
}
"""The estimate's components that a load can be held against, and what llama.cpp calls them in its log."""

ORIGINAL_OVERHEAD_BYTES: Final = 512 * MEBIBYTE
ORIGINAL_ELEMENT_BYTES: Final = {"f16": 2.0, "q8_0": 1.0625, "q4_0": 0.5625}  # of the cache types that the cases have


@attrs.frozen
class Outcome:
    """One case: the bytes that were reported and estimated, by part."""

    case: Case
    reported: dict[str, int]
    estimated: dict[str, int]
    original: int
    process_bytes: int
    """Memory of the process that it did not report: the interpreter, the vocabulary, the web server."""
    process_estimated: int = 0

    @property
    def error(self) -> int:
        """Bytes of the overestimate; negative for an underestimate."""
        return sum(self.estimated.values()) - sum(self.reported.values())

    @property
    def original_error(self) -> int:
        """The same for the original's formula."""
        return self.original - sum(self.reported.values())

    def share(self, error: int) -> float:
        """Return an error as a share of all that was reported."""
        return error / sum(self.reported.values())

    def allowed(self, error: int) -> float:
        """Return an error as a share of what was aimed at."""
        return abs(error) / (ALLOWED_SHARE * sum(self.reported.values()) + ALLOWED_BYTES)


def reported(loaded: Loaded) -> dict[str, int]:
    """Return the engine's report as parts of an estimate; repacked weights are a part of their own."""
    parts = dict.fromkeys(PARTS, 0)
    for name, size in loaded.buffers.items():
        where, what = name.split()
        parts["repacked weights" if where == "CPU_REPACK" else next(p for p in PARTS if PARTS[p] == what)] += size
    return parts


def estimated(found: Estimate) -> dict[str, int]:
    """Return the parts that a load can be held against: not what fills only with use, and not the process itself."""
    return {name: size_of(found, name) for name in PARTS}


def size_of(found: Estimate, name: str) -> int:
    """Return one component of an estimate, wherever it is."""
    return sum(each.size_bytes for each in found.components if each.name == name)


def go_estimate(case: Case, facts: GGUFFacts) -> int:
    """Return the estimate of the Go implementation (`memory.go` in its agent), which does not explain its 512 MiB."""
    flags = dict(zip(case.argv, case.argv[1:], strict=False))
    each = sum(ORIGINAL_ELEMENT_BYTES[flags.get(flag, "f16")] for flag in ("-ctk", "-ctv"))
    cells = (facts.layer_count or 0) * (facts.embedding_size or 0) * int(flags["-c"])
    return facts.size_bytes + math.ceil(cells * each) + ORIGINAL_OVERHEAD_BYTES


async def judge(case: Case, folder: Path) -> Outcome:
    """Load the file of a case, and estimate it from its header alone."""
    path = folder / "header.gguf"
    SHAPES[case.shape].write(path, case.mix)
    facts = read_header(path)
    assert facts.shape is not None, "every GGUF file has one"
    expected = estimate(facts.shape, demand_of(case.argv, ENGINE))
    path.unlink()
    loaded = await load(case, folder)
    found = reported(loaded)
    # The weights are mapped and read ahead, and the KV cache is cleared; nothing has been computed yet
    touched = sum(size for name, size in found.items() if name != "compute buffer")
    process = loaded.pss_bytes - touched
    return Outcome(case, found, estimated(expected), go_estimate(case, facts), process, size_of(expected, "process"))


async def judge_all(cases: Sequence[Case]) -> list[Outcome]:
    """Judge one case after the other."""
    with TemporaryDirectory() as folder:
        return [await judge(case, Path(folder)) for case in cases]


def main() -> None:
    """Judge the cases, print the tables."""
    run = begin("estimate", "xllamacpp", "gguf")
    chosen = CASES[:: len(CASES) // QUICK_CASES] if run.quick else CASES
    outcomes = trio.run(judge_all, [*chosen, *drawn(1 if run.quick else DRAWN_CASES, run.rng)])
    files = {(each.case.shape, each.case.mix) for each in outcomes}
    worst = percentile([each.allowed(each.error) for each in outcomes], 95)
    under = max(0.0, *(-each.share(each.error) for each in outcomes))
    processes = [each.process_bytes for each in outcomes]
    run.finish(
        "Memory estimates against a real llama.cpp",
        f"""{len(files)} files with the shapes of real models and {len(outcomes)} command lines: LLMKube's estimate from
        the header alone, compared with the buffers that llama.cpp reports when it loads the same file. The weights in
        the files are sparse, so that a model of 8B takes a few MiB on disk; the engine cannot tell the difference.
        Shapes named slim have fewer layers or experts than the published model, so that no load takes much more than
        8 GiB. The last {DRAWN_CASES} cases were drawn at random after the estimate was written. There was no GPU: these
        are the buffers of the CPU build. The Go implementation was not run: according to its sources (`memory.go` of
        its agent), it is the file, layers x embedding x context x the bytes of a K and a V element, and 512 MiB.""",
        [_summary(outcomes, len(chosen)), _components(outcomes), _cases(outcomes)],
        {"cases": [attrs.asdict(each) for each in outcomes]},
        aims=[
            Aim("error of the total at p95", "3 % + 50 MiB", f"{100 * worst:.0f} % of that", worst <= 1),
            Aim("largest underestimate of the total", "2 %", f"{100 * under:.1f} %", under <= ALLOWED_UNDER),
        ],
        notes=[
            "The engine read mapped weights ahead and cleared the KV cache, so both were resident after the load, even "  # noqa: ISC004 - one
            "where the file is sparse; the compute buffer was not, because nothing had been computed.",
            "In addition to the reported buffers (without the compute buffer), the process used between "  # noqa: ISC004 - one
            f"{min(processes) // MEBIBYTE} and {max(processes) // MEBIBYTE} MiB (PSS), median "
            f"{percentile(processes, 50) // MEBIBYTE:.0f}: interpreter, engine, vocabulary.",
        ],
    )


def _summary(outcomes: Sequence[Outcome], chosen: int) -> Table:
    def row(name: str, errors: Sequence[tuple[Outcome, int]]) -> list[str]:
        shares = [each.share(error) for each, error in errors]
        within = sum(each.allowed(error) <= 1 for each, error in errors)
        return [
            name,
            *(f"{100 * percentile(list(map(abs, shares)), percent):.2f} %" for percent in (50, 95, 100)),
            f"{100 * max(0.0, -min(shares)):.2f} %",
            f"{within} of {len(errors)}",
        ]

    ours = [(each, each.error) for each in outcomes]
    rows = [
        row("llmkube", ours),
        row("llmkube, drawn cases only", ours[chosen:]),
        row("Go implementation", [(each, each.original_error) for each in outcomes]),
    ]
    columns = ["total of all buffers", "error p50", "p95", "worst", "largest underestimate", "within 3 % + 50 MiB"]
    return Table(columns, rows)


def _components(outcomes: Sequence[Outcome]) -> Table:
    errors = {
        part: [
            each.estimated[part] - each.reported[part]
            for each in outcomes
            if each.estimated[part] or each.reported[part]
        ]
        for part in PARTS
    }
    errors["process (measured)"] = [each.process_estimated - each.process_bytes for each in outcomes]
    rows = [
        [
            part,
            str(len(found)),
            *(f"{percentile([abs(error) for error in found], percent) / MEBIBYTE:.1f}" for percent in (50, 95, 100)),
            f"{max(0, -min(found)) / MEBIBYTE:.1f}",
        ]
        for part, found in errors.items()
        if found
    ]
    return Table(["error in MiB, by component", "cases", "p50", "p95", "worst", "largest underestimate"], rows)


def _cases(outcomes: Sequence[Outcome]) -> Table:
    def signed(error: int) -> str:
        return f"{error / MEBIBYTE:+.0f}"

    rows = []
    for each in outcomes:
        off = {part: each.estimated[part] - each.reported[part] for part in PARTS}
        rows.append(
            [
                each.case.name,
                f"{sum(each.reported.values()) / MEBIBYTE:.0f}",
                f"{100 * each.share(each.error):+.1f} %",
                signed(each.error),
                signed(off["weights"] + off["repacked weights"]),
                signed(off["KV cache"] + off["recurrent state"]),
                signed(off["compute buffer"] + off["output buffer"]),
                f"{100 * each.share(each.original_error):+.0f} %",
            ]
        )
    columns = ["case", "reported MiB", "error", "MiB", "weights", "caches", "compute", "Go implementation"]
    return Table(columns, rows, "Each case, with the parts of its error (in MiB; + is an overestimate):")


if __name__ == "__main__":
    main()
