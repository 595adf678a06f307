"""Ten thousand damaged headers, judged by LLMKube and by the installed llama.cpp: how often do they agree?"""

import sys
import time
from collections import Counter
from pathlib import Path

from harness import Aim, Table, begin, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gguf_corpus import cases, disagreement, engine_reason, judge
from gguf_oracle import Oracle

CASES = 10_000


def main() -> None:
    """Judge every case, print the table."""
    run = begin("gguf_verdicts", "xllamacpp")
    count = 500 if run.quick else CASES
    outcomes: Counter[str] = Counter()
    differing: list[tuple[str, str, str]] = []
    ours, theirs = [], []
    with Oracle() as oracle:
        for fault, data, size in cases(count, run.seed):
            started = time.perf_counter()
            facts, why = judge(data, size)
            ours.append(time.perf_counter() - started)
            started = time.perf_counter()
            verdict = oracle.ask(data, size)
            theirs.append(time.perf_counter() - started)
            if differs := disagreement(facts, verdict):
                outcomes[f"DIFFERENT: {differs}"] += 1
                differing.append((fault, why, verdict.message))
            elif facts is None:
                outcomes["both refuse" + ("" if verdict.header else " the header")] += 1
            elif verdict.loads:
                outcomes["both accept"] += 1
            else:
                outcomes[f"left to the engine: {engine_reason(verdict)}"] += 1
        died = oracle.died
    agreed = sum(number for name, number in outcomes.items() if name.startswith("both"))
    rows = [[name, str(number), f"{100 * number / count:.2f} %"] for name, number in outcomes.most_common()]
    run.finish(
        "GGUF headers: the same verdict as llama.cpp",
        f"""{count} headers, of the demo model and generated with up to three faults each, are read by LLMKube and
        loaded by llama.cpp. It is a defect to refuse one that loads, or to accept one that llama.cpp's header reader
        refuses. Faults that only a full load can find are left to the engine; its error text is in the `Loaded`
        condition.""",
        [Table(["verdicts", "cases", "share"], rows)],
        {
            "outcomes": dict(outcomes),
            "differing": differing[:100],
            "ours_seconds": median(ours),
            "theirs": median(theirs),
        },
        aims=[
            Aim(
                "models that load, but that we refuse; headers that only we accept",
                "0",
                str(len(differing)),
                not differing,
            ),
            Aim("the same verdict as a full load", "100 %", f"{100 * agreed / count:.2f} %", agreed == count),
        ],
        notes=[
            f"{died} of these files crash llama.cpp's process instead of being refused by it.",
        ],
    )


if __name__ == "__main__":
    main()
