"""Manifests that tests apply: pods that pass Pod Security `restricted`, servers on the wire, volumes of the node."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from node.images import reference
from node.running_node import Node
from node.wiring import NODE, STATE

Object = Mapping[str, Any]

SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, command: Sequence[str], *, image: str = "llmkube", **spec: Any) -> Object:
    """Return a pod that runs a command in one of our images, with /tmp to write to."""
    container = {
        "name": "main",
        "image": reference(image),
        "imagePullPolicy": "Never",
        "command": list(command),
        "securityContext": SECURITY,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            **spec,
        },
    }


def service_of(name: str, address: str, port: int) -> Sequence[Object]:
    """Return a Service without a selector that leads to a server on the wire, port 8080 to that port."""
    return (
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 8080}]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}],
            "ports": [{"port": port}],
        },
    )


def volume(name: str, path: str, *, size: str = "100Gi", claim: str = "", namespace: str = "") -> Object:
    """Return a volume that is a folder of the node, of the class that binds at the first pod."""
    reserved = {"claimRef": {"name": claim, "namespace": namespace}} if claim else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
            ]}]}},
            **reserved,
        },
    }  # fmt: skip


async def make_namespace(node: Node) -> str:
    """Return a new namespace under Pod Security `restricted`, with a volume for weights."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    (node.state / "volumes" / name).mkdir()
    await node.apply(
        "default",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        volume(name, f"{STATE}/volumes/{name}", claim="llmkube-model-cache", namespace=name),
    )
    return name
