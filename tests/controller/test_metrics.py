"""The fleet's series follow the objects: one phase each, the right labels, and none of deleted objects."""

import random

import pytest
import trio
from prometheus_client import CollectorRegistry

from controller.objects import model, service
from controller.podcluster import open_pods
from controller.podobjects import cluster_model, pod_service
from llmkube.controller.metrics import FleetCollector, source_type
from llmkube.controller.reconciler import new_queue
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key


class Known(dict):
    """A cache, with the interface that metrics need."""

    @classmethod
    def of(cls, *objects):
        return cls((one.key, one) for one in objects)


def in_phase(obj, phase):
    data = encode(obj)
    return decode(type(obj), {**data, "status": {**data.get("status", {}), "phase": phase}})


def series(models, services, **queues):
    registry = CollectorRegistry()
    registry.register(FleetCollector(Known.of(*models), Known.of(*services), Known(), Known(), {}, queues))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_each_object_has_its_one_phase():
    """The phase of the status, and none for an object that has none yet."""
    found = series([in_phase(model(), "Ready")], [in_phase(service(), "Failed"), service(name="new")])
    phases = {key for key in found if key[0].endswith(("phase", "status"))}
    assert phases == {
        ("llmkube_model_status", "phi", "ml", "Ready"),
        ("llmkube_inferenceservice_phase", "chat", "ml", "Failed"),
    }


def test_the_quantization_of_a_file_is_a_label():
    """The header's quantization is used; before it is known, the spec's."""
    unread = cluster_model(quantization="Q8_0")
    read = cluster_model(name="read", quantization="Q8_0", status={"gguf": {"quantization": "Q4_K_M"}})
    found = series([unread, read], [pod_service()])
    assert ("llmkube_model_info", "phi", "ml", "cuda", "gguf", "Q8_0") in found
    assert ("llmkube_model_info", "read", "ml", "cuda", "gguf", "Q4_K_M") in found
    assert ("llmkube_inferenceservice_info", "chat", "ml", "cuda", "llamacpp") in found


@pytest.mark.parametrize(
    ("spec", "trained", "tokens"),
    [
        ({"contextSize": 8192, "parallelSlots": 2}, 32768, 4096),
        ({"contextSize": 8192}, 2048, 2048),
        ({}, 32768, 4096),
        ({"runtime": "llama-server"}, 32768, 4096),
        ({"runtime": "vllm", "contextSize": 8192}, 32768, None),
    ],
)
def test_the_context_of_a_slot_is_the_engines(spec, trained, tokens):
    """The panel of the KV cache divides by it: slots share the context size, and none has more than was trained."""
    read = cluster_model(status={"gguf": {"contextLength": trained}})
    found = series([read], [pod_service(**spec)])
    assert found.get(("llmkube_inferenceservice_slot_context_tokens", "chat", "ml")) == tokens


def test_a_namespace_without_waiting_services_has_a_zero():
    """Waiting services are counted by namespace, and a namespace with services has a 0."""
    found = series([], [in_phase(pod_service(), "WaitingForGPU"), pod_service("other")])
    assert found[("llmkube_gpu_queue_depth", "ml")] == 1
    assert series([], [pod_service()])[("llmkube_gpu_queue_depth", "ml")] == 0


def test_waiting_keys_are_counted_by_controller():
    """Keys that no worker has taken yet are the depth, whose growth an alert shows."""
    queue = new_queue(random.Random(0))
    for name in ("chat", "embed", "chat"):
        queue.add_nowait(Key("ml", name))
    found = series([], [], inferenceservice=queue, model=new_queue(random.Random(0)))
    assert found[("llmkube_reconcile_queue_depth", "inferenceservice")] == 2
    assert found[("llmkube_reconcile_queue_depth", "model")] == 0


async def test_a_running_controller_exports_them(autojump_clock):
    """A serving service is in the registry, and a deleted one is not."""
    async with open_pods() as hands:
        await hands.bring_up()
        value = hands.cluster.registry.get_sample_value
        queues = ("model", "inferenceservice", "endpointslice")
        assert [value("llmkube_reconcile_queue_depth", {"controller": one}) for one in queues] == [0, 0, 0]
        labels = {"inferenceservice": "chat", "namespace": "ml", "state": "ready"}
        assert value("llmkube_inferenceservice_replicas", labels) == 1
        await hands.client.delete(InferenceService, Key("ml", "chat"))
        await hands.model_where()
        assert value("llmkube_inferenceservice_replicas", labels) is None


async def test_durations_are_counted_from_the_spec_to_the_end(autojump_clock):
    """A fetch of five minutes is one, by the kind of its source, and so is a start of ten; a later check is none."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(300)
        await hands.finish_job()
        await trio.sleep(300)
        await hands.roll_out()
        await trio.sleep(60)
        read = hands.cluster.registry.get_sample_value
        fetched = {"model": "phi", "namespace": "ml", "source_type": "hf"}
        assert read("llmkube_model_download_duration_seconds_count", fetched) == 1
        assert 295 <= read("llmkube_model_download_duration_seconds_sum", fetched) <= 310
        started = {"inferenceservice": "chat", "namespace": "ml"}
        assert read("llmkube_inferenceservice_ready_duration_seconds_count", started) == 1
        assert 595 <= read("llmkube_inferenceservice_ready_duration_seconds_sum", started) <= 620


@pytest.mark.parametrize(
    ("source", "word"), [("s3://b/k", "s3"), ("org/repo@v1", "hf"), ("/data/m.gguf", "file"), ("https://x/y", "https")]
)
def test_a_source_has_a_label_for_its_kind(source, word):
    """A label has few values: the scheme, and two words for sources without one."""
    assert source_type(source) == word
