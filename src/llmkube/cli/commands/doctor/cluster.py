"""Asks the API server as the agent does, and reads what the agent itself has found about its network.

What the answers mean is decided by pure functions.
"""

import datetime
import email.utils
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import httpx
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.programs.background.lan_access import REACHED, REFUSED, read_lan_access
from llmkube.cli.target_cluster import ClusterFlags, Origin, find_config, origin_of
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.meta import GROUP, VERSION
from llmkube.k8s.errors import ApiError, TransportError
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.rbac import Permission
from llmkube.programs.config import AgentConfig
from llmkube.supervisor import rights
from llmkube.supervisor.network import LocalNetwork

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ANSWER_SECONDS: Final = 10.0
"""How long an API server may take for all that it is asked."""

API_SECONDS: Final = 2 * ANSWER_SECONDS
_AT_ONCE: Final = 8

SKEW_WARNS: Final = datetime.timedelta(seconds=5)
"""Dates of HTTP have whole seconds, and the answer has taken some time."""

SKEW_FAILS: Final = datetime.timedelta(seconds=60)
"""Tokens and certificates are taken for not yet valid, or for ended."""

_SHOWN: Final = 4


@attrs.frozen
class Target:
    """The cluster that is asked, and whether it is that of `llmkube up`; None when the user has named none.

    Attributes:
        config: How to reach it.
        own: Whether it is our own.
        home: The current context of kubectl's own file, which is not asked.
    """

    config: ClusterConfig | None
    own: bool = False
    home: str = ""


def find_target(here: Installation, where: ClusterFlags) -> Target:
    """Return the cluster that the user has named: to this command, to the environment, or to the agent.

    Raises:
        UserError: What was named cannot be used.
    """
    if where.kubeconfig or where.context:
        return Target(find_config(where.kubeconfig_path, where.context, here.folder)[0])
    config = here.config
    if here.serves_a_cluster and isinstance(config, AgentConfig):
        found, origin = find_config(config.kubeconfig, config.context, here.folder)
        return Target(found, own=origin is Origin.UP)
    if here.pid is not None:
        return Target(load_config(here.folder / "kubeconfig", None), own=True)
    origin = origin_of(None, None, here.folder, os.environ, prefer_up=True)
    if origin is Origin.NAMED:
        return Target(load_config(None, None))
    return Target(None, home=load_config(None, None).context if origin is Origin.HOME else "")


@attrs.frozen(kw_only=True)
class ServerReport:
    """What an API server says.

    Attributes:
        version: What it is.
        installed: Whether it serves our kinds.
        lacking: What the agent may not do: `create leases in llmkube-system`.
        skew: How far its clock is ahead of ours; None when it does not say.
    """

    version: str
    installed: bool = True
    lacking: tuple[str, ...] = ()
    skew: datetime.timedelta | None = None


async def api_server(
    here: Installation, where: ClusterFlags, utcnow: Callable[[], datetime.datetime]
) -> Sequence[Finding]:
    """Ask who it is, what time it has, what it serves, and what the agent may do; one that is silent is away."""
    try:
        target = find_target(here, where)
    except UserError as exc:
        return [request_failed("the cluster that was named", str(exc))]
    config = target.config
    if config is None:
        return [not_queried(target.home)]
    place = config.server if target.own or not config.context else f'{config.server} (context "{config.context}")'
    agent = agent_config(here)
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            version, skew = await _version(config, utcnow)
            async with open_client(config) as client:
                installed = await _serves_our_kinds(client)
                lacking = () if target.own else await lacking_rights(client, agent)
        except ApiError as exc:
            return [request_failed(place, str(exc), exc.code)]
        answer = ServerReport(version=version, skew=skew, installed=installed, lacking=lacking)
        rights_fix = "" if target.own else rights_command(agent)
        return tuple(assess_server(place, answer, rights_fix, agent=here.serves_a_cluster))
    return [request_failed(place, f"no answer within {ANSWER_SECONDS:g} s")]


def not_queried(home: str) -> Finding:
    """A cluster that the user has not named is not asked; `home` is the context of kubectl's own file. Pure."""
    if home:
        return passed(f'not asked: no cluster was named; --context "{home}" is the current one')
    return passed("no cluster is named, and `llmkube up` does not run")


def request_failed(place: str, problem: str, code: int = 0) -> Finding:
    """The API server, `place`, did not do what was asked: `code` is the HTTP status, if there is one. Pure."""
    if code == httpx.codes.UNAUTHORIZED:
        return failed(
            f"{place} does not know these credentials",
            why="no service is seen, and no status is written",
            fix="renew them: `llmkube agent join`, or your cluster's login; --context chooses another",
        )
    return failed(
        f"{place}: {problem}",
        why="no service is seen, and no status is written",
        fix="is it running, and is the network between here and there? --kubeconfig and --context choose another",
    )


def assess_server(place: str, answer: ServerReport, rights_fix: str, *, agent: bool) -> Iterator[Finding]:
    """The API server answers, serves our kinds, and lets the agent do its work. Pure.

    Args:
        place: Its URL, and the context.
        answer: What it said.
        rights_fix: The command that prints the roles; empty for the one of `llmkube up`, which has none.
        agent: Whether an agent of this machine works with these credentials.
    """
    yield passed(f"{place}, {answer.version}")
    if not answer.installed:
        yield failed(
            "it does not serve Models and InferenceServices",
            why="there is nothing to serve",
            fix="`llmkube crds | kubectl apply --server-side -f -`",
            name="kinds",
        )
    if answer.lacking:
        more = len(answer.lacking) - _SHOWN
        subject, verdict = ("the agent", failed) if agent else ("an agent with these credentials", warned)
        yield verdict(
            f"{subject} may not {'; '.join(answer.lacking[:_SHOWN])}{f'; and {more} more' if more > 0 else ''}",
            why="what it may not do does not happen, and services wait for it",
            fix=rights_fix,
            name="rights",
        )
    elif rights_fix:
        yield passed("they are enough for all that an agent does", name="rights")
    if answer.skew is not None:
        yield _clock(answer.skew)


def _clock(skew: datetime.timedelta) -> Finding:
    seconds = abs(skew).total_seconds()
    if abs(skew) < SKEW_WARNS:
        return passed("as the API server's", name="clock")
    verdict = failed if abs(skew) >= SKEW_FAILS else warned
    return verdict(
        f"{seconds:.0f} s {'behind' if skew > datetime.timedelta() else 'ahead of'} the API server's",
        why="tokens and certificates count as ended or not yet begun, and ages in every table are wrong",
        fix="macOS: `sudo sntp -sS time.apple.com`; Linux: `sudo timedatectl set-ntp true`",
        name="clock",
    )


def agent_config(here: Installation) -> AgentConfig:
    """Return the agent's settings: the defaults where none is here."""
    return here.config if isinstance(here.config, AgentConfig) else AgentConfig()


async def lan_access(here: Installation) -> Finding:
    """Read what the agent has left in its state directory: only the job itself can try."""
    await trio.lowlevel.checkpoint()
    job = here.job is not None and here.program == "agent"
    return assess_lan_access(read_lan_access(here.folder), job=job, daemon=here.daemon)


def assess_lan_access(found: str, *, job: bool, daemon: bool) -> Finding:
    """The job itself reaches machines of its network: a terminal that does says nothing about it. Pure.

    Args:
        found: What the job has found about its own network, in the words of `lan_access`; empty for nothing.
        job: Whether a job of launchd is to find it.
        daemon: Whether that is a daemon.
    """
    if found == REFUSED:
        return failed(
            "the job gets errno 65 (EHOSTUNREACH) from every machine of its network: Local Network Privacy",
            why="pods may not reach its engines, although the internet and the cluster can be reached",
            fix="`llmkube agent install --daemon`, or allow it in System Settings, Privacy & Security, Local Network",
        )
    if found == REACHED:
        return passed("the job reaches a machine of its network")
    if daemon or not job:
        return passed("daemons are exempt from Local Network Privacy" if daemon else "no job that needs it")
    return warned(
        "the job has not found a machine of its network to try",
        why="macOS may keep a login's job from its own network (Local Network Privacy), and only the job can tell",
        fix="`llmkube agent restart` has it try again; `llmkube agent install --daemon` is exempt",
    )


async def advertised(here: Installation, where: ClusterFlags) -> Finding:
    """There is an address at which pods can reach this host."""
    return assess_advertised(await advertised_address(here, where), given=here.config.host_ip is not None)


async def advertised_address(here: Installation, where: ClusterFlags) -> str:
    """Return the address that the agent publishes, decided as it does; "" when there is none."""
    config = find_target(here, where).config
    reach = await LocalNetwork(config.server if config is not None else "", here.config.host_ip).look()
    return (reach.address if reach is not None else "") or ""


def assess_advertised(address: str, *, given: bool) -> Finding:
    """There is an address at which pods can reach this host, `given` by a flag or found. Pure."""
    if address:
        source = "by --host-ip" if given else "as it talks to the API server"
        return passed(f"pods are told {address}, {source}; --from-cluster tries it")
    return failed(
        "this host has no address that pods could reach",
        why="engines are published at none",
        fix="`llmkube agent install --host-ip ADDRESS`, an address of this machine on the nodes' network",
    )


async def lacking_rights(client: Client, config: AgentConfig) -> tuple[str, ...]:
    """Return what of an agent's needs these credentials may not do, in words.

    Raises:
        ApiError: The API server does not say.
    """
    needs = [need for need in rights.PROGRAM.needs if not need.opt_in]
    refused: dict[tuple[int, str], None] = {}
    errors: list[ApiError] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def check(index: int, need: Permission, verb: str) -> None:
        async with limiter:
            if errors:
                return  # it would fail alike
            try:
                if not await may(client, attributes_of(need, verb, config)):
                    refused[index, verb] = None
            except ApiError as exc:
                errors.append(exc)

    async with trio.open_nursery() as nursery:
        for index, need in enumerate(needs):
            for verb in sorted(need.verbs):
                nursery.start_soon(check, index, need, verb)
    if errors:
        raise errors[0]
    reported: dict[str, None] = {}
    for index, need in enumerate(needs):
        verbs = [verb for verb in sorted(need.verbs) if (index, verb) in refused]
        if verbs:
            reported[f"{', '.join(verbs)} {need.plural}{_namespace_text(need, config)}"] = None
    return tuple(reported)


async def may(client: Client, attributes: dict[str, str]) -> bool:
    """Ask the API server whether these credentials may do something.

    Raises:
        ApiError: It does not say.
    """
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request_json("POST", REVIEWS, body=body)
    return isinstance(answer, dict) and bool(answer.get("status", {}).get("allowed"))


def attributes_of(need: Permission, verb: str, config: AgentConfig) -> dict[str, str]:
    """Return one verb of a need as a review asks for it; an empty namespace is all of them."""
    resource = need.resource
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural}
    if need.subresource:
        attributes["subresource"] = need.subresource
    if resource.namespaced:
        attributes["namespace"] = config.lease_namespace if need.place == "system" else config.namespace or ""
    elif verb != "create":
        attributes["name"] = config.lease_namespace
    return attributes


def rights_command(config: AgentConfig) -> str:
    """Return the command that gives an agent with these settings what it needs."""
    served = f"--namespace {config.namespace}" if config.namespace else "--all-namespaces"
    other = "" if config.lease_namespace == "llmkube-system" else f" --lease-namespace {config.lease_namespace}"
    return f"`llmkube rbac agent {served}{other} | kubectl apply --server-side -f -`"


def skew_of(date: str, began: datetime.datetime, ended: datetime.datetime) -> datetime.timedelta | None:
    """Return how far a server's clock is ahead of ours, by the date of an answer; None when it has none.

    A date has whole seconds, and was written at some moment between question and answer: what may be rounding or
    waiting is no difference.
    """
    try:
        reported = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    if reported.tzinfo is None:
        reported = reported.replace(tzinfo=datetime.UTC)
    if reported > ended:
        return reported - ended
    latest = reported + datetime.timedelta(seconds=1)
    return latest - began if latest < began else datetime.timedelta()


async def _version(
    config: ClusterConfig, utcnow: Callable[[], datetime.datetime]
) -> tuple[str, datetime.timedelta | None]:
    headers = httpx.Headers({"User-Agent": f"llmkube/{__version__}", "Accept": "application/json"})
    async with AuthTransport(config) as transport:
        sender = TransportSender(transport, config.server, headers)
        began = utcnow()
        url = f"{config.server.rstrip('/')}/version"
        try:
            response = await sender.send(httpx.Request("GET", url, headers=headers), stream=False)
        except httpx.HTTPError as exc:
            raise TransportError(f"GET {url}: {exc or type(exc).__name__}") from exc
        skew = skew_of(response.headers.get("date", ""), began, utcnow())
    if response.status_code != httpx.codes.OK:
        return "of a version that it does not tell", skew  # what it refuses is told by what comes next
    try:
        reported = response.json()
        return f"Kubernetes {reported['gitVersion']}", skew
    except (ValueError, KeyError, TypeError):
        return "which tells no version", skew


async def _serves_our_kinds(client: Client) -> bool:
    try:
        found = await client.get_json(f"/apis/{GROUP}/{VERSION}")
    except ApiError as exc:
        if exc.code != httpx.codes.NOT_FOUND:
            raise
        return False
    names: Sequence[Any] = found.get("resources", ()) if isinstance(found, dict) else ()
    return {"models", "inferenceservices"} <= {each.get("name") for each in names if isinstance(each, dict)}


def _namespace_text(need: Permission, config: AgentConfig) -> str:
    if not need.resource.namespaced:
        return ""
    if need.place == "system":
        return f" in {config.lease_namespace}"
    return f" in {config.namespace}" if config.namespace else " in all namespaces"
