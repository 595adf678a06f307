"""Kinds that other operators bring to a cluster."""

from typing import Any

from controller.podcluster import Hands
from llmkube.k8s.builtins import CustomResourceDefinition


async def install(hands: Hands, *kinds: type[Any]) -> None:
    """Install kinds of others, with any spec and status."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in kinds:
        resource = kind.RESOURCE
        version = {
            "name": resource.version,
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
        }
        spec = {
            "group": resource.group,
            "names": {"kind": resource.kind, "plural": resource.plural},
            "scope": "Namespaced",
            "versions": [version],
        }
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
        manifest = {**body, "metadata": {"name": resource.full_name}}
        await hands.client.apply(CustomResourceDefinition, manifest, field_manager="user")
