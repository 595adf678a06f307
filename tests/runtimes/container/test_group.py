"""The processes of a group over several nodes get leader, size and fabric; unsupported fields are refused by name."""

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.group import RANK
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import check, container_plan_for

TAG = {"name": "big", "namespace": "ml"}
PAIR = [{"node": "spark-1"}, {"node": "spark-2"}]
THREE = [*PAIR, {"node": "spark-3"}]


def model(**spec):
    hardware = {"accelerator": "cuda", "gpu": {"enabled": True, "count": 4}}
    body = {"source": "org/big", "format": "safetensors", "hardware": hardware, **spec}
    return decode(Model, {"metadata": {**TAG, "name": "m"}, "spec": body})


def service(members=PAIR, *, group=None, **spec):
    body = {"modelRef": "m", "runtime": "vllm", "multiNode": {"members": members, **(group or {})}, **spec}
    return decode(InferenceService, {"metadata": TAG, "spec": body})


def planned(*args, **kwargs):
    return container_plan_for(service(*args, **kwargs), model(), rendered=("spec.multiNode",))


def value(args, flag):
    return args[args.index(flag) + 1]


def test_all_processes_have_the_same_model_and_leader():
    """`vllm serve` with one shape for all; only the first listens for clients, and LLMKube sets no rank."""
    plan = planned()
    assert plan.command == ("vllm", "serve")
    assert plan.args[0] == "org/big"
    assert (value(plan.args, "--tensor-parallel-size"), value(plan.args, "--pipeline-parallel-size")) == ("4", "2")
    group = plan.group
    assert group.size == 2
    for words in (group.leader, group.workers):
        assert value(words, "--nnodes") == "2"
        assert value(words, "--master-addr") == "$(LWS_LEADER_ADDRESS)"
        assert value(words, "--node-rank") == f"$({RANK})"
    assert "--headless" in group.workers
    assert "--headless" not in group.leader
    for env in (group.leader_env, group.worker_env):
        [rank] = [one for one in env if one.name == RANK]
        assert "worker-index" in rank.value_from["fieldRef"]["fieldPath"]
    assert plan.not_honoured == ()


def test_one_node_is_served_as_before():
    """Without the field the plan has no group."""
    alone = decode(InferenceService, {"metadata": TAG, "spec": {"modelRef": "m", "runtime": "vllm"}})
    plan = container_plan_for(alone, model())
    assert plan.group is None
    assert plan.args[:2] == ("--model", "org/big")
    assert "--nnodes" not in plan.args


def test_the_fabric_reaches_its_libraries():
    """Addresses, interfaces and devices reach NCCL, Gloo and vLLM of their own member; $ is no variable."""
    fabrics = [
        {"address": "192.168.100.1", "socketInterface": "enp1$(X)", "ibHCA": "mlx5_0"},
        {"address": "192.168.100.2"},
    ]
    members = [{**member, "fabric": fabric} for member, fabric in zip(PAIR, fabrics, strict=True)]
    plan = planned(members, group={"ibGIDIndex": 3, "rendezvousPort": 29600})
    first = {one.name: one.value for one in plan.group.leader_env}
    second = {one.name: one.value for one in plan.group.worker_env}
    assert first["NCCL_SOCKET_IFNAME"] == first["GLOO_SOCKET_IFNAME"] == "enp1$$(X)"
    assert (first["NCCL_IB_HCA"], first["NCCL_IB_GID_INDEX"]) == ("mlx5_0", "3")
    assert (first["VLLM_HOST_IP"], second["VLLM_HOST_IP"]) == ("192.168.100.1", "192.168.100.2")
    assert value(plan.group.workers, "--master-addr") == "192.168.100.1"
    assert value(plan.group.leader, "--master-port") == "29600"
    own = planned(members, env=[{"name": "NCCL_IB_HCA", "value": "mine"}])
    assert "NCCL_IB_HCA" not in {one.name for one in own.group.leader_env}


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"tensorParallelSize": 8}, ("8", "1")),
        ({"pipelineParallelSize": 4}, ("2", "4")),
        ({"tensorParallelSize": 2, "pipelineParallelSize": 4}, ("2", "4")),
    ],
)
def test_all_gpus_of_all_nodes_are_used(config, sizes):
    """If one of the two sizes is given, the other one is the rest."""
    args = planned(vllmConfig=config).args
    assert (value(args, "--tensor-parallel-size"), value(args, "--pipeline-parallel-size")) == sizes


@pytest.mark.parametrize(
    ("members", "spec", "field", "words"),
    [
        ([{"node": "a"}], {}, "spec.multiNode.members", "nodeSelector"),
        ([{"node": "a"}, {"node": "a"}], {}, "spec.multiNode.members[1]", "names a twice"),
        (PAIR, {"replicas": 2}, "spec.replicas", "is 2"),
        (PAIR, {"autoscaling": {"maxReplicas": 2}}, "spec.autoscaling", "remove it"),
        (PAIR, {"affinity": {"nodeAffinity": {"x": 1}}}, "spec.affinity.nodeAffinity", "name the nodes"),
        (PAIR, {"vllmConfig": {"tensorParallelSize": 3}}, "spec.vllmConfig.tensorParallelSize", "have 8"),
        ([*PAIR[:1], {"node": "b", "modelCache": {"claimName": "c"}}], {},
         "spec.multiNode.members[1].modelCache.claimName", "spec.modelCache.claimName"),
        ([*THREE[:2], {"node": "c", "fabric": {"socketInterface": "eth9"}}], {},
         "spec.multiNode.members[2].fabric.socketInterface", "eth9"),
        ([*THREE[:2], {"node": "c", "fabric": {"ibHCA": "mlx5_9"}}], {},
         "spec.multiNode.members[2].fabric.ibHCA", "mlx5_9"),
        ([*THREE[:2], {"node": "c", "fabric": {"address": "10.0.0.3"}}], {},
         "spec.multiNode.members[2].fabric.address", "socketInterface"),
    ],
)  # fmt: skip
def test_a_field_that_no_group_supports_is_refused_by_its_path(members, spec, field, words):
    """The error has the field, its value, and the value to write."""
    with pytest.raises(PlanError) as caught:
        planned(members, **spec)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_group_without_gpus_is_refused():
    """Without a number of GPUs there is no shape."""
    bare = model(hardware={"accelerator": "cuda"})
    with pytest.raises(PlanError, match="needs a GPU on each node"):
        container_plan_for(service(), bare)


@pytest.mark.parametrize("runtime", ["llamacpp", "llama-server", "sglang", "tgi", "ollama", "triton", "generic"])
def test_other_runtimes_refuse_it(runtime):
    """Each by its name, with the one that supports it."""
    weights = {"format": "gguf"} if runtime in ("llamacpp", "llama-server", "ollama") else {}
    with pytest.raises(PlanError) as caught:
        container_plan_for(service(runtime=runtime, image="x"), model(**weights))
    assert caught.value.field == "spec.multiNode"
    assert "spec.runtime to vllm" in str(caught.value)


def test_a_host_refuses_it():
    """Before anything is fetched."""
    on_metal = model(source="builtin://demo", format="gguf", hardware={"accelerator": "metal"})
    with pytest.raises(PlanError) as caught:
        check(service(runtime="llamacpp"), on_metal)
    assert caught.value.field == "spec.multiNode"
    assert "a model cannot span several machines here" in str(caught.value)
