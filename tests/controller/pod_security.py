"""Pod Security as the standards define it, read from a pod and not from our kinds.

Facts: https://kubernetes.io/docs/concepts/security/pod-security-standards (v1.36), for Linux. `tests/envtest` compares
these functions with the API server's own admission.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Pod = Mapping[str, Any]

CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
    *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
}
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"),
    "secret",
}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def against_baseline(template: Pod) -> list[str]:
    """Violations of a pod of this template in a namespace of level "baseline"."""
    return list(_baseline(template))


def against_restricted(template: Pod) -> list[str]:
    """The same of level "restricted"."""
    return [*_baseline(template), *_restricted(template["spec"])]


def _baseline(template: Pod) -> Iterator[str]:
    pod = template["spec"]
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield "hostPath"
    for key, value in template.get("metadata", {}).get("annotations", {}).items():
        if key.startswith(APPARMOR) and value not in ("", "runtime/default") and not value.startswith("localhost/"):
            yield "AppArmor"
    for context in _contexts(pod):
        yield from _baseline_context(context)
    for container in _containers(pod):
        yield from _ports_and_probes(container)


def _ports_and_probes(container: Pod) -> Iterator[str]:
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        for handler in ("httpGet", "tcpSocket"):
            if ((container.get(probe) or {}).get(handler) or {}).get("host"):
                yield "hostProbes"


def _baseline_context(context: Pod) -> Iterator[str]:
    if context.get("privileged"):
        yield "privileged"
    if set((context.get("capabilities") or {}).get("add") or ()) - CAPABILITIES:
        yield "capabilities"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield "hostProcess"
    if (context.get("procMount") or "Default") != "Default":
        yield "procMount"
    for profile in ("seccompProfile", "appArmorProfile"):
        if (context.get(profile) or {}).get("type") == "Unconfined":
            yield profile
    label = context.get("seLinuxOptions") or {}
    allowed = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
    if (label.get("type") or "") not in allowed or label.get("user") or label.get("role"):
        yield "seLinuxOptions"
    if {one["name"] for one in context.get("sysctls") or ()} - SYSCTLS:
        yield "sysctls"


def _restricted(pod: Pod) -> Iterator[str]:
    for volume in pod.get("volumes", ()):
        if set(volume) - {"name"} - VOLUMES:
            yield "volumes"
    shared = pod.get("securityContext") or {}
    for container in _containers(pod):
        own = container.get("securityContext") or {}
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()) or set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        if not own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            yield "runAsNonRoot"
        if not (own.get("seccompProfile") or shared.get("seccompProfile")):
            yield "seccompProfile"
    if any(context.get("runAsUser") == 0 for context in _contexts(pod)):
        yield "runAsUser"


def _containers(pod: Pod) -> list[Pod]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _contexts(pod: Pod) -> Iterator[Pod]:
    for each in (pod, *_containers(pod)):
        yield each.get("securityContext") or {}
