"""Asks the API server as the agent does, and reads what the agent itself has found about its network."""

import datetime
import email.utils
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import httpx
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor.cluster_facts import Advertised, ApiServer, LanAccess, NoCluster
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.programs.background.lan_access import read_lan_access
from llmkube.cli.target_cluster import Origin, Where, find_config, origin_of
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.meta import GROUP, VERSION
from llmkube.k8s.errors import ApiError, TransportError
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.rbac import Permission
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.supervisor import rights
from llmkube.supervisor.network import LocalNetwork

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ANSWER_SECONDS: Final = 10.0
"""How long an API server may take for all that it is asked."""

API_SECONDS: Final = 2 * ANSWER_SECONDS
_AT_ONCE: Final = 8


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


def find_target(here: Installation, where: Where) -> Target:
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
    origin = origin_of(None, None, here.folder, os.environ, beside_up=True)
    if origin is Origin.NAMED:
        return Target(load_config(None, None))
    return Target(None, home=load_config(None, None).context if origin is Origin.HOME else "")


async def api_server(
    here: Installation, where: Where, utcnow: Callable[[], datetime.datetime]
) -> ApiServer | NoCluster:
    """Ask who it is, what time it has, what it serves, and what the agent may do; one that is silent is away."""
    try:
        target = find_target(here, where)
    except UserError as exc:
        return ApiServer(server="the cluster that was named", problem=str(exc))
    config = target.config
    if config is None:
        return NoCluster(target.home)
    asked = ApiServer(
        server=config.server,
        context="" if target.own else config.context,
        own=target.own,
        agent=here.serves_a_cluster,
    )
    agent = agent_config(here)
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            version, skew = await _version(config, utcnow)
            async with open_client(config) as client:
                installed = await _serves_our_kinds(client)
                lacking = () if target.own else await lacking_rights(client, agent)
        except ApiError as exc:
            return attrs.evolve(asked, problem=str(exc), code=exc.code)
        return attrs.evolve(
            asked, version=version, skew=skew, installed=installed, lacking=lacking, rights=rights_command(agent)
        )
    return attrs.evolve(asked, problem=f"no answer within {ANSWER_SECONDS:g} s")


def agent_config(here: Installation) -> AgentConfig:
    """Return the agent's settings: the defaults where none is here."""
    return here.config if isinstance(here.config, AgentConfig) else AgentConfig()


async def lan_access(here: Installation) -> LanAccess:
    """Read what the agent has left in its state directory: only the job itself can try."""
    await trio.lowlevel.checkpoint()
    job = here.job is not None and here.program == "agent"
    return LanAccess(read_lan_access(here.folder), job, here.daemon)


async def advertised(here: Installation, where: Where) -> Advertised:
    """Decide which address the agent publishes, as it does."""
    config = find_target(here, where).config
    given = here.config.host_ip
    reach = await LocalNetwork(config.server if config is not None else "", given).look()
    return Advertised(reach.address or "" if reach is not None else "", given is not None)


async def lacking_rights(client: Client, config: AgentConfig) -> tuple[str, ...]:
    """Return what of an agent's needs these credentials may not do, in words.

    Raises:
        ApiError: The API server does not say.
    """
    needs = [need for need in rights.PROGRAM.needs if not need.opt_in]
    refused: dict[tuple[int, str], None] = {}
    errors: list[ApiError] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def ask(index: int, need: Permission, verb: str) -> None:
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
                nursery.start_soon(ask, index, need, verb)
    if errors:
        raise errors[0]
    said: dict[str, None] = {}
    for index, need in enumerate(needs):
        verbs = [verb for verb in sorted(need.verbs) if (index, verb) in refused]
        if verbs:
            said[f"{', '.join(verbs)} {need.plural}{_place(need, config)}"] = None
    return tuple(said)


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
    asked = {"verb": verb, "group": resource.group, "resource": resource.plural}
    if need.subresource:
        asked["subresource"] = need.subresource
    if resource.namespaced:
        asked["namespace"] = config.lease_namespace if need.place == "system" else config.namespace or ""
    elif verb != "create":
        asked["name"] = config.lease_namespace
    return asked


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
        said = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    if said.tzinfo is None:
        said = said.replace(tzinfo=datetime.UTC)
    if said > ended:
        return said - ended
    latest = said + datetime.timedelta(seconds=1)
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
        said = response.json()
        return f"Kubernetes {said['gitVersion']}", skew
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


def _place(need: Permission, config: AgentConfig) -> str:
    if not need.resource.namespaced:
        return ""
    if need.place == "system":
        return f" in {config.lease_namespace}"
    return f" in {config.namespace}" if config.namespace else " in all namespaces"
