"""`python -m tests.sim` runs seeds and prints the scorecard; `--seed` replays one."""

import argparse
import functools
import gc
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim import score
from sim.faults import FAULTS
from sim.faults_activation import ACTIVATION_FAULTS
from sim.faults_mac import MAC_FAULTS

emit = print  # this is a program, not a test


def main():
    """Return the exit code: 0 if nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay one seed, print its timeline, shrink it if it fails")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--hosts", type=int, choices=(1, 2), help="hosts in every world; default: drawn by the seed")
    parser.add_argument("--macs", action="store_true", help="hosts are Macs (macOS 14 to 27), with their faults")
    parser.add_argument("--on-request", action="store_true", default=None, help="services are loaded on request")
    parser.add_argument("--quiet-minutes", type=float, default=30.0, help="simulated minutes without faults at the end")
    parser.add_argument("--faults", action="store_true", help="print the table of faults")
    options = parser.parse_args()
    if options.faults:
        for name, row in score.KNOWN.items():
            emit(f"{name:26} {row.codes:10} {row.phrase}")
        emit(f"{len(FAULTS)} faults, {len(MAC_FAULTS)} of Macs, and {len(ACTIVATION_FAULTS)} of loads on request")
        return 0
    if options.seed is not None:
        return replay(options)
    return many(options)


def replay(options):
    """Run one seed and print its timeline and result."""
    timeline = score.timeline_of(options.seed, options.hosts, macs=options.macs, on_request=options.on_request)
    emit(f"seed {timeline.seed}: {timeline.hosts} hosts, Leases every {timeline.renew_seconds:g} s")
    if timeline.release:
        emit(f"  Macs with macOS {timeline.release}")
    for happening in timeline.happenings:
        emit(f"  {happening}")
    result = score.play(timeline, quiet_minutes=options.quiet_minutes)
    report(result)
    if not result.violations:
        emit(f"nothing violated; desired state after {result.converged_seconds:.0f} s; {result.engines} engines")
        return 0
    short = score.shrink(timeline, quiet_minutes=options.quiet_minutes)
    emit("shrunk to")
    for happening in short.happenings:
        emit(f"  {happening} (dice {happening.seed})")
    report(score.play(short, quiet_minutes=options.quiet_minutes))
    return 1


def many(options):
    """Run many seeds, in parallel if requested."""
    card = score.Scorecard()
    drawn = {"hosts": options.hosts, "macs": options.macs, "on_request": options.on_request}
    run = functools.partial(score.run_seed, **drawn, quiet_minutes=options.quiet_minutes)
    seeds = range(options.first, options.first + options.seeds)
    gc.freeze()  # objects from the start are not scanned again in each collection
    gc.set_threshold(50_000, 20, 50)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for result in pool.imap_unordered(run, seeds):
            card.results.append(result)
            report(result)
            if len(card.results) % 100 == 0:
                emit(card, flush=True)
    emit(card)
    kinds = sum((result.faults for result in card.results), Counter())
    if never := sorted((FAULTS | (MAC_FAULTS if options.macs else {})).keys() - kinds.keys()):
        emit(f"{len(never)} faults were not drawn or found nothing to break: {', '.join(never[:9])} ...")
    return 1 if card.failed else 0


def report(result):
    """Print the violations."""
    for violation in result.violations:
        emit(f"seed {result.seed}: {violation}", flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of strings must be the same in two replays
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
