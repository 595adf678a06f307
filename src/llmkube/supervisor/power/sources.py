"""The power source of this host, and RAPL, Linux's energy counters of processors (/sys/class/powercap).

RAPL has one counter in microjoules per package, and one for its memory if the processor supports that
(Documentation/power/powercap/powercap.rst of the kernel; the names are the same on AMD). Since 2020 only root may read
them (CVE-2020-8694): `chmod a+r` on `energy_uj`, at each boot, lets an agent measure. Most virtual machines have none.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import UserError
from llmkube.base.waiting import wait_tick
from llmkube.supervisor.power.powermetrics import Powermetrics, power_command
from llmkube.supervisor.power.sample import COMBINED, PowerProblem, PowerSample

log = structlog.get_logger(__name__)

POWERCAP: Final = Path("/sys/class/powercap")

DOMAINS: Final = ("package", "dram")

SAMPLE_SECONDS: Final = 5.0
"""Sampling interval, the same as that of engines, so that an idle host does not wake more often."""

MAX_WATTS: Final = 10_000.0
"""More than any package draws: the counter has been reset, as after a sleep."""

RETRY: Final = Backoff(base_seconds=5, cap_seconds=600)


@attrs.frozen
class Counter:
    """One counter at one moment; it wraps to zero after `range_joules`."""

    joules: float
    range_joules: float


@attrs.frozen
class CounterSnapshot:
    """All counters at one moment, by the name of their folder; `domains` maps the same names to domains."""

    at: float
    counters: Mapping[str, Counter]
    domains: Mapping[str, str]


def sample_between(before: CounterSnapshot, now: CounterSnapshot) -> PowerSample | None:
    """Return the mean power between two snapshots; None if a counter was added, removed or reset."""
    seconds = now.at - before.at
    if seconds <= 0 or before.counters.keys() != now.counters.keys():
        return None
    watts: dict[str, float] = {}
    for name, counter in now.counters.items():
        joules = counter.joules - before.counters[name].joules
        drawn = joules if joules >= 0 else joules + counter.range_joules
        if not 0 <= drawn <= MAX_WATTS * seconds:
            return None
        domain = now.domains[name]
        watts[domain] = watts.get(domain, 0.0) + drawn / seconds
    return PowerSample({**watts, COMBINED: sum(watts.values())}, seconds) if watts else None


def read_counters(folder: Path, now: float) -> CounterSnapshot:
    """Read the counters of every package and its memory, but not those of package parts and of the whole system.

    Raises:
        OSError: A counter may not be read, or there is none.
        ValueError: A counter is not a number.
    """
    counters, domains = {}, {}
    for zone in sorted(folder.iterdir()):
        if not zone.name.startswith("intel-rapl:"):
            continue
        name = (zone / "name").read_text("ascii").strip()
        domain = "package" if name.startswith("package-") else name
        if domain not in DOMAINS:
            continue
        used, most = ((zone / each).read_text("ascii") for each in ("energy_uj", "max_energy_range_uj"))
        counters[zone.name], domains[zone.name] = Counter(int(used) / 1e6, int(most) / 1e6), domain
    if not counters:
        raise FileNotFoundError(f"no package has a counter in {folder}")
    return CounterSnapshot(now, counters, domains)


@attrs.define(eq=False)
class Rapl:
    """The source of a Linux host.

    Attributes:
        rng: Random numbers for the back-off.
        folder: The folder with the counters.
        name: Selects the metric names.
        domains: Measured domains.
    """

    rng: random.Random
    folder: Path = POWERCAP
    name: str = "rapl"
    domains: tuple[str, ...] = DOMAINS

    async def run(self, take: Callable[[PowerSample], None], failed: Callable[[PowerProblem], None]) -> Never:
        """Deliver a sample every `SAMPLE_SECONDS`, and failures, forever."""
        # No thread: the kernel generates these files when they are read.
        before: CounterSnapshot | None = None
        failures = 0
        while True:
            try:
                now = read_counters(self.folder, trio.current_time())
            except (OSError, ValueError) as error:
                before, failures = None, failures + 1
                problem = problem_of(error)
                failed(problem)
                delay = RETRY.delay(failures, self.rng)
                log.warning("RAPL not read", problem=str(problem), error=str(error), againInSeconds=round(delay))
                await trio.sleep(delay)
                continue
            if before is not None and (sample := sample_between(before, now)) is not None:
                failures = 0
                take(sample)
            before = now
            await wait_tick(SAMPLE_SECONDS)


def problem_of(error: Exception) -> PowerProblem:
    """Return the problem for an error of `read_counters`."""
    if isinstance(error, PermissionError):
        return PowerProblem.NOT_PERMITTED
    return PowerProblem.NOT_UNDERSTOOD if isinstance(error, ValueError) else PowerProblem.NOT_FOUND


PowerSource = Powermetrics | Rapl
"""Measures the power of this host."""


def power_source(platform: str, uid: int, rng: random.Random, *, folder: Path = POWERCAP) -> PowerSource:
    """Return the source of a platform (`sys.platform`) for a user.

    Raises:
        UserError: This host has no source, or its counters may not be read.
    """
    if platform == "darwin":
        return Powermetrics(power_command(uid), rng)
    try:
        read_counters(folder, 0.0)
    except PermissionError as error:
        fix = f"run as root at each boot: chmod a+r {folder}/intel-rapl:*/energy_uj"
        raise UserError(f"--power-enabled: {error.filename} is not readable; {fix}") from error
    except (OSError, ValueError) as error:
        problem = f"no readable RAPL counter in {folder} ({error})"
        raise UserError(f"--power-enabled: {problem}; remove the flag on this machine") from error
    return Rapl(rng, folder)
