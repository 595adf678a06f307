import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec
from llmkube.k8s.crd.placement import Sharding
from llmkube.runtimes.container.container_plan import Resources
from llmkube.runtimes.container.gpu import (
    check_parallel,
    parse_gpu_resources,
    resources_of,
    split_mode,
    stack_of,
    tensor_split,
    vendor_of,
)
from llmkube.runtimes.plan import PlanError


def model(accelerator="cuda", resources=None, budget=None, **gpu):
    hardware = {"accelerator": accelerator, "gpu": gpu, **({"memoryBudget": budget} if budget else {})}
    return decode(ModelSpec, {"source": "/m", "hardware": hardware, "resources": resources or {}})


def service(**resources):
    return decode(InferenceServiceSpec, {"modelRef": "m", "resources": resources})


def asked(of, **resources):
    return resources_of(service(**resources), of)[0]


@pytest.mark.parametrize(
    ("of", "vendor", "stack", "name"),
    [
        (model("cuda"), "nvidia", "cuda", "nvidia.com/gpu"),
        (model("cpu"), "nvidia", "cuda", "nvidia.com/gpu"),
        (model("cpu", vendor="amd"), "amd", "rocm", "amd.com/gpu"),
        (model("rocm"), "amd", "rocm", "amd.com/gpu"),
        (model("rocm", vendor="amd", runtime="vulkan"), "amd", "vulkan", "amd.com/gpu"),
        (model("vulkan", vendor="amd"), "amd", "vulkan", "amd.com/gpu"),
        (model("vulkan"), "nvidia", "vulkan", "nvidia.com/gpu"),
        (model("intel"), "intel", "intel", "gpu.intel.com/i915"),
        (model("intel", resourceName="gpu.intel.com/xe"), "intel", "intel", "gpu.intel.com/xe"),
        (model("rocm", vendor="amd", resourceName="devic.es/dri-render"), "amd", "rocm", "devic.es/dri-render"),
    ],
)
def test_each_vendor_has_its_resource(of, vendor, stack, name):
    """The accelerator implies the vendor, the vendor the resource, and the user's own name has priority."""
    resources = asked(of, gpu=1)
    assert (vendor_of(of), stack_of(of), resources.gpu_resource) == (vendor, stack, name)
    assert (resources.toleration_keys, resources.limits) == ((name,), ((name, "1"),))


def test_an_accelerator_and_a_vendor_that_contradict_each_other_are_refused():
    """CUDA on an AMD GPU is refused with the field, and never rendered."""
    with pytest.raises(PlanError, match="amd does not match accelerator cuda; write nvidia") as refused:
        asked(model("cuda", vendor="amd"), gpu=1)
    assert refused.value.field == "Model.spec.hardware.gpu.vendor"


@pytest.mark.parametrize(("count", "gpu", "total"), [(None, 2, 2), (0, 2, 2), (4, 2, 4), (1, 0, 1), (None, 0, 0)])
def test_a_models_own_count_wins_where_it_is_not_nothing(count, gpu, total):
    """The Model's count is used if it is above 0, else the service's."""
    of = model(count=count) if count is not None else model()
    assert asked(of, gpu=gpu).gpu_count == total


@pytest.mark.parametrize(
    ("resources", "of", "requests", "limits"),
    [
        ({}, model(resources={"cpu": "1", "memory": "8Gi"}), {"cpu": "1", "memory": "8Gi"}, {}),
        ({"cpu": "2"}, model(resources={"cpu": "1", "memory": "8Gi"}), {"cpu": "2", "memory": "8Gi"}, {}),
        ({"memory": "4Gi", "hostMemory": "64Gi"}, model(), {"memory": "64Gi"}, {}),
        ({"ephemeralStorage": "9Gi"}, model(), {"ephemeral-storage": "9Gi"}, {"ephemeral-storage": "9Gi"}),
        ({"memory": "8Gi"}, model(budget="24Gi"), {"memory": "8Gi"}, {"memory": "24Gi"}),
    ],
)
def test_amounts_come_from_the_service_then_from_the_model(resources, of, requests, limits):
    """Each amount has one source; host memory is for a model that is partly on the CPU; a budget is a limit."""
    found = asked(of, **resources)
    assert (dict(found.requests), dict(found.limits)) == (requests, limits)


def test_memory_that_hostMemory_wins_over_is_not_called_honoured():  # noqa: N802  # the field's name
    """Of the two memory requests the one without an effect is reported."""
    _, honoured = resources_of(service(memory="4Gi", hostMemory="64Gi"), model())
    assert "spec.resources.hostMemory" in honoured
    assert "spec.resources.memory" not in honoured


def test_a_request_above_the_models_budget_is_refused():
    """Kubernetes would refuse the pod; the message names the field and both amounts."""
    with pytest.raises(PlanError, match="32Gi is more than the Model's memoryBudget of 24Gi") as refused:
        asked(model(budget="24Gi"), memory="32Gi")
    assert refused.value.field == "spec.resources.memory"


def test_a_partition_has_its_own_resource_and_may_run_where_whole_gpus_do():
    """A MIG profile is a resource name; one replica has one; its node has its taint, or that of any GPU."""
    partition = {"mode": "partitioned", "profile": "1g.24gb"}
    found = asked(model(), gpuSharing=partition)
    assert (found.gpu_count, found.gpu_resource) == (1, "nvidia.com/mig-1g.24gb")
    assert found.toleration_keys == ("nvidia.com/mig-1g.24gb", "nvidia.com/gpu")
    assert asked(model(tolerationKey="example.com/mig"), gpuSharing=partition).toleration_keys == ("example.com/mig",)


def test_a_shared_gpu_is_one_gpu_among_those_set_aside():
    """Sharing changes the node of the pod, not its request."""
    found = asked(model(tolerationKey="example.com/shared"), gpuSharing={"mode": "shared"})
    assert (found.gpu_count, found.gpu_resource, found.shared) == (1, "nvidia.com/gpu", True)
    assert found.toleration_keys == ("example.com/shared",)


CLAIM = {"name": "gpu", "resourceClaimName": "c"}


@pytest.mark.parametrize(
    ("of", "sharing", "field"),
    [
        (model(count=2), {"mode": "shared"}, "Model.spec.hardware.gpu.count"),
        (model("rocm"), {"mode": "partitioned", "profile": "1g.5gb"}, "spec.resources.gpuSharing.mode"),
        (model(resourceName="a.b/c"), {"mode": "partitioned", "profile": "1g.5gb"},
         "Model.spec.hardware.gpu.resourceName"),
        (model(), {"mode": "partitioned", "profile": "big"}, "spec.resources.gpuSharing.profile"),
        (model(resourceClaims=[CLAIM]), {"mode": "shared"}, "spec.resources.gpuSharing.mode"),
    ],
)  # fmt: skip
def test_impossible_sharing_is_refused_by_name(of, sharing, field):
    """A request that a device plugin can never grant is refused before a pod waits for it."""
    with pytest.raises(PlanError) as refused:
        asked(of, gpuSharing=sharing)
    assert refused.value.field == field


def test_a_claim_requests_no_extended_resource():
    """The claim provides the device; the engine knows that it has a GPU, and the number only from the Model."""
    found = asked(model(resourceClaims=[CLAIM]))
    assert (found.on_gpu, found.gpu_count, found.limits, found.toleration_keys) == (True, 0, (), ())
    assert [dict(claim) for claim in found.claims] == [CLAIM]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("layer", "layer"), ("pipeline", "layer"), ("tensor", "row"), ("row", "row"), ("none", "none")],
)
def test_each_strategy_is_a_split_mode(strategy, mode):
    """Each strategy of the Model is one of llama.cpp's three modes."""
    assert split_mode(Sharding(strategy=strategy)) == mode


@pytest.mark.parametrize(
    ("ranges", "count", "split"),
    [
        ((), 3, "1,1,1"),
        (("0-24", "25-39"), 2, "5,3"),
        (("0-9", "10-19"), 2, "1,1"),
        (("0-0", "1-6", "7-7"), 3, "1,6,1"),
        ((" 0 - 3", "4-5 "), 2, "2,1"),
    ],
)
def test_layer_ranges_become_proportions(ranges, count, split):
    """llama.cpp gets the ratio of the layers in its smallest numbers."""
    assert tensor_split(Sharding(layer_split=ranges), count) == split


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (("0-9",), "1 ranges for 2 GPUs"),
        (("1-9", "10-19"), "from layer 0,"),
        (("0-9", "11-19"), "from layer 10,"),
        (("0-9", "9-19"), "from layer 10,"),
        (("9-0", "10-19"), "from layer 0,"),
        (("a-b", "1-2"), "from layer 0,"),
        (("0-999999999999", "1-2"), "from layer 0,"),
    ],
)
def test_ranges_that_leave_layers_out_are_refused(ranges, message):
    """An invalid split is never silently replaced by equal shares."""
    with pytest.raises(PlanError, match=message) as refused:
        tensor_split(Sharding(layer_split=ranges), 2)
    assert refused.value.field == "Model.spec.hardware.gpu.sharding.layerSplit"


@pytest.mark.parametrize(("wanted", "count", "fits"), [(2, 2, True), (3, 2, False), (3, 0, True), (1, 1, True)])
def test_an_engine_wants_no_more_gpus_than_there_are(wanted, count, fits):
    """A larger number is refused if the number is known; with a claim it is not."""
    if fits:
        check_parallel(wanted, Resources(gpu_count=count), "spec.x")
    else:
        with pytest.raises(PlanError, match=r"spec\.x: needs 3 GPUs, but a replica has 2"):
            check_parallel(wanted, Resources(gpu_count=count), "spec.x")


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ({"vendor": "amd", "runtime": "vulkan"}, "devic.es/dri-render"),
        ({"vendor": "amd"}, "amd.com/gpu"),
        ({"vendor": "intel"}, "gpu.intel.com/xe"),
        ({"vendor": "amd", "runtime": "vulkan", "resourceName": "x.com/y"}, "x.com/y"),
    ],
)
def test_a_cluster_may_rename_gpu_resources(gpu, name):
    """By vendor, or by vendor and stack; the Model's own name has priority."""
    names = parse_gpu_resources({"amd-vulkan": "devic.es/dri-render", "intel": "gpu.intel.com/xe"})
    spec = model({"amd": "rocm", "intel": "intel"}[gpu["vendor"]], count=1, **gpu)
    assert resources_of(service(), spec, names)[0].gpu_resource == name


@pytest.mark.parametrize("given", [{"nvdia": "a.b/c"}, {"amd": "gpu"}])
def test_an_invalid_gpu_resource_is_refused(given):
    """The message names the flag."""
    with pytest.raises(UserError, match="--gpu-resource"):
        parse_gpu_resources(given)
