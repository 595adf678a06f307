"""Render the objects of a ModelRouter in a cluster: config, pods, Service, network policy. Pure.

The pods have no API token, no permissions, and therefore no ServiceAccount of their own. They read two folders that the
kubelet updates: the config, which they reload without a restart, and the keys of backends and clients, as named files.

The network policy is an allow-list of destinations, so that the router cannot send data to any other:

| destination | allowed |
|---|---|
| every router | DNS, to the pods of the cluster and to a node's DNS cache |
| an InferenceService in pods | its pods, at their port |
| an InferenceService on hosts | each host's address and port, from its EndpointSlice |
| a provider that is `cloud` | its port, at public addresses only |
| a provider that is `local`, by name | its port, at private addresses only, whatever the name resolves to |
| a provider inside the cluster (`http://NAME.NAMESPACE.svc…`) | the pods of that namespace |
| a provider by address | that address and port |
| the collector of traces | as a local provider |

The cluster's network has to enforce NetworkPolicies; otherwise everything is allowed.
"""

import ipaddress
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from llmkube.controller.render.labels import OUR_LABELS, ROUTER_LABEL, owned_manifest, service_spec
from llmkube.controller.render.storage import CA_MOUNT, CA_VARIABLE, IMAGE_USER, llmkube_container, proxy_variables
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.builtins import ConfigMap, Service
from llmkube.k8s.crd.modelrouter import ModelRouter, ProxySpec
from llmkube.k8s.resource import Resource
from llmkube.k8s.wire.names import SERVICE_LABEL, label_value, service_name
from llmkube.k8s.workloads import Deployment, NetworkPolicy, PodDisruptionBudget, PodMonitor
from llmkube.router.config.compile_backend import KeyFile
from llmkube.runtimes.container.container_plan import PORT_NAME, literal

Rule = dict[str, Any]

_PRIVATE_IPV4: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
)
_PRIVATE_IPV6: Final = ("::1/128", "fc00::/7", "fe80::/10")
_NODE_DNS_CACHE: Final = "169.254.20.10/32"
"""Address of NodeLocal DNSCache (Kubernetes, "Using NodeLocal DNSCache in Kubernetes Clusters")."""

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


def network_policy(pods: Mapping[str, str], destinations: Iterable[Rule]) -> dict[str, Any]:
    """Return the spec of the NetworkPolicy of pods with these labels."""
    egress = [_dns()]
    for rule in destinations:
        if rule not in egress:
            egress.append(rule)
    return {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Egress"], "egress": egress}


def _dns() -> Rule:
    ports = [{"port": number, "protocol": protocol} for number in (53, 5353) for protocol in ("UDP", "TCP")]
    return {"to": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": _NODE_DNS_CACHE}}], "ports": ports}


def to_service(name: str) -> Rule:
    """Return the rule for the pods of an InferenceService in the router's namespace."""
    selector = {"podSelector": {"matchLabels": {SERVICE_LABEL: label_value(name)}}}
    return {"to": [selector], "ports": [_tcp(PORT_NAME)]}


def to_host(address: str, port: int) -> Rule:
    """Return the rule for one address and port."""
    return {"to": [_block(address)], "ports": [_tcp(port)]}


def to_provider(url: str, *, local: bool) -> Rule:
    """Return the rule for the server of a URL; `local` restricts a name to private addresses."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        return to_host(str(ipaddress.ip_address(host)), port)
    except ValueError:
        pass
    labels = host.split(".")
    if len(labels) >= 3 and labels[2] == "svc":
        return {"to": [{"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: labels[1]}}}]}
    if local:
        return {"to": [{"ipBlock": {"cidr": one}} for one in (*_PRIVATE_IPV4, *_PRIVATE_IPV6)], "ports": [_tcp(port)]}
    public = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(_PRIVATE_IPV4)}},
        {"ipBlock": {"cidr": "::/0", "except": list(_PRIVATE_IPV6)}},
    ]
    return {"to": public, "ports": [_tcp(port)]}


def _block(address: str) -> Rule:
    return {"ipBlock": {"cidr": str(ipaddress.ip_network(address))}}


def _tcp(port: int | str) -> dict[str, Any]:
    return {"port": port, "protocol": "TCP"}


PORT: Final = 8080
"""Port of the container, regardless of the Service's port."""

ADMIN_PORT: Final = 9090
"""Port for metrics, probes and the health of backends; not a port of the Service."""

METRICS_PORT_NAME: Final = "metrics"

JOB: Final = "llmkube-router"
"""Value of the label `job` on all metrics of routers."""

DRAINED: Final = "/drained"
"""Path on the admin port that answers once a terminating router has no requests left."""

EVERY_ADDRESS: Final = "::"
"""Address by which `llmkube router` listens on all addresses of its pod."""

CONFIG_FOLDER: Final = "/etc/llmkube/router"
CONFIG_FILE: Final = "config.json"
KEYS_FOLDER: Final = "/etc/llmkube/router-keys"
"""Folder with one folder of keys each for backends, services and the clients' teams."""

_KEYS: Final = "keys-"
_CONTAINER: Final = "router-proxy"
_SUFFIX: Final = "-router-proxy"
_COLLECTORS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SCRATCH: Final = "/tmp"  # noqa: S108 (a volume of the pod's own)
_DRAIN_SECONDS: Final = 300
"""Time limit for requests in flight once a pod is deleted."""

_END_SECONDS: Final = 30
_REPLICAS: Final = 1


@attrs.frozen(eq=False, kw_only=True)
class RouterManifests:
    """Desired objects of a router; `budget` is None for a single pod, and `monitor` if PodMonitors are disabled."""

    config: dict[str, Any]
    deployment: dict[str, Any]
    kubernetes_service: dict[str, Any]
    network: dict[str, Any]
    budget: dict[str, Any] | None
    monitor: dict[str, Any] | None


def router_objects_name(router: str) -> str:
    """Return the name of all objects of a router, the same as in the Go implementation."""
    return service_name(f"{router.replace('.', '-')}{_SUFFIX}")


def router_selector(router: ModelRouter) -> dict[str, str]:
    """Return the selector of a router's pods: the Go implementation's, whose Deployment may be taken over."""
    return {"app": router_objects_name(router.key.name), ROUTER_LABEL: label_value(router.key.name)}


def render_router(
    router: ModelRouter,
    config: bytes,
    settings: WorkloadSettings,
    *,
    keys: Iterable[KeyFile],
    destinations: Iterable[Rule],
) -> RouterManifests:
    """Return the desired objects of a router.

    Args:
        router: The router.
        config: Its encoded config.
        settings: The operator's settings for pods.
        keys: The keys that it reads, each in a folder of `KEYS_FOLDER`.
        destinations: Rules for the servers that its pods may connect to.
    """
    replicas = (router.spec.proxy or ProxySpec()).replicas or _REPLICAS
    selector = router_selector(router)
    collectors = [to_provider(settings.traces[name], local=True) for name in _COLLECTORS if name in settings.traces]
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return RouterManifests(
        config=_manifest(ConfigMap.RESOURCE, router, {"data": {CONFIG_FILE: config.decode()}}),
        deployment=_manifest(Deployment.RESOURCE, router, {"spec": _deployment(router, settings, replicas, keys)}),
        kubernetes_service=_manifest(Service.RESOURCE, router, {"spec": service_spec(router.spec.endpoint, selector)}),
        network=_manifest(
            NetworkPolicy.RESOURCE, router, {"spec": network_policy(selector, [*destinations, *collectors])}
        ),
        budget=_manifest(PodDisruptionBudget.RESOURCE, router, {"spec": budget}) if replicas > 1 else None,
        monitor=_monitor(router, settings) if settings.pod_monitors else None,
    )


def _monitor(router: ModelRouter, settings: WorkloadSettings) -> dict[str, Any]:
    relabelings = [{"targetLabel": "job", "replacement": JOB}]
    endpoint = {"port": METRICS_PORT_NAME, "path": "/metrics", "interval": "30s", "relabelings": relabelings}
    spec = {"selector": {"matchLabels": router_selector(router)}, "podMetricsEndpoints": [endpoint]}
    labels = {**settings.monitor_labels, **_labels(router)}
    return owned_manifest(PodMonitor.RESOURCE, router, router_objects_name(router.key.name), labels, {"spec": spec})


def _manifest(resource: Resource, router: ModelRouter, body: Mapping[str, Any]) -> dict[str, Any]:
    return owned_manifest(resource, router, router_objects_name(router.key.name), _labels(router), body)


def _labels(router: ModelRouter) -> dict[str, str]:
    return {
        **router_selector(router),
        "app.kubernetes.io/name": "llmkube",
        "app.kubernetes.io/component": "router-proxy",
        **OUR_LABELS,
    }


def _deployment(
    router: ModelRouter, settings: WorkloadSettings, replicas: int, keys: Iterable[KeyFile]
) -> dict[str, Any]:
    proxy, volumes = router.spec.proxy or ProxySpec(), _key_volumes(keys)
    history = proxy.revision_history_limit
    pull = [{"name": name} for name in settings.image_pull_secrets] if proxy.image is None else []
    pull += [{"name": one.name} for one in proxy.image_pull_secrets]
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": _DRAIN_SECONDS + _END_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_context(settings),
        "containers": [_container(proxy, settings, volumes)],
        "volumes": [
            {"name": "config", "configMap": {"name": router_objects_name(router.key.name)}},
            {"name": "scratch", "emptyDir": {}},
            *_certificates(settings),
            *volumes,
        ],
        **({"imagePullSecrets": pull} if pull else {}),
        **({"nodeSelector": dict(proxy.node_selector)} if proxy.node_selector else {}),
    }
    if replicas > 1:
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        pod["topologySpreadConstraints"] = [{**spread, "labelSelector": {"matchLabels": router_selector(router)}}]
    return {
        "replicas": replicas,
        "selector": {"matchLabels": router_selector(router)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        **({"revisionHistoryLimit": history} if history is not None else {}),
        "template": {"metadata": {"labels": _labels(router)}, "spec": pod},
    }


def _pod_context(settings: WorkloadSettings) -> dict[str, Any]:
    context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.fs_group is None:  # OpenShift assigns the user
        return context
    return {**context, "runAsUser": IMAGE_USER, "runAsGroup": IMAGE_USER, "fsGroup": IMAGE_USER}


def _container(proxy: ProxySpec, settings: WorkloadSettings, volumes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    args = ["router", "-f", f"{CONFIG_FOLDER}/{CONFIG_FILE}", "--host", EVERY_ADDRESS, "--port", str(PORT)]
    args += ["--admin-host", EVERY_ADDRESS, "--admin-port", str(ADMIN_PORT)]
    mounts: list[dict[str, Any]] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "scratch", "mountPath": _SCRATCH},
        *({"name": one["name"], "mountPath": _mount_path(one["name"]), "readOnly": True} for one in volumes),
    ]
    env = [{"name": "HOME", "value": _SCRATCH}, *proxy_variables(settings)]
    env += [{"name": name, "value": literal(value)} for name, value in settings.traces.items()]
    if settings.ca_config_map:
        env.append({**CA_VARIABLE})
        mounts.append({**CA_MOUNT, "readOnly": True})
    amounts = proxy.resources or {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    ports = (("http", PORT), (METRICS_PORT_NAME, ADMIN_PORT))
    return llmkube_container(settings, args, env, mounts) | {
        "name": _CONTAINER,
        "image": proxy.image or settings.image,
        "resources": dict(amounts),
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports],
        # Delays SIGTERM until the cluster's proxies know that the pod is terminating and its requests are complete.
        "lifecycle": {"preStop": {"httpGet": {"path": DRAINED, "port": METRICS_PORT_NAME, "scheme": "HTTP"}}},
        "startupProbe": _probe("/healthz", period=1, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=3),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
    }


def _certificates(settings: WorkloadSettings) -> list[dict[str, Any]]:
    """Return the volume of additional certificates; a namespace without the ConfigMap has only the image's."""
    if not settings.ca_config_map:
        return []
    return [{"name": "ca", "configMap": {"name": settings.ca_config_map, "optional": True}}]


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    get = {"path": path, "port": METRICS_PORT_NAME, "scheme": "HTTP"}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 2, "failureThreshold": failures}


def _key_volumes(keys: Iterable[KeyFile]) -> list[dict[str, Any]]:
    """Return one volume for each folder of keys, with only the named entries of a Secret.

    Secrets are optional: if one is missing, only what needs it fails, and reports that. The kubelet updates the files.
    """
    sources: dict[str, list[dict[str, Any]]] = {}
    whole_secrets: dict[str, str] = {}
    for one in keys:
        if not one.key:
            whole_secrets[posixpath.basename(one.path)] = one.secret
            continue
        folder, name = posixpath.split(one.path)
        secret = {"name": one.secret, "items": [{"key": one.key, "path": name}], "optional": True}
        sources.setdefault(posixpath.basename(folder), []).append({"secret": secret})
    return [
        *({"name": _volume(folder), "projected": {"sources": found}} for folder, found in sources.items()),
        *(
            {"name": _volume(folder), "secret": {"secretName": name, "optional": True}}
            for folder, name in whole_secrets.items()
        ),
    ]


def _volume(folder: str) -> str:
    return f"{_KEYS}{folder}"


def _mount_path(volume: str) -> str:
    return f"{KEYS_FOLDER}/{volume.removeprefix(_KEYS)}"
