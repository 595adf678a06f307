"""Every kind that the server knows is one `KindInfo`: built-in kinds come from a table, custom ones from a CRD."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds import builtin_schemas
from llmkube.apiserver.kinds.crd_schema import CUSTOM_RESOURCE_DEFINITION
from llmkube.apiserver.schema.parts import OBJECT_META
from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.apiserver.values import name_rules
from llmkube.k8s.resource import Resource


@attrs.frozen
class ScaleInfo:
    """Where a custom kind keeps its replica counts: JSON paths such as `.spec.replicas`."""

    spec_path: str
    status_path: str
    selector_path: str = ""


@attrs.frozen
class PrinterColumn:
    """One column of `kubectl get` beside the name."""

    name: str
    type: str
    json_path: str
    format: str = ""
    description: str = ""
    priority: int = 0  # above 0: only with -o wide


@attrs.frozen(eq=False)
class KindInfo:
    """All that the server must know to serve one version of a kind."""

    resource: Resource
    schema: Schema  # of the whole object, metadata included
    singular: str
    list_kind: str
    definition: str  # its name in the OpenAPI documents, such as io.k8s.api.core.v1.Service
    builtin: bool = False  # strategic merge patches are for built-in kinds; unknown fields are dropped either way
    served: bool = True
    storage: bool = True
    status_subresource: bool = False
    scale: ScaleInfo | None = None
    printer_columns: tuple[PrinterColumn, ...] = ()
    selectable_fields: tuple[str, ...] = ()  # beyond metadata.name and metadata.namespace, for fieldSelector
    name_rule: Callable[[str], str] = name_rules.subdomain  # an empty answer means that the name is fine
    deprecation_warning: str = ""
    unconditional_update: bool = False  # an update without resourceVersion is allowed
    has_generation: bool = True  # metadata.generation is kept


def _builtin(
    schema: JsonObject,
    kind: str,
    plural: str,
    group: str = "",
    *,
    version: str = "v1",
    package: str = "io.k8s.api.core.v1",
    namespaced: bool = True,
    short: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    status: bool = False,
    selectable: tuple[str, ...] = (),
    name_rule: Callable[[str], str] = name_rules.subdomain,
    columns: tuple[PrinterColumn, ...] = (),
    unconditional: bool = False,
    generation: bool = False,
    deprecated: str = "",
) -> KindInfo:
    resource = Resource(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        namespaced=namespaced,
        short_names=short,
        subresources=("status",) if status else (),
        categories=categories,
    )
    return KindInfo(
        resource=resource,
        schema=Schema.parse(schema),
        singular=kind.lower(),
        list_kind=f"{kind}List",
        definition=f"{package}.{kind}",
        builtin=True,
        status_subresource=status,
        selectable_fields=selectable,
        name_rule=name_rule,
        printer_columns=columns,
        unconditional_update=unconditional,
        has_generation=generation,
        deprecation_warning=deprecated,
    )


_EVENT_FIELDS: Final = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)

BUILTIN_KINDS: Final[tuple[KindInfo, ...]] = (
    _builtin(
        builtin_schemas.NAMESPACE,
        "Namespace",
        "namespaces",
        namespaced=False,
        short=("ns",),
        status=True,
        selectable=("status.phase",),
        name_rule=name_rules.label,
        unconditional=True,
    ),
    _builtin(builtin_schemas.CONFIG_MAP, "ConfigMap", "configmaps", short=("cm",), unconditional=True),
    _builtin(builtin_schemas.SECRET, "Secret", "secrets", selectable=("type",), unconditional=True),
    _builtin(builtin_schemas.SERVICE_ACCOUNT, "ServiceAccount", "serviceaccounts", short=("sa",), unconditional=True),
    _builtin(
        builtin_schemas.SERVICE,
        "Service",
        "services",
        short=("svc",),
        categories=("all",),
        status=True,
        selectable=("spec.clusterIP", "spec.type"),
        name_rule=name_rules.label,  # an RFC 1035 label before Kubernetes 1.36
        unconditional=True,
    ),
    _builtin(
        builtin_schemas.ENDPOINTS,
        "Endpoints",
        "endpoints",
        short=("ep",),
        unconditional=True,
        deprecated="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    _builtin(builtin_schemas.EVENT, "Event", "events", short=("ev",), selectable=_EVENT_FIELDS, unconditional=True),
    _builtin(
        builtin_schemas.ENDPOINT_SLICE,
        "EndpointSlice",
        "endpointslices",
        "discovery.k8s.io",
        package="io.k8s.api.discovery.v1",
        generation=True,
    ),
    _builtin(builtin_schemas.LEASE, "Lease", "leases", "coordination.k8s.io", package="io.k8s.api.coordination.v1"),
    _builtin(
        CUSTOM_RESOURCE_DEFINITION,
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "apiextensions.k8s.io",
        package="io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
        namespaced=False,
        short=("crd", "crds"),
        categories=("api-extensions",),
        status=True,
        generation=True,
    ),
)
"""The kinds that are there before any CRD is."""


def kinds_from_crd(crd: Mapping[str, Any]) -> tuple[KindInfo, ...]:
    """Return the served versions of a CRD that `crd_rules.check` found fine; the storage version has `storage` set."""
    spec = crd["spec"]
    return tuple(_from_version(spec, version) for version in spec["versions"] if version.get("served"))


def _from_version(spec: Mapping[str, Any], version: Mapping[str, Any]) -> KindInfo:
    called = spec["names"]
    kind = called["kind"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    has_status = subresources.get("status") is not None
    resource = Resource(
        group=spec["group"],
        version=version["name"],
        kind=kind,
        plural=called["plural"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(called.get("shortNames") or ()),
        subresources=(*(("status",) if has_status else ()), *(("scale",) if scale else ())),
        categories=tuple(called.get("categories") or ()),
    )
    warning = ""
    if version.get("deprecated"):
        warning = version.get("deprecationWarning") or _deprecated(spec, resource)
    return KindInfo(
        resource=resource,
        schema=Schema.parse(_with_metadata((version.get("schema") or {}).get("openAPIV3Schema") or {})),
        singular=called.get("singular") or kind.lower(),
        list_kind=called.get("listKind") or f"{kind}List",
        definition=".".join([*reversed(spec["group"].split(".")), version["name"], kind]),
        storage=bool(version.get("storage")),
        status_subresource=has_status,
        scale=_scale(scale) if scale else None,
        printer_columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or ()),
        selectable_fields=tuple(field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()),
        deprecation_warning=warning,
    )


def _deprecated(spec: Mapping[str, Any], resource: Resource) -> str:
    """Say what to use instead: the best served version that ranks above the deprecated one."""
    said = f"{resource.api_version} {resource.kind} is deprecated"
    served = [each["name"] for each in spec["versions"] if each.get("served") and not each.get("deprecated")]
    better = [name for name in served if version_rank(name) < version_rank(resource.version)]
    return f"{said}; use {resource.group}/{min(better, key=version_rank)} {resource.kind}" if better else said


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sort key for API versions: v2 before v1 before v1beta2 before v1beta1 before v1alpha1 before anything else."""
    stability, major, minor = _parse_version(version)
    return (stability, -major, -minor, version)


def _parse_version(version: str) -> tuple[int, int, int]:
    for stability, marker in enumerate(("", "beta", "alpha")):
        head, found, tail = version.removeprefix("v").partition(marker) if marker else (version[1:], "", "")
        if version.startswith("v") and head.isdigit() and (not marker or (found and tail.isdigit())):
            return stability, int(head), int(tail or 0)
    return 3, 0, 0


def _with_metadata(raw: Mapping[str, Any]) -> JsonObject:
    """Complete a CRD's schema with what every object has; a CRD may restrict metadata.name only."""
    properties = dict(raw.get("properties") or {})
    restricted = (properties.get("metadata") or {}).get("properties") or {}
    meta = dict(OBJECT_META)
    meta["properties"] = {
        name: {**schema, **restricted.get(name, {})} for name, schema in OBJECT_META["properties"].items()
    }
    rules = (properties.get("metadata") or {}).get("x-kubernetes-validations")
    if rules:
        meta["x-kubernetes-validations"] = rules
    properties |= {
        "apiVersion": builtin_schemas.LEASE["properties"]["apiVersion"],
        "kind": builtin_schemas.LEASE["properties"]["kind"],
        "metadata": meta,
    }
    return {"type": "object", **raw, "properties": properties}


def _scale(raw: Mapping[str, Any]) -> ScaleInfo:
    return ScaleInfo(raw["specReplicasPath"], raw["statusReplicasPath"], raw.get("labelSelectorPath", ""))


def _column(raw: Mapping[str, Any]) -> PrinterColumn:
    return PrinterColumn(
        name=raw["name"],
        type=raw["type"],
        json_path=raw["jsonPath"],
        format=raw.get("format", ""),
        description=raw.get("description", ""),
        priority=raw.get("priority", 0),
    )
