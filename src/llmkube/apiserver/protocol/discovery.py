"""Discovery lists what is served: in many small documents (the old form), or in two (the aggregated form).

Facts: `APIGroupDiscoveryList` of apidiscovery.k8s.io/v2 (kubectl 1.30 and later; v2beta1 since 1.27), `APIResourceList`
of v1 for everything older.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.kinds.catalog import NAMESPACES, Catalog
from llmkube.apiserver.kinds.kind_info import KindInfo, version_rank
from llmkube.apiserver.protocol.negotiation import parse_accept

JsonObject = dict[str, Any]

VERSION: Final[Mapping[str, str]] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+llmkube",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
"""Answer to `/version`: the Kubernetes release whose behaviour this server follows."""

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_CUSTOM_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_SUBRESOURCE_VERBS: Final = ("get", "patch", "update")
_FINALIZE: Final = "finalize"
_SCALE: Final = {"group": "autoscaling", "version": "v1", "kind": "Scale"}

REVIEWS: Final[Mapping[str, str]] = {
    "selfsubjectaccessreviews": "SelfSubjectAccessReview",
    "selfsubjectrulesreviews": "SelfSubjectRulesReview",
}
"""Kinds by plural that are posted and answered, but never stored: questions about access."""

REVIEW_VERSION: Final = ("authorization.k8s.io", "v1")


def aggregated(catalog: Catalog, *, core: bool, api_version: str) -> JsonObject:
    """Return all groups with all their resources: the core group for `/api`, the others for `/apis`."""
    items = []
    for group, versions in _groups(catalog).items():
        if (group == "") is core:
            listed = [
                {"version": version, "resources": _aggregate(resources, group, version), "freshness": "Current"}
                for version, resources in versions.items()
            ]
            items.append({"metadata": {"name": group} if group else {}, "versions": listed})
    group_version = f"apidiscovery.k8s.io/{api_version}"
    return {"kind": "APIGroupDiscoveryList", "apiVersion": group_version, "metadata": {}, "items": items}


def _aggregate(resources: Iterable[JsonObject], group: str, version: str) -> list[JsonObject]:
    """Convert the entries of an APIResourceList to the aggregated form."""
    found: dict[str, JsonObject] = {}
    for entry in resources:
        plural, _, subresource = entry["name"].partition("/")
        gv = {"group": group, "version": version if group else ""}  # the core group's kinds omit theirs
        response_kind = {name: entry.get(name, gv.get(name)) for name in ("group", "version", "kind")}
        common = {"responseKind": response_kind, "verbs": entry["verbs"]}
        if subresource:
            found[plural].setdefault("subresources", []).append({"subresource": subresource, **common})
            continue
        found[plural] = {
            "resource": plural,
            "scope": "Namespaced" if entry["namespaced"] else "Cluster",
            "singularResource": entry["singularName"],
            **common,
            **{name: entry[name] for name in ("shortNames", "categories") if name in entry},
        }
    return list(found.values())


def preferred_aggregation(accept: str) -> str:
    """Return the version of the aggregated form that the client prefers; empty for the old form."""
    for choice in parse_accept(accept):
        if not choice.accepts("application/json"):
            continue
        version = choice.get("v")
        if choice.get("as") == "APIGroupDiscoveryList" and version in {"v2", "v2beta1"}:
            return version
        if not choice.get("as"):
            return ""
    return ""


def core_versions() -> JsonObject:
    """Return the response to `/api` in the old form."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    }


def group_list(catalog: Catalog) -> JsonObject:
    """Return the response to `/apis` in the old form."""
    groups = [_group(group, versions) for group, versions in _groups(catalog).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(catalog: Catalog, name: str) -> JsonObject | None:
    """Return the response to `/apis/GROUP`, or None."""
    versions = _groups(catalog).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if name and versions else None


def resource_list(catalog: Catalog, name: str, version: str) -> JsonObject | None:
    """Return the response to `/api/VERSION` or `/apis/GROUP/VERSION`, or None."""
    resources = _groups(catalog).get(name, {}).get(version)
    if resources is None:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": resources,
    }


def _groups(catalog: Catalog) -> dict[str, dict[str, list[JsonObject]]]:
    """Return the APIResourceList entries by group name and version, the best version first."""
    groups: dict[str, dict[str, list[JsonObject]]] = {"": {}}
    for kind in sorted(catalog, key=lambda kind: kind.resource.plural):
        resource = kind.resource
        groups.setdefault(resource.group, {}).setdefault(resource.version, []).extend(_resources(kind))
    group, version = REVIEW_VERSION
    for plural, name in REVIEWS.items():
        entry = {"name": plural, "singularName": name.lower(), "namespaced": False, "kind": name, "verbs": ["create"]}
        groups.setdefault(group, {}).setdefault(version, []).append(entry)
    return {
        name: dict(sorted(versions.items(), key=lambda item: version_rank(item[0])))
        for name, versions in sorted(groups.items())
    }


def _group(name: str, versions: Iterable[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(kind: KindInfo) -> Sequence[JsonObject]:
    resource = kind.resource
    main: JsonObject = {
        "name": resource.plural,
        "singularName": kind.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(verbs(kind)),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    if kind.storage:
        main["storageVersionHash"] = _storage_version_hash(kind)
    entries = [main]
    finalize = (_FINALIZE,) if resource.full_name == NAMESPACES else ()  # namespaces alone have it
    for name in (*finalize, *resource.subresources):
        entry = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        shape = _SCALE if name == "scale" else {"kind": resource.kind}
        entries.append({**entry, **shape, "verbs": ["update"] if name == _FINALIZE else list(_SUBRESOURCE_VERBS)})
    return entries


def _storage_version_hash(kind: KindInfo) -> str:
    """Return the hash of the storage version, as kube-apiserver does; clients detect by it that it has changed."""
    resource = kind.resource
    text = f"{resource.group}/{resource.version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def verbs(kind: KindInfo) -> tuple[str, ...]:
    """Return the verbs of a kind, in kube-apiserver's order."""
    if kind.resource.full_name == NAMESPACES:
        return tuple(verb for verb in VERBS if verb != "deletecollection")
    if kind.terminating:
        return tuple(verb for verb in _CUSTOM_VERBS if verb not in {"patch", "create", "update"})
    return VERBS if kind.builtin else _CUSTOM_VERBS
