"""A ModelRouter becomes pods that route by it, and its status reports them and its backends."""

import json

import attrs
import pytest
import trio

from controller.cluster import SETTLED, open_cluster
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.controller.reconcile import pod_polling
from llmkube.controller.reconcile.pod_polling import QUERY_INTERVAL_SECONDS
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.k8s.builtins import ConfigMap, EndpointSlice, Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.workloads import Deployment, NetworkPolicy, PodDisruptionBudget, PodMonitor
from llmkube.router.config.config_json import decode_config

KEY = Key("ml", "front")
NAME = "front-router-proxy"
PROVIDER = {"provider": "openai", "model": "gpt-x", "credentialsSecretRef": {"name": "openai"}}
HYBRID = {
    "backends": [
        {"name": "local", "inferenceServiceRef": {"name": "chat"}},
        {"name": "cloud", "external": PROVIDER, "tier": "cloud"},
    ],
    "rules": [
        {
            "name": "private",
            "match": {"dataClassification": ["pii"]},
            "route": {"backends": ["local"]},
            "failClosed": True,
        }
    ],
    "defaultRoute": "cloud",
}


async def apply_router(client, **spec):
    backends = [{"name": "chat", "inferenceServiceRef": {"name": "chat"}}]
    meta = {"name": KEY.name, "namespace": KEY.namespace}
    resource = ModelRouter.RESOURCE
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    await client.apply(ModelRouter, {**body, "spec": {"backends": backends, **spec}}, field_manager="user")
    await trio.sleep(SETTLED)


async def condition(client, kind):
    return find_condition((await client.get(ModelRouter, KEY)).status.conditions, kind)


async def phase(client):
    await trio.sleep(SETTLED)
    return (await client.get(ModelRouter, KEY)).status.phase


async def config_of(client):
    written = (await client.get(ConfigMap, Key("ml", NAME))).data["config.json"]
    return decode_config(written.encode())


async def run_pods(hands, answer):
    """Set the router's Deployment ready, with one pod, and that pod's backend states."""
    template = (await hands.json(Deployment, NAME))["spec"]["template"]
    status = {"phase": "Running", "podIP": "10.9.0.1"}
    await hands.make_pod(f"{NAME}-1", template["metadata"]["labels"], status)
    await hands.roll_out(NAME)
    answer.append(json.dumps({"backends": [{"name": "chat", "healthy": True, "message": ""}]}))
    await trio.sleep(QUERY_INTERVAL_SECONDS + SETTLED)


@pytest.fixture
def answer(monkeypatch):
    """The pods' report on their backends: the last entry."""
    reports: list[str] = []

    async def read_text(url):
        assert url == "http://10.9.0.1:9090/backends"
        await trio.lowlevel.checkpoint()
        return reports[-1] if reports else ""

    monkeypatch.setattr(pod_polling, "read_text", read_text)
    return reports


async def test_without_nodes_a_router_reports_it(autojump_clock):
    """The status shows no routing, and is written once for each spec; deletion writes nothing."""
    async with open_cluster() as cluster:
        await apply_router(cluster.client)
        await apply_router(cluster.client, defaultRoute="chat")
        await trio.sleep(600)
        accepted = await condition(cluster.client, "Accepted")
        assert (accepted.status, accepted.reason) == ("False", "NotSupported")
        assert "llmkube router -f" in accepted.message
        assert accepted.observed_generation == 2
        assert cluster.writes.count("front") == 2
        await cluster.client.delete(ModelRouter, KEY)
        await trio.sleep(SETTLED)
        assert cluster.reconciles("modelrouter", "error") == 0


async def test_a_router_becomes_pods_that_route_by_it(autojump_clock, answer):
    """From the spec to Ready: config, pods, Service, network policy; then nothing is written any more."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await apply_router(hands.client)
        config = await config_of(hands.client)
        assert config.name == "ml/front"
        assert config.backends["chat"].base_url == "http://chat.ml.svc.cluster.local:8080/v1"
        assert config.backends["chat"].slots == 1
        pod = (await hands.json(Deployment, NAME))["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["containers"][0]["args"][:3] == ["router", "-f", "/etc/llmkube/router/config.json"]
        assert (await hands.json(Service, NAME))["spec"]["ports"][0]["targetPort"] == "http"
        assert await hands.exists(NetworkPolicy, NAME)
        assert not await hands.exists(PodDisruptionBudget, NAME)
        assert await phase(hands.client) == "Provisioning"
        available = await condition(hands.client, "Available")
        assert (available.status, available.reason) == ("False", "NoReadyReplicas")
        await run_pods(hands, answer)
        assert await phase(hands.client) == "Ready"
        available = await condition(hands.client, "Available")
        assert (available.status, available.reason) == ("True", "InferenceReady")
        router = await hands.client.get(ModelRouter, KEY)
        assert router.status.endpoint == f"http://{NAME}.ml.svc.cluster.local:8080/v1/chat/completions"
        [backend] = router.status.backends
        assert (backend.name, backend.tier, backend.healthy) == ("chat", "local", True)
        before = hands.cluster.writes.copy()
        await trio.sleep(3600)
        assert hands.cluster.writes == before


async def test_a_router_knows_which_services_have_the_same_model(autojump_clock):
    """Such services continue each other's responses; another source of the Model is another model, within seconds."""
    async with open_pods() as hands:
        await hands.create_model()
        for name in ("chat", "twin"):
            await hands.create_service(name)
        names = [{"name": name, "inferenceServiceRef": {"name": name}} for name in ("chat", "twin")]
        await apply_router(hands.client, backends=names, defaultRoute="chat")
        before = {each.model_digest for each in (await config_of(hands.client)).backends.values()}
        await hands.create_model(source="https://example.com/other.gguf")
        await trio.sleep(SETTLED)
        after = {each.model_digest for each in (await config_of(hands.client)).backends.values()}
        assert (len(before), len(after)) == (1, 1)
        assert after.isdisjoint(before | {""})


async def test_a_backend_that_is_down_degrades_itself_alone(autojump_clock, answer):
    """The pods' report on a backend is in the status within seconds, and the router stays Available."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await apply_router(hands.client)
        await run_pods(hands, answer)
        answer.append(json.dumps({"backends": [{"name": "chat", "healthy": False, "message": "no connection"}]}))
        await trio.sleep(QUERY_INTERVAL_SECONDS + SETTLED)
        assert await phase(hands.client) == "Degraded"
        degraded = await condition(hands.client, "Degraded")
        assert (degraded.status, degraded.message) == ("True", "chat: no connection")
        assert (await condition(hands.client, "Available")).status == "True"


async def test_a_missing_service_takes_nothing_else_down(autojump_clock, answer):
    """The original fails the whole router then; here the others serve, and it joins when it is created."""
    async with open_pods() as hands:
        await apply_router(hands.client, **HYBRID)
        config = await config_of(hands.client)
        assert config.backends["local"].missing == "there is no InferenceService chat"
        assert config.backends["cloud"].missing == ""
        await hands.start()
        assert (await config_of(hands.client)).backends["local"].missing == ""
        await hands.client.delete(InferenceService, Key("ml", "chat"))
        await trio.sleep(SETTLED)
        assert (await config_of(hands.client)).backends["local"].missing


async def test_an_edit_replaces_no_pod(autojump_clock):
    """Rules are reloaded by the running pods: the template is the same for all rules."""
    async with open_pods() as hands:
        await apply_router(hands.client, **HYBRID)
        before = (await hands.json(Deployment, NAME))["spec"]["template"]
        await apply_router(hands.client, **HYBRID | {"defaultRoute": "local"})
        assert (await config_of(hands.client)).default_backend == "local"
        assert (await hands.json(Deployment, NAME))["spec"]["template"] == before


async def test_keys_are_files_of_their_own(autojump_clock):
    """Two backends of one provider have two keys (defect 15), entry by entry, and none in the config."""
    async with open_pods() as hands:
        other = {**PROVIDER, "credentialsSecretRef": {"name": "team-b"}}
        backends = [{"name": "a", "external": PROVIDER}, {"name": "b", "external": other}]
        auth = {"keysSecretRef": {"name": "clients"}}
        await apply_router(hands.client, backends=backends, defaultRoute="a", policy={"auth": auth})
        pod = (await hands.json(Deployment, NAME))["spec"]["template"]["spec"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        sources = [one["secret"] for one in volumes["keys-backends"]["projected"]["sources"]]
        assert [(one["name"], one["items"]) for one in sources] == [
            ("openai", [{"key": "OPENAI_API_KEY", "path": "a"}]),
            ("team-b", [{"key": "OPENAI_API_KEY", "path": "b"}]),
        ]
        assert all(one["optional"] for one in sources)
        assert volumes["keys-teams"]["secret"] == {"secretName": "clients", "optional": True}
        places = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        config = await config_of(hands.client)
        assert config.backends["a"].key_file == f"{places['keys-backends']}/a"
        assert config.auth.keys_folder == places["keys-teams"]
        assert "env" not in json.dumps([one for one in pod["containers"][0].get("env", []) if one["name"] != "HOME"])


async def test_the_keys_of_tokens_are_in_a_file_or_reachable(autojump_clock):
    """The entry of a Secret is a file of its own; for a URL, the pods may connect to the issuer and nothing else."""
    tokens = {"provider": "corp", "issuer": "https://id.example", "audiences": ["llm"], "teamClaim": "team"}
    given = {"backends": [{"name": "a", "external": PROVIDER}], "defaultRoute": "a"}
    async with open_pods() as hands:
        of_secret = {"jwt": tokens | {"jwksSecretRef": {"name": "idp", "key": "keys"}}}
        await apply_router(hands.client, **given, policy={"auth": of_secret})
        pod = (await hands.json(Deployment, NAME))["spec"]["template"]["spec"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        [source] = volumes["keys-tokens"]["projected"]["sources"]
        assert source["secret"] == {"name": "idp", "items": [{"key": "keys", "path": "jwks.json"}], "optional": True}
        places = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert (await config_of(hands.client)).auth.tokens.jwks_file == f"{places['keys-tokens']}/jwks.json"
        before = (await hands.json(NetworkPolicy, NAME))["spec"]["egress"]
        of_url = {"jwt": tokens | {"jwksURI": "http://10.1.2.3:8081/keys"}}
        await apply_router(hands.client, **given, policy={"auth": of_url})
        egress = (await hands.json(NetworkPolicy, NAME))["spec"]["egress"]
        block, port = {"ipBlock": {"cidr": "10.1.2.3/32"}}, {"port": 8081, "protocol": "TCP"}
        assert [one for one in egress if one not in before] == [{"to": [block], "ports": [port]}]


async def test_the_pods_may_connect_to_their_proxies(autojump_clock):
    """At any address, since a proxy's name may be private or public."""
    proxies = {
        "HTTPS_PROXY": "http://proxy.corp:3128",
        "LLMKUBE_PROXY": "b.example=http://10.1.2.3:99,c.example=direct",
    }
    given = {"backends": [{"name": "a", "external": PROVIDER}], "defaultRoute": "a"}
    egress = []
    for settings in (SETTINGS, attrs.evolve(SETTINGS, proxies=proxies)):
        async with open_pods(workloads=settings) as hands:
            await apply_router(hands.client, **given)
            egress.append((await hands.json(NetworkPolicy, NAME))["spec"]["egress"])
    added = [
        (rule["ports"][0]["port"], rule["to"][0]["ipBlock"]["cidr"]) for rule in egress[1] if rule not in egress[0]
    ]
    assert added == [(99, "10.1.2.3/32"), (3128, "10.0.0.0/8"), (3128, "0.0.0.0/0")]


async def test_a_refused_edit_serves_by_the_spec_before(autojump_clock, answer):
    """All errors at once, the pods unchanged, and the status reports both."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await apply_router(hands.client)
        await run_pods(hands, answer)
        before = await config_of(hands.client)
        classification = {"mode": "detector"}
        policy = {"classification": classification, "auditLog": {"sink": "otlp"}}
        await apply_router(hands.client, policy=policy)
        accepted = await condition(hands.client, "Accepted")
        assert (accepted.status, accepted.reason) == ("False", "Invalid")
        assert "spec.policy.classification.mode" in accepted.message
        assert "spec.policy.auditLog.sink" in accepted.message
        assert "keeps serving the previous spec" in accepted.message
        assert await phase(hands.client) == "Degraded"
        assert await config_of(hands.client) == before


async def test_replicas_are_spread_and_protected(autojump_clock):
    """With more than one pod, one at a time may be evicted; back at one, nothing blocks a node drain."""
    async with open_pods() as hands:
        await apply_router(hands.client, proxy={"replicas": 3})
        assert (await hands.json(PodDisruptionBudget, NAME))["spec"]["maxUnavailable"] == 1
        assert (await hands.json(Deployment, NAME))["spec"]["replicas"] == 3
        await apply_router(hands.client, proxy={"replicas": 1})
        assert not await hands.exists(PodDisruptionBudget, NAME)


async def test_a_store_keeps_the_budgets_of_all_pods(autojump_clock):
    """Without one the status reports that each pod counts by itself; with one its password is a file, its port open."""
    async with open_pods() as hands:
        budgets = [{"name": "b", "scope": "router", "maxTokens": 1}]
        await apply_router(hands.client, proxy={"replicas": 3}, policy={"budgets": budgets})
        honoured = await condition(hands.client, "SpecHonoured")
        assert (honoured.status, "each of 3 pods counts separately" in honoured.message) == ("False", True)
        store = {"address": "redis.cache.svc:6379", "passwordSecretRef": {"name": "redis", "key": "password"}}
        policy = {"budgets": budgets, "budgetStore": store}
        await apply_router(hands.client, proxy={"replicas": 3}, policy=policy)
        assert (await condition(hands.client, "SpecHonoured")).status == "True"
        pod = (await hands.json(Deployment, NAME))["spec"]["template"]["spec"]
        [volume] = [one for one in pod["volumes"] if one["name"] == "keys-budget-store"]
        secret = {"name": "redis", "items": [{"key": "password", "path": "password"}], "optional": True}
        assert volume["projected"]["sources"] == [{"secret": secret}]
        [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "keys-budget-store"]
        assert (await config_of(hands.client)).budget_store.password_file == f"{mount['mountPath']}/password"
        egress = (await hands.json(NetworkPolicy, NAME))["spec"]["egress"]
        of_cache = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "cache"}}}
        assert [one for one in egress if of_cache in one.get("to", [])] != []


async def test_a_router_is_scraped_where_a_prometheus_operator_is(autojump_clock):
    """Its PodMonitor is created with the kind, has the port of the pods, and is written once."""
    async with open_pods() as hands:
        await apply_router(hands.client)
        await hands.install(PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        monitor = await hands.json(PodMonitor, NAME)
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        template = (await hands.json(Deployment, NAME))["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert {"name": endpoint["port"], "containerPort": 9090, "protocol": "TCP"} in container["ports"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        before = len(hands.cluster.writes)
        await trio.sleep(600)
        assert hands.cluster.writes[before:] == []


async def test_a_taken_name_is_reported(autojump_clock):
    """A stranger's Service of that name stays unchanged."""
    async with open_pods() as hands:
        await hands.cluster.apply_object(Service, NAME, {"spec": {"ports": [{"port": 1}]}}, manager="user")
        await apply_router(hands.client)
        degraded = await condition(hands.client, "Degraded")
        assert degraded.status == "True"
        assert "already exists" in degraded.message
        assert encode(await hands.client.get(Service, Key("ml", NAME)))["spec"]["ports"][0]["port"] == 1


async def test_an_edit_of_a_stranger_is_undone(autojump_clock):
    """A change that opens the network wider than the router requires is reverted."""
    async with open_pods() as hands:
        await apply_router(hands.client)
        before = (await hands.json(NetworkPolicy, NAME))["spec"]
        await hands.client.patch(NetworkPolicy, Key("ml", NAME), {"spec": {"egress": [{}]}}, field_manager="user")
        await trio.sleep(SETTLED)
        assert (await hands.json(NetworkPolicy, NAME))["spec"] == before


async def test_a_host_s_address_is_open_while_it_serves(autojump_clock):
    """The guide's Mac: its slice opens its address to the pods; when the slice is deleted, the address is closed."""
    async with open_pods() as hands:
        await hands.cluster.bring_up()
        await apply_router(hands.client)
        host = [{"ipBlock": {"cidr": "10.0.0.7/32"}}]
        assert host in [rule["to"] for rule in (await hands.json(NetworkPolicy, NAME))["spec"]["egress"]]
        for piece in (await hands.client.list(EndpointSlice, namespace="ml")).items:
            await hands.client.delete(EndpointSlice, piece.key)
        await trio.sleep(SETTLED)
        assert host not in [rule["to"] for rule in (await hands.json(NetworkPolicy, NAME))["spec"]["egress"]]


async def test_a_router_that_is_deleted_leaves_nothing_to_do(autojump_clock, answer):
    """The garbage collector deletes its objects; the controller forgets it, and stops querying its pods."""
    async with open_pods() as hands:
        await apply_router(hands.client)
        await run_pods(hands, answer)
        await hands.client.delete(ModelRouter, KEY)
        await trio.sleep(60)
        assert not await hands.exists(Deployment, NAME)
        assert hands.cluster.reconciles("modelrouter", "error") == 0
