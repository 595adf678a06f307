"""Manifests equal the golden files, byte for byte; LLMKUBE_GOLDEN=write writes them again, to be read."""

import os
from pathlib import Path

import attrs
import pytest
import yaml

from controller.pod_security import against_baseline
from controller.podobjects import HUB_FILE, SETTINGS, SHA, cluster_model, gpu_plan, plan, pod_service
from controller.render.test_router_objects import router_manifests
from llmkube.controller.render.jobs import fetch_job, inspect_job, prune_job
from llmkube.controller.render.manifests import (
    WantedPods,
    autoscaler,
    deployment,
    disruption_budget,
    group_name,
    kubernetes_service,
    pod_monitor,
)
from llmkube.controller.render.model_sources import claim_path, source_of
from llmkube.controller.render.pod_policy import service_refusals
from llmkube.controller.render.storage import CACHE_CLAIM, Weights, cache_claim, serving_storage
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import PersistentVolumeClaim
from llmkube.runtimes.container.container_plan import ScalingMetric
from llmkube.runtimes.container.group import WORKER_INDEX
from llmkube.runtimes.plan import Placeholder
from llmkube.runtimes.registry import container_plan_for

GOLDEN = Path(__file__).parents[1] / "golden"
PATH = "/models/0123/model.gguf"
TOLERATION = {"key": "gpu", "operator": "Exists"}
TUNED = attrs.evolve(
    SETTINGS,
    image_pull_secrets=("pull",),
    cache_storage_class="fast",
    cache_access_mode="ReadWriteMany",
    hub_endpoint="https://hub.local",
    private_sources=("10.0.0.0/8",),
    ca_config_map="ca",
    priority_class_prefix="llmkube-",
)


def in_pods(service, the_plan, *, model=None, settings=SETTINGS, replicas=1, path=PATH):
    storage = serving_storage(service, model or cluster_model(), path, settings)
    return deployment(service, the_plan, settings, WantedPods(replicas, Weights(storage)))


def with_draft(source, draft):
    """Return a Deployment whose engine gets two files, each from its Model's volume."""
    weights, beside = (
        serving_storage(pod_service(), cluster_model(one), PATH if one == HUB_FILE else mounted(one), SETTINGS)
        for one in (source, draft)
    )
    engine = plan(args=("--model", Placeholder.MODEL, "--model-draft", Placeholder.DRAFT))
    return deployment(pod_service(), engine, SETTINGS, WantedPods(weights=Weights(weights, beside)))


def mounted(source):
    return f"/model-source/{claim_path(source_of(cluster_model(source).spec))[1]}"


def shared_claim():
    tag = {"name": CACHE_CLAIM, "namespace": "ml", "uid": "c-1"}
    return decode(PersistentVolumeClaim, {"metadata": tag})


EVERYTHING = {
    "podLabels": {"team": "ml", "app": "not-this"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "mine"}],
    "podSecurityContext": {"runAsUser": 1000},
    "securityContext": {"privileged": True},
    "extraVolumes": [{"name": "lora", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "lora", "mountPath": "/lora"}],
    "revisionHistoryLimit": 2,
    "priority": "critical",
    "endpoint": {"port": 9000, "type": "NodePort", "nodePort": 30080},
}


def on_nodes(group, **spec):
    hardware = {"accelerator": "cuda", "gpu": {"enabled": True, "count": 8}}
    service = pod_service(runtime="vllm", multiNode=group, **spec)
    its_plan = container_plan_for(service, cluster_model("org/big", format="safetensors", hardware=hardware))
    return deployment(service, its_plan, SETTINGS, WantedPods())


MANIFESTS = {
    "claim": lambda: cache_claim("ml", SETTINGS),
    "claim-tuned": lambda: cache_claim("ml", TUNED),
    "job": lambda: fetch_job(cluster_model(), SETTINGS),
    "job-inspect": lambda: inspect_job(cluster_model("pvc://c/a/b.gguf"), "/model-source/a/b.gguf", ["chat"], SETTINGS),
    "job-prune": lambda: prune_job(shared_claim(), ["0123456789abcdef", "fedcba9876543210"], SETTINGS),
    "job-everything": lambda: fetch_job(
        cluster_model(
            "org/repo@v1",
            files=["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"],
            mmproj="mmproj.gguf",
            sha256=SHA.upper(),
            sourceSecretRef={"name": "hub"},
            prefetch=True,
            prefetchTolerations=[TOLERATION],
        ),
        TUNED,
    ),
    "deployment": lambda: in_pods(pod_service(), plan()),
    "deployment-gpu": lambda: in_pods(pod_service(replicas=2), gpu_plan(2), replicas=2),
    "deployment-everything": lambda: in_pods(
        pod_service(**EVERYTHING), gpu_plan(shared_memory=True), settings=TUNED, replicas=1
    ),
    "deployment-claim": lambda: in_pods(
        pod_service(), plan(), model=cluster_model("pvc://w/a/b.gguf"), path="/model-source/a/b.gguf"
    ),
    "deployment-node": lambda: in_pods(
        pod_service(), plan(), model=cluster_model("/data/m.gguf"), path="/model-source/m.gguf"
    ),
    "deployment-ephemeral": lambda: in_pods(
        pod_service(modelCache={"persistence": "Ephemeral"}, resources={"ephemeralStorage": "20Gi"}), plan()
    ),
    "deployment-own-claim": lambda: in_pods(pod_service(modelCache={"claimName": "mine"}), plan(), settings=TUNED),
    "deployment-draft-elsewhere": lambda: with_draft("pvc://w/a/b.gguf", "pvc://d/c/small.gguf"),
    "deployment-by-the-engine": lambda: deployment(pod_service(), plan(args=("serve",)), SETTINGS, WantedPods()),
    "group": lambda: on_nodes({"members": [{"node": "gpu-1"}, {"node": "gpu-2"}, {"node": "gpu-3"}]}),
    "group-fabric": lambda: on_nodes(
        {
            "members": [
                {
                    "node": "spark-1",
                    "fabric": {"address": "192.168.100.1", "socketInterface": "enp1", "ibHCA": "mlx5_0"},
                },
                {
                    "node": "spark-2",
                    "fabric": {"address": "192.168.100.2", "socketInterface": "enp2", "ibHCA": "mlx5_1"},
                },
            ],
            "rdmaResource": "rdma/hca",
            "ibGIDIndex": 3,
            "rendezvousPort": 29600,
        },
        apiKeySecretRef={"name": "keys"},
    ),
    "service": lambda: kubernetes_service(pod_service(), plan(port=8000)),
    "service-node-port": lambda: kubernetes_service(pod_service(**EVERYTHING), plan()),
    "service-odd-name": lambda: kubernetes_service(pod_service("9.chat"), plan()),
    "autoscaler": lambda: autoscaler(pod_service(autoscaling={"maxReplicas": 4}), plan()),
    "autoscaler-metrics": lambda: autoscaler(
        pod_service(
            autoscaling={
                "minReplicas": 2,
                "maxReplicas": 4,
                "metrics": [
                    {"type": "Pods", "name": "queue", "targetAverageValue": "5"},
                    {"type": "Resource", "name": "cpu", "targetAverageUtilization": 80},
                    {"type": "Resource", "name": "memory", "targetAverageValue": "8Gi"},
                ],
            }
        ),
        plan(),
    ),
    "budget": lambda: disruption_budget(pod_service(replicas=2), plan(), starting=False),
    "budget-protected": lambda: disruption_budget(
        pod_service(disruption={"protectAlways": True}), plan(), starting=False
    ),
    "monitor": lambda: pod_monitor(pod_service(), plan(metrics_port_name="http"), {}),
    "router-config": lambda: router_manifests().config,
    "router-deployment": lambda: router_manifests().deployment,
    "router-service": lambda: router_manifests().kubernetes_service,
    "router-network": lambda: router_manifests().network,
    "router-budget": lambda: router_manifests().budget,
    "monitor-renamed": lambda: pod_monitor(
        pod_service(),
        plan(metrics_port_name="metrics", hpa_metric=ScalingMetric("tgi:queue_size", exported_as="tgi_queue_size")),
        {},
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_equals_its_golden_file(name):
    """Rendered twice it is the same, and the same as in the golden file."""
    rendered = yaml.safe_dump(MANIFESTS[name](), sort_keys=False, width=120)
    assert yaml.safe_dump(MANIFESTS[name](), sort_keys=False, width=120) == rendered
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("LLMKUBE_GOLDEN") == "write":
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


def test_every_golden_file_has_its_manifest():
    """No file is left over from a manifest that is not rendered any more."""
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(MANIFESTS)


@pytest.mark.parametrize(
    ("source", "draft", "volumes", "paths"),
    [
        ("pvc://w/a.gguf", "pvc://w/b.gguf", 1, ["/model-source/a.gguf", "/model-source/b.gguf"]),
        ("pvc://w/a.gguf", "pvc://d/a.gguf", 2, ["/model-source/a.gguf", "/draft-source/a.gguf"]),
        (HUB_FILE, "pvc://d/a.gguf", 2, [PATH, "/model-source/a.gguf"]),
    ],
)
def test_a_draft_is_where_its_own_volume_is(source, draft, volumes, paths):
    """No two volumes have one name or one path, and the engine gets the path of each file."""
    pod = with_draft(source, draft)["spec"]["template"]["spec"]
    [container, _] = pod["containers"]
    assert len({one["name"] for one in pod["volumes"]}) == len(pod["volumes"]) == volumes
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert len(mounts) == len(container["volumeMounts"]) == volumes
    assert [container["args"][1], container["args"][3]] == paths


@pytest.mark.parametrize(
    ("spec", "starting", "most"),
    [
        ({}, True, 0),
        ({}, False, None),
        ({"replicas": 2}, True, 0),
        ({"replicas": 2}, False, 1),
        ({"disruption": {}}, True, 0),
        ({"disruption": {}}, False, None),
        ({"disruption": {}, "replicas": 3}, False, 1),
        ({"disruption": {"protectAlways": True}}, False, 0),
        ({"disruption": {"protectStartup": False}}, True, None),
        ({"autoscaling": {"maxReplicas": 2}}, False, 1),
    ],
)
def test_disruption_is_bounded_where_that_helps(spec, starting, most):
    """Loading or always protected pods may not be evicted; of several loaded ones one at a time; a single one may."""
    budget = disruption_budget(pod_service(**spec), plan(), starting=starting)
    assert (budget["spec"]["maxUnavailable"] if budget else None) == most


@pytest.mark.parametrize("spec", [{}, {"autoscaling": {"maxReplicas": 2}, "suspend": True},
                                  {"autoscaling": {"maxReplicas": 2}, "replicas": 0}])  # fmt: skip
def test_a_stopped_service_is_not_scaled(spec):
    """No autoscaler without one in the spec, and none that would start a stopped service."""
    assert autoscaler(pod_service(**spec), plan()) is None


MODEL = cluster_model(
    "org/big", format="safetensors", hardware={"accelerator": "cuda", "gpu": {"enabled": True, "count": 1}}
)
PAIR = {"members": [{"node": "spark-1"}, {"node": "spark-2"}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def rendered(group=PAIR, **spec):
    service = pod_service(runtime="vllm", multiNode=group, **spec)
    return deployment(service, container_plan_for(service, MODEL), SETTINGS, WantedPods())


def templates(manifest):
    group = manifest["spec"]["leaderWorkerTemplate"]
    return group["leaderTemplate"], group["workerTemplate"]


def nodes(template):
    terms = template["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return [value for term in terms for field in term["matchFields"] for value in field["values"]]


def test_it_is_one_group_with_a_pod_on_each_node():
    """Kind, size, restart of the whole group, the leader on the first node, all others on the others, none on two."""
    manifest = rendered()
    assert (manifest["apiVersion"], manifest["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert manifest["metadata"]["name"] == "chat-group"
    group = manifest["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = templates(manifest)
    assert (nodes(leader), nodes(worker)) == (["spark-1"], ["spark-2"])
    [apart] = worker["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= leader["metadata"]["labels"].items()
    for template in (leader, worker):
        assert against_baseline(template) == []
        assert template["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_only_the_first_pod_gets_requests():
    """Workers have no port, no probe and no other container; the Service selects the first pod of a group."""
    leader, worker = templates(rendered(apiKeySecretRef={"name": "keys"}))
    assert len(leader["spec"]["containers"]) > 1
    [engine] = worker["spec"]["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"} & engine.keys()
    assert "--headless" in engine["args"]
    assert "--headless" not in leader["spec"]["containers"][0]["args"]
    service = pod_service(runtime="vllm", multiNode=PAIR)
    selector = kubernetes_service(service, container_plan_for(service, MODEL))["spec"]["selector"]
    assert selector == {"app": "chat", "inference.llmkube.dev/service": "chat", WORKER_INDEX: "0"}


def test_a_fabric_takes_the_node_s_network_and_the_operator_has_to_allow_it():
    """Interfaces of a node are in no pod's own network; unless allowed, the service is refused by the field."""
    fabric = {
        "members": [{"node": "a", "fabric": {"socketInterface": "enp1"}}, {"node": "b"}],
        "rdmaResource": "rdma/hca",
    }
    for template in templates(rendered(fabric)):
        assert template["spec"]["hostNetwork"]
        assert template["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert template["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] == "1"
    assert "hostNetwork" not in templates(rendered())[0]["spec"]
    [refusal] = service_refusals(pod_service(runtime="vllm", multiNode=fabric).spec, SETTINGS)
    assert (refusal.field, refusal.value) == ("spec.multiNode.members[0].fabric", "hostNamespaces")


@pytest.mark.parametrize("name", ["chat", "a.b", "1st", "a" * 63, "a" * 250])
def test_its_name_is_no_service_s_and_short_enough(name):
    """It makes a headless Service of its own name, and appends to it for its pods."""
    assert group_name(name) != name
    assert len(group_name(name)) <= 45
    assert group_name(name)[0].isalpha()
    assert group_name("a" * 60 + "b") != group_name("a" * 60 + "c")
