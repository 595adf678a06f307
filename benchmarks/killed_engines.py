"""What becomes of requests while engines are killed: a real `llmkube router` before three engines that a script plays.

Each engine sends itself SIGKILL once in 8,000 steps of its answers, and is started again. Twelve clients ask one
request after the other, two thirds of them for streams, and hold each answer against what it has to be: all of its
words, or an error's status, or a stream that ends with an error event, without `[DONE]` and without a clean end.
Everything else is wrong. Meanwhile the router keeps a budget, its metrics and its audit log.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from harness import Aim, Table, begin

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from router.killed_engines.session import BROKEN, REFUSED, WHOLE, Results, play

MINUTES: Final = 30.0
REQUESTS, QUICK = 1_000_000, 1000
GROWTH_MIB: Final = 8.0
MIB: Final = 1 << 20


def table(found: Results) -> Table:
    """Return what became of the requests."""
    count = sum(found.answers.values())
    rows = [[kind, f"{found.answers[kind]}", f"{found.answers[kind] / count:.2%}"] for kind in (WHOLE, BROKEN, REFUSED)]
    rows.append(["wrong", f"{len(found.wrong)}", f"{len(found.wrong) / count:.2%}"])
    return Table(["answer", "requests", "share"], rows)


def main() -> None:
    """Measure, print, keep."""
    run = begin("killed_engines", "trio", "httptools")
    count = QUICK if run.quick else REQUESTS
    with TemporaryDirectory(prefix="llmkube-bench-") as folder:
        found = trio.run(
            lambda: play(count, Path(folder), lambda text: print(text, file=sys.stderr), seconds=60 * MINUTES)
        )
    sizes = [size / MIB for size in (found.memory[0], found.memory[len(found.memory) // 4], found.memory[-1])]
    asked, growth = sum(found.answers.values()), sizes[2] - sizes[1]
    run.finish(
        "Engines that are killed",
        __doc__ or "",
        [table(found)],
        {"answers": dict(found.answers), "wrong": found.wrong, "memory": found.memory, "deaths": found.deaths},
        aims=[
            Aim("requests with killed engines", f"{REQUESTS}", f"{asked}", asked >= REQUESTS),
            Aim("answers that are wrong", "0", f"{len(found.wrong)}", not found.wrong),
            Aim(
                "the router's memory, from a quarter of them to the end",
                f"at most {GROWTH_MIB:.0f} MiB more",
                f"{growth:.1f} MiB",
                growth <= GROWTH_MIB,
            ),
        ],
        notes=[
            f"{asked} requests in {found.seconds:.0f} s; the run ends after {MINUTES:.0f} minutes, whatever is left.",
            f"{found.deaths} times an engine was killed.",
            "The router's memory (RSS) before the first request, after a quarter of them, and at the end: "
            + ", ".join(f"{size:.0f} MiB" for size in sizes)
            + ".",
        ],
    )


if __name__ == "__main__":
    main()
