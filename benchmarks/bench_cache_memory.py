"""Memory of a fleet: bytes per cached object, and the ratio to its JSON.

Objects arrive in the state in which a busy cluster has them: labels, `kubectl apply`'s annotation, managedFields,
conditions of both writers. The memory of the cache is measured after a list, and after an event for each object.
"""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from harness import Table, begin
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Listing
from llmkube.k8s.codec import VersionDecoder
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.reflector import Cache
from llmkube.k8s.watch import parse_event

COUNT = 10_000
NOW = "2026-01-01T00:00:00Z"


def service(index: int) -> dict[str, Any]:
    """An InferenceService that is served."""
    spec = {"modelRef": f"model-{index % 50}", "replicas": 1, "contextSize": 8192, "extraArgs": ["--flash-attn", "on"]}
    spec["resources"] = {"gpu": 1, "cpu": "4", "memory": "16Gi"}
    types = ("Accepted", "SpecHonoured", "Loaded", "Available", "Progressing", "Degraded", "Suspended")
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": _metadata("chat", index, spec),
        "spec": spec,
        "status": {
            "phase": "Ready",
            "replicas": 1,
            "readyReplicas": 1,
            "desiredReplicas": 1,
            "modelReady": True,
            "mode": "chat",
            "effectivePriority": 10_000,
            "lastUpdated": NOW,
            "endpoint": f"http://chat-{index}.team-{index % 20}.svc.cluster.local:8080/v1/chat/completions",
            "conditions": [
                {
                    "type": kind,
                    "status": "True",
                    "reason": "InferenceReady",
                    "message": "1 of 1 replicas ready",
                    "lastTransitionTime": NOW,
                    "observedGeneration": 3,
                }
                for kind in types
            ],
        },
    }


def piece(index: int) -> dict[str, Any]:
    """An EndpointSlice with one ready address."""
    metadata = _metadata("chat", index, {})
    metadata["labels"] |= {
        "kubernetes.io/service-name": f"chat-{index}",
        "endpointslice.kubernetes.io/managed-by": "llmkube-agent",
        "inference.llmkube.dev/service": f"chat-{index}",
        "inference.llmkube.dev/host": f"mac-{index % 100}",
    }
    owner = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "controller": True}
    metadata["ownerReferences"] = [{**owner, "name": f"chat-{index}", "uid": f"{index:08x}-owner"}]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.0.{index // 256 % 256}.{index % 256}"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 50_000 + index % 10_000, "protocol": "TCP"}],
    }


def _metadata(name: str, index: int, spec: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {f"f:{key}": {} for key in (*spec, "phase", "replicas", "conditions")}
    managed = [
        {"manager": manager, "operation": "Apply", "apiVersion": "v1", "time": NOW, "fieldsV1": {"f:status": fields}}
        for manager in ("kubectl", "llmkube-agent-mac", "llmkube-controller")
    ]
    return {
        "name": f"{name}-{index}",
        "namespace": f"team-{index % 20}",
        "uid": f"{index:08x}-1111-4222-8333-444444444444",
        "resourceVersion": str(100_000 + index),
        "generation": 3,
        "creationTimestamp": NOW,
        "labels": {"app": f"{name}-{index}", "team": f"team-{index % 20}"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(spec)} if spec else {},
        "managedFields": managed,
    }


def measure(kind: Any, make: Callable[[int], dict[str, Any]], count: int) -> dict[str, int]:
    """Fill a cache by a list, then replace every object by an event; return total bytes."""

    def lines() -> Iterator[bytes]:
        for index in range(count):
            yield json.dumps(make(index), separators=(",", ":")).encode()

    json_bytes = sum(map(len, lines()))
    gc.collect()
    tracemalloc.start()
    cache: Cache[Any] = Cache()
    cache.replace(Listing(kind, tuple(json.loads(b"[" + b",".join(lines()) + b"]")), "1"))
    listed_bytes = _held()
    for index in range(count):
        obj = make(index)
        obj["metadata"]["resourceVersion"] = str(200_000 + index)
        cache.apply(parse_event(kind, json.dumps({"type": "MODIFIED", "object": obj}).encode(), VersionDecoder()))
    watched_bytes = _held()
    tracemalloc.stop()
    return {"json_bytes": json_bytes, "listed_bytes": listed_bytes, "watched_bytes": watched_bytes}


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    """Measure both kinds and report."""
    run = begin("bench_cache_memory")
    count = 500 if run.quick else COUNT
    samples = {
        kind.RESOURCE.kind: measure(kind, make, count)
        for kind, make in ((InferenceService, service), (EndpointSlice, piece))
    }
    rows = []
    for name, found in samples.items():
        sizes = [str(total // count) for total in found.values()]
        ratios = [f"{found[key] / found['json_bytes']:.2f}" for key in ("listed_bytes", "watched_bytes")]
        rows.append([name, *sizes, *ratios])
    columns = ["bytes per object", "JSON on the wire", "after a list", "after events", "list / JSON", "events / JSON"]
    run.finish(
        "Memory of the object cache",
        f"""{count} objects of each kind in a reflector's cache, typed and without managedFields, compared with the
        original JSON.""",
        [Table(columns, rows)],
        samples,
    )


if __name__ == "__main__":
    main()
