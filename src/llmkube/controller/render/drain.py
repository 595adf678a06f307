"""Drain of a pod: preStop hooks delay SIGTERM until its engine is idle or a timeout expires. Pure.

Each hook is a GET from the kubelet to a container of our image in the same pod (`llmkube drain`, or the key proxy), so
the engine's image needs no shell. It is an ordinary container and not a native sidecar of Kubernetes 1.29, which an
older API server would take for an init container that never ends. It has the hook as well, and so terminates together
with the others. With `--no-drain-container` the hook is a sleep of the kubelet instead.

Only the key proxy (`spec.apiKeySecretRef`) mounts the Secret. The kubelet updates the file when the Secret changes, and
the container reads it again: changed keys take effect without a new pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from llmkube.controller.render.storage import IMAGE_USER, llmkube_container
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan

NAME: Final = "drain"
"""Name of the container."""

PATH: Final = "/drained"

DRAIN_SECONDS: Final = 60
"""Time limit for requests in flight, from the pod's deletion to SIGTERM."""

IDLE_TIMEOUT_SECONDS: Final = 300
"""The same for a service with `waitForIdle` but no timeout."""

END_SECONDS: Final = 30
"""From SIGTERM to SIGKILL."""

SLEEP_SECONDS: Final = 10
"""Sleep of the kubelet without a drain container: until the cluster's proxies know that the pod is terminating."""

_START_SECONDS: Final = 120
"""Limit for the start of our container, on a node that is busy loading a model."""

_PORT: Final = 21420
"""Above the ports of engines, below Linux's ephemeral ports."""


@attrs.frozen
class RetainedSettings:
    """Settings of serving pods that differ from those of new pods, but alone are no reason to load a model again.

    Attributes:
        image: Image of our own containers.
        drain_seconds: As returned by `drain_seconds`.
    """

    image: str
    drain_seconds: int


def drain_seconds(service: InferenceService, plan: ContainerPlan) -> int:
    """Return how long a service's pod may take to complete its requests once it is deleted.

    A service with `waitForIdle` gets its idle timeout here too, for requests that arrive while the new pods load.
    """
    policy = service.spec.rollout_policy
    if policy is None or not policy.wait_for_idle or not plan.busy_metrics:
        return DRAIN_SECONDS
    return max(DRAIN_SECONDS, policy.idle_timeout_seconds or IDLE_TIMEOUT_SECONDS)


def with_pre_stop(container: Mapping[str, Any], plan: ContainerPlan, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the container with a preStop hook that waits for the engine to be idle."""
    hook: dict[str, Any] = {"sleep": {"seconds": SLEEP_SECONDS}}
    if settings.drain_container or plan.key_check is not None:  # a container that can report when the engine is idle
        hook = {"httpGet": {"path": PATH, "port": drain_port(plan), "scheme": "HTTP"}}
    return {**container, "lifecycle": {**container.get("lifecycle", {}), "preStop": hook}}


def drain_port(plan: ContainerPlan) -> int:
    """Return the port for the hooks, which no other container of the pod uses."""
    taken = {plan.port, *(number for _, number in plan.extra_ports)}
    return next(port for port in range(_PORT, _PORT + len(taken) + 1) if port not in taken)


def drain_args(service: InferenceService, plan: ContainerPlan, seconds: int) -> list[str]:
    """Return the arguments for the port of the hooks, and for the metrics that show whether the engine is idle."""
    args = ["--drain-port", str(drain_port(plan)), "--longest", str(seconds)]
    url = _metrics_url(service, plan)
    if url:
        args += ["--metrics-url", url, *(word for name in plan.busy_metrics for word in ("--busy-metric", name))]
    return args


def _metrics_url(service: InferenceService, plan: ContainerPlan) -> str:
    """Return the URL of the engine's metrics from inside its pod; empty if it is unknown."""
    port = {PORT_NAME: engine_port(plan), **dict(plan.extra_ports)}.get(plan.metrics_port_name)
    other_address = bool(service.spec.bind_address) and plan.key_check is None
    if not plan.busy_metrics or port is None or other_address or plan.scheme != "http":
        return ""
    return f"http://127.0.0.1:{port}{plan.metrics_path}"


def engine_port(plan: ContainerPlan) -> int:
    """Return the port on which the engine listens; clients connect to `plan.port`."""
    return plan.key_check.engine_port if plan.key_check is not None else plan.port


def drain_containers(
    service: InferenceService, plan: ContainerPlan, settings: WorkloadSettings, seconds: int
) -> tuple[dict[str, Any], ...]:
    """Return the container that answers the preStop hooks when the engine is idle, unless the key proxy does."""
    if not settings.drain_container or plan.key_check is not None:
        return ()
    args = ["drain", "--engine", str(engine_port(plan)), *drain_args(service, plan, seconds)]
    return (sidecar(NAME, args, plan, settings),)


def sidecar(name: str, args: list[str], plan: ContainerPlan, settings: WorkloadSettings) -> dict[str, Any]:
    """Return a container of our image that runs for as long as the engine has requests.

    With its startup probe the pod is not ready before the container can answer the preStop hooks.
    """
    container = with_pre_stop(llmkube_container(settings, args, (), ()), plan, settings)
    del container["volumeMounts"]
    if settings.fs_group is not None:  # the pod's user is the engine's, perhaps root
        container["securityContext"]["runAsUser"] = IMAGE_USER
    probe = {"tcpSocket": {"port": drain_port(plan)}, "periodSeconds": 1, "failureThreshold": _START_SECONDS}
    amounts = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    return container | {"name": name, "resources": amounts, "startupProbe": probe}


KEYS_NAME: Final = "client-keys"
"""Name of the key proxy's container, and of its volume."""

KEYS_FOLDER: Final = "/etc/llmkube/client-keys"
_FILE: Final = "keys"
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def key_containers(
    service: InferenceService,
    plan: ContainerPlan,
    engine: Mapping[str, Any],
    settings: WorkloadSettings,
    drain_seconds: int,
) -> tuple[dict[str, Any], ...]:
    """Return the key proxy, if the service's clients need keys; it also answers the preStop hooks.

    Args:
        service: The service.
        plan: The plan of the engine's container.
        engine: The engine's container; the kubelet's probes of it pass through the proxy.
        settings: The operator's settings for pods.
        drain_seconds: Time limit for requests in flight once the pod is deleted.
    """
    check = plan.key_check
    if check is None:
        return ()
    args = ["key-proxy", "--listen", str(plan.port), "--engine", str(check.engine_port)]
    args += ["--keys", f"{KEYS_FOLDER}/{_FILE}", "--named", f"Secret {check.secret}, {check.key}"]
    args += [word for path in _open_paths(plan, engine) for word in ("--open", path)]
    args += drain_args(service, plan, drain_seconds)
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}}  # no limit: it forwards all of the service's traffic
    mounts = [{"name": KEYS_NAME, "mountPath": KEYS_FOLDER, "readOnly": True}]
    return (sidecar(KEYS_NAME, args, plan, settings) | {"resources": resources, "volumeMounts": mounts},)


def key_volumes(plan: ContainerPlan) -> tuple[dict[str, Any], ...]:
    """Return the volume of the key proxy, with one value of the Secret and nothing else.

    The value is optional: the container reports that it is missing, whereas the kubelet would only emit an Event.
    """
    check = plan.key_check
    if check is None:
        return ()
    secret = {"secretName": check.secret, "items": [{"key": check.key, "path": _FILE}], "optional": True}
    return ({"name": KEYS_NAME, "secret": secret},)


def _open_paths(plan: ContainerPlan, engine: Mapping[str, Any]) -> Iterable[str]:
    """Return the paths that need no key: of the kubelet's probes, Prometheus, and the controller's idle check."""
    probed = (engine[name].get("httpGet", {}).get("path", "") for name in _PROBES)
    metrics = plan.metrics_path if plan.metrics_port_name == PORT_NAME else ""
    return sorted({path.partition("?")[0] for path in (*probed, metrics) if path})
