"""How a pod ends: preStop hooks hold TERM back until its engine has no request, or has had its time. Pure.

Each hook is a GET that the kubelet sends to a container of our image beside the engine (`llmkube drain`; where clients
have keys, the one that asks for them): no image has to have a shell. It is an ordinary container and no sidecar of
Kubernetes 1.29: an older API server would make that an init container, which never ends. It has the hook as well, and
so ends when all others may. Where the operator wants no such container (`--no-drain-container`), the kubelet sleeps.

The container that asks for keys (`spec.apiKeySecretRef`) alone mounts the Secret. A kubelet renews the file when the
Secret changes, and the container reads it again: other keys count without another pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from llmkube.controller.render.storage import IMAGE_USER, llmkube_container
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan

NAME: Final = "drain"
"""What the container is called."""

PATH: Final = "/drained"

DRAIN_SECONDS: Final = 60
"""How long answers in flight may take, from the pod's deletion to TERM."""

IDLE_TIMEOUT_SECONDS: Final = 300
"""How long that is where a service waits for idle pods and does not say how long."""

END_SECONDS: Final = 30
"""From TERM to KILL."""

SLEEP_SECONDS: Final = 10
"""How long the kubelet sleeps instead: until the proxies of the cluster know that the pod is going."""

_START_SECONDS: Final = 120
"""How long our container may take to start, on a node that is busy with a model."""

_PORT: Final = 21420
"""Above the ports of engines, below those that Linux gives away."""


@attrs.frozen
class RetainedSettings:
    """What pods that serve may keep although new ones get another: it alone is no reason to load a model again.

    Attributes:
        image: Our own image.
        drain_seconds: As `drain_seconds` returned it.
    """

    image: str
    drain_seconds: int


def drain_seconds(service: InferenceService, plan: ContainerPlan) -> int:
    """Return how long a service's pod may take to end its answers, once it has to go.

    A service that waits for idle pods before an edit gets as long for what comes while the new pods load.
    """
    policy = service.spec.rollout_policy
    if policy is None or not policy.wait_for_idle or not plan.busy_metrics:
        return DRAIN_SECONDS
    return max(DRAIN_SECONDS, policy.idle_timeout_seconds or IDLE_TIMEOUT_SECONDS)


def with_pre_stop(container: Mapping[str, Any], plan: ContainerPlan, settings: WorkloadSettings) -> dict[str, Any]:
    """Return a container that waits for the engine to be idle before its TERM."""
    hook: dict[str, Any] = {"sleep": {"seconds": SLEEP_SECONDS}}
    if has_drain(plan, settings):
        hook = {"httpGet": {"path": PATH, "port": drain_port(plan), "scheme": "HTTP"}}
    return {**container, "lifecycle": {**container.get("lifecycle", {}), "preStop": hook}}


def has_drain(plan: ContainerPlan, settings: WorkloadSettings) -> bool:
    """Whether a container of the pod knows when the engine is idle."""
    return settings.drain_container or plan.key_check is not None


def drain_port(plan: ContainerPlan) -> int:
    """Return where the hooks ask: a port that no other container of the pod has."""
    taken = {plan.port, *(number for _, number in plan.extra_ports)}
    return next(port for port in range(_PORT, _PORT + len(taken) + 1) if port not in taken)


def drain_args(service: InferenceService, plan: ContainerPlan, seconds: int) -> list[str]:
    """Return the arguments that say where the hooks ask, and how it is seen that the engine is idle."""
    args = ["--drain-port", str(drain_port(plan)), "--longest", str(seconds)]
    url = _metrics_url(service, plan)
    if url:
        args += ["--metrics-url", url, *(word for name in plan.busy_metrics for word in ("--busy-metric", name))]
    return args


def _metrics_url(service: InferenceService, plan: ContainerPlan) -> str:
    """Return where the engine's metrics are, from inside its pod; empty where that is not known."""
    port = {PORT_NAME: engine_port(plan), **dict(plan.extra_ports)}.get(plan.metrics_port_name)
    elsewhere = bool(service.spec.bind_address) and plan.key_check is None
    if not plan.busy_metrics or port is None or elsewhere or plan.scheme != "http":
        return ""
    return f"http://127.0.0.1:{port}{plan.metrics_path}"


def engine_port(plan: ContainerPlan) -> int:
    """Return where the engine listens; others ask at `plan.port`."""
    return plan.key_check.engine_port if plan.key_check is not None else plan.port


def drain_containers(
    service: InferenceService, plan: ContainerPlan, settings: WorkloadSettings, seconds: int
) -> tuple[dict[str, Any], ...]:
    """Return the container that tells the hooks when the engine is idle, unless another one does."""
    if not settings.drain_container or plan.key_check is not None:
        return ()
    args = ["drain", "--engine", str(engine_port(plan)), *drain_args(service, plan, seconds)]
    return (sidecar(NAME, args, plan, settings),)


def sidecar(name: str, args: list[str], plan: ContainerPlan, settings: WorkloadSettings) -> dict[str, Any]:
    """Return a container of our image that stays beside the engine for as long as that has requests.

    Its probe keeps the pod from being ready before its hooks are answered; once is enough.
    """
    container = with_pre_stop(llmkube_container(settings, args, (), ()), plan, settings)
    del container["volumeMounts"]
    if settings.fs_group is not None:  # the pod's user is the engine's, perhaps root
        container["securityContext"]["runAsUser"] = IMAGE_USER
    probe = {"tcpSocket": {"port": drain_port(plan)}, "periodSeconds": 1, "failureThreshold": _START_SECONDS}
    amounts = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    return container | {"name": name, "resources": amounts, "startupProbe": probe}


KEYS_NAME: Final = "client-keys"
"""What the container and its volume are called."""

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
    args += ["--keys", f"{KEYS_FOLDER}/{_FILE}", "--named", f"Secret {check.secret}, {check.key}"]
    args += [word for path in _open_paths(plan, engine) for word in ("--open", path)]
    args += drain_args(service, plan, drain_seconds)
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}}  # no limit: all of the service's traffic is its work
    mounts = [{"name": KEYS_NAME, "mountPath": KEYS_FOLDER, "readOnly": True}]
    return (sidecar(KEYS_NAME, args, plan, settings) | {"resources": resources, "volumeMounts": mounts},)


def key_volumes(plan: ContainerPlan) -> tuple[dict[str, Any], ...]:
    """Return its volume: one value of the Secret, and nothing else of it.

    It may be missing: the container then says which Secret lacks what, and a kubelet would say it in an Event alone.
    """
    check = plan.key_check
    if check is None:
        return ()
    secret = {"secretName": check.secret, "items": [{"key": check.key, "path": _FILE}], "optional": True}
    return ({"name": KEYS_NAME, "secret": secret},)


def _open_paths(plan: ContainerPlan, engine: Mapping[str, Any]) -> Iterable[str]:
    """Return what is read without a key: by a kubelet, a Prometheus, and the controller before it replaces pods."""
    asked = (engine[name].get("httpGet", {}).get("path", "") for name in _PROBES)
    metrics = plan.metrics_path if plan.metrics_port_name == PORT_NAME else ""
    return sorted({path.partition("?")[0] for path in (*asked, metrics) if path})
