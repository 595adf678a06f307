"""A small CustomResourceDefinition, to change."""

from typing import Any

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS

CRD_KIND = next(kind for kind in BUILTIN_KINDS if kind.resource.kind == "CustomResourceDefinition")


SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}


def crd(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.test.dev"},
        "spec": {
            "group": "test.dev",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
            **changes,
        },
    }
