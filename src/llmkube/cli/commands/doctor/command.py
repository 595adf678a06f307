"""`llmkube doctor`."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import psutil
import trio

from llmkube.base.errors import LLMKubeError, UserError, first_leaf
from llmkube.base.log import configure_logging
from llmkube.base.times import utcnow
from llmkube.cli.commands.doctor import cluster, daemons, mac, machine, programs
from llmkube.cli.commands.doctor.findings import Finding, as_json, as_text, exit_code, warned
from llmkube.cli.commands.doctor.installation import Installation, find_installation
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import ClusterFlags
from llmkube.programs.options import command
from llmkube.supervisor.engine.launcher import HELP_SECONDS

SECONDS: Final = 8.0
"""Default deadline of a probe."""

_EXPECTED: Final = (LLMKubeError, OSError, ValueError, KeyError, psutil.Error, subprocess.SubprocessError)
"""Errors that a faulty machine causes; any other exception is a bug and propagates."""

ENGINE_SECONDS = 2.5 * HELP_SECONDS
"""Deadline of the engine's probe, which runs it up to three times: twice for its version and flags, once for GPUs."""


@attrs.frozen
class Probe:
    """A check of one part.

    Attributes:
        name: Name of its findings that have none of their own.
        check: Returns the findings.
        seconds: Its deadline.
    """

    name: str
    check: Callable[[], Awaitable[Finding | Iterable[Finding]]]
    seconds: float = SECONDS


@command("doctor")
@click.option("--json", "as_data", is_flag=True, help="Print the report as JSON.")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory to check.")
@click.option(
    "--from-cluster",
    is_flag=True,
    help="Check from a pod whether this host can be reached: creates a Job in the named cluster and deletes it.",
)
@click.option("--image", help="With --from-cluster: LLMKube's image. Default: that of the cluster's controller.")
@cluster_options()
def doctor(
    *, as_data: bool, state_dir: Path | None, from_cluster: bool, image: str | None, where: ClusterFlags
) -> None:
    """Diagnose this host and suggest fixes.

    Exits with 1 if a check fails. Changes nothing on this host. Queries a cluster only if --kubeconfig, --context,
    KUBECONFIG or the agent's settings name it.
    """
    configure_logging("error", style="console")
    if image and not from_cluster:
        raise UserError("--image requires --from-cluster")
    here = find_installation(state_dir)
    probes = probes_of(here, where)
    if from_cluster:
        from llmkube.cli.commands.doctor import from_pod  # noqa: PLC0415 - only --from-cluster needs it

        check = from_pod.check_of(here, where, image)
        probes = [*probes, Probe("from a pod", check, from_pod.WAIT_SECONDS + 3 * from_pod.DELETE_SECONDS)]
    findings = (programs.check_settings(here), *trio.run(run_probes, probes))
    click.echo(as_json(findings) if as_data else as_text(findings))
    sys.exit(exit_code(findings))


def probes_of(here: Installation, where: ClusterFlags) -> Sequence[Probe]:
    """Return the probes for this machine."""
    system = [Probe("system", partial(mac.check_system, here)), Probe("GPU limit", partial(mac.check_gpu_limit, here))]
    power = [
        Probe("sleep", partial(mac.check_power, here)),
        Probe("FileVault", mac.check_file_vault),
        Probe("firewall", partial(mac.check_firewall, here)),
        Probe("Full Disk Access", partial(mac.check_guarded_folders, here)),
        Probe("local network", partial(cluster.check_lan_access, here)),
    ]
    return [
        *(system if here.mac else [Probe("system", machine.check_linux_system)]),
        Probe("engine", partial(programs.check_engine, here), ENGINE_SECONDS),
        *([] if here.mac else [Probe("devices", partial(machine.check_devices, here), ENGINE_SECONDS)]),
        Probe("Ollama", daemons.check_ollama),
        *([Probe("oMLX", daemons.check_omlx)] if here.mac else []),
        Probe("memory", partial(machine.check_memory, here)),
        Probe("disk", partial(machine.check_disk, here)),
        Probe("proxies", partial(machine.check_egress, here)),
        *(power if here.mac else [Probe("power", machine.check_linux_power)]),
        _job_probe(here),
        Probe("ports", partial(programs.check_ports, here)),
        Probe("keys", partial(programs.check_keyless_listeners, here)),
        Probe("last end", partial(programs.check_last_exits, here)),
        Probe("API server", partial(cluster.check_server, here, where, utcnow), cluster.API_SECONDS),
        *([Probe("address", partial(cluster.check_advertised, here, where))] if here.serves_a_cluster else []),
    ]


def _job_probe(here: Installation) -> Probe:
    if here.job is not None:
        return Probe("launchd", partial(programs.check_launchd_job, here))
    if here.unit is not None:
        return Probe("systemd", partial(programs.check_systemd_unit, here))
    return Probe("background", programs.check_for_job)


async def run_probes(probes: Sequence[Probe]) -> tuple[Finding, ...]:
    """Run the probes concurrently and return their findings in order; a probe that hangs or fails yields a warning."""
    found: dict[int, Finding | Iterable[Finding]] = {}

    async def run(index: int, probe: Probe) -> None:
        with trio.move_on_after(probe.seconds):
            try:
                found[index] = await probe.check()
            except _EXPECTED as exc:
                found[index] = _unknown(str(exc) or type(exc).__name__)
            except ExceptionGroup as group:
                expected, bugs = group.split(_EXPECTED)
                if bugs is not None or expected is None:
                    raise
                found[index] = _unknown(str(first_leaf(expected)))
            return
        found[index] = _unknown(f"no answer within {probe.seconds:g} s")

    async with trio.open_nursery() as nursery:
        for index, probe in enumerate(probes):
            nursery.start_soon(run, index, probe)
    lines: list[Finding] = []
    for index, probe in enumerate(probes):
        result = found[index]
        result = (result,) if isinstance(result, Finding) else result
        lines += [attrs.evolve(each, name=each.name or probe.name) for each in result]
    return tuple(lines)


def _unknown(problem: str) -> Finding:
    """Return a warning that a check could not be made."""
    return warned(f"check failed: {problem}", why="its state is unknown", fix="run `llmkube doctor` again")
