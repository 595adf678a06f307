"""Every runtime makes a pod, and each pod has as few privileges as it can."""

import attrs
import pytest

from controller.pod_security import against_baseline, against_restricted
from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.jobs import fetch_job, inspect_job, prune_job
from llmkube.controller.render.manifests import WantedPods, deployment, kubernetes_service
from llmkube.controller.render.storage import Storage, Weights, serving_storage
from llmkube.controller.status.supply import Usage, choose_supply, without_effect
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import PersistentVolumeClaim
from llmkube.runtimes.registry import container_plan_for

PATH = "/models/0123/model.gguf"


def planned(service, model):
    return container_plan_for(service, model, rendered=RENDERED)


@pytest.mark.parametrize(
    ("runtime", "model", "spec"),
    [
        ("llamacpp", {"hardware": {"accelerator": "cpu"}}, {}),
        ("llamacpp", {}, {"resources": {"gpu": 2}, "contextSize": 8192, "flashAttention": True}),
        ("vllm", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("tgi", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("sglang", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        (
            "generic",
            {"hardware": {"accelerator": "cpu"}},
            {"image": "example.org/x", "args": ["--port", "8080"], "containerPort": 8080},
        ),
    ],
)
def test_every_runtime_makes_a_pod(runtime, model, spec):
    """A container with an image, a port named http, three probes, and a Service that points at that name."""
    the_model, service = cluster_model(**model), pod_service(runtime=runtime, **spec)
    the_plan = planned(service, the_model)
    storage = serving_storage(service, the_model, PATH, SETTINGS) if the_plan.uses_weights else Storage()
    template = deployment(service, the_plan, SETTINGS, WantedPods(weights=Weights(storage)))["spec"]["template"]
    [container, _] = template["spec"]["containers"]
    assert container["image"]
    assert container["ports"][0] == {"name": "http", "containerPort": the_plan.port, "protocol": "TCP"}
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert kubernetes_service(service, the_plan)["spec"]["ports"][0]["targetPort"] == "http"
    supply = choose_supply(the_model, [Usage(engine_fetches=not the_plan.needs_model_init)], SETTINGS)
    assert not without_effect(the_model, supply, the_plan.not_honoured)


# -- Pod Security -----------------------------------------------------------------------------------------------------

CPU = {"hardware": {"accelerator": "cpu"}}
AMD = {"hardware": {"accelerator": "rocm"}}
REPOSITORY = {"source": "org/repo", "format": "safetensors"}
OPENSHIFT = attrs.evolve(SETTINGS, fs_group=None)


def template_of(model, spec, settings=SETTINGS):
    the_model, service = cluster_model(**model), pod_service(**spec)
    the_plan = planned(service, the_model)
    storage = serving_storage(service, the_model, PATH, settings) if the_plan.uses_weights else Storage()
    return deployment(service, the_plan, settings, WantedPods(weights=Weights(storage)))["spec"]["template"]


@pytest.mark.parametrize(
    ("model", "spec", "settings"),
    [
        (CPU, {}, SETTINGS),
        (CPU, {}, OPENSHIFT),
        (CPU, {"runtime": "llamacpp-router"}, SETTINGS),
        (CPU, {"modelCache": {"persistence": "Ephemeral"}}, SETTINGS),
        ({}, {"resources": {"gpu": 1}}, SETTINGS),
        (CPU, {"apiKeySecretRef": {"name": "chat-keys"}}, SETTINGS),
        (CPU, {"apiKeySecretRef": {"name": "chat-keys"}}, OPENSHIFT),
        (CPU, {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}, SETTINGS),
        (REPOSITORY, {"runtime": "vllm", "podSecurityContext": {"runAsUser": 2000, "runAsNonRoot": True}}, SETTINGS),
        (CPU, {"image": "mine", "securityContext": {"runAsNonRoot": True, "capabilities": {"add": []}}}, SETTINGS),
        (CPU, {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}, SETTINGS),
    ],
)
def test_llama_cpp_s_own_image_and_one_with_a_user_meet_the_restricted_standard(model, spec, settings):
    """Fields that a user omits from a security context stay ours, so that naming a user is enough for any image."""
    assert against_restricted(template_of(model, spec, settings)) == []


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (REPOSITORY, {"runtime": "vllm"}),
        (REPOSITORY, {"runtime": "sglang"}),
        ({}, {"runtime": "ollama"}),
        (CPU, {"image": "mine"}),
        (CPU, {"command": ["/bin/sh", "-c", "apt-get update"]}),
        (AMD, {"resources": {"gpu": 1}}),
        (CPU, {"podSecurityContext": {"runAsNonRoot": False}}),
    ],
)
def test_other_images_keep_their_own_user(model, spec):
    """They meet "baseline", and lack nothing of "restricted" but a user; their root filesystem is writable."""
    template = template_of(model, spec)
    assert against_baseline(template) == []
    assert set(against_restricted(template)) == {"runAsNonRoot"}
    context = template["spec"]["containers"][0]["securityContext"]
    assert bool(context.get("readOnlyRootFilesystem")) is (spec.get("podSecurityContext") is not None)
    assert "runAsUser" not in template["spec"]["securityContext"]


def test_an_engine_without_a_name_has_a_folder_to_write_to():
    """With a read-only root, /tmp is a volume and the home of the user; a volume of the service's own there is kept."""
    pod = template_of(CPU, {})["spec"]
    [container, _] = pod["containers"]
    assert {"name": "HOME", "value": "/tmp"} in container["env"]
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/models", "/tmp"]
    assert {"name": "engine-scratch", "emptyDir": {}} in pod["volumes"]
    mine = {"extraVolumes": [{"name": "mine", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "mine", "mountPath": "/tmp/"}],
            "env": [{"name": "HOME", "value": "/models"}]}  # fmt: skip
    pod = template_of(CPU, mine)["spec"]
    [container, _] = pod["containers"]
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/models", "/tmp/"]
    assert [one["value"] for one in container["env"] if one["name"] == "HOME"] == ["/models"]


@pytest.mark.parametrize(
    ("context", "more"),
    [
        ({"privileged": True}, {}),
        ({"capabilities": {"add": ["CAP_SYS_ADMIN"]}}, {}),
        ({"capabilities": {"add": ["SYS_PTRACE"]}}, {"allowPrivilegeEscalation": False}),
        ({"readOnlyRootFilesystem": False}, {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}),
    ],
)
def test_a_contradiction_of_a_given_security_context_is_left_out(context, more):
    """The API server refuses a container that is privileged, or may mount, and may gain no privileges."""
    [container, _] = template_of({**CPU}, {"image": "mine", "securityContext": context})["spec"]["containers"]
    given = dict(context)
    if more.get("allowPrivilegeEscalation") is False and "capabilities" in given:
        given["capabilities"] = {"drop": ["ALL"], **given["capabilities"]}
    assert container["securityContext"] == {**more, **given}


def test_the_jobs_meet_the_restricted_standard():
    """Those that fetch, read a header on a claim and remove folders; one that reads a node's folder cannot."""
    mounted = cluster_model("pvc://c/a/b.gguf")
    claim = decode(PersistentVolumeClaim, {"metadata": {"name": "c", "namespace": "ml", "uid": "c-1"}})
    jobs = [
        fetch_job(cluster_model(), SETTINGS),
        fetch_job(cluster_model(sourceSecretRef={"name": "s"}), attrs.evolve(OPENSHIFT, ca_config_map="ca")),
        inspect_job(mounted, "/model-source/a/b.gguf", ["chat"], SETTINGS),
        prune_job(claim, ["0123"], SETTINGS),
    ]
    for job in jobs:
        template = job["spec"]["template"]
        assert against_restricted(template) == []
        assert template["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    node = inspect_job(cluster_model("/data/m.gguf"), "/model-source/m.gguf", ["chat"], SETTINGS)
    assert set(against_restricted(node["spec"]["template"])) == {"hostPath", "volumes"}


def test_a_pod_that_fetches_gets_the_proxies():
    """After HOME, and without expansion of the kubelet's references."""
    proxies = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "$(HOME)"}
    job = fetch_job(cluster_model(), attrs.evolve(SETTINGS, proxies=proxies))
    variables = {each["name"]: each["value"] for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {name: variables[name] for name in proxies} == proxies | {"NO_PROXY": "$$(HOME)"}
