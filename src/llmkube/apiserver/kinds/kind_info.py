"""Each kind that the server knows is a `KindInfo`: built-in kinds come from a table, custom ones from a CRD.

The workload kinds are stored as they are sent, so that a controller can be tested without a cluster. `llmkube up` does
not serve them: this server has no scheduler and no kubelet, and a Deployment without pods would be worse than none.
Kubernetes' own validation and defaults below `spec` are not repeated here; the controller is tested on a real
kube-apiserver as well.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.schema.builtin_types import OBJECT_META, type_schema
from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.k8s import builtins
from llmkube.k8s.resource import Resource
from llmkube.k8s.wire import name_rules


@attrs.frozen(eq=False)
class KindInfo:
    """Everything that the server needs to serve one version of a kind."""

    resource: Resource
    schema: Schema  # of the whole object, metadata included
    singular: str
    list_kind: str
    definition: str  # its name in the OpenAPI documents, such as io.k8s.api.core.v1.Service
    builtin: bool = False  # strategic merge patches are for built-in kinds; unknown fields are dropped either way
    served: bool = True
    storage: bool = True
    scale: Mapping[str, str] | None = None  # a CRD's: JSON paths of the replica counts, such as `.spec.replicas`
    printer_columns: Sequence[Mapping[str, Any]] = ()  # a CRD's, in addition to the name
    selectable_fields: tuple[str, ...] = ()  # beyond metadata.name and metadata.namespace, for fieldSelector
    name_rule: Callable[[str], str] = name_rules.subdomain  # returns an empty text for a valid name
    deprecation_warning: str = ""
    unconditional_update: bool = False  # an update without resourceVersion is allowed
    has_generation: bool = True  # metadata.generation is maintained
    terminating: bool = False  # its CustomResourceDefinition is being deleted

    @property
    def status_subresource(self) -> bool:
        """Whether the kind has the `status` subresource."""
        return "status" in self.resource.subresources


def builtin_kind(
    resource: Resource, package: str = "io.k8s.api.core.v1", *, shape: str = "", **overrides: Any
) -> KindInfo:
    """Return a built-in kind; most have no generation, and those of the core group can be updated unconditionally."""
    definition = f"{package}.{resource.kind}"
    standard = {"unconditional_update": package == "io.k8s.api.core.v1", "has_generation": False}
    return KindInfo(
        resource=resource,
        schema=Schema.parse(type_schema(shape or definition)),
        singular=resource.singular,
        list_kind=resource.list_kind,
        definition=definition,
        builtin=True,
        **(standard | overrides),
    )


_REFERENCE: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS: Final = (
    *(f"involvedObject.{name}" for name in _REFERENCE),
    *("reason", "reportingComponent", "source", "type"),
)

BUILTIN_KINDS: Final[tuple[KindInfo, ...]] = (
    builtin_kind(builtins.Namespace.RESOURCE, selectable_fields=("status.phase",), name_rule=name_rules.label),
    builtin_kind(builtins.ConfigMap.RESOURCE),
    builtin_kind(builtins.Secret.RESOURCE, selectable_fields=("type",)),
    builtin_kind(builtins.ServiceAccount.RESOURCE),
    builtin_kind(
        builtins.Service.RESOURCE,
        selectable_fields=("spec.clusterIP", "spec.type"),
        name_rule=name_rules.label,  # an RFC 1035 label before Kubernetes 1.36
    ),
    builtin_kind(
        builtins.Endpoints.RESOURCE,
        deprecation_warning="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    builtin_kind(builtins.Event.RESOURCE, selectable_fields=_EVENT_FIELDS),
    builtin_kind(builtins.EndpointSlice.RESOURCE, "io.k8s.api.discovery.v1", has_generation=True),
    builtin_kind(builtins.Lease.RESOURCE, "io.k8s.api.coordination.v1"),
    builtin_kind(
        builtins.CustomResourceDefinition.RESOURCE,
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
        has_generation=True,
    ),
)
"""The kinds that exist before any CRD does."""


def kinds_from_crd(crd: Mapping[str, Any]) -> tuple[KindInfo, ...]:
    """Return the served versions of a CRD that has passed `crd_rules.check`; the storage version has `storage` set."""
    spec, terminating = crd["spec"], "deletionTimestamp" in crd.get("metadata", {})
    served = (version for version in spec["versions"] if version.get("served"))
    return tuple(_from_version(spec, version, terminating=terminating) for version in served)


def _from_version(spec: Mapping[str, Any], version: Mapping[str, Any], *, terminating: bool) -> KindInfo:
    names = spec["names"]
    kind = names["kind"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    has_status = subresources.get("status") is not None
    resource = Resource(
        group=spec["group"],
        version=version["name"],
        kind=kind,
        plural=names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        subresources=(*(("status",) if has_status else ()), *(("scale",) if scale else ())),
        categories=tuple(names.get("categories") or ()),
    )
    warning = ""
    if version.get("deprecated"):
        warning = version.get("deprecationWarning") or _deprecation_message(spec, resource)
    return KindInfo(
        resource=resource,
        schema=Schema.parse(_with_metadata((version.get("schema") or {}).get("openAPIV3Schema") or {})),
        singular=names.get("singular") or kind.lower(),
        list_kind=names.get("listKind") or f"{kind}List",
        definition=".".join([*reversed(spec["group"].split(".")), version["name"], kind]),
        storage=bool(version.get("storage")),
        scale=scale or None,
        printer_columns=version.get("additionalPrinterColumns") or (),
        selectable_fields=tuple(field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()),
        deprecation_warning=warning,
        terminating=terminating,
    )


def _deprecation_message(spec: Mapping[str, Any], resource: Resource) -> str:
    """Return a warning that names the best served version that ranks above the deprecated one, if any."""
    message = f"{resource.api_version} {resource.kind} is deprecated"
    served = [each["name"] for each in spec["versions"] if each.get("served") and not each.get("deprecated")]
    better = [name for name in served if version_rank(name) < version_rank(resource.version)]
    return f"{message}; use {resource.group}/{min(better, key=version_rank)} {resource.kind}" if better else message


_VERSION: Final = re.compile(r"v([0-9]+)(?:(beta|alpha)([0-9]+))?")


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Return a sort key for API versions: v2 before v1 before v1beta2 before v1beta1 before v1alpha1 before others."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return 3, 0, 0, version
    major, stability, minor = found.groups()
    return (None, "beta", "alpha").index(stability), -int(major), -int(minor or 0), version


def _with_metadata(raw: Mapping[str, Any]) -> JsonObject:
    """Add the fields that every object has to a CRD's schema; a CRD may restrict metadata.name only."""
    properties = dict(raw.get("properties") or {})
    restricted = (properties.get("metadata") or {}).get("properties") or {}
    meta = dict(OBJECT_META)
    meta["properties"] = {name: {**own, **restricted.get(name, {})} for name, own in OBJECT_META["properties"].items()}
    rules = (properties.get("metadata") or {}).get("x-kubernetes-validations")
    if rules:
        meta["x-kubernetes-validations"] = rules
    standard = type_schema("Workload")["properties"]
    properties |= {"apiVersion": standard["apiVersion"], "kind": standard["kind"], "metadata": meta}
    return {"type": "object", **raw, "properties": properties}
