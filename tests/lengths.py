"""Lengths of the suite: LLMKUBE_LENGTHS is `sample` in `make test`, `soak` in `make soak`, otherwise `ci`.

`ci` has to pass before a change is merged, and is the default of pytest. `sample` is for a first look at the project:
smaller lengths, without the tests marked `ci`.

Each length can be set for one run: `LLMKUBE_SIM_SEEDS=1000 pytest tests/sim/test_score.py`.
"""

import os
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

NAMES: Final = ("sample", "ci", "soak")
LENGTHS: Final = os.environ.get("LLMKUBE_LENGTHS", "ci")
if LENGTHS not in NAMES:
    raise ValueError(f"LLMKUBE_LENGTHS is {LENGTHS!r}; set one of {', '.join(NAMES)}, or unset it for ci")
SOAK: Final = LENGTHS == "soak"


def omitted() -> tuple[str, ...]:
    """Return the markers of the tests that are left out."""
    return NAMES[NAMES.index(LENGTHS) + 1 :]


def sample_rows(rows: Iterable[T]) -> list[T]:
    """Return every fourth row of a table for the sample, otherwise all: for tables whose rows take long."""
    return list(rows)[:: 4 if LENGTHS == "sample" else 1]


def _length(name: str, *lengths: int) -> int:
    """Return a length, given for the sample, for CI and for the soak, unless its own variable is set."""
    return int(os.environ.get(f"LLMKUBE_{name}", lengths[NAMES.index(LENGTHS)]))


EXAMPLES: Final = _length("EXAMPLES", 10, 20, 1000)
"""Hypothesis' examples for a property; one with expensive examples draws a fraction of it."""

SIM_SEEDS: Final = _length("SIM_SEEDS", 3, 4, 300)
"""Random timelines of a cluster, an hour each, which take 2 s (tests/sim/test_score.py)."""

MAC_SEEDS: Final = _length("MAC_SEEDS", 1, 1, 300)
"""The same for Macs, with the faults that only they have (tests/sim/test_macs.py)."""

ACTIVATION_SEEDS: Final = _length("ACTIVATION_SEEDS", 1, 2, 300)
"""The same for a host whose services are loaded on request, memory for two (tests/sim/test_activation_seeds.py)."""

CORDON_SEEDS: Final = _length("CORDON_SEEDS", 1, 1, 100)
"""The same for two hosts whose owners cordon them repeatedly (tests/sim/test_cordon_seeds.py)."""

MANY_CLIENTS: Final = _length("MANY_CLIENTS", 4, 4, 50)
"""Clients of eight models with memory for three (tests/e2e/test_many_models.py)."""

MANY_SECONDS: Final = _length("MANY_SECONDS", 5, 5, 1200)
"""Seconds for which they ask at least: each kind of program is killed once."""

SWAP_POD_SECONDS: Final = _length("SWAP_POD_SECONDS", 30, 30, 600)
"""Seconds for which ten pods ask two models that do not fit together (tests/node/test_machines.py)."""

QUIET_MINUTES: Final = _length("QUIET_MINUTES", 6, 6, 30)
"""Minutes without faults after each, in which nothing may change; reports are repeated every 5 minutes."""

RANDOM_HOSTS: Final = _length("RANDOM_HOSTS", 1, 2, 200)
"""Timelines of three hosts that Hypothesis draws (tests/sim/test_random_hosts.py)."""

RESTORES: Final = _length("RESTORES", 4, 6, 500)
"""Restores of a saved prompt into engines of drawn models, flags and builds, some of damaged files
(tests/supervisor/service)."""

PRESSURE_SEEDS: Final = _length("PRESSURE_SEEDS", 4, 6, 400)
"""Random timelines of a host's memory (tests/pressure/test_random.py)."""

SWAP_SEEDS: Final = _length("SWAP_SEEDS", 5, 10, 1000)
"""Random workloads of more models than memory, under four policies (tests/swap)."""

BUSY_HOURS: Final = _length("BUSY_HOURS", 10, 20, 1000)
"""Hours of busy engines, none of which may be called hung (tests/supervisor/values/test_liveness.py)."""

BUG_LINES: Final = _length("BUG_LINES", 8, 2, 1)
"""One of this many lines of code is tried; 1 is every line (tests/sim/test_isolation.py)."""

BUGS: Final = _length("BUGS", 1, 1, 1000)
"""At how many checkpoints of one of these lines a bug is injected; a line has up to 150."""

LEAKS: Final = _length("LEAKS", 1000, 1500, 100_000)
"""Generated routers, with two requests each (tests/router/policy/test_leaks.py)."""

WIRE_LEAKS: Final = _length("WIRE_LEAKS", 100, 150, 100_000)
"""The same over real sockets, to canaries in a network namespace (tests/router/own_network/test_leaks.py)."""

KILLED_ENGINES: Final = _length("KILLED_ENGINES", 1000, 2000, 1_000_000)
"""Requests to a router whose engines are killed at random (tests/router/killed_engines)."""

FAULT_KINDS: Final = _length("FAULT_KINDS", 1, 1, 7)
"""Kinds of faults for each scenario of the controller, in turn (tests/controller/test_operator_faults.py)."""

FAULT_PLACES: Final = _length("FAULT_PLACES", 1, 1, 4)
"""Places in a scenario for each of these kinds; some have 90."""

QUIET_SECONDS: Final = _length("QUIET_SECONDS", 330, 330, 1800)
"""Seconds after each of these without any write."""

KILLS: Final = _length("KILLS", 1, 4, 100)
"""Kills of a server while it writes (tests/apiserver/storage/test_durability.py)."""

GGUF_CASES: Final = _length("GGUF_CASES", 100, 200, 5000)
"""Damaged headers that llama.cpp reads too (tests/weights/formats/test_gguf_rules.py)."""

DIFFERENTIAL_SEQUENCES: Final = _length("DIFFERENTIAL_SEQUENCES", 40, 40, 500)
"""Random sequences of requests to both API servers (tests/envtest/test_differential.py)."""

API_OPERATIONS: Final = _length("API_OPERATIONS", 150, 300, 12_000)
"""Mutated requests to the embedded API server (tests/apiserver/test_fuzzed_operations.py)."""

MUTATIONS: Final = _length("MUTATIONS", 250, 500, 60_000)
"""Mutated streams of requests to the HTTP server (tests/base/http/test_framing.py)."""

PROVIDER_REQUESTS: Final = _length("PROVIDER_REQUESTS", 5, 20, 500)
"""Generated requests for each dialect and kind of provider (tests/router/dispatch/test_whole_or_named.py)."""

ZERO_RACES: Final = _length("ZERO_RACES", 4, 4, 300)
"""Arrivals around the end of a service's last pod, on the real node (tests/node/test_zero.py)."""

FLOOD_TIMES: Final = _length("FLOOD_TIMES", 4, 4, 10)
"""Requests of new clients to each server during a flood (tests/security)."""
