"""A LeaderWorkerSet of ours runs one pod on each named node, and only its first pod is asked anything."""

import pytest

from controller.pod_security import against_baseline
from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.render.manifests import deployment, group_name, kubernetes_service
from llmkube.controller.render.pod_policy import service_refusals
from llmkube.runtimes.container.group import WORKER_INDEX
from llmkube.runtimes.registry import container_plan_for

MODEL = cluster_model(
    "org/big", format="safetensors", hardware={"accelerator": "cuda", "gpu": {"enabled": True, "count": 1}}
)
PAIR = {"members": [{"node": "spark-1"}, {"node": "spark-2"}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def rendered(group=PAIR, **spec):
    service = pod_service(runtime="vllm", multiNode=group, **spec)
    return deployment(service, container_plan_for(service, MODEL), SETTINGS, replicas=1)


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


def test_only_the_first_pod_is_asked():
    """Workers have no port, no probe and nothing beside them; the Service selects the first pod of a group."""
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
    """Interfaces of a node are in no pod's own network; without leave the service is refused by the field."""
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
def test_its_name_is_no_service_s_and_leaves_room(name):
    """It makes a headless Service of its own name, and appends to it for its pods."""
    assert group_name(name) != name
    assert len(group_name(name)) <= 45
    assert group_name(name)[0].isalpha()
    assert group_name("a" * 60 + "b") != group_name("a" * 60 + "c")
