"""Termination of a pod: hooks that delay TERM, the container that they query, and its access to the engine."""

import itertools

import attrs
import pytest
from click.testing import CliRunner

from controller.pod_security import against_restricted
from controller.podobjects import IMAGE, SETTINGS, cluster_model, plan, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.drain import END_SECONDS, RetainedSettings, drain_port, drain_seconds
from llmkube.controller.render.labels import TEMPLATE
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.storage import Storage, Weights, serving_storage
from llmkube.programs import engine_pod as program
from llmkube.runtimes.registry import container_plan_for

REPOSITORY = {"source": "org/repo", "format": "safetensors"}
RUNTIMES = [
    ("llamacpp", {}, {}),
    ("vllm", REPOSITORY, {}),
    ("tgi", REPOSITORY, {}),
    ("sglang", REPOSITORY, {}),
    ("triton", {"source": "pvc://weights/models", "format": "custom"}, {}),
    ("ollama", {}, {}),
    ("generic", {}, {"image": "mine"}),
    ("personaplex", REPOSITORY, {"image": "mine"}),
    ("llamacpp", {}, {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}),
    ("vllm", REPOSITORY, {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}),
]
SLEEPING = attrs.evolve(SETTINGS, drain_container=False)


def planned(runtime, model, spec):
    service = pod_service(runtime=runtime, **spec)
    return service, container_plan_for(service, cluster_model(**model), rendered=RENDERED)


def pod_of(runtime, model, spec, settings=SETTINGS):
    service, the_plan = planned(runtime, model, spec)
    storage = Storage()
    if the_plan.uses_weights:
        storage = serving_storage(service, cluster_model(**model), "/models/0/model.gguf", settings)
    return deployment(service, the_plan, settings, WantedPods(weights=Weights(storage)))["spec"]["template"]["spec"]


def flags(container):
    args = container["args"][1:]
    return {name: [value for flag, value in itertools.pairwise(args) if flag == name] for name in args}


@pytest.mark.parametrize(("runtime", "model", "spec"), RUNTIMES)
def test_each_container_waits_until_the_engine_is_idle(runtime, model, spec):
    """No hook runs in the engine's image; all query one container, which has the hook as well and so outlives it."""
    _service, the_plan = planned(runtime, model, spec)
    pod = pod_of(runtime, model, spec)
    engine, beside = pod["containers"]
    hook = {"httpGet": {"path": program.PATH, "port": drain_port(the_plan), "scheme": "HTTP"}}
    assert [one["lifecycle"]["preStop"] for one in pod["containers"]] == [hook, hook]
    arguments = flags(beside)
    assert beside["image"] == IMAGE
    assert arguments["--drain-port"] == [str(hook["httpGet"]["port"])]
    taken = {one["containerPort"] for one in engine["ports"]} | {int(arguments["--engine"][0])}
    assert hook["httpGet"]["port"] not in taken
    # the hooks' time is part of the pod's
    assert int(arguments["--longest"][0]) + END_SECONDS == pod["terminationGracePeriodSeconds"]
    assert arguments.get("--busy-metric", []) == list(the_plan.busy_metrics)
    assert bool(the_plan.busy_metrics) is ("--metrics-url" in arguments)


@pytest.mark.parametrize(("runtime", "model", "spec"), RUNTIMES)
def test_our_programs_take_the_arguments_of_our_containers(runtime, model, spec, monkeypatch, tmp_path):
    """The rendered arguments are a valid command line of `llmkube drain`, or of `llmkube key-proxy`."""
    beside = pod_of(runtime, model, spec)["containers"][1]
    _, the_plan = planned(runtime, model, spec)
    started, file = [], tmp_path / "keys"
    file.write_text("abc\n")
    monkeypatch.setattr(program.trio, "run", lambda _until, serve, _tell: started.append(serve))
    name, *args = (str(file) if word.startswith("/etc/") else word for word in beside["args"])
    command = {"drain": program.drain, "key-proxy": program.key_proxy}[name]
    assert CliRunner().invoke(command, args).exit_code == 0
    [serve] = started
    watched, port = serve.args if name == "drain" else serve.keywords["hooks"].args
    inside = the_plan.key_check.engine_port if the_plan.key_check else the_plan.port
    assert (watched.engine, watched.clients, port) == (inside, the_plan.port, drain_port(the_plan))
    assert watched.busy_metrics == the_plan.busy_metrics
    assert watched.metrics_url in ("", f"http://127.0.0.1:{inside}{the_plan.metrics_path}")


def test_an_engine_at_an_address_of_the_user_s_is_not_asked_on_the_loopback_address():
    """It does not listen there: no response would be work. Its connections are seen at any address."""
    pod = pod_of("llamacpp", {}, {"bindAddress": "$(POD_IP)"})
    assert "--metrics-url" not in pod["containers"][1]["args"]


@pytest.mark.parametrize("odd", [{"metrics_port_name": ""}, {"metrics_port_name": "other"}, {"scheme": "https"}])
def test_metrics_that_cannot_be_asked_for_are_left_out(odd):
    """A runtime of a plug-in may name a port that it does not have, or use https: its connections are counted."""
    odd_plan = plan(busy_metrics=("x",), **odd)
    [_, ours] = deployment(pod_service(), odd_plan, SETTINGS, WantedPods())["spec"]["template"]["spec"]["containers"]
    assert "--metrics-url" not in ours["args"]


def test_a_port_that_the_service_uses_is_not_taken():
    """No port of a pod is used by two of its containers."""
    _, the_plan = planned("llamacpp", {}, {"containerPort": 21420})
    assert drain_port(the_plan) == 21421


@pytest.mark.parametrize("keyed", [False, True])
def test_without_the_container_the_kubelet_sleeps(keyed):
    """The operator's setting leaves pods ten seconds of sleep instead; with client keys, the key proxy drains."""
    spec = {"apiKeySecretRef": {"name": "keys", "key": "api-key"}} if keyed else {}
    pod = pod_of("llamacpp", {}, spec, SLEEPING)
    hooks = [one["lifecycle"]["preStop"] for one in pod["containers"]]
    assert len(hooks) == 1 + keyed
    assert all(("sleep" in hook) is not keyed for hook in hooks)
    assert hooks[0] == ({"sleep": {"seconds": 10}} if not keyed else hooks[1])


def test_the_container_meets_the_restricted_standard_and_makes_no_pod_ready_before_its_hooks():
    """It needs nothing that a namespace under Pod Security refuses; a ready pod can be asked to drain."""
    service, the_plan = planned("llamacpp", {"hardware": {"accelerator": "cpu"}}, {})
    template = deployment(service, the_plan, SETTINGS, WantedPods())["spec"]["template"]
    assert against_restricted(template) == []
    ours = template["spec"]["containers"][1]
    assert ours["startupProbe"]["tcpSocket"]["port"] == ours["lifecycle"]["preStop"]["httpGet"]["port"]


@pytest.mark.parametrize(
    ("policy", "metrics", "seconds"),
    [
        (None, ("x",), 60),
        ({"waitForIdle": False, "idleTimeoutSeconds": 900}, ("x",), 60),
        ({"waitForIdle": True}, ("x",), 300),
        ({"waitForIdle": True, "idleTimeoutSeconds": 0}, ("x",), 300),
        ({"waitForIdle": True, "idleTimeoutSeconds": 1800}, ("x",), 1800),
        ({"waitForIdle": True, "idleTimeoutSeconds": 5}, ("x",), 60),
        ({"waitForIdle": True, "idleTimeoutSeconds": 1800, "force": True}, ("x",), 1800),
        ({"waitForIdle": True, "idleTimeoutSeconds": 1800}, (), 60),
    ],
)
def test_a_service_that_waits_for_idle_pods_has_them_end_idle(policy, metrics, seconds):
    """The old pod takes requests while the new one loads: they get the same time, and at least 60 seconds."""
    service = pod_service(**({"rolloutPolicy": policy} if policy else {}))
    assert drain_seconds(service, plan(busy_metrics=metrics)) == seconds
    pod = deployment(service, plan(busy_metrics=metrics), SETTINGS, WantedPods())["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds + END_SECONDS


def test_a_hung_engine_is_not_waited_for_as_one_that_has_requests():
    """A kubelet that restarts an engine runs its hook too; it gets half a minute, unless the user sets another time."""
    engine = pod_of("llamacpp", {}, {})["containers"][0]
    assert engine["livenessProbe"]["terminationGracePeriodSeconds"] == END_SECONDS
    override = {"probeOverrides": {"liveness": {"terminationGracePeriodSeconds": 7}}}
    engine = pod_of("llamacpp", {}, override)["containers"][0]
    assert engine["livenessProbe"]["terminationGracePeriodSeconds"] == 7
    assert "terminationGracePeriodSeconds" not in engine["readinessProbe"]  # the API server refuses that one


def test_the_kept_fields_are_the_whole_difference():
    """With the image and the time of running pods a template is theirs; with others it is another one."""
    older = attrs.evolve(SETTINGS, image="example.org/llmkube:older")
    before = deployment(pod_service(), plan(busy_metrics=("x",)), older, WantedPods())
    service = pod_service(rolloutPolicy={"waitForIdle": True})
    same = deployment(service, plan(busy_metrics=("x",)), SETTINGS, WantedPods(), RetainedSettings(older.image, 60))
    other = deployment(service, plan(busy_metrics=("x",)), SETTINGS, WantedPods())
    digests = [one["metadata"]["annotations"][TEMPLATE] for one in (before, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert same["spec"] == before["spec"]
