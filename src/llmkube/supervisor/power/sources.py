"""Which source measures this host."""

import random
from pathlib import Path

from llmkube.base.errors import UserError
from llmkube.supervisor.power.powermetrics import Powermetrics, power_command
from llmkube.supervisor.power.rapl import POWERCAP, Rapl, read_counters
from llmkube.supervisor.power.sample import PowerSource


def power_source(platform: str, uid: int, rng: random.Random, *, folder: Path = POWERCAP) -> PowerSource:
    """Return the source of a platform (`sys.platform`) for a user.

    Raises:
        UserError: This host has none, or its counters may not be read.
    """
    if platform == "darwin":
        return Powermetrics(power_command(uid), rng)
    try:
        read_counters(folder, 0.0)
    except PermissionError as error:
        raise UserError(
            f"--power-enabled: {error.filename} may not be read; as root, at each boot: "
            f"chmod a+r {folder}/intel-rapl:*/energy_uj"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"--power-enabled: {folder} has no counter of RAPL that can be read ({error}); "
            "leave the flag out on this host"
        ) from error
    return Rapl(rng, folder)
