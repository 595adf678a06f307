"""What facts of the cluster mean, and of this host as its pods see it."""

import datetime
from collections.abc import Iterator
from typing import Final

from llmkube.cli.commands.doctor.cluster_facts import Advertised, ApiServer, LanAccess, NoCluster, PodReach
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.programs.background.lan_access import REACHED, REFUSED

SKEW_WARNS: Final = datetime.timedelta(seconds=5)
"""Dates of HTTP have whole seconds, and the answer has taken some time."""

SKEW_FAILS: Final = datetime.timedelta(seconds=60)
"""Tokens and certificates are taken for not yet valid, or for ended."""

_SHOWN: Final = 4


def no_cluster(fact: NoCluster) -> Iterator[Finding]:
    """A cluster that the user has not named is not asked."""
    if fact.home:
        yield passed("API server", f'not asked: no cluster was named; --context "{fact.home}" is the current one')
    else:
        yield passed("API server", "no cluster is named, and `llmkube up` does not run")


def api_server(fact: ApiServer) -> Iterator[Finding]:
    """The API server answers, serves our kinds, and lets the agent do its work."""
    name = "API server"
    place = f'{fact.server} (context "{fact.context}")' if fact.context else fact.server
    if fact.code == 401:
        yield failed(
            name,
            f"{place} does not know these credentials",
            why="no service is seen, and no status is written",
            fix="renew them: `llmkube agent join`, or your cluster's login; --context chooses another",
        )
        return
    if fact.problem:
        yield failed(
            name,
            f"{place}: {fact.problem}",
            why="no service is seen, and no status is written",
            fix="is it running, and is the network between here and there? --kubeconfig and --context choose another",
        )
        return
    yield passed(name, f"{place}, {fact.version}")
    if not fact.installed:
        yield failed(
            "kinds",
            "it does not serve Models and InferenceServices",
            why="there is nothing to serve",
            fix="`llmkube crds | kubectl apply --server-side -f -`",
        )
    if fact.lacking:
        more = len(fact.lacking) - _SHOWN
        who, verdict = ("the agent", failed) if fact.agent else ("an agent with these credentials", warned)
        yield verdict(
            "rights",
            f"{who} may not {'; '.join(fact.lacking[:_SHOWN])}{f'; and {more} more' if more > 0 else ''}",
            why="what it may not do does not happen, and services wait for it",
            fix=fact.rights,
        )
    elif not fact.own:
        yield passed("rights", "they are enough for all that an agent does")
    if fact.skew is not None:
        yield from _clock(fact.skew)


def _clock(skew: datetime.timedelta) -> Iterator[Finding]:
    seconds = abs(skew).total_seconds()
    if abs(skew) < SKEW_WARNS:
        yield passed("clock", "as the API server's")
        return
    verdict = failed if abs(skew) >= SKEW_FAILS else warned
    yield verdict(
        "clock",
        f"{seconds:.0f} s {'behind' if skew > datetime.timedelta() else 'ahead of'} the API server's",
        why="tokens and certificates count as ended or not yet begun, and ages in every table are wrong",
        fix="macOS: `sudo sntp -sS time.apple.com`; Linux: `sudo timedatectl set-ntp true`",
    )


def lan_access(fact: LanAccess) -> Iterator[Finding]:
    """The job itself reaches machines of its network: a terminal that does says nothing about it."""
    name = "local network"
    if fact.found == REFUSED:
        yield failed(
            name,
            "the job gets errno 65 (EHOSTUNREACH) from every machine of its network: Local Network Privacy",
            why="pods may not reach its engines, although the internet and the cluster can be reached",
            fix="`llmkube agent install --daemon`, or allow it in System Settings, Privacy & Security, Local Network",
        )
    elif fact.found == REACHED:
        yield passed(name, "the job reaches a machine of its network")
    elif fact.daemon or not fact.job:
        yield passed(name, "daemons are exempt from Local Network Privacy" if fact.daemon else "no job that needs it")
    else:
        yield warned(
            name,
            "the job has not found a machine of its network to try",
            why="macOS may keep a login's job from its own network (Local Network Privacy), and only the job can tell",
            fix="`llmkube agent restart` has it try again; `llmkube agent install --daemon` is exempt",
        )


def advertised(fact: Advertised) -> Iterator[Finding]:
    """There is an address at which pods can reach this host."""
    if fact.address:
        how = "by --host-ip" if fact.given else "as it talks to the API server"
        yield passed("address", f"pods are told {fact.address}, {how}; --from-cluster tries it")
    else:
        yield failed(
            "address",
            "this host has no address that pods could reach",
            why="engines are published at none",
            fix="`llmkube agent install --host-ip ADDRESS`, an address of this machine on the nodes' network",
        )


def pod_reach(fact: PodReach) -> Iterator[Finding]:
    """A pod reached this host at the address that it advertises."""
    name = "from a pod"
    if fact.problem:
        yield failed(
            name,
            f"Job {fact.job}: {fact.problem}",
            why="whether pods reach this host is not known",
            fix="mend that, and repeat; --image names another image, --namespace another place",
        )
    elif fact.error:
        yield failed(
            name,
            f"{fact.address} cannot be reached: {fact.error}",
            why="services that run here answer no pod, and no client through the cluster",
            fix="open this host's firewall for the nodes, or advertise another address: --host-ip",
        )
    else:
        yield passed(name, f"a pod reached {fact.address}")
