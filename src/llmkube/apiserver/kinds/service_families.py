"""The address families of a Service are settled before anything else about it is judged: this cluster has IPv4 alone.

Facts: `k8s.io/kubernetes/pkg/registry/core/service/storage/alloc.go`, initIPFamilyFields; a Service without an address
and without a selector may name families that the cluster does not have, because another program writes its endpoints.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmkube.apiserver.schema.structural import JsonObject
from llmkube.apiserver.values.field_errors import FieldError, at_index, duplicate, invalid, not_supported

_CLUSTER: Final = "IPv4"
_OTHER: Final[Mapping[str, str]] = {"IPv4": "IPv6", "IPv6": "IPv4"}
_POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
_DUAL: Final = frozenset({"PreferDualStack", "RequireDualStack"})


def settle_families(spec: JsonObject, before: Mapping[str, Any] | None) -> list[FieldError]:
    """Complete the families and their policy, in place; return why the cluster cannot give what is asked for.

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
    errors = list(_check(families, policy, released=released)) or list(_infer(spec, families))
    if errors:
        return errors
    selectorless = spec.get("clusterIP") == "None" and not spec.get("selector")
    if not selectorless:
        errors = list(_not_configured(families, policy))
    families = families or [_CLUSTER]
    if selectorless and len(families) == 1 and policy != "SingleStack":
        families.append(_OTHER[families[0]])
    spec["ipFamilies"] = families
    spec["ipFamilyPolicy"] = policy or ("RequireDualStack" if selectorless else "SingleStack")
    return errors


def _trim(spec: JsonObject, before: Mapping[str, Any]) -> None:
    """Give less to who asks for less than there was."""
    if before.get("ipFamilyPolicy") in _DUAL and spec.get("ipFamilyPolicy") == "SingleStack":
        for name in ("clusterIPs", "ipFamilies"):
            if len(spec.get(name) or ()) > 1:
                spec[name] = spec[name][:1]


def _check(families: list[str], policy: str | None, *, released: bool) -> Iterator[FieldError]:
    if policy is not None and policy not in _POLICIES:
        yield not_supported("spec.ipFamilyPolicy", policy, _POLICIES)
    for index, family in enumerate(families):
        if family not in _OTHER:
            yield not_supported(at_index("spec.ipFamilies", index), family, tuple(_OTHER))
        elif family in families[:index]:
            yield duplicate(at_index("spec.ipFamilies", index), family)
    if released and policy in _DUAL:
        yield invalid("spec.ipFamilyPolicy", policy, "must be 'SingleStack' to release the secondary IP family")
    if len(families) > 1 and policy not in _DUAL:
        why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        yield invalid("spec.ipFamilyPolicy", policy or "SingleStack", why)


def _infer(spec: Mapping[str, Any], families: list[str]) -> Iterator[FieldError]:
    """Add the families that are not named from the addresses that are."""
    listed = spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else [])
    for index, address in enumerate(listed):
        if index < len(families) or address == "None":
            continue
        family = "IPv6" if ":" in address else "IPv4"
        if family == _CLUSTER:
            families.append(family)
        else:
            yield invalid(at_index("spec.clusterIPs", index), listed, f"{family} is not configured on this cluster")


def _not_configured(families: list[str], policy: str | None) -> Iterator[FieldError]:
    if policy == "RequireDualStack":
        yield invalid("spec.ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services")
    for index, family in enumerate(families):
        if family != _CLUSTER:
            yield invalid(at_index("spec.ipFamilies", index), family, "not configured on this cluster")
