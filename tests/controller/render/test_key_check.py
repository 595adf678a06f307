"""If a service's clients have keys, a container of ours has the port, the Secret, and all clients."""

import attrs
import pytest
from click.testing import CliRunner

from controller.podobjects import IMAGE, SETTINGS, cluster_model, plan, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.drain import key_containers, key_volumes
from llmkube.controller.render.manifests import WantedPods, deployment, kubernetes_service, pod_monitor
from llmkube.controller.render.storage import Storage, Weights, serving_storage
from llmkube.programs import engine_pod
from llmkube.runtimes.registry import container_plan_for

REF = {"name": "chat-keys", "key": "keys.txt"}
REPOSITORY = {"source": "org/repo", "format": "safetensors"}
RUNTIMES = [
    ("llamacpp", {}),
    ("llamacpp-router", {"source": "pvc://weights/models"}),
    ("vllm", REPOSITORY),
    ("tgi", REPOSITORY),
    ("sglang", REPOSITORY),
    ("ollama", {}),
]


def planned(runtime="llamacpp", model=None, **spec):
    service = pod_service(runtime=runtime, apiKeySecretRef=REF, **spec)
    return service, container_plan_for(service, cluster_model(**(model or {})), rendered=RENDERED)


def pod_of(service, the_plan, model):
    storage = Storage()
    if the_plan.uses_weights:
        storage = serving_storage(service, cluster_model(**model), "/models/0/model.gguf", SETTINGS)
    return deployment(service, the_plan, SETTINGS, WantedPods(weights=Weights(storage)))["spec"]["template"]


@pytest.mark.parametrize(("runtime", "model"), RUNTIMES)
def test_the_engine_listens_on_the_loopback_address_and_has_no_key(runtime, model):
    """Only our container mounts the Secret, one value; the public port is ours."""
    service, the_plan = planned(runtime, model)
    template = pod_of(service, the_plan, model)
    engine, ours = template["spec"]["containers"]
    inside = the_plan.key_check.engine_port
    values = [*engine.get("args", ()), *(one.get("value", "") for one in engine.get("env", ()))]
    assert "127.0.0.1" in values or f"127.0.0.1:{inside}" in values
    assert str(inside) in values or f"127.0.0.1:{inside}" in values
    assert str(the_plan.port) not in values
    assert "chat-keys" not in str(engine)
    assert (ours["image"], ours["command"]) == (IMAGE, ["llmkube"])
    arguments = dict(zip(ours["args"][1::2], ours["args"][2::2], strict=True))
    assert (arguments["--listen"], arguments["--engine"]) == (str(the_plan.port), str(inside))
    [volume] = (one for one in template["spec"]["volumes"] if "secret" in one)
    assert volume["secret"]["secretName"] == "chat-keys"
    [item] = volume["secret"]["items"]
    [mount] = ours["volumeMounts"]
    assert (item["key"], f"{mount['mountPath']}/{item['path']}") == ("keys.txt", arguments["--keys"])
    assert mount["readOnly"]
    assert template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == engine["name"]


@pytest.mark.parametrize(("runtime", "model"), RUNTIMES)
def test_paths_of_kubelet_and_prometheus_are_open(runtime, model):
    """Neither has a key: probes and metrics use the port by its name, and their paths are open there."""
    service, the_plan = planned(runtime, model)
    engine, ours = pod_of(service, the_plan, model)["spec"]["containers"]
    opened = {value for flag, value in zip(ours["args"], ours["args"][1:], strict=False) if flag == "--open"}
    probes = (engine[name] for name in ("startupProbe", "livenessProbe", "readinessProbe"))
    asked = {one["httpGet"]["path"] for one in probes if "httpGet" in one}
    monitor = pod_monitor(service, the_plan, {})
    if monitor is not None:
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "http"
        asked.add(endpoint["path"])
    assert opened == asked
    assert engine["ports"][0] == {"name": "http", "containerPort": the_plan.port, "protocol": "TCP"}
    assert kubernetes_service(service, the_plan)["spec"]["ports"][0]["targetPort"] == "http"


def test_a_probe_of_the_user_s_own_is_open_as_well():
    """spec.probeOverrides may use another path; its query is not part of the open path."""
    readiness = {"httpGet": {"path": "/ready?deep=1", "port": "http"}}
    service, the_plan = planned(probeOverrides={"readiness": readiness})
    ours = pod_of(service, the_plan, {})["spec"]["containers"][1]
    assert "/ready" in ours["args"]


@pytest.mark.parametrize(("settings", "user"), [(SETTINGS, 65532), (attrs.evolve(SETTINGS, fs_group=None), None)])
def test_it_runs_as_its_own_image_s_user_whatever_the_engine_s_is(settings, user):
    """An engine that has to be root shares nothing with the container in front; OpenShift sets users itself."""
    service, the_plan = planned(podSecurityContext={"runAsUser": 0})
    template = deployment(service, the_plan, settings, WantedPods())["spec"]["template"]
    ours = template["spec"]["containers"][1]["securityContext"]
    assert (ours.get("runAsUser"), ours["runAsNonRoot"]) == (user, True)


def test_a_service_without_keys_has_no_such_container():
    """Clients connect to the engine directly."""
    assert key_containers(pod_service(), plan(), {}, SETTINGS, 60) == ()
    assert key_volumes(plan()) == ()


def test_our_program_takes_the_arguments_of_our_container(monkeypatch, tmp_path):
    """The rendered arguments are a valid command line of `llmkube key-proxy`, which starts to serve with it."""
    service, the_plan = planned()
    ours = pod_of(service, the_plan, {})["spec"]["containers"][1]
    file, served = tmp_path / "keys", []
    file.write_text("abc\n")
    name, *args = (str(file) if word.startswith("/etc/") else word for word in ours["args"])
    monkeypatch.setattr(engine_pod.trio, "run", lambda _until, serve, _tell: served.append(serve.args))
    result = CliRunner().invoke(engine_pod.key_proxy, args)
    assert (name, result.exit_code) == ("key-proxy", 0), result.output
    [(keys, listen, engine, opened)] = served
    assert (keys.named, len(keys.digests)) == ("Secret chat-keys, keys.txt", 1)
    assert (listen, engine) == (the_plan.port, the_plan.key_check.engine_port)
    assert opened == ("/health", "/metrics")
