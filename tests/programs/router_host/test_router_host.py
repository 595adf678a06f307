"""The ModelRouters of a process: each runs from its creation to its deletion, and its status is up to date."""

import random
from contextlib import asynccontextmanager

import pytest
import trio
from prometheus_client import CollectorRegistry

from controller.cluster import open_cluster, utcnow
from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.k8s.builtins import Secret
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import find_condition
from llmkube.programs.router_host import router_host
from llmkube.programs.router_host.router_host import RouterHost
from llmkube.programs.router_host.router_paths import routers_handler
from llmkube.router.backends import Backend
from llmkube.router.budget_store.budget_file import BudgetFile
from llmkube.router.config.compile_backend import model_digest
from llmkube.router.proxy.default_route import Services
from router.auth.token_lab import jwks, token

pytestmark = pytest.mark.ci

KEY = Key("ml", "front")
CHAT = {"name": "chat", "inferenceServiceRef": {"name": "chat"}}
SEEN = 4.0
"""Seconds after which a change applies: the host checks every second, and so does the router."""


@pytest.fixture
def patient_clock(autojump_clock):
    """Time jumps only while no thread works: keys are read and written in threads."""
    autojump_clock.autojump_threshold = 0.03
    return autojump_clock


class Host:
    """A router host behind a gateway, with a client."""

    def __init__(self, client, host, front, folder):
        self.client = client
        self.host = host
        self.front = front
        self.folder = folder
        self.asked = []  # the bodies that the engine got

    async def apply(self, name=KEY.name, **spec):
        meta = {"name": name, "namespace": KEY.namespace}
        resource = ModelRouter.RESOURCE
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        asked = {"backends": [CHAT], "defaultRoute": "chat"} | spec
        given = {name: value for name, value in asked.items() if value is not None}
        await self.client.apply(ModelRouter, {**body, "spec": given}, field_manager="user")
        await trio.sleep(SEEN)

    async def ask(self, path="/routers/ml/front/v1/chat/completions", **headers):
        body = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
        async with open_http_client(self.front.connect) as client:
            from llmkube.base.http.message import Headers

            return await client.request("POST", f"http://gw{path}", headers=Headers.of(headers), body=body)

    async def status(self):
        return (await self.client.get(ModelRouter, KEY)).status

    async def until(self, phase, name=KEY.name):
        """Wait for a phase; writing a file of budgets takes real time."""
        while (await self.client.get(ModelRouter, Key(KEY.namespace, name))).status.phase != phase:  # noqa: ASYNC110
            await trio.sleep(1)

    async def condition(self, kind):
        return find_condition((await self.status()).conditions, kind)


MODEL = decode(Model, {"metadata": {"name": "phi", "namespace": "ml", "uid": "u"}, "spec": {"source": "hf://a/b"}})


def service(name):
    return decode(InferenceService, {"metadata": {"name": name, "namespace": "ml"}, "spec": {"modelRef": "phi"}})


class OneEngine:
    """A directory in which one engine answers for every service, by its name."""

    def lookup(self, model_id):
        return Backend("engine", 80, f"alias-of-{model_id}")


@asynccontextmanager
async def open_host(tmp_path, services=("chat",), directory=None, connect=None, has_open_route=True):
    """Run a host; one engine answers for all services, unless a directory and a connection to its engines are given."""
    there = {Key("ml", name): service(name) for name in services}
    front, engine = MemoryListener(), MemoryListener()
    hosts = []

    def cluster_routers(client):
        services = Services(
            directory=directory or OneEngine(),
            get=there.get,
            all=there.values,
            model_of=lambda one: MODEL if one.spec.model_ref == "phi" else None,
            url="http://127.0.0.1:8080",
            connect=connect or engine.connect,
            utcnow=utcnow,
            rng=random.Random(1),
            has_open_route=has_open_route,
        )
        hosts.append(RouterHost(services, client, tmp_path))
        return hosts[0]

    async with open_cluster(routers=cluster_routers) as cluster, trio.open_nursery() as nursery:
        (host,) = hosts
        made = Host(cluster.client, host, front, tmp_path)

        async def answer_all(exchange):
            made.asked.append(exchange.body)
            choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
            answer = {"object": "chat.completion", "choices": [choice]}
            await exchange.respond(Response.json(200, answer))

        async def refuse_all(exchange):
            await exchange.respond(Response.text(410, "no request comes back to the gateway"))

        await nursery.start(host.run)
        await nursery.start(run_server, answer_all, [engine])
        await nursery.start(run_server, routers_handler(host.find, refuse_all), [front])
        yield made
        nursery.cancel_scope.cancel()


@pytest.fixture
async def host(tmp_path):
    async with open_host(tmp_path) as host:
        yield host


async def test_a_router_runs_from_its_creation_to_its_deletion(patient_clock, host):
    """It answers at its path within seconds, and its status is Ready with the address."""
    assert (await host.ask()).status == 404
    await host.apply()
    assert (await host.ask()).status == 200
    assert b'"model":"alias-of-ml/chat"' in host.asked[-1]
    hosted = host.host.find(KEY)
    assert hosted.live.routing.config.backends["chat"].slots == 1
    assert hosted.live.routing.config.backends["chat"].model_digest == model_digest(service("chat").spec, MODEL)
    status = await host.status()
    assert status.phase == "Ready"
    assert status.endpoint == "http://127.0.0.1:8080/routers/ml/front/v1/chat/completions"
    await host.client.delete(ModelRouter, KEY)
    await trio.sleep(SEEN)
    assert (await host.ask()).status == 404


async def test_an_edit_applies_without_a_restart(patient_clock, host):
    """The same router continues with the new spec; an invalid one leaves the one before."""
    await host.apply()
    before = host.host.find(KEY)
    await host.apply(defaultRoute=None)
    assert (await host.ask()).status == 404
    assert host.host.find(KEY) is before
    await host.apply()
    await host.apply(policy={"auditLog": {"sink": "otlp"}})
    assert (await host.ask()).status == 200
    accepted = await host.condition("Accepted")
    assert "spec.policy.auditLog.sink" in accepted.message
    assert "keeps serving the previous spec" in accepted.message
    assert (await host.status()).phase == "Degraded"


async def test_an_invalid_router_fails_until_it_is_edited(patient_clock, host):
    """Its status is Failed with all reasons; the others run; after the edit it runs too."""
    await host.apply("other")
    await host.apply(policy={"classification": {"mode": "detector"}})
    assert (await host.status()).phase == "Failed"
    assert (await host.ask("/routers/ml/other/v1/chat/completions")).status == 200
    await host.apply()
    assert (await host.status()).phase == "Ready"


async def test_clients_need_a_key_of_the_router(patient_clock, host):
    """A key of the Secret is accepted, another is not; a rotated one applies within seconds; no object shows it."""
    await put_secret(host.client, "clients", team="first-key")
    await host.apply(policy={"auth": {"keysSecretRef": {"name": "clients"}}})
    assert (await host.ask()).status == 401
    assert (await host.ask(Authorization="Bearer first-key")).status == 200
    await put_secret(host.client, "clients", team="second-key")
    await trio.sleep(SEEN)
    assert (await host.ask(Authorization="Bearer first-key")).status == 401
    assert (await host.ask(Authorization="Bearer second-key")).status == 200
    assert "second-key" not in str(await host.client.get_json(f"{ModelRouter.RESOURCE.path('ml', 'front')}"))


async def test_clients_need_a_token_signed_by_a_key_of_the_secret(patient_clock, host):
    """Without the Secret each request gets 503; a rotated key applies within seconds."""
    tokens = {"provider": "corp", "issuer": "https://id.example", "audiences": ["llm"], "teamClaim": "team"}
    tokens |= {"jwksSecretRef": {"name": "idp", "key": "keys"}}
    first, second = (f"Bearer {token(name, exp=utcnow().timestamp() + 6000)}" for name in ("ed-1", "ed-2"))
    await host.apply(policy={"auth": {"jwt": tokens}})
    assert (await host.ask(Authorization=first)).status == 503
    assert (await host.ask()).status == 401
    await put_secret(host.client, "idp", keys=jwks("ed-1").decode())
    await trio.sleep(SEEN)
    assert (await host.ask(Authorization=first)).status == 200
    await put_secret(host.client, "idp", keys=jwks("ed-2").decode())
    await trio.sleep(SEEN)
    assert (await host.ask(Authorization=first)).status == 401
    assert (await host.ask(Authorization=second)).status == 200
    await host.apply(policy={"auth": {"jwt": tokens | {"audiences": []}}})
    assert "spec.policy.auth.jwt.audiences: " in (await host.condition("Accepted")).message
    assert (await host.ask(Authorization=second)).status == 200


async def test_a_missing_service_degrades_its_backend_alone(patient_clock, tmp_path):
    async with open_host(tmp_path, services=()) as host:
        await host.apply()
        status = await host.status()
        assert (status.phase, status.backends[0].message) == ("Degraded", "there is no InferenceService chat")


async def test_a_missing_secret_is_named_and_not_its_file(patient_clock, tmp_path):
    provider = {"provider": "openai", "model": "gpt-5", "credentialsSecretRef": {"name": "openai"}}
    async with open_host(tmp_path) as host:
        await host.apply(backends=[CHAT, {"name": "cloud", "external": provider}])
        messages = [each.message for each in (await host.status()).backends]
        assert messages == ["", "no key can be read from entry OPENAI_API_KEY of Secret openai"]


async def test_an_object_chooses_no_file_of_this_machine(patient_clock, tmp_path):
    """The audit log is in the state directory, whatever path the object names, and the status reports it."""
    async with open_host(tmp_path / "state") as host:
        await host.apply(policy={"auditLog": {"sink": "file", "filePath": str(tmp_path / "elsewhere")}})
        await host.ask()
        await trio.sleep(SEEN)
        assert not (tmp_path / "elsewhere").exists()
        assert '"router.dispatch"' in (tmp_path / "state/ml.front/audit.log").read_text()
        assert "filePath" in (await host.condition("SpecHonoured")).message


@pytest.mark.parametrize("has_open_route", [True, False])
async def test_a_router_with_keys_reports_the_route_without_one(patient_clock, tmp_path, has_open_route):
    """Every local user reaches its services at the gateway's own route, unless that is closed."""
    async with open_host(tmp_path, has_open_route=has_open_route) as host:
        await host.apply()
        assert (await host.condition("SpecHonoured")).status == "True"
        await host.apply(policy={"auth": {"keysSecretRef": {"name": "clients"}}})
        condition = await host.condition("SpecHonoured")
        note = (
            "without effect: spec.policy.auth (http://127.0.0.1:8080/v1 serves the same services to every local user "
            "without a key; start with --gateway-serves routers)"
        )
        assert (condition.status, condition.message) == (
            ("False", note) if has_open_route else ("True", "every field has an effect")
        )


async def test_the_metrics_of_two_routers_are_one_family(patient_clock, host):
    """Each series has its router's name; a scrape has each family once."""
    await host.apply()
    await host.apply("other")
    await host.ask()
    await host.ask("/routers/ml/other/v1/chat/completions")
    registry = CollectorRegistry()
    registry.register(host.host)
    families = [family.name for family in registry.collect()]
    assert len(families) == len(set(families))
    counted = [
        (sample.labels["router"], sample.labels["backend"], sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "llmkube_router_requests_total"
    ]
    assert sorted(counted) == [("ml/front", "chat", 1.0), ("ml/other", "chat", 1.0)]


async def test_an_idle_router_writes_nothing(patient_clock, host):
    """A check every second is no write every second."""
    await host.apply()
    before = (await host.client.get(ModelRouter, KEY)).metadata.resource_version
    await trio.sleep(60)
    assert (await host.client.get(ModelRouter, KEY)).metadata.resource_version == before


async def put_secret(client, name, **entries):
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ml"}, "stringData": entries}
    await client.apply(Secret, body, field_manager="user", force=True)
    await trio.sleep(SEEN)


@pytest.mark.parametrize("path", ["/routers/ml", "/routers/ml/nobody/v1/models"])
async def test_a_path_without_a_router_is_404_with_the_format_of_paths(path, patient_clock, host):
    answer = await host.ask(path)
    assert answer.status == 404
    assert b"/routers/NAMESPACE/NAME/v1" in answer.body


async def test_keys_that_a_killed_process_has_left_are_removed(patient_clock, tmp_path):
    """Its router was deleted, and the process was killed before it had removed the keys."""
    left = tmp_path / "ml.gone" / "keys" / "backends" / "cloud"
    left.parent.mkdir(parents=True)
    left.write_text("sk-old")
    async with open_host(tmp_path):
        await trio.sleep(SEEN)
        assert not left.exists()


BUDGETED = {"policy": {"budgets": [{"name": "day", "scope": "router", "maxTokens": 5000, "windowSeconds": 86400}]}}


async def test_a_budget_survives_a_restart_of_the_host(patient_clock, tmp_path):
    """The amount used before the restart closes the budget after it, and the status has the amount."""
    async with open_host(tmp_path) as host:
        await host.apply(**BUDGETED)
        await host.until("Ready")
        assert (await host.ask()).status == 200
    async with open_host(tmp_path) as host:
        await host.apply(**BUDGETED)
        await host.until("Ready")
        assert (await host.ask()).status == 429
        assert host.asked == []
        assert (await host.status()).budget_utilization[0].tokens_used > 4096


async def test_an_edit_while_a_router_opens_its_budgets_does_not_open_them_too(patient_clock, tmp_path, monkeypatch):
    """SQLite would refuse one of the two, and a router that cannot open its file ends the program."""
    checked = []

    @asynccontextmanager
    async def never_open(*_, **__):
        await trio.sleep_forever()
        yield

    monkeypatch.setattr(BudgetFile, "check", lambda file: checked.append(file.path))
    monkeypatch.setattr(router_host, "open_router", never_open)
    async with open_host(tmp_path) as host:
        await host.apply(**BUDGETED)
        await trio.sleep(SEEN)
        await host.apply(**BUDGETED, endpoint={"path": "/v1/edited"})
        await trio.sleep(SEEN)
        assert len(checked) == 1


async def test_a_damaged_budget_file_stops_its_router_alone(patient_clock, tmp_path):
    """Its status names the file; the other router of the host answers, and the file is not changed."""
    async with open_host(tmp_path) as host:
        await host.apply(**BUDGETED)
        await host.until("Ready")
        assert (await host.ask()).status == 200
    (file,) = tmp_path.rglob("*.db")
    file.write_bytes(b"no database" * 1000)
    async with open_host(tmp_path) as host:
        await host.apply(**BUDGETED)
        await host.apply("other")
        await host.until("Failed")
        await host.until("Ready", "other")
        assert (await host.ask()).status >= 400
        assert (await host.ask("/routers/ml/other/v1/chat/completions")).status == 200
        status = await host.status()
        assert status.phase == "Failed"
        assert any(f"the budgets in {file} are damaged" in each.message for each in status.conditions)
    assert file.read_bytes() == b"no database" * 1000
