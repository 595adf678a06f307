"""Objects as the API server returns them, for tests of views."""

import json

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model

VERSION = "inference.llmkube.dev/v1alpha1"


def condition(kind, status, reason, message=""):
    word = {True: "True", False: "False"}[status]
    return {"type": kind, "status": word, "reason": str(reason), "message": message, "lastTransitionTime": "x"}


def service(name="chat", *conditions, namespace="default", phase="", model="chat", **status):
    return decode(
        InferenceService,
        {
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"modelRef": model},
            "status": {"phase": phase, "conditions": list(conditions), **status},
        },
    )


def model(name="chat", *conditions, namespace="default", accelerator="cpu", **status):
    return decode(
        Model,
        {
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"source": "builtin://demo", "hardware": {"accelerator": accelerator}},
            "status": {"conditions": list(conditions), **status},
        },
    )


def kubeconfig(path, server, name="a", token="t"):
    """Write a kubeconfig of one context; return its path."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
