"""Check pod settings in a spec against those that the operator allows. Pure.

Users may choose the image, the command, and Secrets and claims of the service's namespace. Everything beyond the
container or the namespace has to be allowed by the operator, with one chart value each (`workloads.allow`); by default
nothing is:

| chart value | allows |
|---|---|
| `hostPaths` | folders of the nodes, mounted read-only |
| `foreignVolumes` | volumes of neither the pod nor the namespace: network file systems, CSI drivers, volumes by name |
| `tokens` | credentials for the API server: projected tokens and certificates of the pod's service account |
| `root` | the user root in a field of the spec; the user in the image itself is not checked |
| `privileged` | privileges, capabilities, unconfined profiles, kernel parameters |
| `hostNamespaces` | the node's network: probes that name a host, and the `fabric` of a group |
| `controlPlane` | tolerating the taints that keep pods off the control plane |
| `priorityClasses` | PriorityClasses by name, besides those of `spec.priority` |

Without any of them, every possible pod meets the Pod Security standard "baseline" (v1.36). Unknown fields are refused,
because a newer API may add harmful ones.
"""

import fnmatch
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.settings import PRIORITY_CLASS_PREFIXES, Allowance, WorkloadSettings
from llmkube.k8s.crd.inferenceservice import PRIORITIES, InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec

Part = Mapping[str, Any]

HOST_PATHS: Final = "hostPaths"
PRIORITY_CLASSES: Final = "priorityClasses"

SOURCE_VOLUMES: Final = ("model-source", "model-source-draft")
"""Names of the volumes that already hold a Model's weights; they may be folders of the node."""

OWN_VOLUMES: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "secret"}
)  # fmt: skip
PLAIN_PATHS: Final = frozenset({"", "Directory", "File"})
PLAIN_SOURCES: Final = frozenset({"clusterTrustBundle", "configMap", "downwardAPI", "secret"})
TOKEN_SOURCES: Final = frozenset({"podCertificate", "serviceAccountToken"})

HARMLESS: Final = frozenset(
    {
        *("fsGroup", "fsGroupChangePolicy", "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot"),
        *("seLinuxChangePolicy", "supplementalGroups", "supplementalGroupsPolicy"),
    }
)
# Source: the Pod Security standards, https://kubernetes.io/docs/concepts/security/pod-security-standards (v1.36)
HARMLESS_CAPABILITIES: Final = frozenset({"NET_BIND_SERVICE"})
SELINUX_TYPES: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})
SAFE_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        *("net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem"),
        *("net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
    }
)
APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
INJECTED_VOLUMES: Final = "sidecar.istio.io/userVolume"
CONTROL_PLANE_TAINTS: Final = frozenset(
    {
        *("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd"),
        "CriticalAddonsOnly",
    }
)


@attrs.frozen
class Refusal:
    """A field that the operator does not allow; `value` is the value of `workloads.allow` that would allow it."""

    field: str
    why: str
    value: str


def service_refusals(spec: InferenceServiceSpec, settings: WorkloadSettings) -> tuple[Refusal, ...]:
    """Return the fields of a service that are not allowed, in the order of the spec."""
    found = (
        *_probe_refusals(spec),
        *_fabric_refusals(spec),
        *_priority_refusals(spec, settings),
        *_toleration_refusals(spec.tolerations, "spec.tolerations"),
        *_annotation_refusals(spec.pod_annotations),
        *_security_refusals(spec.pod_security_context or {}, "spec.podSecurityContext"),
        *_security_refusals(spec.security_context or {}, "spec.securityContext"),
        *_volume_refusals(spec, settings),
        *_mount_refusals(spec),
    )
    return _without_allowed(found, settings)


def fetch_refusals(spec: ModelSpec, settings: WorkloadSettings) -> tuple[Refusal, ...]:
    """Return the fields of a Model that are not allowed for the pod that fetches it."""
    return _without_allowed(_toleration_refusals(spec.prefetch_tolerations, "Model.spec.prefetchTolerations"), settings)


def refusal_message(refusals: Sequence[Refusal]) -> str:
    """Return refusals as a message for a condition."""
    found = "; ".join(f"{one.field} {one.why} (workloads.allow.{one.value})" for one in refusals)
    return (
        f"not allowed in this cluster: {found}. Remove it, or ask the operator of the controller to allow it "
        "with the chart value in parentheses"
    )


def is_allowed_folder(path: str, settings: WorkloadSettings) -> bool:
    """Whether a path of a node is in or below one of the folders that pods may mount."""
    normal = posixpath.normpath(path)
    folders = (posixpath.normpath(folder) for folder in settings.host_paths)
    return any(normal == folder or normal.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _without_allowed(found: Iterator[Refusal] | Sequence[Refusal], settings: WorkloadSettings) -> tuple[Refusal, ...]:
    return tuple(one for one in found if one.value not in settings.allow)


# -- volumes ----------------------------------------------------------------------------------------------------------


def _volume_refusals(spec: InferenceServiceSpec, settings: WorkloadSettings) -> Iterator[Refusal]:
    for number, volume in enumerate(spec.extra_volumes):
        for kind, source in _given(volume):
            path = f"spec.extraVolumes[{number}].{kind}"
            if kind == "name" or kind in OWN_VOLUMES:
                continue
            if kind == "hostPath":
                writable = _is_mounted_writable(spec, str(volume.get("name", "")))
                yield from _host_path_refusals(source, path, settings, writable=writable)
            elif kind == "projected":
                yield from _projected_refusals(source, path)
            elif kind == "ephemeral":
                yield from _ephemeral_refusals(source, path)
            else:
                yield Refusal(path, "is a volume outside the service's namespace", Allowance.FOREIGN_VOLUMES)


def _host_path_refusals(source: Part, path: str, settings: WorkloadSettings, *, writable: bool) -> Iterator[Refusal]:
    folder = str(source.get("path", ""))
    if not is_allowed_folder(folder, settings):
        allowed = ", ".join(settings.host_paths) or "none"
        yield Refusal(f"{path}.path", f"is {folder!r}, but pods may only mount these folders of a node: {allowed}",
                      HOST_PATHS)  # fmt: skip
    elif (source.get("type") or "") not in PLAIN_PATHS:
        yield Refusal(f"{path}.type", "creates a file on the node, or opens a device", HOST_PATHS)
    elif writable:
        # A pod that can write there can create a link to any other folder, which the next pod would mount.
        yield Refusal(path, "must be mounted with readOnly: true, because it is a folder of a node", HOST_PATHS)


def _is_mounted_writable(spec: InferenceServiceSpec, volume: str) -> bool:
    return any(one.get("name") == volume and one.get("readOnly") is not True for one in spec.extra_volume_mounts)


def _projected_refusals(source: Part, path: str) -> Iterator[Refusal]:
    for number, one in enumerate(source.get("sources") or ()):
        for kind, _ in _given(one):
            if kind in TOKEN_SOURCES:
                yield Refusal(f"{path}.sources[{number}].{kind}", "is a credential for the API server",
                              Allowance.TOKENS)  # fmt: skip
            elif kind not in PLAIN_SOURCES:
                yield Refusal(f"{path}.sources[{number}].{kind}", "may be outside the service's namespace",
                              Allowance.FOREIGN_VOLUMES)  # fmt: skip


def _ephemeral_refusals(source: Part, path: str) -> Iterator[Refusal]:
    claim = (source.get("volumeClaimTemplate") or {}).get("spec") or {}
    origin = (claim.get("dataSourceRef") or {}).get("namespace")
    chosen = ("volumeName", claim.get("volumeName")), ("selector", claim.get("selector"))
    for name, value in (*chosen, ("dataSourceRef.namespace", origin)):
        if value:
            yield Refusal(f"{path}.volumeClaimTemplate.spec.{name}", "selects a volume that others have created",
                          Allowance.FOREIGN_VOLUMES)  # fmt: skip


def _mount_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    theirs = {volume.get("name") for volume in spec.extra_volumes}
    for number, mount in enumerate(spec.extra_volume_mounts):
        path, name = f"spec.extraVolumeMounts[{number}]", mount.get("name")
        if mount.get("mountPropagation") == "Bidirectional":
            yield Refusal(f"{path}.mountPropagation", "propagates mounts to the node", Allowance.PRIVILEGED)
        if name in SOURCE_VOLUMES and name not in theirs and mount.get("readOnly") is not True:
            yield Refusal(f"{path}.readOnly", "must be true: the weights may be in a folder of a node", HOST_PATHS)


# -- security contexts ------------------------------------------------------------------------------------------------


def _security_refusals(context: Part, path: str) -> Iterator[Refusal]:
    for name, value in _given(context):
        field = f"{path}.{name}"
        if name in HARMLESS:
            continue
        if name == "runAsUser":
            if value == 0:
                yield Refusal(field, "requests the root user", Allowance.ROOT)
        elif name == "windowsOptions":
            yield from _windows_refusals(value, field)
        elif why := _privilege(name, value):
            yield Refusal(field, why, Allowance.PRIVILEGED)


def _privilege(name: str, value: Any) -> str:
    """Return how a field of a security context grants privileges; empty if it does not."""
    if name in ("privileged", "allowPrivilegeEscalation"):
        return "requests privileges on the node" if value else ""
    if name == "capabilities":
        more = [one for one in value.get("add") or () if str(one).removeprefix("CAP_") not in HARMLESS_CAPABILITIES]
        return f"adds {', '.join(map(str, more))}" if more else ""
    if name == "procMount":
        return "unmasks /proc" if value not in ("", "Default") else ""
    if name in ("seccompProfile", "appArmorProfile"):
        return "removes the container's profile" if value.get("type") not in PROFILES else ""
    if name == "seLinuxOptions":
        other = (value.get("type") or "") not in SELINUX_TYPES or value.get("user") or value.get("role")
        return "changes the SELinux type, user or role of the container" if other else ""
    if name == "sysctls":
        more = [str(one.get("name", "")) for one in value if one.get("name") not in SAFE_SYSCTLS]
        return f"sets {', '.join(more)}, which affects more than the pod" if more else ""
    return "is not known to be harmless"


def _windows_refusals(options: Part, path: str) -> Iterator[Refusal]:
    for name, value in _given(options):
        if name == "runAsUserName":
            if str(value).rpartition("\\")[2].lower() in ("containeradministrator", "administrator", "system"):
                yield Refusal(f"{path}.{name}", "requests an administrator account", Allowance.ROOT)
        elif value:
            yield Refusal(f"{path}.{name}", "requests privileges on the node", Allowance.PRIVILEGED)


# -- other fields -----------------------------------------------------------------------------------------------------


def _probe_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    probes = spec.probe_overrides
    if probes is None:
        return
    for name in ("startup", "liveness", "readiness"):
        for handler in ("httpGet", "tcpSocket"):
            if ((getattr(probes, name) or {}).get(handler) or {}).get("host"):
                yield Refusal(f"spec.probeOverrides.{name}.{handler}.host", "makes the node probe another host",
                              Allowance.HOST_NAMESPACES)  # fmt: skip


def _fabric_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    for number, member in enumerate(spec.multi_node.members if spec.multi_node is not None else ()):
        if member.fabric is not None:
            yield Refusal(f"spec.multiNode.members[{number}].fabric", "puts the pod into its node's network",
                          Allowance.HOST_NAMESPACES)  # fmt: skip


def _priority_refusals(spec: InferenceServiceSpec, settings: WorkloadSettings) -> Iterator[Refusal]:
    name, given = spec.priority_class_name, settings.priority_class_prefix
    prefixes = PRIORITY_CLASS_PREFIXES if given is None else (given,) if given else ()
    if not name or name in {f"{prefix}{priority}" for prefix in prefixes for priority in PRIORITIES}:
        return
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.priority_classes):
        allowed = ", ".join(settings.priority_classes) or "none"
        yield Refusal("spec.priorityClassName", f"is {name!r}, but services may only name these: {allowed}",
                      PRIORITY_CLASSES)  # fmt: skip


def _toleration_refusals(tolerations: Sequence[Part], path: str) -> Iterator[Refusal]:
    for number, one in enumerate(tolerations):
        key, field = one.get("key") or "", f"{path}[{number}]"
        if not key:
            yield Refusal(field, "tolerates every taint, including those of the control plane: set a key",
                          Allowance.CONTROL_PLANE)  # fmt: skip
        elif key in CONTROL_PLANE_TAINTS:
            yield Refusal(f"{field}.key", f"is {key}, a taint of the control plane", Allowance.CONTROL_PLANE)


def _annotation_refusals(annotations: Mapping[str, str]) -> Iterator[Refusal]:
    for key, value in annotations.items():
        field = f"spec.podAnnotations[{key}]"
        if key.startswith(APPARMOR) and value not in ("", "runtime/default") and not value.startswith("localhost/"):
            yield Refusal(field, "removes the container's profile", Allowance.PRIVILEGED)
        elif key.startswith(INJECTED_VOLUMES):
            yield Refusal(field, "lets an injector add volumes of any kind", Allowance.FOREIGN_VOLUMES)


def _given(part: Part) -> Iterator[tuple[str, Any]]:
    """Return the fields of a part that are set."""
    return ((name, value) for name, value in part.items() if value is not None)
