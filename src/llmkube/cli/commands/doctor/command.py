"""`llmkube doctor`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import trio

from llmkube.apiserver.server import utcnow_real
from llmkube.base.errors import UserError
from llmkube.base.log import configure_logging
from llmkube.cli.commands.doctor.facts import Fact
from llmkube.cli.commands.doctor.findings import exit_code
from llmkube.cli.commands.doctor.installation import Installation, find_installation
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.probes import (
    cluster_probes,
    mac_probes,
    machine_probes,
    ollama_probe,
    omlx_probe,
    pod_probe,
    program_probes,
)
from llmkube.cli.commands.doctor.probes.probing import Probe, run_probes
from llmkube.cli.commands.doctor.program_facts import NoJob
from llmkube.cli.commands.doctor.report import as_json, as_text
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import Origin, Where, find_config
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.client import open_client
from llmkube.programs.options import HELP, guarded
from llmkube.supervisor.engine.launcher import HELP_SECONDS

ENGINE_SECONDS = 2.5 * HELP_SECONDS
"""It is asked twice, and for its GPUs."""


@click.command("doctor", context_settings=HELP)
@click.option("--json", "as_data", is_flag=True, help="Print every line as JSON.")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Its state directory.")
@click.option(
    "--from-cluster",
    is_flag=True,
    help="Have a pod try the address of this host: one Job in the cluster that you name, which is deleted again.",
)
@click.option("--image", help="With --from-cluster: LLMKube's image. Default: that of the cluster's controller.")
@cluster_options()
@guarded
def doctor(*, as_data: bool, state_dir: Path | None, from_cluster: bool, image: str | None, where: Where) -> None:
    """Say what of this machine and its programs is well, and what mends the rest. Exits with 1 if something fails.

    Nothing is changed. A cluster is asked if --kubeconfig, --context, KUBECONFIG or the agent's settings name it.
    """
    configure_logging("error", style="console")
    if image and not from_cluster:
        raise UserError("--image is for --from-cluster")
    here = find_installation(state_dir)
    named = _named_cluster(here, where) if from_cluster else None
    findings = judge(trio.run(examined, here, where, named, image))
    click.echo(as_json(findings) if as_data else as_text(findings))
    sys.exit(exit_code(findings))


async def examined(
    here: Installation, where: Where, named: ClusterConfig | None = None, image: str | None = None
) -> Sequence[Fact]:
    """Return all facts, in the order of the report."""
    probes = probes_of(here, where)
    if named is not None:
        look = partial(_from_cluster, here, where, named, image)
        probes = [*probes, Probe("from a pod", look, pod_probe.WAIT_SECONDS + 3 * pod_probe.DELETE_SECONDS)]
    return (program_probes.settings(here), *await run_probes(probes))


def probes_of(here: Installation, where: Where) -> Sequence[Probe]:
    """Return what is looked at on this machine, with these programs."""
    about_mac = [
        Probe("system", partial(mac_probes.system, here)),
        Probe("GPU limit", partial(mac_probes.gpu_limit, here)),
    ]
    power = [
        Probe("sleep", partial(mac_probes.power, here)),
        Probe("FileVault", mac_probes.file_vault),
        Probe("firewall", partial(mac_probes.firewall, here)),
        Probe("Full Disk Access", partial(mac_probes.guarded_folders, here)),
        Probe("local network", partial(cluster_probes.lan_access, here)),
    ]
    return [
        *(about_mac if here.mac else [Probe("system", machine_probes.linux_system)]),
        Probe("engine", partial(program_probes.engine, here), ENGINE_SECONDS),
        Probe("Ollama", ollama_probe.look),
        *([Probe("oMLX", omlx_probe.look)] if here.mac else []),
        Probe("memory", partial(machine_probes.memory, here)),
        Probe("disk", partial(machine_probes.disk, here)),
        *(power if here.mac else [Probe("power", machine_probes.linux_power)]),
        _job_probe(here),
        Probe("ports", partial(program_probes.ports, here)),
        Probe("keys", partial(program_probes.listeners, here)),
        Probe("last end", partial(program_probes.last_ends, here)),
        Probe("API server", partial(cluster_probes.api_server, here, where, utcnow_real), cluster_probes.API_SECONDS),
        *([Probe("address", partial(cluster_probes.advertised, here, where))] if here.serves_a_cluster else []),
    ]


def _job_probe(here: Installation) -> Probe:
    if here.job is not None:
        return Probe("launchd", partial(program_probes.launchd_job, here))
    if here.unit is not None:
        return Probe("systemd", partial(program_probes.systemd_unit, here))
    return Probe("background", _no_job)


async def _no_job() -> NoJob:
    await trio.lowlevel.checkpoint()
    return NoJob()


def _named_cluster(here: Installation, where: Where) -> ClusterConfig:
    """Return the cluster in which the Job is made: named by the user, with the user's own credentials.

    Raises:
        UserError: It was not named, or with the host's credentials.
    """
    config, origin = find_config(where.kubeconfig_path, where.context, here.folder)
    if origin is not Origin.NAMED:
        raise UserError("--from-cluster makes a Job: name the cluster, with --kubeconfig or --context")
    pod_probe.refuse_host_identity(config, here.folder)
    return config


async def _from_cluster(here: Installation, where: Where, config: ClusterConfig, image: str | None) -> Fact:
    found = await cluster_probes.advertised(here, where)
    if not found.address:
        raise UserError("this host has no address that pods could reach; --host-ip of the agent names one")
    async with open_client(config) as client:
        lease_namespace = cluster_probes.agent_config(here).lease_namespace
        chosen = image or await pod_probe.find_image(client, lease_namespace)
        return await pod_probe.try_from_pod(client, where.namespace or config.namespace, chosen, found.address)
