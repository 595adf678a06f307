"""Discovery tells clients what is served: the old form in many small answers, the aggregated one in two.

Facts: `APIGroupDiscoveryList` of apidiscovery.k8s.io/v2 (kubectl 1.30 and later; v2beta1 since 1.27),
`APIResourceList` of v1 for everything older.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

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
"""What `/version` says: the Kubernetes release whose behaviour this server keeps to."""

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_CUSTOM_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
SUBRESOURCE_VERBS: Final = ("get", "patch", "update")
_FINALIZE: Final = "finalize"


@attrs.frozen
class Review:
    """A kind that is only ever posted and never stored: the answer to a question about access."""

    kind: str
    plural: str
    group: str = "authorization.k8s.io"
    version: str = "v1"


REVIEWS: Final = (
    Review("SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    Review("SelfSubjectRulesReview", "selfsubjectrulesreviews"),
)


def aggregated(catalog: Catalog, *, core: bool, api_version: str) -> JsonObject:
    """Return all groups with all their resources: the core group for `/api`, the others for `/apis`."""
    items = []
    for group, versions in _groups(catalog).items():
        if (group == "") is not core:
            continue
        items.append(
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "resources": [*map(_discovered, kinds), *_discovered_reviews(group)],
                        "freshness": "Current",
                    }
                    for version, kinds in versions.items()
                ],
            }
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{api_version}",
        "metadata": {},
        "items": items,
    }


def wanted_aggregation(accept: str) -> str:
    """Return the version of the aggregated form that the client prefers, or nothing for the old form."""
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
    """Return the answer to `/api` in the old form."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    }


def group_list(catalog: Catalog) -> JsonObject:
    """Return the answer to `/apis` in the old form."""
    groups = [_group(group, versions) for group, versions in _groups(catalog).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(catalog: Catalog, name: str) -> JsonObject | None:
    """Return the answer to `/apis/GROUP`."""
    versions = _groups(catalog).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if name and versions else None


def resource_list(catalog: Catalog, name: str, version: str) -> JsonObject | None:
    """Return the answer to `/api/VERSION` or `/apis/GROUP/VERSION`."""
    kinds = _groups(catalog).get(name, {}).get(version)
    if kinds is None:
        return None
    resources = [entry for kind in kinds for entry in _resources(kind)]
    resources += [_review(review) for review in REVIEWS if (review.group, review.version) == (name, version)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": resources,
    }


def _groups(catalog: Catalog) -> dict[str, dict[str, list[KindInfo]]]:
    """Group name to version to kinds, best version first."""
    groups: dict[str, dict[str, list[KindInfo]]] = {"": {}}
    for kind in sorted(catalog, key=lambda kind: kind.resource.plural):
        resource = kind.resource
        groups.setdefault(resource.group, {}).setdefault(resource.version, []).append(kind)
    for review in REVIEWS:
        groups.setdefault(review.group, {}).setdefault(review.version, [])
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
    for name in _listed_subresources(kind):
        entry = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        shape = _scale_kind() if name == "scale" else {"kind": resource.kind}
        entries.append({**entry, **shape, "verbs": _subresource_verbs(name)})
    return entries


def _storage_version_hash(kind: KindInfo) -> str:
    """Name the form in which objects are stored, as kube-apiserver does: clients see by it that it has changed."""
    resource = kind.resource
    text = f"{resource.group}/{resource.version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def verbs(kind: KindInfo) -> tuple[str, ...]:
    """Return what may be done with a kind, in the order in which kube-apiserver says it."""
    if kind.resource.full_name == NAMESPACES:
        return tuple(verb for verb in VERBS if verb != "deletecollection")
    return VERBS if kind.builtin else _CUSTOM_VERBS


def subresources(kind: KindInfo) -> tuple[str, ...]:
    """Return the names of a kind's subresources."""
    names = ("status",) if kind.status_subresource else ()
    return (*names, "scale") if kind.scale is not None else names


def _subresource_verbs(name: str) -> list[str]:
    return ["update"] if name == _FINALIZE else list(SUBRESOURCE_VERBS)


def _listed_subresources(kind: KindInfo) -> tuple[str, ...]:
    """What discovery lists: the finalizers of a namespace have a way of their own."""
    return (_FINALIZE, *subresources(kind)) if kind.resource.full_name == NAMESPACES else subresources(kind)


def _review(review: Review) -> JsonObject:
    entry = {"name": review.plural, "singularName": review.kind.lower(), "namespaced": False}
    return {**entry, "kind": review.kind, "verbs": ["create"]}


def _scale_kind() -> JsonObject:
    return {"group": "autoscaling", "version": "v1", "kind": "Scale"}


def _discovered(kind: KindInfo) -> JsonObject:
    resource = kind.resource
    shown_version = resource.version if resource.group else ""  # the core group's kinds do not say theirs
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": shown_version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(verbs(kind)),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    listed = []
    for name in _listed_subresources(kind):
        answer = _scale_kind() if name == "scale" else entry["responseKind"]
        listed.append({"subresource": name, "responseKind": answer, "verbs": _subresource_verbs(name)})
    if listed:
        entry["subresources"] = listed
    return entry


def _discovered_reviews(name: str) -> list[JsonObject]:
    return [
        {
            "resource": review.plural,
            "responseKind": {"group": review.group, "version": review.version, "kind": review.kind},
            "scope": "Cluster",
            "singularResource": review.kind.lower(),
            "verbs": ["create"],
        }
        for review in REVIEWS
        if review.group == name
    ]
