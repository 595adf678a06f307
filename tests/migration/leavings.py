"""The objects of the Go implementation, as its agent and its controller leave them on the day of a migration.

Written from what was seen of them (version 0.9.19): names, labels and fields, nothing else.
"""

import hashlib
from typing import Any, Final

MARK: Final = "llmkube.ai"
SITE: Final = "inference.llmkube.dev"


def agents_objects(name: str, *, address: str, port: int, namespace: str = "default") -> list[dict[str, Any]]:
    """Return what an agent of theirs leaves of a service that it has served: a Service, a slice, and old Endpoints."""
    labels = {"app": name, f"{MARK}/managed-by": "metal-agent", f"{MARK}/inference-service": name}
    place = {"name": name, "namespace": namespace}
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                **place,
                "labels": labels,
                "annotations": {f"{MARK}/metal-accelerated": "true", f"{MARK}/native-process": "true"},
            },
            "spec": {
                "type": "ClusterIP",
                "ports": [{"name": "http", "port": 8080, "targetPort": port, "protocol": "TCP"}],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                **place,
                "labels": {**labels, "kubernetes.io/service-name": name},
                "annotations": {f"{MARK}/agent-heartbeat": "2026-10-01T10:00:00Z", f"{MARK}/agent-version": "0.9.19"},
            },
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": True},
                    "targetRef": {"kind": "Pod", "name": f"{name}-metal", "namespace": namespace},
                }
            ],
            "ports": ports,
        },
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {**place, "labels": labels},
            "subsets": [{"addresses": [{"ip": address}], "ports": ports}],
        },
    ]


def cache_key(source: str) -> str:
    """Return the folder of a source's weights below `/models`."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def controllers_deployment(
    name: str, model: str, source: str, *, owner: str, namespace: str = "ml", file: str = "model.gguf"
) -> dict[str, Any]:
    """Return the Deployment that their controller has made of a llama.cpp service with the shared cache.

    Args:
        name: The InferenceService.
        model: The Model.
        source: The Model's source.
        owner: The InferenceService's uid.
        namespace: Where.
        file: What the weights are called in their folder.
    """
    key = cache_key(source)
    labels = {"app": name, f"{SITE}/model": model, f"{SITE}/service": name, f"{SITE}/runtime": "llamacpp"}
    mount = {"name": "model-cache", "mountPath": "/models"}
    dropped = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    path = f"/models/{key}/{file}"

    def health(period: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": {"path": "/health", "port": 8080},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    pod = {
        "securityContext": {"fsGroup": 102, "seccompProfile": {"type": "RuntimeDefault"}},
        "priorityClassName": "llmkube-normal",
        "initContainers": [
            {
                "name": "model-cache-prep",
                "image": "docker.io/curlimages/curl:8.18.0",
                "command": ["sh", "-c", "chown"],
                "securityContext": {
                    "runAsUser": 0,
                    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]},
                    "readOnlyRootFilesystem": True,
                },
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [mount],
            },
            {
                "name": "model-downloader",
                "image": "docker.io/curlimages/curl:8.18.0",
                "command": ["sh", "-c", "curl"],
                "env": [
                    {"name": "MODEL_SOURCE", "value": source},
                    {"name": "CACHE_DIR", "value": f"/models/{key}"},
                    {"name": "MODEL_PATH", "value": path},
                ],
                "securityContext": dropped,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [mount],
            },
        ],
        "containers": [
            {
                "name": "llama-server",
                "image": "ghcr.io/ggml-org/llama.cpp:server",
                "args": ["--model", path, "--port", "8080", "--host", "::", "--metrics"],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "startupProbe": health(10, 180),
                "livenessProbe": health(15, 3),
                "readinessProbe": health(10, 3),
                "securityContext": dropped,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{**mount, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "model-cache", "persistentVolumeClaim": {"claimName": "llmkube-model-cache"}}],
    }
    reference = {
        "apiVersion": f"{SITE}/v1alpha1",
        "kind": "InferenceService",
        "name": name,
        "uid": owner,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {f"{MARK}/desired-template-hash": "0123456789abcdef"},
            "ownerReferences": [reference],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name, f"{SITE}/service": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"karpenter.sh/do-not-disrupt": "true"}},
                "spec": pod,
            },
        },
    }


def controllers_service(name: str, *, owner: str, namespace: str = "ml") -> dict[str, Any]:
    """Return the Service that their controller has made of a service in pods."""
    labels = {"app": name, f"{SITE}/service": name}
    reference = {
        "apiVersion": f"{SITE}/v1alpha1",
        "kind": "InferenceService",
        "name": name,
        "uid": owner,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [reference]},
        "spec": {
            "type": "ClusterIP",
            "selector": labels,
            "ports": [{"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP"}],
        },
    }


def controllers_claim(namespace: str = "ml") -> dict[str, Any]:
    """Return the claim that all weights of a namespace are on."""
    labels = {
        "app.kubernetes.io/name": "llmkube",
        "app.kubernetes.io/component": "model-cache",
        "app.kubernetes.io/managed-by": "llmkube-controller",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "llmkube-model-cache", "namespace": namespace, "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
    }
