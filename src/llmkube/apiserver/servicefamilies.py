"""The address families of a Service are settled before anything else about it is judged: this cluster has IPv4 alone.

Facts: `k8s.io/kubernetes/pkg/registry/core/service/storage/alloc.go`, initIPFamilyFields; a Service without an address
and without a selector may name families that the cluster does not have, because its endpoints are somebody else's.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmkube.apiserver.fielderrors import FieldError, at_index, duplicate, invalid, not_supported
from llmkube.apiserver.schema import JsonObject

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
    if before is not None and before.get("ipFamilyPolicy") in _DUAL and spec.get("ipFamilyPolicy") == "SingleStack":
        for name in ("clusterIPs", "ipFamilies"):  # who asks for less gets less
            if len(spec.get(name) or ()) > 1:
                spec[name] = spec[name][:1]
    families, policy = list(spec.get("ipFamilies") or ()), spec.get("ipFamilyPolicy")
    errors = list(_check(families, policy))
    if errors:
        return errors
    _infer(spec, families, errors)
    if errors:
        return errors
    if spec.get("clusterIP") == "None" and not spec.get("selector"):
        families = families or [_CLUSTER]
        if len(families) == 1 and policy != "SingleStack":
            families.append(_OTHER[families[0]])
        spec["ipFamilies"] = families
        spec["ipFamilyPolicy"] = policy or "RequireDualStack"
        return []
    if policy == "RequireDualStack":
        errors.append(invalid("spec.ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services"))
    for index, family in enumerate(families):
        if family != _CLUSTER:
            errors.append(invalid(at_index("spec.ipFamilies", index), family, "not configured on this cluster"))
    spec["ipFamilies"] = families or [_CLUSTER]
    spec["ipFamilyPolicy"] = policy or "SingleStack"
    return errors


def _check(families: list[str], policy: str | None) -> Iterator[FieldError]:
    if policy is not None and policy not in _POLICIES:
        yield not_supported("spec.ipFamilyPolicy", policy, _POLICIES)
    for index, family in enumerate(families):
        if family not in _OTHER:
            yield not_supported(at_index("spec.ipFamilies", index), family, tuple(_OTHER))
        elif family in families[:index]:
            yield duplicate(at_index("spec.ipFamilies", index), family)
    if len(families) > 1 and policy not in _DUAL:
        why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        yield invalid("spec.ipFamilyPolicy", policy, why)


def _infer(spec: Mapping[str, Any], families: list[str], errors: list[FieldError]) -> None:
    """Take the families that are not named from the addresses that are."""
    listed = spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else [])
    for index, address in enumerate(listed):
        if index < len(families) or address == "None":
            continue
        family = "IPv6" if ":" in address else "IPv4"
        if family == _CLUSTER:
            families.append(family)
        else:
            why = f"{family} is not configured on this cluster"
            errors.append(invalid(at_index("spec.clusterIPs", index), listed, why))
