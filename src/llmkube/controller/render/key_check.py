"""The container that asks an engine's clients for their keys (`spec.apiKeySecretRef`), beside the engine's own. Pure.

It alone mounts the Secret. A kubelet renews the file when the Secret changes, and the container reads it again: other
keys count without another pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from llmkube.controller.render.drain import beside, drain_args
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan

NAME: Final = "client-keys"
"""What the container and its volume are called."""

FOLDER: Final = "/etc/llmkube/client-keys"
_FILE: Final = "keys"
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def key_containers(
    service: InferenceService,
    plan: ContainerPlan,
    engine: Mapping[str, Any],
    settings: WorkloadSettings,
    drain_seconds: int,
) -> tuple[dict[str, Any], ...]:
    """Return the container, if the service's clients have keys.

    It also tells when the engine has no request left, once the pod has to end.

    Args:
        service: The service.
        plan: What the engine's container is.
        engine: That container, with the probes that a kubelet asks through this one.
        settings: What the operator says about pods.
        drain_seconds: How long requests may take once the pod has to end.
    """
    check = plan.key_check
    if check is None:
        return ()
    args = ["key-proxy", "--listen", str(plan.port), "--engine", str(check.engine_port)]
    args += ["--keys", f"{FOLDER}/{_FILE}", "--named", f"Secret {check.secret}, {check.key}"]
    args += [word for path in _open_paths(plan, engine) for word in ("--open", path)]
    args += drain_args(service, plan, drain_seconds)
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}}  # no limit: all of the service's traffic is its work
    mounts = [{"name": NAME, "mountPath": FOLDER, "readOnly": True}]
    return (beside(NAME, args, plan, settings) | {"resources": resources, "volumeMounts": mounts},)


def key_volumes(plan: ContainerPlan) -> tuple[dict[str, Any], ...]:
    """Return its volume: one value of the Secret, and nothing else of it.

    It may be missing: the container then says which Secret lacks what, and a kubelet would say it in an Event alone.
    """
    check = plan.key_check
    if check is None:
        return ()
    secret = {"secretName": check.secret, "items": [{"key": check.key, "path": _FILE}], "optional": True}
    return ({"name": NAME, "secret": secret},)


def _open_paths(plan: ContainerPlan, engine: Mapping[str, Any]) -> Iterable[str]:
    """Return what is read without a key: by a kubelet, a Prometheus, and the controller before it replaces pods."""
    asked = (engine[name].get("httpGet", {}).get("path", "") for name in _PROBES)
    metrics = plan.metrics_path if plan.metrics_port_name == PORT_NAME else ""
    return sorted({path.partition("?")[0] for path in (*asked, metrics) if path})
