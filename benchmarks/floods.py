"""The effect of busy clients on others: p99 during a flood, in multiples of the p99 without one.

As in the benchmark of floods, with a separate `llmkube up` for each, but these clients ask for nothing unusual: chats
of 400 KB over eight connections, small chats each on a new connection, and 200 streams of 50 tokens per second, each as
fast as they are answered. The program has one core; clients, engines and the stopwatch share the others. The programs
take turns in random order, and each figure is the median of the rounds.
"""

import os
import sys
from functools import partial
from typing import Final

import attrs
import trio

from flood import MEASURES, NONE, FloodSamples, measure
from harness import Aim, Table, begin, interleaved, median, percentile
from http_load import tools
from http_load.up_program import STREAMS

FLOODS: Final = {NONE: (), "chats of 400 KB": ("big",), "small chats": ("chats",), "200 streams": ("streams",)}
ROUNDS, SECONDS, MOST_TIMES = 5, 20.0, 3.0


def main() -> None:
    """Measure, print, keep."""
    if sys.platform != "linux":
        raise SystemExit("this benchmark needs Linux, to give a program a core of its own")
    run = begin("floods", "trio", "httptools")
    rounds, seconds, nginx = (1, 4.0, []) if run.quick else (ROUNDS, SECONDS, tools.find_program("nginx"))
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this benchmark needs two cores: one for the program, one for its clients")
    os.sched_setaffinity(0, cores[1:])

    def play(attacks: tuple[str, ...]) -> FloodSamples:
        print(attacks, file=sys.stderr, flush=True)
        return trio.run(partial(measure, seconds, attacks, nginx, STREAMS, core=cores[0]))

    found = interleaved({flood: partial(play, attacks) for flood, attacks in FLOODS.items()}, rounds, run.rng)
    p99 = {
        flood: [median([percentile(values_of(each), 99) for each in samples]) for values_of in MEASURES.values()]
        for flood, samples in found.items()
    }
    rows, aims = [], []
    for flood, figures in p99.items():
        times = [figure / least for figure, least in zip(figures, p99[NONE], strict=True)]
        rows.append([flood, *(f"{ms:,.1f} ({each:.1f})" for ms, each in zip(figures, times, strict=True))])
        if flood != NONE:
            aims += [
                Aim(f"{what} during {flood}", f"{MOST_TIMES:.0f} times", f"{each:.1f} times", each <= MOST_TIMES)
                for what, each in zip(MEASURES, times, strict=True)
            ]
    columns = ["flood", *(f"{what}, p99 ms (times)" for what in MEASURES)]
    samples = {flood: [attrs.asdict(each) for each in rounds_of] for flood, rounds_of in found.items()}
    run.finish("Busy clients", __doc__ or "", [Table(columns, rows)], samples, aims=aims)


if __name__ == "__main__":
    main()
