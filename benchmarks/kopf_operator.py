"""A minimal operator on kopf that does what `llmkube controller` does: Deployment, Service and status of each service.

It is run by `kopf run` in an environment of its own, and knows nothing of llmkube. What it asks of the API server is
the least that anybody could write: two server-side applies over one pooled aiohttp session (kopf brings no client for
objects that are not its own), and the status by kopf's own patch, which carries what kopf remembers along.
"""

# kopf and aiohttp are no dependencies of this project, so nothing is known of their types:
# mypy: disable-error-code="import-not-found, untyped-decorator"

import datetime
import os
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import yaml

GROUP, VERSION, PLURAL = "inference.llmkube.dev", "v1alpha1", "inferenceservices"
MANAGER = "kopf-bench"
APPLY = {"Content-Type": "application/apply-patch+yaml"}
QUERY = {"fieldManager": MANAGER, "force": "true"}


@kopf.on.startup()
async def open_session(memo: kopf.Memo, **_: Any) -> None:  # noqa: ASYNC124 (aiohttp wants a running loop)
    """Open one session for all handlers."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text("utf-8"))
    memo.server = config["clusters"][0]["cluster"]["server"]
    memo.session = aiohttp.ClientSession()


@kopf.on.cleanup()
async def close_session(memo: kopf.Memo, **_: Any) -> None:
    """Close it."""
    await memo.session.close()


@kopf.on.login()
def log_in(**kwargs: Any) -> Any:
    """Take the kubeconfig as it is."""
    return kopf.login_with_kubeconfig(**kwargs)


@kopf.on.resume(GROUP, VERSION, PLURAL)
@kopf.on.create(GROUP, VERSION, PLURAL)
@kopf.on.update(GROUP, VERSION, PLURAL, field="spec")
async def reconcile(body: kopf.Body, name: str, namespace: str, patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    """Apply the objects of a service, and report its status."""
    generation = body["metadata"]["generation"]
    base = f"{memo.server}/{{}}/namespaces/{namespace}/{{}}/{name}"
    for manifest, address in (
        (deployment(body), base.format("apis/apps/v1", "deployments")),
        (service(body), base.format("api/v1", "services")),
    ):
        async with memo.session.patch(address, params=QUERY, headers=APPLY, json=manifest) as answer:
            answer.raise_for_status()
    patch.status.update(status(name, namespace, generation, body["spec"].get("replicas", 1)))


def deployment(body: kopf.Body) -> dict[str, Any]:
    """Return the Deployment: a llama.cpp server over a claim."""
    spec = body["spec"]
    probe = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5, "failureThreshold": 3}
    container = {
        "name": "llama-server",
        "image": "ghcr.io/ggml-org/llama.cpp:server",
        "args": [
            "--host",
            "0.0.0.0",  # noqa: S104 (in its pod, as every engine)
            "--port",
            "8080",
            "--model",
            "/source/model.gguf",
            "--alias",
            body["metadata"]["name"],
            "--ctx-size",
            str(spec.get("contextSize", 4096)),
        ],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 180},
        "livenessProbe": {**probe, "periodSeconds": 15},
        "readinessProbe": {**probe, "periodSeconds": 10},
        "volumeMounts": [{"name": "source", "mountPath": "/source", "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    claim = {"claimName": "weights", "readOnly": True}
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "source", "persistentVolumeClaim": claim}],
    }
    app = {"app": body["metadata"]["name"]}
    wanted = {
        "replicas": spec.get("replicas", 1),
        "selector": {"matchLabels": app},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": app}, "spec": pod},
    }
    return owned(body, "apps/v1", "Deployment", wanted)


def service(body: kopf.Body) -> dict[str, Any]:
    """Return the Service."""
    port = {"name": "http", "port": 8080, "targetPort": "http", "protocol": "TCP"}
    wanted = {"type": "ClusterIP", "ports": [port], "selector": {"app": body["metadata"]["name"]}}
    return owned(body, "v1", "Service", wanted)


def owned(body: kopf.Body, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest that lives and dies with its service."""
    name = body["metadata"]["name"]
    metadata = {
        "name": name,
        "namespace": body["metadata"]["namespace"],
        "labels": {"app": name, "app.kubernetes.io/managed-by": MANAGER},
        "ownerReferences": [kopf.build_owner_reference(body, block_owner_deletion=False)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def status(name: str, namespace: str, generation: int, replicas: int) -> dict[str, Any]:
    """Return a status as long as that of `llmkube controller`, with the same text."""
    conditions = {
        "Available": ("False", "NoReadyReplicas"),
        "Progressing": ("True", "Creating"),
        "Degraded": ("False", "Creating"),
        "Suspended": ("False", "NotSuspended"),
        "Accepted": ("True", "Accepted"),
        "SpecHonoured": ("True", "Honoured"),
    }
    since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "phase": "Creating",
        "replicas": 0,
        "readyReplicas": 0,
        "desiredReplicas": replicas,
        "endpoint": f"http://{name}.{namespace}.svc.cluster.local:8080/v1/chat/completions",
        "modelReady": True,
        "conditions": [
            {
                "type": kind,
                "status": holds,
                "reason": reason,
                "message": "waiting for pods to answer",
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
            for kind, (holds, reason) in conditions.items()
        ],
    }
