"""The parts of built-in kinds have names of their own in the OpenAPI documents: `kubectl explain` prints them as types.

Facts: definition names of the OpenAPI documents of kube-apiserver 1.36.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.schema import parts as schemaparts

JsonObject = dict[str, Any]

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_CORE: Final = "io.k8s.api.core.v1"
_DISCOVERY: Final = "io.k8s.api.discovery.v1"
_EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_REFERENCE: Final = f"{_CORE}.ObjectReference"
_VERSIONS: Final = "spec.versions[]"

_OF_METADATA: Final[Mapping[str, str]] = {
    "metadata": f"{_META}.ObjectMeta",
    "metadata.managedFields[]": f"{_META}.ManagedFieldsEntry",
    "metadata.managedFields[].fieldsV1": f"{_META}.FieldsV1",
    "metadata.ownerReferences[]": f"{_META}.OwnerReference",
}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    f"{_CORE}.Namespace": {
        "spec": f"{_CORE}.NamespaceSpec",
        "status": f"{_CORE}.NamespaceStatus",
        "status.conditions[]": f"{_CORE}.NamespaceCondition",
    },
    f"{_CORE}.Service": {
        "spec": f"{_CORE}.ServiceSpec",
        "spec.ports[]": f"{_CORE}.ServicePort",
        "spec.ports[].targetPort": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        "spec.sessionAffinityConfig": f"{_CORE}.SessionAffinityConfig",
        "spec.sessionAffinityConfig.clientIP": f"{_CORE}.ClientIPConfig",
        "status": f"{_CORE}.ServiceStatus",
        "status.conditions[]": f"{_META}.Condition",
        "status.loadBalancer": f"{_CORE}.LoadBalancerStatus",
        "status.loadBalancer.ingress[]": f"{_CORE}.LoadBalancerIngress",
        "status.loadBalancer.ingress[].ports[]": f"{_CORE}.PortStatus",
    },
    f"{_CORE}.ServiceAccount": {
        "secrets[]": _REFERENCE,
        "imagePullSecrets[]": f"{_CORE}.LocalObjectReference",
    },
    f"{_CORE}.Endpoints": {
        "subsets[]": f"{_CORE}.EndpointSubset",
        "subsets[].addresses[]": f"{_CORE}.EndpointAddress",
        "subsets[].addresses[].targetRef": _REFERENCE,
        "subsets[].notReadyAddresses[]": f"{_CORE}.EndpointAddress",
        "subsets[].ports[]": f"{_CORE}.EndpointPort",
    },
    f"{_CORE}.Event": {
        "involvedObject": _REFERENCE,
        "related": _REFERENCE,
        "series": f"{_CORE}.EventSeries",
        "source": f"{_CORE}.EventSource",
    },
    f"{_DISCOVERY}.EndpointSlice": {
        "endpoints[]": f"{_DISCOVERY}.Endpoint",
        "endpoints[].conditions": f"{_DISCOVERY}.EndpointConditions",
        "endpoints[].hints": f"{_DISCOVERY}.EndpointHints",
        "endpoints[].hints.forNodes[]": f"{_DISCOVERY}.ForNode",
        "endpoints[].hints.forZones[]": f"{_DISCOVERY}.ForZone",
        "endpoints[].targetRef": _REFERENCE,
        "ports[]": f"{_DISCOVERY}.EndpointPort",
    },
    "io.k8s.api.coordination.v1.Lease": {"spec": "io.k8s.api.coordination.v1.LeaseSpec"},
    f"{_EXTENSIONS}.CustomResourceDefinition": {
        "spec": f"{_EXTENSIONS}.CustomResourceDefinitionSpec",
        "spec.conversion": f"{_EXTENSIONS}.CustomResourceConversion",
        "spec.names": f"{_EXTENSIONS}.CustomResourceDefinitionNames",
        _VERSIONS: f"{_EXTENSIONS}.CustomResourceDefinitionVersion",
        f"{_VERSIONS}.additionalPrinterColumns[]": f"{_EXTENSIONS}.CustomResourceColumnDefinition",
        f"{_VERSIONS}.schema": f"{_EXTENSIONS}.CustomResourceValidation",
        f"{_VERSIONS}.schema.openAPIV3Schema": f"{_EXTENSIONS}.JSONSchemaProps",
        f"{_VERSIONS}.selectableFields[]": f"{_EXTENSIONS}.SelectableField",
        f"{_VERSIONS}.subresources": f"{_EXTENSIONS}.CustomResourceSubresources",
        f"{_VERSIONS}.subresources.scale": f"{_EXTENSIONS}.CustomResourceSubresourceScale",
        f"{_VERSIONS}.subresources.status": f"{_EXTENSIONS}.CustomResourceSubresourceStatus",
        "status": f"{_EXTENSIONS}.CustomResourceDefinitionStatus",
        "status.acceptedNames": f"{_EXTENSIONS}.CustomResourceDefinitionNames",
        "status.conditions[]": f"{_EXTENSIONS}.CustomResourceDefinitionCondition",
    },
}
_ALSO_REQUIRED: Final[Mapping[str, Sequence[str]]] = {
    f"{_CORE}.Event": ("metadata",),
    f"{_CORE}.ServicePort": ("port",),
    f"{_EXTENSIONS}.CustomResourceDefinitionSpec": ("versions",),
    f"{_DISCOVERY}.Endpoint": ("addresses",),
    f"{_META}.Condition": ("lastTransitionTime", "message", "reason"),
}
"""What only code checks: the published documents say that these fields are needed."""


def add_definitions(found: JsonObject, definition: str, raw: Mapping[str, Any], prefix: str) -> JsonObject:
    """Put the named parts of a kind's schema into `found`, and return the kind's own, which refers to them.

    Args:
        found: Definitions by name; one that is there already stays.
        definition: The kind's own name.
        raw: The kind's schema.
        prefix: What a reference begins with, such as `#/components/schemas/`.
    """
    names = {**_OF_METADATA, **_NAMES.get(definition, {})}

    def walk(schema: Any, path: str) -> Any:
        """Return the schema at a path with its parts referred to."""
        if not isinstance(schema, Mapping):
            return schema
        walked = dict(schema)
        if isinstance(schema.get("properties"), Mapping):
            walked["properties"] = {
                name: refer(value, f"{path}.{name}" if path else name) for name, value in schema["properties"].items()
            }
        if "items" in schema:
            walked["items"] = refer(schema["items"], f"{path}[]")
        return walked

    def refer(schema: Any, path: str) -> Any:
        name = names.get(path)
        if name is None:
            return walk(schema, path)
        if name not in found:
            # a CRD may restrict metadata.name; all kinds share the definition
            shared = schemaparts.OBJECT_META if path == "metadata" else schema
            found[name] = _with_required(walk(shared, path), name)
        reference = {"$ref": f"{prefix}{name}"}
        described = {"description": schema["description"]} if schema.get("description") else {}
        if prefix.endswith("/schemas/") and described:
            return {**described, "allOf": [reference]}  # in version 3, nothing may stand beside a reference
        return {**described, **reference}

    return _with_required(walk(raw, ""), definition)


def _with_required(schema: JsonObject, name: str) -> JsonObject:
    more = _ALSO_REQUIRED.get(name, ())
    return {**schema, "required": sorted({*schema.get("required", ()), *more})} if more else schema
