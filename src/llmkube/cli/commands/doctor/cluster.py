"""Checks of the API server with the agent's requests, and of the network as the agent sees it.

The `assess_*` functions are pure.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
import httpx
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.base.times import parse_http_date
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
"""Deadline for all requests to the API server."""

API_SECONDS: Final = 2 * ANSWER_SECONDS
_AT_ONCE: Final = 8

SKEW_WARNS: Final = datetime.timedelta(seconds=5)
"""A smaller skew is not reported: HTTP dates are in whole seconds, and responses take time."""

SKEW_FAILS: Final = datetime.timedelta(seconds=60)
"""With more skew, valid tokens and certificates may be rejected as expired or not yet valid."""

_SHOWN: Final = 4


@attrs.frozen
class Target:
    """The cluster to check.

    Attributes:
        config: Its configuration; None if the user named no cluster.
        own: Whether it is that of `llmkube up`.
        home: Current context of kubectl's default file, which is not queried; empty if there is none.
    """

    config: ClusterConfig | None
    own: bool = False
    home: str = ""


def find_target(here: Installation, where: ClusterFlags) -> Target:
    """Return the cluster that the user named: by flags, in the agent's settings, or in the environment.

    Raises:
        UserError: The configuration cannot be used.
    """
    if where.kubeconfig or where.context:
        return Target(find_config(where.kubeconfig, where.context, here.folder)[0])
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
    """The results of requests to an API server.

    Attributes:
        version: Text about its version.
        installed: Whether it serves Models and InferenceServices.
        lacking: Rights that the agent lacks: `create leases in llmkube-system`.
        skew: Time by which its clock is ahead of this host's; None if unknown.
    """

    version: str
    installed: bool = True
    lacking: tuple[str, ...] = ()
    skew: datetime.timedelta | None = None


async def check_server(
    here: Installation, where: ClusterFlags, utcnow: Callable[[], datetime.datetime]
) -> Sequence[Finding]:
    """Check the API server's version, clock and kinds, and the agent's rights."""
    try:
        target = find_target(here, where)
    except UserError as exc:
        return [request_failed("the named cluster", str(exc))]
    config = target.config
    if config is None:
        return [not_queried(target.home)]
    server = config.server if target.own or not config.context else f'{config.server} (context "{config.context}")'
    agent = agent_config(here)
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            version, skew = await _version(config, utcnow)
            async with open_client(config) as client:
                installed = {"models", "inferenceservices"} <= await client.served_kinds(GROUP, VERSION)
                lacking = () if target.own else await lacking_rights(client, agent)
        except ApiError as exc:
            return [request_failed(server, str(exc), exc.code)]
        report = ServerReport(version=version, skew=skew, installed=installed, lacking=lacking)
        rights_fix = "" if target.own else rights_command(agent)
        return tuple(assess_server(server, report, rights_fix, agent=here.serves_a_cluster))
    return [request_failed(server, f"no answer within {ANSWER_SECONDS:g} s")]


def not_queried(home: str) -> Finding:
    """Return the finding if the user named no cluster; `home` is the context of kubectl's default file. Pure."""
    if home:
        return passed(f'not checked: no cluster was named; --context "{home}" selects the current one')
    return passed("no cluster is named, and `llmkube up` is not running")


def request_failed(server: str, problem: str, code: int = 0) -> Finding:
    """Return the finding of a failed request; `code` is the HTTP status, 0 without a response. Pure."""
    if code == httpx.codes.UNAUTHORIZED:
        return failed(
            f"{server} rejects these credentials",
            why="no service is seen, and no status is written",
            fix="renew them: `llmkube agent join`, or your cluster's login; --context chooses another",
        )
    return failed(
        f"{server}: {problem}",
        why="no service is seen, and no status is written",
        fix="check that it is running and that the network is up; --kubeconfig and --context choose another",
    )


def assess_server(server: str, report: ServerReport, rights_fix: str, *, agent: bool) -> Iterator[Finding]:
    """Check that the API server serves LLMKube's kinds and grants the agent its rights. Pure.

    Args:
        server: Its URL and context.
        report: Results of the requests.
        rights_fix: Command that creates the roles; empty for `llmkube up`, which needs none.
        agent: Whether an agent of this machine uses these credentials.
    """
    yield passed(f"{server}, {report.version}")
    if not report.installed:
        yield failed(
            "it does not serve Models and InferenceServices",
            why="running engines continue, and nothing else can be served or changed",
            fix="`llmkube crds | kubectl apply --server-side -f -`",
            name="kinds",
        )
    if report.lacking:
        more = len(report.lacking) - _SHOWN
        subject, result = ("the agent", failed) if agent else ("an agent with these credentials", warned)
        yield result(
            f"{subject} may not {'; '.join(report.lacking[:_SHOWN])}{f'; and {more} more' if more > 0 else ''}",
            why="services that need these rights wait",
            fix=rights_fix,
            name="rights",
        )
    elif rights_fix:
        yield passed("sufficient for everything that an agent does", name="rights")
    if report.skew is not None:
        yield _clock(report.skew)


def _clock(skew: datetime.timedelta) -> Finding:
    seconds = abs(skew).total_seconds()
    if abs(skew) < SKEW_WARNS:
        return passed("in sync with the API server's", name="clock")
    verdict = failed if abs(skew) >= SKEW_FAILS else warned
    return verdict(
        f"{seconds:.0f} s {'behind' if skew > datetime.timedelta() else 'ahead of'} the API server's",
        why="tokens and certificates may be rejected as expired or not yet valid, and ages in every table are wrong",
        fix="macOS: `sudo sntp -sS time.apple.com`; Linux: `sudo timedatectl set-ntp true`",
        name="clock",
    )


def agent_config(here: Installation) -> AgentConfig:
    """Return the agent's settings; the defaults without an agent."""
    return here.config if isinstance(here.config, AgentConfig) else AgentConfig()


async def check_lan_access(here: Installation) -> Finding:
    """Check the result that the agent wrote to its state directory: only the job itself can test its access."""
    await trio.lowlevel.checkpoint()
    job = here.job is not None and here.program == "agent"
    return assess_lan_access(read_lan_access(here.folder), job=job, daemon=here.daemon)


def assess_lan_access(found: str, *, job: bool, daemon: bool) -> Finding:
    """Check that the job can connect to its local network; a terminal's access does not show it. Pure.

    Args:
        found: Result of the job's test, a value of `lan_access`; empty without one.
        job: Whether there is a launchd job that tests it.
        daemon: Whether the job is a LaunchDaemon.
    """
    if found == REFUSED:
        return failed(
            "the job gets errno 65 (EHOSTUNREACH) from every machine on its network: Local Network Privacy",
            why="pods may be unable to reach its engines, although the internet and the cluster are reachable",
            fix="`llmkube agent install --daemon`, or allow it in System Settings, Privacy & Security, Local Network",
        )
    if found == REACHED:
        return passed("the job can connect to its local network")
    if daemon or not job:
        return passed("daemons are exempt from Local Network Privacy" if daemon else "no job that needs it")
    return warned(
        "the job found no machine on its network with which to test its access",
        why="macOS may deny a login job access to its network (Local Network Privacy), and only the job can test it",
        fix="`llmkube agent restart` repeats the test; a job of `llmkube agent install --daemon` is exempt",
    )


async def check_advertised(here: Installation, where: ClusterFlags) -> Finding:
    """Check the address that this host advertises."""
    return assess_advertised(await advertised_address(here, where), given=here.config.host_ip is not None)


async def advertised_address(here: Installation, where: ClusterFlags) -> str:
    """Return the address that the agent publishes, chosen in the same way; "" if there is none."""
    config = find_target(here, where).config
    reach = await LocalNetwork(config.server if config is not None else "", here.config.host_ip).find_address()
    return (reach.address if reach is not None else "") or ""


def assess_advertised(address: str, *, given: bool) -> Finding:
    """Check that there is an address at which pods can reach this host; `given` if --host-ip sets it. Pure."""
    if address:
        source = "set by --host-ip" if given else "the local address of connections to the API server"
        return passed(f"advertised as {address}, {source}; --from-cluster tests it")
    return failed(
        "this host has no address that pods can reach",
        why="its engines cannot be published",
        fix="`llmkube agent install --host-ip ADDRESS`, an address of this machine on the nodes' network",
    )


async def lacking_rights(client: Client, config: AgentConfig) -> tuple[str, ...]:
    """Return the rights that an agent needs and these credentials lack, as text.

    Raises:
        ApiError: A review failed.
    """
    needs = [need for need in rights.PROGRAM.needs if not need.opt_in]
    refused: set[tuple[int, str]] = set()
    errors: list[ApiError] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def check(index: int, need: Permission, verb: str) -> None:
        async with limiter:
            if errors:
                return  # this request would fail in the same way
            try:
                if not await may(client, attributes_of(need, verb, config)):
                    refused.add((index, verb))
            except ApiError as exc:
                errors.append(exc)

    async with trio.open_nursery() as nursery:
        for index, need in enumerate(needs):
            for verb in sorted(need.verbs):
                nursery.start_soon(check, index, need, verb)
    if errors:
        raise errors[0]
    lacking = [(need, [verb for verb in sorted(need.verbs) if (at, verb) in refused]) for at, need in enumerate(needs)]
    texts = (f"{', '.join(verbs)} {need.plural}{_namespace_text(need, config)}" for need, verbs in lacking if verbs)
    return tuple(dict.fromkeys(texts))


async def may(client: Client, attributes: dict[str, str]) -> bool:
    """Return whether these credentials have a right, by a SelfSubjectAccessReview.

    Raises:
        ApiError: The review failed.
    """
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request_json("POST", REVIEWS, body=body)
    return isinstance(answer, dict) and bool(answer.get("status", {}).get("allowed"))


def attributes_of(need: Permission, verb: str, config: AgentConfig) -> dict[str, str]:
    """Return the resource attributes of a review for one verb; an empty namespace means all of them."""
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
    """Return the command that grants the rights of an agent with these settings."""
    served = f"--namespace {config.namespace}" if config.namespace else "--all-namespaces"
    other = "" if config.lease_namespace == "llmkube-system" else f" --lease-namespace {config.lease_namespace}"
    return f"`llmkube rbac agent {served}{other} | kubectl apply --server-side -f -`"


def skew_of(date: str, began: datetime.datetime, ended: datetime.datetime) -> datetime.timedelta | None:
    """Return how far a server's clock is ahead of ours, by the date of a response; None without a valid date.

    The date is in whole seconds and was written between request and response: a difference that rounding or latency
    can explain is none.
    """
    reported = parse_http_date(date)
    if reported is None:
        return None
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
        return "unknown version", skew  # the next request reports the problem
    try:
        reported = response.json()
        return f"Kubernetes {reported['gitVersion']}", skew
    except (ValueError, KeyError, TypeError):
        return "unknown version", skew


def _namespace_text(need: Permission, config: AgentConfig) -> str:
    if not need.resource.namespaced:
        return ""
    if need.place == "system":
        return f" in {config.lease_namespace}"
    return f" in {config.namespace}" if config.namespace else " in all namespaces"
