"""Any of what the probes find, one value per subject; what it means is for the judge."""

import attrs

from llmkube.cli.commands.doctor.cluster_facts import Advertised, ApiServer, LanAccess, NoCluster, PodReach
from llmkube.cli.commands.doctor.machine_facts import (
    Disk,
    FileVault,
    Firewall,
    GpuLimit,
    GuardedFolders,
    LinuxPower,
    MacPower,
    Memory,
    System,
)
from llmkube.cli.commands.doctor.ollama import Ollama
from llmkube.cli.commands.doctor.omlx import Omlx
from llmkube.cli.commands.doctor.program_facts import (
    Engine,
    LastEnds,
    LaunchdJob,
    Listeners,
    NoJob,
    Ports,
    Settings,
    SystemdUnit,
)


@attrs.frozen
class Unanswered:
    """A probe that failed, or was not done in time.

    Attributes:
        name: What it looks at.
        problem: Its error, or how long it was waited for.
    """

    name: str
    problem: str


Fact = (
    Unanswered
    | System
    | Memory
    | GpuLimit
    | Disk
    | MacPower
    | LinuxPower
    | FileVault
    | Firewall
    | GuardedFolders
    | Settings
    | Engine
    | Ollama
    | Omlx
    | LaunchdJob
    | SystemdUnit
    | NoJob
    | Ports
    | Listeners
    | LastEnds
    | LanAccess
    | NoCluster
    | ApiServer
    | Advertised
    | PodReach
)
