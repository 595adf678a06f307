"""The front door of a cluster: every service at one address, spread over the engines in its EndpointSlices."""

import json
import random
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType

import pytest
import trio
from prometheus_client import CollectorRegistry

from controller.cluster import Faults, utcnow
from http_lab import MemoryListener
from k8s.api_calls import undeclared, unused
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.errors import UserError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.programs.gateway import settings_of
from llmkube.k8s.builtins import EndpointSlice, Lease, Namespace
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.leases.wanted_services import LEASE_NAME, decode_record
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_LABEL, SERVICE_NAME_LABEL, service_name
from llmkube.programs.config import GatewayConfig
from llmkube.programs.gateway.gateway import open_gateway
from llmkube.programs.gateway.rights import PROGRAM
from llmkube.router.auth.client_key import digest_of_key

pytestmark = pytest.mark.ci

FOLLOWED = 1.5
"""Seconds in which a change of an object has reached the front door."""


@pytest.fixture
def patient_clock(autojump_clock):
    """Time jumps only while no thread works: keys and policies are read in threads."""
    autojump_clock.autojump_threshold = 0.03
    return autojump_clock


class Stage:
    """A front door in a cluster, with engines by their addresses."""

    def __init__(self, client, nursery, calls):
        self.client, self.nursery, self.calls = client, nursery, calls
        self.engines, self.scopes, self.asked = {}, {}, []  # asked: address, model, Authorization
        self.front = MemoryListener()

    async def connect(self, host, port):
        if host not in self.engines:
            raise ConnectionRefusedError(111, "Connection refused")
        return await self.engines[host].connect(host, port)

    async def engine(self, address, cached=0):
        """Start an engine."""
        self.engines[address] = MemoryListener()

        async def answer(exchange):
            body = json.loads(exchange.body or b"{}")
            if exchange.head.method == "POST":
                self.asked.append((address, body["model"], exchange.head.lines.get("authorization")))
            choice = {"index": 0, "message": {"role": "assistant", "content": address}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 400, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
            answer = {"object": "chat.completion", "choices": [choice], "usage": usage}
            await exchange.respond(Response.json(200, answer))

        async def serve(task_status):
            with trio.CancelScope() as self.scopes[address]:
                await run_server(answer, [self.engines[address]], task_status=task_status)

        await self.nursery.start(serve)

    def kill(self, address):
        """End an engine with its connections."""
        del self.engines[address]
        self.scopes[address].cancel()

    async def service(self, name, *addresses, namespace="ml", **spec):
        """Apply a service, its Model, and a slice with these ready addresses."""
        await self.apply(Model, namespace, "phi", {"source": "https://example.com/phi.gguf"})
        await self.apply(InferenceService, namespace, name, {"modelRef": "phi", **spec})
        await self.slice(name, *addresses, namespace=namespace)

    async def slice(self, name, *addresses, namespace="ml", terminating=(), labels=None):
        labels = labels or {SERVICE_LABEL: name, SERVICE_NAME_LABEL: name}
        endpoints = [{"addresses": [one], "targetRef": {"kind": "Pod", "name": f"pod-{one}"}} for one in addresses]
        endpoints += [{"addresses": [one], "conditions": {"ready": False}} for one in terminating]
        ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
        body = {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
        await self.client.apply(
            EndpointSlice,
            {
                **EndpointSlice.RESOURCE.type_meta,
                "metadata": {"name": f"{name}-x", "namespace": namespace, "labels": labels},
                **body,
            },
            field_manager="user",
        )
        await trio.sleep(FOLLOWED)

    async def apply(self, kind, namespace, name, spec):
        metadata = {"name": name, "namespace": namespace}
        body = {**kind.RESOURCE.type_meta, "metadata": metadata, "spec": spec}
        await self.client.apply(kind, body, field_manager="user")

    async def chat(self, model, text="hi", path="/v1/chat/completions", **more):
        return await self.send("POST", path, {"model": model, "messages": [{"role": "user", "content": text}], **more})

    async def ask(self, model, headers=MappingProxyType({})):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
        return await self.send("POST", "/v1/chat/completions", body, **headers)

    async def send(self, method, path, body=None, host="gw", **headers):
        content = b"" if body is None else json.dumps(body).encode()
        async with open_http_client(self.front.connect) as client:
            return await client.request(method, f"http://{host}{path}", headers=Headers.of(headers), body=content)

    async def models(self, **headers):
        answer = json.loads((await self.send("GET", "/v1/models", **headers)).body)
        return [each["id"] for each in answer["data"]]


@asynccontextmanager
async def open_stage(folder, *, anonymous=True, **settings):
    config = GatewayConfig(state_dir=folder / "state", keys_dir=folder / "keys", allow_anonymous=anonymous, **settings)
    server = ApiServer(Store(), kinds=BUILTIN_KINDS, utcnow=utcnow, rng=random.Random(1))
    await server.ensure_namespaces()
    namespaces = [{**Namespace.RESOURCE.type_meta, "metadata": {"name": name}} for name in ("ml", "other")]
    await server.ensure([*namespaces, *all_crds()])
    async with open_transport(server.handle) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(server.run_housekeeping)
        faults = Faults(transport, server.store)
        user, own = (Client(TransportSender(one, "http://apiserver")) for one in (transport, faults))
        stage = Stage(user, nursery, faults.calls)
        async with open_gateway(
            own, settings_of(config), connect=stage.connect, registry=CollectorRegistry(), rng=random.Random(1)
        ) as router:
            serve = partial(run_server, judge=router.request_filter)
            await nursery.start(serve, router.handler, [stage.front])
            yield stage
            nursery.cancel_scope.cancel()


def error_of(answer):
    return answer.status, json.loads(answer.body)["error"]


async def test_a_service_is_served_by_its_name(tmp_path, patient_clock):
    """The engine gets the name of the service; the long form, an alias and the other dialects lead there as well."""
    async with open_stage(tmp_path) as stage:
        await stage.engine("10.0.0.1")
        await stage.service("chat", "10.0.0.1", aliases=["gpt-4o"])
        assert await stage.models() == ["chat", "gpt-4o"]
        for model in ("chat", "ml/chat", "gpt-4o", "chat:latest"):
            assert (await stage.chat(model)).status == 200
        assert (await stage.chat("chat", path="/api/chat", stream=False)).status == 200
        assert (await stage.chat("chat", path="/v1/messages", max_tokens=9)).status == 200
        assert {model for _, model, _ in stage.asked} == {"chat"}
        assert b"chat" in (await stage.send("GET", "/api/tags")).body


async def test_a_deleted_definition_ends_no_service(tmp_path, patient_clock):
    """Services are served while their kind is not; a deletion of one alone removes it."""
    async with open_stage(tmp_path) as stage:
        await stage.engine("10.0.0.1")
        await stage.service("chat", "10.0.0.1")
        await stage.service("other", "10.0.0.1")
        await stage.client.delete(InferenceService, Key("ml", "other"))
        await trio.sleep(60)
        assert await stage.models() == ["chat"]
        for each in all_crds():
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{each['metadata']['name']}"
            await stage.client.request_json("DELETE", path)
        await trio.sleep(300)
        assert await stage.models() == ["chat"]
        assert (await stage.chat("chat")).status == 200


async def test_the_page_shows_models_to_clients_with_a_key(tmp_path, patient_clock):
    """Its files are public, its figures need a key; there is nothing to change."""
    (tmp_path / "keys" / "teams").mkdir(parents=True)
    (tmp_path / "keys" / "teams" / "red").write_text("key-of-red-0123456789")
    key = {"authorization": "Bearer key-of-red-0123456789"}
    async with open_stage(tmp_path, anonymous=False) as stage:
        await stage.engine("10.0.0.1")
        await stage.service("chat", "10.0.0.1")
        page = await stage.send("GET", "/", accept="text/html")
        assert (page.status, b"<nav" in page.body) == (200, True)
        assert (await stage.send("GET", "/page/events")).status == 401
        for path in ("requests", "logs?service=ml/chat"):
            assert error_of(await stage.send("GET", f"/page/{path}", **key))[1]["code"] == "read_only"
        assert (
            await stage.send("POST", "/page/actions", {"action": "stop", "service": "ml/chat"}, **key)
        ).status == 403
        assert (await stage.ask("chat", key)).status == 200
        async with open_http_client(stage.front.connect) as client:
            answer = await client.start(
                ("gw", 80),
                "GET",
                b"GET /page/events HTTP/1.1\r\nHost: gw.example.com\r\nAuthorization: Bearer "
                b"key-of-red-0123456789\r\nContent-Length: 0\r\n\r\n",
                b"",
            )
            event = (await answer.receive_some()).decode()
            await trio.aclose_forcefully(answer.stream)
        state = json.loads(event.partition("data: ")[2])
        chat = state["services"]["ml/chat"]
        assert (state["readOnly"], chat["loaded"], chat["used"]) == (True, True, 401)


async def test_a_name_of_two_services_is_refused_with_the_ids_to_use(tmp_path, patient_clock):
    """Namespaces may have services of one name; an unknown name is an error that clients know."""
    async with open_stage(tmp_path) as stage:
        for namespace, address in (("ml", "10.0.0.1"), ("other", "10.0.0.2")):
            await stage.engine(address)
            await stage.service("chat", address, namespace=namespace)
        assert await stage.models() == ["ml/chat", "other/chat"]
        status, error = error_of(await stage.chat("chat"))
        assert (status, error["code"]) == (400, "model_ambiguous")
        assert "use ml/chat or other/chat" in error["message"]
        assert json.loads((await stage.chat("other/chat")).body)["choices"][0]["message"]["content"] == "10.0.0.2"
        status, error = error_of(await stage.chat("gpt-5"))
        assert (status, error["code"]) == (404, "model_not_found")


async def test_only_the_given_namespaces_are_served(tmp_path, patient_clock):
    """A service of another namespace does not exist for clients."""
    async with open_stage(tmp_path, namespace=("ml",)) as stage:
        await stage.engine("10.0.0.1")
        await stage.service("chat", "10.0.0.1")
        await stage.service("mail", "10.0.0.1", namespace="default")
        assert await stage.models() == ["chat"]


async def test_a_conversation_stays_with_its_engine_and_others_go_elsewhere(tmp_path, patient_clock):
    """The pods of one service share its requests by what they have cached, and by their load."""
    async with open_stage(tmp_path) as stage:
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            await stage.engine(address, cached=390)
        await stage.service("chat", "10.0.0.1", "10.0.0.2", "10.0.0.3")
        texts = [f"{number} " * 400 for number in range(3)]
        for text in (*texts, *texts, *texts):
            assert (await stage.chat("chat", text)).status == 200
        places = [address for address, *_ in stage.asked]
        assert sorted(places[:3]) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        assert places == places[:3] * 3


async def test_a_pod_that_has_left_its_slice_gets_no_request(tmp_path, patient_clock):
    """The very next request goes to another pod, also while the terminating one still answers."""
    async with open_stage(tmp_path) as stage:
        for address in ("10.0.0.1", "10.0.0.2"):
            await stage.engine(address, cached=390)
        await stage.service("chat", "10.0.0.1", "10.0.0.2")
        text = "word " * 400
        await stage.chat("chat", text)
        ((first, *_),) = stage.asked
        (rest,) = {"10.0.0.1", "10.0.0.2"} - {first}
        await stage.slice("chat", rest, terminating=(first,))
        for _ in range(4):
            assert (await stage.chat("chat", text)).status == 200
        assert {address for address, *_ in stage.asked[1:]} == {rest}


async def test_a_pod_that_refuses_connections_is_replaced_before_its_slice_changes(tmp_path, patient_clock):
    """A killed pod costs no request while there is another one."""
    async with open_stage(tmp_path) as stage:
        for address in ("10.0.0.1", "10.0.0.2"):
            await stage.engine(address, cached=390)
        await stage.service("chat", "10.0.0.1", "10.0.0.2")
        text = "word " * 400
        await stage.chat("chat", text)
        stage.kill(stage.asked[0][0])
        assert [(await stage.chat("chat", text)).status for _ in range(5)] == [200] * 5
        stage.kill(*stage.engines)
        assert (await stage.chat("chat", text)).status in (502, 503)
        await stage.engine("10.0.0.9")
        await stage.slice("chat", "10.0.0.9")
        assert (await stage.chat("chat", text)).status == 200


async def test_a_service_without_engines_is_refused_with_its_reason(tmp_path, patient_clock):
    """The status says why; a service at zero is not worth a retry until someone scales it."""
    async with open_stage(tmp_path) as stage:
        await stage.service("chat")
        status, error = error_of(await stage.chat("chat"))
        assert (status, error["code"], error["reason"]) == (503, "model_not_ready", "Pending")
        await stage.service("zero", replicas=0)
        answer = await stage.chat("zero")
        assert error_of(answer)[1]["reason"] == "ManuallyScaledToZero"
        assert answer.headers.get("x-should-retry") == "false"


async def test_clients_need_a_key_of_a_team_and_engines_get_their_own(tmp_path, patient_clock):
    """Keys are files of mounted Secrets: a changed one applies without a restart. The client's key goes nowhere."""
    teams, engines = tmp_path / "keys/teams", tmp_path / "keys/services"
    for folder in (teams, engines):
        folder.mkdir(parents=True)
    (teams / "red").write_text("sk-red-key\n")
    async with open_stage(tmp_path, anonymous=False) as stage:
        await stage.engine("10.0.0.1")
        await stage.service("chat", "10.0.0.1", apiKeySecretRef={"name": "chat-key", "key": "key"})
        red = {"Authorization": "Bearer sk-red-key"}
        assert (await stage.ask("chat")).status == 401
        assert (await stage.ask("chat", red)).status == 503
        (engines / "ml.chat").write_text("engine-key\n")
        await trio.sleep(FOLLOWED)
        assert (await stage.ask("chat", red)).status == 200
        assert stage.asked == [("10.0.0.1", "chat", "Bearer engine-key")]
        (teams / "blue").write_text("sk-blue-key\n")
        (teams / "red").unlink()
        await trio.sleep(FOLLOWED)
        assert (await stage.ask("chat", red)).status == 401
        assert (await stage.ask("chat", {"Authorization": "Bearer sk-blue-key"})).status == 200
        issued = [f"sha256:{digest_of_key(key).hex()} for=x models={key}" for key in ("chat", "other")]
        (teams / "blue").write_text("\n".join(issued))
        await trio.sleep(FOLLOWED)
        answers = [await stage.ask("chat", {"Authorization": f"Bearer {key}"}) for key in ("chat", "other")]
        assert [each.status for each in answers] == [200, 403]


async def test_without_keys_nothing_is_served_unless_that_is_wanted(tmp_path):
    """A forgotten Secret must not open every model of the cluster."""
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="--allow-anonymous"), flatten_subgroups=True):
        async with open_stage(tmp_path, anonymous=False):
            pytest.fail("it serves")


POLICY = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: front, namespace: ml}
spec:
  backends:
    - {name: cheap, inferenceServiceRef: {name: chat}, region: eu}
  rules:
    - {name: fast, match: {models: [fast]}, route: {backends: [cheap]}}
  policy:
    auth: {keysSecretRef: {name: keys}, allowlists: [{team: red, models: [chat, fast]}]}
    budgets: [{name: day, scope: team, maxTokens: 500, windowSeconds: 86400}]
"""


async def test_a_policy_applies_to_every_service(tmp_path, patient_clock):
    """Its rules come first, its backends are spread over the pods as well, and its budgets and teams limit all."""
    (tmp_path / "keys/teams").mkdir(parents=True)
    (tmp_path / "keys/teams/red").write_text("sk-red-key\n")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with open_stage(tmp_path, anonymous=False, policy=policy) as stage:
        for address in ("10.0.0.1", "10.0.0.2"):
            await stage.engine(address)
        await stage.service("chat", "10.0.0.1", "10.0.0.2")
        await stage.service("mail", "10.0.0.1")
        red = {"Authorization": "Bearer sk-red-key"}
        assert await stage.models(**red) == ["chat", "fast"]
        assert error_of(await stage.ask("mail", red))[1]["code"] == "model_not_allowed"
        assert (await stage.ask("fast", red)).status == 200
        assert error_of(await stage.ask("chat", red))[1]["code"] == "budget_exhausted"
        policy.write_text(POLICY.replace("500", "50000").replace("[fast]", "[quick]"))
        await trio.sleep(FOLLOWED)
        assert (await stage.ask("chat", red)).status == 200
        assert error_of(await stage.ask("fast", red))[1]["code"] == "model_not_found"
        policy.write_text("kind: Nonsense")
        await trio.sleep(FOLLOWED)
        assert (await stage.ask("chat", red)).status == 200


ON_REQUEST = {"activation": {"mode": "OnRequest", "maxHold": "40s"}}


async def test_a_request_to_a_service_at_zero_reaches_its_model(tmp_path, patient_clock):
    """The Service's name decides, as its engine would serve any model; clients need a key of the front door."""
    (tmp_path / "keys/teams").mkdir(parents=True)
    (tmp_path / "keys/teams/red").write_text("sk-red-key\n")
    async with open_stage(tmp_path, anonymous=False) as stage:
        for number, (namespace, name) in enumerate((("ml", "chat"), ("other", "chat"), ("ml", "mail.v2")), 1):
            await stage.engine(f"10.0.0.{number}")
            spec = {"aliases": ["gpt-4o"]} if name == "mail.v2" else {}
            await stage.service(name, namespace=namespace, **ON_REQUEST, **spec)
            labels = {SERVICE_LABEL: name, SERVICE_NAME_LABEL: service_name(name)}
            await stage.slice(name, f"10.0.0.{number}", namespace=namespace, labels=labels)

        async def ask(host, **body):
            stage.asked.clear()
            messages = {"messages": [{"role": "user", "content": "hi"}]}
            answer = await stage.send(
                "POST", "/v1/chat/completions", messages | body, host=host, authorization="Bearer sk-red-key"
            )
            return stage.asked[0][0] if stage.asked else answer.status

        mail = service_name("mail.v2")
        assert await ask("chat.ml:8080", model="llama") == "10.0.0.1"
        assert await ask("chat.other.svc.cluster.local:8080") == "10.0.0.2"
        assert await ask("CHAT.other.svc", model="ml/chat") == "10.0.0.2"
        assert await ask(mail, model="chat") == "10.0.0.3"
        assert await ask(mail, model="gpt-4o") == "10.0.0.3"
        assert await ask(mail, model=5) == 400
        for host in ("chat", "chat.third", "chat.ml.example.com", "10.0.0.9"):
            assert await ask(host, model="gpt-4o") == "10.0.0.3"
            assert await ask(host) == 400
        without_key = await stage.send("POST", "/v1/chat/completions", {"messages": []}, host="chat.ml:8080")
        assert without_key.status == 401


async def test_a_request_waits_for_the_first_pod_of_its_service(tmp_path, patient_clock):
    """It is recorded in the Lease that its service is needed, until its pods are no longer used or it gives up."""
    async with open_stage(tmp_path) as stage:
        await stage.service("chat", **ON_REQUEST)
        answers = []

        async def chat():
            answers.append((await stage.chat("chat")).status)

        async with trio.open_nursery() as clients:
            for _ in range(20):
                clients.start_soon(chat)
            await trio.sleep(5)
            lease = await stage.client.get(Lease, Key("ml", LEASE_NAME))
            assert [decode_record(each) for each in lease.metadata.annotations.values()] == [{"chat"}]
            assert not answers
            await stage.engine("10.0.0.1")
            await stage.slice("chat", "10.0.0.1")
        assert answers == [200] * 20
        # its pod ends while it is used: what comes meanwhile is answered by the next one
        stage.kill("10.0.0.1")
        async with trio.open_nursery() as clients:
            clients.start_soon(chat)
            await trio.sleep(5)
            await stage.engine("10.0.0.2")
            await stage.slice("chat", "10.0.0.2", terminating=["10.0.0.1"])
        assert answers == [200] * 21
        await trio.sleep(30)
        assert not (await stage.client.get(Lease, Key("ml", LEASE_NAME))).metadata.annotations
        await stage.slice("chat")
        stage.kill("10.0.0.2")
        status, error = error_of(await stage.chat("chat"))
        assert (status, error["code"]) == (503, "model_not_ready")
        assert "was not loaded within" in error["message"]


async def test_the_front_door_has_the_rights_that_it_uses(tmp_path, patient_clock):
    """It reads what it serves, and no Secret."""
    async with open_stage(tmp_path) as stage:
        await stage.service("chat", **ON_REQUEST)
        await stage.chat("chat")
        assert not undeclared(stage.calls, PROGRAM)
        assert not unused(stage.calls, PROGRAM)
