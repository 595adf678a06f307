"""Sixteen faults of providers: a real `llmkube router`, and two scripted providers for each request.

The first provider has the fault, the second one is healthy. Before the first byte of an answer, plain or streamed, the
second one's answer has to reach the client within the rule's limit; or, if the first one's error is an answer (it does
not have the model, refuses the content or this router's key), that error, without its text about the key. After the
first byte the stream has to end with an error event, without `[DONE]` and without a final event, and the audit log has
to record it. A fault counts as handled if this is true for each phase in which it can occur. The list is that of a
benchmark of 2026, in which the best published gateway handled 12.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from harness import Aim, Table, begin

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from router.faulty_providers.session import CASES, KINDS, Case, play
from router.proxy.test_faults import FAULTS

ALL: Final = len(FAULTS)


def table(found: Mapping[Any, str]) -> Table:
    """Return what became of each fault."""

    def cell(fault: str, kind: str) -> str:
        case = Case(fault, kind)
        return "" if case not in CASES else found[case] or "as wanted"

    return Table(["fault", *KINDS], [[fault, *(cell(fault, kind) for kind in KINDS)] for fault in FAULTS])


def main() -> None:
    """Measure, print, keep."""
    run = begin("router_faults", "trio", "httptools")
    with TemporaryDirectory(prefix="llmkube-bench-") as folder:
        found: Mapping[Any, str] = trio.run(play, Path(folder))
    handled = [fault for fault in FAULTS if not any(wrong for case, wrong in found.items() if case.fault == fault)]
    run.finish(
        "Faults of providers",
        __doc__ or "",
        [table(found)],
        {case.slug: wrong for case, wrong in found.items()},
        aims=[Aim("faults that are handled", f"{ALL} of {ALL}", f"{len(handled)} of {ALL}", len(handled) == ALL)],
        notes=[f"{len(found)} requests, all at the same time."],
    )


if __name__ == "__main__":
    main()
