"""Play the published workloads, and print the table of policies."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from swap.playing import WORST, Played, table
from swap.workloads import SEEDS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--seeds", type=int, default=len(SEEDS))
args = parser.parse_args()
runs = [Played.of(seed) for seed in range(args.first, args.first + args.seeds)]
print(table(runs))
for each in runs:
    if each.ratio > WORST or each.ours.killed or each.ours.cut:
        print(f"seed {each.workload.seed}: ratio {each.ratio:.3f}, killed {each.ours.killed}, cut {each.ours.cut}")
