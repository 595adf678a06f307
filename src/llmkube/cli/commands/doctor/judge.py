"""Facts to findings: each kind of fact has one judge."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from llmkube.cli.commands.doctor import (
    cluster_facts,
    cluster_verdicts,
    machine_facts,
    machine_verdicts,
    program_facts,
    program_verdicts,
)
from llmkube.cli.commands.doctor.facts import Fact, Unanswered
from llmkube.cli.commands.doctor.findings import Finding, warned
from llmkube.cli.commands.doctor.ollama import Ollama, ollama
from llmkube.cli.commands.doctor.omlx import Omlx, omlx


def unanswered(fact: Unanswered) -> Iterator[Finding]:
    """What could not be looked at is told, and is no failure of what it looks at."""
    yield warned(
        fact.name, f"cannot be told: {fact.problem}", why="it may be well or not", fix="repeat; --json has all lines"
    )


JUDGES: Final[Mapping[type[Any], Callable[[Any], Iterator[Finding]]]] = {
    Unanswered: unanswered,
    machine_facts.System: machine_verdicts.system,
    machine_facts.Memory: machine_verdicts.memory,
    machine_facts.GpuLimit: machine_verdicts.gpu_limit,
    machine_facts.Disk: machine_verdicts.disk,
    machine_facts.MacPower: machine_verdicts.mac_power,
    machine_facts.LinuxPower: machine_verdicts.linux_power,
    machine_facts.FileVault: machine_verdicts.file_vault,
    machine_facts.Firewall: machine_verdicts.firewall,
    machine_facts.GuardedFolders: machine_verdicts.guarded_folders,
    program_facts.Settings: program_verdicts.settings,
    program_facts.Engine: program_verdicts.engine,
    Ollama: ollama,
    Omlx: omlx,
    program_facts.LaunchdJob: program_verdicts.launchd_job,
    program_facts.SystemdUnit: program_verdicts.systemd_unit,
    program_facts.NoJob: program_verdicts.no_job,
    program_facts.Ports: program_verdicts.ports,
    program_facts.Listeners: program_verdicts.listeners,
    program_facts.LastEnds: program_verdicts.last_ends,
    cluster_facts.LanAccess: cluster_verdicts.lan_access,
    cluster_facts.NoCluster: cluster_verdicts.no_cluster,
    cluster_facts.ApiServer: cluster_verdicts.api_server,
    cluster_facts.Advertised: cluster_verdicts.advertised,
    cluster_facts.PodReach: cluster_verdicts.pod_reach,
}
"""Every kind of fact, and what it means."""


def judge(found: Iterable[Fact]) -> tuple[Finding, ...]:
    """Return the findings, in the order of the facts."""
    return tuple(finding for fact in found for finding in JUDGES[type(fact)](fact))
