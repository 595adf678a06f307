"""`llmkube rbac`: print the account, roles and bindings of a program, or the policies for hosts and the controller."""

import ipaddress
from typing import Any

import click
import yaml

from llmkube.base.errors import UserError
from llmkube.controller import rights as controller_rights
from llmkube.controller.policies import controller_policies
from llmkube.k8s.rbac import ALL_NAMES, rbac_manifests
from llmkube.k8s.wire.names import host_id
from llmkube.programs.gateway import rights as gateway_rights
from llmkube.programs.gateway.rights import gateway_policies
from llmkube.programs.options import command
from llmkube.supervisor import rights as agent_rights
from llmkube.supervisor.host_policies import host_policies

PROGRAMS = ("agent", "controller", "gateway", "policies")
AGENT_NAMESPACE = "default"
_OTHERS = {"controller": controller_rights.PROGRAM, "gateway": gateway_rights.PROGRAM}


@command("rbac")
@click.argument("program", type=click.Choice(PROGRAMS))
@click.option(
    "-n",
    "--namespace",
    help="The only namespace that the program serves. Default: `default` for an agent, all for the others.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Serve all namespaces.")
@click.option(
    "--lease-namespace", default="llmkube-system", show_default=True, help="Namespace of the account and Leases."
)
@click.option("--host", metavar="NAME", help="Create the identity of one host: the account llmkube-agent-NAME.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="With --host: network in which the host may publish engines, such as 192.168.1.20/32; repeatable.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="Secret that an agent may read in the namespaces that it serves, for Models and services that refer to it; "
    "repeatable. '*' allows every Secret of the one namespace. Default: none.",
)
def rbac(
    program: str,
    *,
    namespace: str | None,
    all_namespaces: bool,
    lease_namespace: str,
    host: str | None,
    networks: tuple[str, ...],
    secrets: tuple[str, ...],
) -> None:
    """Print the ServiceAccount, roles and bindings that a program needs.

    `policies` prints the admission policies that confine each host to its own objects, the controller to objects
    that LLMKube's kinds own and to pods without further privileges, and the front door to its Lease. A controller with
    --allow or --host-path needs them in the variables `allow` and `hostPaths` of the policy for pods, where the chart
    writes them. They need Kubernetes 1.31 or later.

    To install them: llmkube rbac agent | kubectl apply --server-side -f -
    """
    if program != "agent" and (host or networks or secrets):
        raise UserError("--host, --network and --secret are for `llmkube rbac agent`")
    if namespace and all_namespaces:
        raise UserError("-n and -A exclude each other")
    if program == "policies":
        if namespace or all_namespaces:
            raise UserError("-n and -A do not apply to the policies, which are for all hosts; leave them out")
        writers = (host_policies, controller_policies, gateway_policies)
        manifests = [each for policies in writers for each in policies(lease_namespace)]
    elif program in _OTHERS:
        manifests = rbac_manifests(_OTHERS[program], system_namespace=lease_namespace, namespace=namespace)
    else:
        served = None if all_namespaces else namespace or AGENT_NAMESPACE
        manifests = agent_manifests(lease_namespace, served, host, networks, secrets)
    click.echo(yaml.safe_dump_all(manifests, sort_keys=False).rstrip("\n"))


def agent_manifests(
    lease_namespace: str, namespace: str | None, host: str | None, networks: tuple[str, ...], secrets: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the account and roles of all agents, or those of one host.

    Raises:
        UserError: The options contradict each other, or one is invalid.
    """
    if namespace is None and ALL_NAMES in secrets:
        raise UserError("--secret '*' would let a host read every Secret of the cluster; name Secrets or one namespace")
    if host is None:
        if networks:
            raise UserError("--network needs --host: it is for the identity of one host")
        program = agent_rights.PROGRAM
    else:
        if host != host_id(host):
            raise UserError(f"host name {host} is not a DNS name of at most 63 characters; use {host_id(host)}")
        if not networks:
            raise UserError("--host needs --network: specify the networks of its engines, such as 192.168.1.20/32")
        program = agent_rights.host_program(host, [checked_network(one) for one in networks])
    return rbac_manifests(program.grant(secrets), system_namespace=lease_namespace, namespace=namespace)


def checked_network(text: str) -> str:
    """Return a network in the form that the policies use.

    Raises:
        UserError: The text is not a network.
    """
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise UserError(f"--network {text}: {error}") from error
