"""Defaults and validation of Services, and their cluster addresses.

Facts: `k8s.io/kubernetes/pkg/apis/core/v1/defaults.go`, `pkg/apis/core/validation`, `pkg/registry/core/service`.

A Service gets a ClusterIP so that it looks as it would in a cluster; nothing routes to that address here: clients on
this machine reach an engine through the gateway. The address does not change as long as the Service exists; it is
unique, and from Kubernetes' usual range.

The address families are determined before anything else is validated: this cluster has IPv4 only. Facts:
`k8s.io/kubernetes/pkg/registry/core/service/storage/alloc.go`, initIPFamilyFields; a Service without an address and
without a selector may name families that the cluster does not have, because another program writes its endpoints.
"""

import hashlib
import ipaddress
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from llmkube.apiserver.kinds.endpoint_rules import (
    check_app_protocol,
    check_port_number,
    check_protocol,
    check_reachable,
    spelling_warnings,
)
from llmkube.apiserver.schema.structural import JsonObject
from llmkube.apiserver.values.field_errors import (
    FieldError,
    at,
    at_item,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from llmkube.apiserver.values.json_values import copy
from llmkube.apiserver.values.metadata import check_labels
from llmkube.k8s.wire import name_rules

_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_NODE_PORT_TYPES: Final = frozenset({"NodePort", "LoadBalancer"})
_POLICIES: Final = ("Cluster", "Local")

Old = Mapping[str, Any] | None


def fill(obj: JsonObject) -> None:
    """Set the defaults of a Service that depend on other fields."""
    spec = obj.setdefault("spec", {})
    kind = spec.get("type")
    for port in spec.get("ports") or ():
        if isinstance(port, dict) and not port.get("targetPort"):
            port["targetPort"] = port.get("port") or 0
    if spec.get("sessionAffinity") == "ClientIP" and not spec.get("sessionAffinityConfig"):
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": 10800}}
    if _is_externally_accessible(spec):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind in {"ClusterIP", *_NODE_PORT_TYPES}:
        spec.setdefault("internalTrafficPolicy", "Cluster")


def _is_externally_accessible(spec: Mapping[str, Any]) -> bool:
    """Whether traffic may come from outside the cluster, so that an external traffic policy applies."""
    kind = spec.get("type")
    return kind in _NODE_PORT_TYPES or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def prepare(obj: JsonObject, old: Old) -> None:
    """Carry over the addresses that the client left out on an update."""
    if old is None:
        return
    spec, before = obj.setdefault("spec", {}), old.get("spec") or {}
    if _is_externally_accessible(before) and not _is_externally_accessible(spec):
        _drop_if_unchanged("externalTrafficPolicy", spec, before)
    if spec.get("type") == "ExternalName":
        if before.get("type") != "ExternalName":
            _drop_cluster_fields(spec, before)
        return
    if before.get("type") == "ExternalName":
        return
    if spec.get("clusterIP") != before.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]] if spec.get("clusterIP") else []
    for name in ("clusterIP", "clusterIPs", "ipFamilyPolicy"):
        if not spec.get(name) and before.get(name):
            spec[name] = copy(before[name])
    if spec.get("type") in _NODE_PORT_TYPES and before.get("type") in _NODE_PORT_TYPES:
        _keep_node_ports(spec, before)


def _keep_node_ports(spec: JsonObject, before: Mapping[str, Any]) -> None:
    known = {(port.get("port"), port.get("protocol")): port.get("nodePort") for port in before.get("ports") or ()}
    for port in spec.get("ports") or ():
        number = known.get((port.get("port"), port.get("protocol")))
        if number and not port.get("nodePort"):
            port["nodePort"] = number


def _drop_cluster_fields(spec: JsonObject, before: Mapping[str, Any]) -> None:
    """Remove the fields that an ExternalName service does not have, unless the client changed them."""
    for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
        _drop_if_unchanged(name, spec, before)


def _drop_if_unchanged(name: str, spec: JsonObject, before: Mapping[str, Any]) -> None:
    if spec.get(name) == before.get(name):
        spec.pop(name, None)


def check(obj: Mapping[str, Any], old: Old) -> Iterator[FieldError]:
    """Validate a Service."""
    spec = obj.get("spec") or {}
    kind = spec.get("type") or ""
    if kind not in _TYPES:
        yield not_supported("spec.type", kind, _TYPES)
    headless = spec.get("clusterIP") == "None"
    ports = spec.get("ports") or ()
    if not ports and not headless and kind != "ExternalName":
        yield required("spec.ports")
    yield from _check_ports(ports)
    yield from check_labels(spec.get("selector"), "spec.selector")
    for index, address in enumerate(spec.get("externalIPs") or ()):
        yield from check_reachable(address, at_item("spec.externalIPs", index))
    if spec.get("sessionAffinity") not in {"None", "ClientIP"}:
        yield not_supported("spec.sessionAffinity", spec.get("sessionAffinity") or "", ("ClientIP", "None"))
    policy = spec.get("externalTrafficPolicy")
    if policy is not None and not _is_externally_accessible(spec):
        yield invalid("spec.externalTrafficPolicy", policy, "may only be set for externally-accessible services")
    elif policy is not None and policy not in _POLICIES:
        yield not_supported("spec.externalTrafficPolicy", policy, _POLICIES)
    internal_policy = spec.get("internalTrafficPolicy")
    if internal_policy is not None and internal_policy not in _POLICIES:
        yield not_supported("spec.internalTrafficPolicy", internal_policy, _POLICIES)
    if kind == "ExternalName":
        yield from _check_external_name(spec)
    else:
        yield from _check_cluster_ips(spec)
    if old is not None:
        yield from _check_addresses_unchanged(spec, old.get("spec") or {})


def _check_ports(ports: Any) -> Iterator[FieldError]:
    seen_names: set[str] = set()
    seen_ports: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = at_item("spec.ports", index)
        name = port.get("name") or ""
        if not name:
            if len(ports) > 1:
                yield required(at(path, "name"))
        else:
            if problem := name_rules.label(name):
                yield invalid(at(path, "name"), name, problem)
            if name in seen_names:
                yield duplicate(at(path, "name"), name)
            seen_names.add(name)
        yield from check_port_number(port.get("port") or 0, at(path, "port"))
        protocol = port.get("protocol") or ""
        yield from check_protocol(port, path)
        yield from _check_target(port.get("targetPort"), at(path, "targetPort"))
        yield from check_app_protocol(port, path)
        if (port.get("port"), protocol) in seen_ports:
            shown = {"Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port.get("port") or 0}
            yield duplicate(path, {**shown, "TargetPort": 0, "NodePort": 0})
        seen_ports.add((port.get("port"), protocol))


def _check_target(target: Any, path: str) -> Iterator[FieldError]:
    if isinstance(target, int):
        yield from check_port_number(target, path)
    elif isinstance(target, str):
        for problem in name_rules.port_name(target):
            yield invalid(path, target, problem)


def _check_external_name(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    name = (spec.get("externalName") or "").removesuffix(".")
    if not name:
        yield required("spec.externalName")
    elif problem := name_rules.subdomain(name):
        yield invalid("spec.externalName", name, problem)
    if spec.get("clusterIP"):
        yield forbidden("spec.clusterIPs", "may not be set when `type` is ExternalName")


def _check_cluster_ips(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    address, listed = spec.get("clusterIP") or "", spec.get("clusterIPs") or []
    if listed and listed[0] != address:
        yield invalid("spec.clusterIPs", listed, "first value must match `clusterIP`")
    for index, each in enumerate(listed or ([address] if address else [])):
        if each == "None":
            continue
        try:
            ipaddress.ip_address(each)
        except ValueError:
            where = at_item("spec.clusterIPs", index)
            yield invalid(where, each, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def _check_addresses_unchanged(spec: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[FieldError]:
    kept, now = before.get("clusterIPs") or [], spec.get("clusterIPs") or []
    if before.get("type") == "ExternalName" or spec.get("type") == "ExternalName" or not kept:
        return
    if not now or kept[0] != now[0]:
        yield invalid(at_item("spec.clusterIPs", 0), now, "may not change once set")


def check_status(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Service's status."""
    kind = (obj.get("spec") or {}).get("type")
    if kind != "LoadBalancer" and ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress"):
        yield forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'")


def warnings(obj: Mapping[str, Any]) -> list[str]:
    """Return the warnings about fields that have no effect or are deprecated."""
    spec = obj.get("spec") or {}
    external_ips, messages = spec.get("externalIPs") or (), []
    headless, is_external_name = spec.get("clusterIP") == "None", spec.get("type") == "ExternalName"
    if headless:
        messages += ["spec.loadBalancerIP is ignored for headless services"] if spec.get("loadBalancerIP") else []
        messages += ["spec.externalIPs is ignored for headless services"] if external_ips else []
        if spec.get("sessionAffinity") != "None":
            messages.append("spec.SessionAffinity is ignored for headless services")
    for index, address in enumerate(external_ips):
        messages += spelling_warnings(address, at_item("spec.externalIPs", index))
    if is_external_name and external_ips:
        messages.append('spec.externalIPs is ignored when spec.type is "ExternalName"')
    if external_ips and not headless and not is_external_name:
        messages.append("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
    if spec.get("trafficDistribution") == "PreferClose":
        messages.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return messages


SERVICE_NETWORK: Final = ipaddress.ip_network("10.96.0.0/12")
_RESERVED: Final = 16  # the first addresses are those of well-known services (10.96.0.1 kubernetes, 10.96.0.10 DNS)


def allocate_cluster_ip(name: str, taken: Collection[str]) -> str:
    """Return a free address; where possible the same for the same name, so that a recreated Service keeps it."""
    size = SERVICE_NETWORK.num_addresses - _RESERVED - 1  # without the broadcast address
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    for offset in range(size):
        address = str(SERVICE_NETWORK[_RESERVED + (start + offset) % size])
        if address not in taken:
            return address
    raise OverflowError("all addresses of the service network are taken")


_CLUSTER_FAMILY: Final = "IPv4"
_OTHER_FAMILY: Final[Mapping[str, str]] = {"IPv4": "IPv6", "IPv6": "IPv4"}
_FAMILY_POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
_DUAL_STACK: Final = frozenset({"PreferDualStack", "RequireDualStack"})


def init_families(spec: JsonObject, before: Mapping[str, Any] | None) -> list[FieldError]:
    """Set the families and their policy, in place; return errors for what the cluster cannot provide.

    Args:
        spec: The Service's, with the addresses that it has so far.
        before: The stored Service's spec, on an update.
    """
    if spec.get("type") == "ExternalName":
        return []
    before = before or {}
    _trim(spec, before)
    families, policy = list(spec.get("ipFamilies") or ()), spec.get("ipFamilyPolicy")
    released = len(before.get("ipFamilies") or ()) > 1 and len(families) == 1
    errors = list(_check_families(families, policy, released=released)) or list(_infer_families(spec, families))
    if errors:
        return errors
    selectorless = spec.get("clusterIP") == "None" and not spec.get("selector")
    if not selectorless:
        errors = list(_not_configured(families, policy))
    families = families or [_CLUSTER_FAMILY]
    if selectorless and len(families) == 1 and policy != "SingleStack":
        families.append(_OTHER_FAMILY[families[0]])
    spec["ipFamilies"] = families
    spec["ipFamilyPolicy"] = policy or ("RequireDualStack" if selectorless else "SingleStack")
    return errors


def _trim(spec: JsonObject, before: Mapping[str, Any]) -> None:
    """Drop the second family and address when the policy changes from dual stack to a single stack."""
    if before.get("ipFamilyPolicy") in _DUAL_STACK and spec.get("ipFamilyPolicy") == "SingleStack":
        for name in ("clusterIPs", "ipFamilies"):
            if len(spec.get(name) or ()) > 1:
                spec[name] = spec[name][:1]


def _check_families(families: list[str], policy: str | None, *, released: bool) -> Iterator[FieldError]:
    if policy is not None and policy not in _FAMILY_POLICIES:
        yield not_supported("spec.ipFamilyPolicy", policy, _FAMILY_POLICIES)
    for index, family in enumerate(families):
        if family not in _OTHER_FAMILY:
            yield not_supported(at_item("spec.ipFamilies", index), family, tuple(_OTHER_FAMILY))
        elif family in families[:index]:
            yield duplicate(at_item("spec.ipFamilies", index), family)
    if released and policy in _DUAL_STACK:
        yield invalid("spec.ipFamilyPolicy", policy, "must be 'SingleStack' to release the secondary IP family")
    if len(families) > 1 and policy not in _DUAL_STACK:
        why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        yield invalid("spec.ipFamilyPolicy", policy or "SingleStack", why)


def _infer_families(spec: Mapping[str, Any], families: list[str]) -> Iterator[FieldError]:
    """Add the families of the addresses that have none yet; yield errors for those not configured."""
    listed = spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else [])
    for index, address in enumerate(listed):
        if index < len(families) or address == "None":
            continue
        family = "IPv6" if ":" in address else "IPv4"
        if family == _CLUSTER_FAMILY:
            families.append(family)
        else:
            yield invalid(at_item("spec.clusterIPs", index), listed, f"{family} is not configured on this cluster")


def _not_configured(families: list[str], policy: str | None) -> Iterator[FieldError]:
    if policy == "RequireDualStack":
        yield invalid("spec.ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services")
    for index, family in enumerate(families):
        if family != _CLUSTER_FAMILY:
            yield invalid(at_item("spec.ipFamilies", index), family, "not configured on this cluster")
