"""The API server that doctor queries, its requests, and how the responses are assessed."""

import random
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest

from cli.cli_objects import kubeconfig
from cli.commands.doctor.limited_api import allowed_by
from cli.commands.doctor.places import check_finding, installation
from k8s.scripted import status_object
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.cli.commands.doctor import cluster
from llmkube.cli.commands.doctor.cluster import (
    REVIEWS,
    ServerReport,
    assess_advertised,
    assess_lan_access,
    assess_server,
    attributes_of,
    check_server,
    find_target,
    lacking_rights,
    not_queried,
    request_failed,
    rights_command,
    skew_of,
)
from llmkube.cli.target_cluster import ClusterFlags
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ForbiddenError
from llmkube.k8s.exchange import TransportSender
from llmkube.programs.config import AgentConfig, UpConfig
from llmkube.programs.state_location import SERVER_LOCK, hold_lock
from llmkube.supervisor import rights
from memory_api_server import EVERY_KIND

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
EVERYTHING = [(need, verb) for need in rights.PROGRAM.needs if not need.opt_in for verb in sorted(need.verbs)]


@pytest.mark.parametrize(
    ("ahead", "took", "skew"),
    [
        (0, 0, 0),
        (0.9, 2, 0),  # between request and response
        (-0.9, 0, 0),  # below the resolution of Date
        (30, 0, 30),
        (-30, 0, -29),
        (30, 10, 20),  # a lower bound
    ],
)
def test_clock_skew_excludes_rounding_and_waiting(ahead, took, skew):
    """A Date header has whole seconds, and the response took some time."""
    date = format_datetime((NOON + timedelta(seconds=ahead)).replace(microsecond=0), usegmt=True)
    assert skew_of(date, NOON, NOON + timedelta(seconds=took)) == timedelta(seconds=skew)


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Jan 2026 12:00:00 GMT"])
def test_a_server_without_a_date_has_no_skew(date):
    assert skew_of(date, NOON, NOON) is None


class Reviews(httpx.AsyncBaseTransport):
    """The embedded API server with the access reviews of a limited token."""

    def __init__(self, server, refused):
        self.server, self.review, self.asked = server, allowed_by(refused), []

    async def handle_async_request(self, request):
        if request.url.path != REVIEWS:
            return await self.server.handle_async_request(request)
        body = httpx.Response(200, content=await request.aread()).json()
        if self.review is None:
            return httpx.Response(403, json=status_object(403, "Forbidden"))
        self.asked.append(body["spec"]["resourceAttributes"])
        return httpx.Response(201, json=self.review(body))


async def lacking(refused, config=None, *, silent=False):
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=lambda: NOON, rng=random.Random(7))
    async with open_transport(server.handle) as transport:
        reviews = Reviews(transport, refused)
        if silent:
            reviews.review = None
        client = Client(TransportSender(reviews, "http://apiserver"))
        return await lacking_rights(client, config or AgentConfig()), reviews.asked


async def test_each_verb_is_reviewed_in_its_namespace():
    """The reviews match the agent's role; optional rights are not reviewed."""
    found, asked = await lacking(frozenset(), AgentConfig(namespace="ml", lease_namespace="sys"))
    assert found == ()
    assert len(asked) == len(EVERYTHING)
    leases = {each["namespace"] for each in asked if each["resource"] == "leases"}
    assert "sys" in leases
    assert {each["namespace"] for each in asked if each["resource"] == "models"} == {"ml"}
    assert not any(each["resource"] == "secrets" for each in asked)
    assert {each.get("subresource") for each in asked if each["verb"] == "patch" and each["resource"] == "models"} == {
        "status"
    }


@pytest.mark.parametrize(("need", "verb"), [EVERYTHING[0], EVERYTHING[5], EVERYTHING[-1]])
async def test_any_verb_that_is_missing_is_named(need, verb):
    found, _ = await lacking(frozenset({(verb, need.plural)}))
    assert any(each.startswith(f"{verb} {need.plural}") for each in found)


async def test_verbs_of_one_kind_are_one_item():
    """The report stays on one screen."""
    found, _ = await lacking(frozenset({("patch", "leases"), ("create", "leases")}))
    assert "create, patch leases in llmkube-system" in found


async def test_refused_reviews_are_no_list_of_missing_rights():
    """An unknown right is not reported as missing."""
    with pytest.RaisesGroup(ForbiddenError):  # by the nursery of the transport
        await lacking(frozenset(), silent=True)


def test_review_of_a_cluster_wide_create_has_no_name():
    """`create` cannot be restricted by name."""
    cluster_wide = [(need, verb) for need, verb in EVERYTHING if not need.resource.namespaced]
    for need, verb in cluster_wide:
        asked = attributes_of(need, verb, AgentConfig(lease_namespace="sys"))
        assert ("name" in asked) is (verb != "create")
        assert "namespace" not in asked


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (AgentConfig(), "`llmkube rbac agent --all-namespaces | kubectl apply --server-side -f -`"),
        (
            AgentConfig(namespace="ml", lease_namespace="sys"),
            "`llmkube rbac agent --namespace ml --lease-namespace sys | kubectl apply --server-side -f -`",
        ),
    ],
)
def test_the_command_gives_what_these_settings_need(config, command):
    assert rights_command(config) == command


def named(path, name):
    return kubeconfig(path, f"https://{name}:6443", name)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a kubeconfig of kubectl."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    named(tmp_path / ".kube" / "config", "home")
    return tmp_path


def test_only_a_named_cluster_is_queried(home, monkeypatch):
    """The default file of kubectl names none; a flag, KUBECONFIG, an agent and a running `up` do."""
    here = installation(home / "state", config=UpConfig())
    found = find_target(here, ClusterFlags())
    assert (found.config, found.home) == (None, "home")
    assert find_target(here, ClusterFlags(context="home")).config.server == "https://home:6443"
    other = named(home / "other", "other")
    assert find_target(here, ClusterFlags(kubeconfig=other)).config.server == "https://other:6443"
    agents = installation(home / "state", program="agent", config=AgentConfig(kubeconfig=other))
    assert find_target(agents, ClusterFlags()).config.server == "https://other:6443"
    named(home / "state" / "kubeconfig", "own")
    with hold_lock(home / "state" / SERVER_LOCK):
        own = find_target(attrs.evolve(here, pid=1), ClusterFlags())
    assert (own.config.server, own.own) == ("https://own:6443", True)
    monkeypatch.setenv("KUBECONFIG", str(other))
    assert find_target(here, ClusterFlags()).config.server == "https://other:6443"


def test_without_a_kubeconfig_no_cluster_is_queried(home):
    (home / ".kube" / "config").unlink()
    found = find_target(installation(home / "state", config=UpConfig()), ClusterFlags())
    assert (found.config, found.home) == (None, "")


async def test_silent_api_server_is_a_failure(home, monkeypatch):
    """It accepts connections and never answers: a failure, and no timeout of the check."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = home / "silent"
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        kubeconfig(file, server, "lab")
        (found,) = await check_server(installation(home / "state"), ClusterFlags(kubeconfig=file), lambda: NOON)
    check_finding(found, "fail", f'{server} (context "lab"): no answer within 0.2 s')


PLACE = 'https://c:6443 (context "lab")'
ANSWER = ServerReport(version="Kubernetes v1.34.1")


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (not_queried(""), "pass", "no cluster is named"),
        (not_queried("lab"), "pass", '--context "lab"'),
        (*assess_server("https://c", ANSWER, "", agent=True), "pass", "v1.34.1"),
        (request_failed(PLACE, "connection refused"), "fail", f"{PLACE}: connection refused"),
        (request_failed(PLACE, "Unauthorized", 401), "fail", "`llmkube agent join`"),
        (assess_lan_access("refused", job=True, daemon=False), "fail", "errno 65"),
        (assess_lan_access("refused", job=True, daemon=False), "fail", "Local Network Privacy"),
        (assess_lan_access("reached", job=True, daemon=False), "pass", "the job can connect"),
        (assess_lan_access("unknown", job=True, daemon=False), "warn", "`llmkube agent restart`"),
        (assess_lan_access("", job=True, daemon=False), "warn", "only the job can test"),
        (assess_lan_access("", job=True, daemon=True), "pass", "exempt"),
        (assess_lan_access("", job=False, daemon=False), "pass", "no job"),
        (assess_advertised("192.168.1.5", given=False), "pass", "192.168.1.5, the local address"),
        (assess_advertised("192.168.1.5", given=True), "pass", "by --host-ip"),
        (assess_advertised("", given=False), "fail", "--host-ip ADDRESS"),
    ],
)
def test_each_check_is_one_finding_with_its_fix(found, verdict, words):
    check_finding(found, verdict, words)


def assessed(*, agent=True, **changes):
    return list(assess_server(PLACE, attrs.evolve(ANSWER, **changes), "`llmkube rbac agent`", agent=agent))


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, {"API server": "pass", "rights": "pass"}),
        ({"installed": False}, {"API server": "pass", "kinds": "fail", "rights": "pass"}),
        ({"lacking": ("create leases",)}, {"API server": "pass", "rights": "fail"}),
        ({"lacking": ("create leases",), "agent": False}, {"API server": "pass", "rights": "warn"}),
        ({"skew": timedelta(seconds=4)}, {"API server": "pass", "rights": "pass", "clock": "pass"}),
        ({"skew": timedelta(seconds=-5)}, {"API server": "pass", "rights": "pass", "clock": "warn"}),
        ({"skew": timedelta(seconds=60)}, {"API server": "pass", "rights": "pass", "clock": "fail"}),
    ],
)
def test_one_server_is_several_lines(changes, verdicts):
    """A server gets findings for its answer, its CRDs, the agent's rights and its clock."""
    assert {each.name or "API server": each.verdict.value for each in assessed(**changes)} == verdicts


def test_a_long_list_of_rights_is_cut_and_counted():
    """Four are named, then the number of the others."""
    found = assessed(lacking=tuple(f"create kind{number}" for number in range(9)))[1]
    assert found.found.endswith("create kind3; and 5 more")
    assert found.fix == "`llmkube rbac agent`"


@pytest.mark.parametrize(("skew", "words"), [(300, "300 s behind the"), (-300, "300 s ahead of the")])
def test_a_clock_is_measured_from_this_machine_s_side(skew, words):
    """A server whose clock is ahead means that this machine is behind."""
    assert words in assessed(skew=timedelta(seconds=skew))[-1].found
