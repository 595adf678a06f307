"""Metrics of the controller: reconciles and their durations, and the state of all objects; prefix `llmkube_`."""

import datetime
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sized
from typing import Literal

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.informer import Informer
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import PROGRESSING, find_condition
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.runtimes.llama_fields import context_of
from llmkube.runtimes.registry import LLAMACPP_NAMES

Result = Literal["success", "retry", "error"]
"""`retry`: an external failure that may pass; `error`: a bug, or a server that rejects what we wrote."""

Families = dict[str, GaugeMetricFamily | CounterMetricFamily]

_DURATION_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)


class ReconcileMetrics:
    """Number and duration of reconciles, by controller and result.

    Raises:
        ValueError: The registry already has these metrics; use one registry per controller.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        about = "Reconciles by controller and result."
        self.total = Counter("llmkube_reconcile_total", about, ["controller", "result"], registry=registry)
        self.duration_seconds = Histogram(
            "llmkube_reconcile_duration_seconds",
            "Seconds per reconcile, by controller.",
            ["controller"],
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )

    def observe(self, controller: str, result: Result, seconds: float) -> None:
        """Count one reconcile."""
        self.total.labels(controller, result).inc()
        self.duration_seconds.labels(controller).observe(seconds)


class Durations:
    """Seconds until Models were fetched and services were ready; retained after the objects are deleted.

    Raises:
        ValueError: The registry already has these metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.download_seconds = Histogram(
            "llmkube_model_download_duration_seconds",
            "Seconds from the request for a Model's weights until they were available.",
            ["model", "namespace", "source_type"],
            buckets=[2.0**step for step in range(12)],
            registry=registry,
        )
        self.ready_seconds = Histogram(
            "llmkube_inferenceservice_ready_duration_seconds",
            "Seconds from the creation or the change of a service until it was ready.",
            ["inferenceservice", "namespace"],
            buckets=[5 * 2.0**step for step in range(10)],
            registry=registry,
        )

    def observe_ready(self, obj: Model | InferenceService, now: datetime.datetime) -> None:
        """Observe how long an object was progressing, given its state before it became ready; nothing if it was not."""
        before = find_condition(obj.status.conditions, PROGRESSING)
        since = parse_timestamp(before.last_transition_time) if before is not None else None
        if before is None or before.status != "True" or since is None:
            return
        seconds = (now - since).total_seconds()
        name = (obj.key.name, obj.key.namespace)
        if isinstance(obj, Model):
            self.download_seconds.labels(*name, source_type(obj.spec.source)).observe(seconds)
        else:
            self.ready_seconds.labels(*name).observe(seconds)


def source_type(source: str) -> str:
    """Return the type of a Model's source: the URL's scheme, `hf` for a repository, `file` for a path."""
    scheme, mark, _ = source.partition("://")
    if mark:
        return scheme
    return "file" if source.startswith("/") else "hf"


@attrs.define(eq=False)
class FleetCollector:
    """State of every object and the length of the queues, collected at each scrape.

    An object thus has exactly one phase, that of its status, and no series once it is gone.

    Attributes:
        pool_starts: Number of starts of members of each ModelPool, and the seconds for which requests waited for these.
        queues: Keys that wait for a worker, by controller.
    """

    models: Informer[Model]
    services: Informer[InferenceService]
    quotas: Informer[GPUQuota]
    pools: Informer[ModelPool]
    pool_starts: Mapping[Key, tuple[int, float]]
    queues: Mapping[str, Sized]

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Describe the series."""
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Collect the series from the caches."""
        families = _families()
        for model in self.models.values():
            self._add_model(families, model)
        waiting: Tally[str] = Tally()
        for service in self.services.values():
            self._add_service(families, service)
            waiting[service.key.namespace] += service.status.phase == "WaitingForGPU"
        for namespace, count in sorted(waiting.items()):
            families["gpu_queue_depth"].add_metric([namespace], count)
        for quota in self.quotas.values():
            name, spec, status = [quota.key.name, quota.key.namespace], quota.spec, quota.status
            families["gpuquota_used_gpu_count"].add_metric(name, status.used_gpu_count or 0)
            families["gpuquota_gpu_count_limit"].add_metric(name, spec.gpu_count)
            families["gpuquota_used_vram_bytes"].add_metric(name, status.used_vram_bytes or 0)
            families["gpuquota_vram_bytes_limit"].add_metric(name, spec.vram_bytes)
            families["gpuquota_admission_denials"].add_metric(name, status.admission_denials or 0)
        for pool in self.pools.values():
            name = [pool.key.name, pool.key.namespace]
            resident = sum(bool(one.resident) for one in pool.status.members)
            pending = int(bool(pool.status.pending_member))
            pending = min(pending, len(pool.members) - resident)  # a resident member that starts is pending too
            counts = {"resident": resident, "pending": pending, "resting": len(pool.members) - resident - pending}
            for state, count in counts.items():
                families["modelpool_members"].add_metric([*name, state], count)
            starts, seconds = self.pool_starts.get(pool.key, (0, 0.0))
            families["modelpool_starts"].add_metric(name, starts)
            families["modelpool_wait_seconds"].add_metric(name, seconds)
        for controller, queue in self.queues.items():
            families["reconcile_queue_depth"].add_metric([controller], len(queue))
        yield from families.values()

    def _add_model(self, families: Families, model: Model) -> None:
        name, spec, status = [model.key.name, model.key.namespace], model.spec, model.status
        if status.phase:
            families["model_status"].add_metric([*name, status.phase], 1)
        quantization = (status.gguf.quantization if status.gguf else "") or spec.quantization or ""
        families["model_info"].add_metric([*name, spec.hardware.accelerator, spec.format, quantization], 1)

    def _add_service(self, families: Families, service: InferenceService) -> None:
        name, status = [service.key.name, service.key.namespace], service.status
        if status.phase:
            families["inferenceservice_phase"].add_metric([*name, status.phase], 1)
        model = self.models.get(Key(service.key.namespace, service.spec.model_ref))
        accelerator = model.spec.hardware.accelerator if model else ""
        families["inferenceservice_info"].add_metric([*name, accelerator, service.spec.runtime], 1)
        trained = model.status.gguf.context_length if model is not None and model.status.gguf is not None else None
        if service.spec.runtime in LLAMACPP_NAMES and (context := context_of(service.spec, trained)):
            families["inferenceservice_slot_context_tokens"].add_metric(
                name, context // max(1, service.spec.parallel_slots)
            )
        for state, count in (("ready", status.ready_replicas), ("desired", status.desired_replicas)):
            families["inferenceservice_replicas"].add_metric([*name, state], count or 0)


def _families() -> Families:
    kinds = ("model", "inferenceservice", "gpuquota", "modelpool")
    model, service, quota, pool = ((kind, "namespace") for kind in kinds)
    table = (
        ("model_status", "1 for the current phase of a Model.", (*model, "phase")),
        ("model_info", "Information about a Model.", (*model, "accelerator", "format", "quantization")),
        ("inferenceservice_phase", "1 for the current phase of a service.", (*service, "phase")),
        ("inferenceservice_info", "Information about a service.", (*service, "accelerator", "runtime")),
        ("inferenceservice_replicas", "Ready and desired replicas of a service.", (*service, "state")),
        ("inferenceservice_slot_context_tokens", "Context of one slot of a llama.cpp service, in tokens.", service),
        ("gpuquota_used_gpu_count", "GPUs of the services that a GPUQuota limits.", quota),
        ("gpuquota_gpu_count_limit", "Maximum number of GPUs of a GPUQuota.", quota),
        ("gpuquota_used_vram_bytes", "Declared bytes of these GPUs.", quota),
        ("gpuquota_vram_bytes_limit", "Maximum bytes of these GPUs; 0 means no limit.", quota),
        ("gpuquota_admission_denials", "Number of times that a service began to wait for a GPUQuota.", quota),
        ("modelpool_members", "Members of a ModelPool that have GPUs, wait for them, or need none.", (*pool, "state")),
        ("modelpool_starts", "Number of times that a member of a ModelPool got its GPUs.", pool),
        ("modelpool_wait_seconds", "Time for which requests waited until these members got GPUs.", pool),
        ("gpu_queue_depth", "Services that wait for a GPU.", ("namespace",)),
        ("reconcile_queue_depth", "Objects that wait to be reconciled.", ("controller",)),
    )
    counted = frozenset({"gpuquota_admission_denials", "modelpool_starts", "modelpool_wait_seconds"})
    return {
        name: (CounterMetricFamily if name in counted else GaugeMetricFamily)(f"llmkube_{name}", about, labels=labels)
        for name, about, labels in table
    }
