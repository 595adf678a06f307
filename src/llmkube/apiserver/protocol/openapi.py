"""The OpenAPI documents, which `kubectl explain`, `apply`, `diff` and client-side validation read.

Version 3 is one document for each group and version; version 2 is one for everything. kubectl looks for three things:
the schemas, by `x-kubernetes-group-version-kind`; the paths of a kind; and the parameter `fieldValidation` of its
`patch`.

The parts of built-in kinds have names of their own: `kubectl explain` prints them as types.
Facts: definition names of the OpenAPI documents of kube-apiserver 1.36.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.protocol.negotiation import JSON_OR_YAML, patch_types
from llmkube.apiserver.schema.builtin_types import OBJECT_META, type_names

JsonObject = dict[str, Any]

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_CORE: Final = "io.k8s.api.core.v1"
_DISCOVERY: Final = "io.k8s.api.discovery.v1"
_EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_ALSO_REQUIRED: Final[Mapping[str, Sequence[str]]] = {
    f"{_CORE}.Event": ("metadata",),
    f"{_CORE}.ServicePort": ("port",),
    f"{_EXTENSIONS}.CustomResourceDefinitionSpec": ("versions",),
    f"{_DISCOVERY}.Endpoint": ("addresses",),
    f"{_META}.Condition": ("lastTransitionTime", "message", "reason"),
}
"""Fields that only code requires; the published documents list them as required."""


def add_definitions(found: JsonObject, definition: str, raw: Mapping[str, Any], prefix: str) -> JsonObject:
    """Add the named parts of a kind's schema to `found`, and return the kind's own schema, which refers to them.

    Args:
        found: Definitions by name; existing ones stay.
        definition: The kind's own name.
        raw: The kind's schema.
        prefix: Prefix of a reference, such as `#/components/schemas/`.
    """
    names = type_names(definition)

    def walk(schema: Any, path: str) -> Any:
        """Return the schema at a path, with references to its named parts."""
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
            shared = OBJECT_META if path == "metadata" else schema
            found[name] = _with_required(walk(shared, path), name)
        reference = {"$ref": f"{prefix}{name}"}
        described = {"description": schema["description"]} if schema.get("description") else {}
        if prefix.endswith("/schemas/") and described:
            return {**described, "allOf": [reference]}  # in version 3, a reference has no other keys
        return {**described, **reference}

    return _with_required(walk(raw, ""), definition)


def _with_required(schema: JsonObject, name: str) -> JsonObject:
    more = _ALSO_REQUIRED.get(name, ())
    return {**schema, "required": sorted({*schema.get("required", ()), *more})} if more else schema


_INFO: Final = {"title": "LLMKube embedded API server", "version": "v1.36.3"}
_GVK: Final = "x-kubernetes-group-version-kind"
_WRITE_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")
_UNPUBLISHED_V2: Final = frozenset(
    {"nullable", "anyOf", "oneOf", "not", "x-kubernetes-int-or-string", "x-kubernetes-validations"}
)


def root(catalog: Catalog) -> JsonObject:
    """Return the response to `/openapi/v3`: the URLs of the documents, one for each group version."""
    paths = {}
    for name in sorted({_document_path(kind) for kind in catalog}):
        document = orjson.dumps(document_v3(catalog, name), option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(document).hexdigest()[:32].upper()  # clients cache a document under its hash
        paths[name] = {"serverRelativeURL": f"/openapi/v3/{name}?hash={digest}"}
    return {"paths": paths}


def document_v3(catalog: Catalog, path: str) -> JsonObject | None:
    """Return the document of a group version (`api/v1`, `apis/GROUP/VERSION`), or None when there is none."""
    kinds = [kind for kind in catalog if _document_path(kind) == path]
    if not kinds:
        return None
    schemas = _definitions(kinds, "#/components/schemas/")
    paths = {url: item for kind in kinds for url, item in _paths(kind, version=3)}
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def document_v2(catalog: Catalog) -> JsonObject:
    """Return the one Swagger 2.0 document, without what that version cannot express, as in kube-apiserver."""
    definitions = {name: _swagger_schema(schema) for name, schema in _definitions(catalog, "#/definitions/").items()}
    paths = {url: item for kind in catalog for url, item in _paths(kind, version=2)}
    return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": definitions}


def _definitions(kinds: Iterable[KindInfo], prefix: str) -> JsonObject:
    """Return the schemas of kinds and of their named parts."""
    found: JsonObject = {}
    for kind in kinds:
        own = add_definitions(found, kind.definition, kind.schema.raw, prefix)
        found[kind.definition] = {**own, _GVK: [_gvk(kind)]}
    return found


def _document_path(kind: KindInfo) -> str:
    return kind.resource.path().removesuffix(f"/{kind.resource.plural}").lstrip("/")


def _gvk(kind: KindInfo) -> JsonObject:
    resource = kind.resource
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _paths(kind: KindInfo, *, version: int) -> Iterable[tuple[str, JsonObject]]:
    prefix = "/" + _document_path(kind)
    scope = "/namespaces/{namespace}" if kind.resource.namespaced else ""
    collection = f"{prefix}{scope}/{kind.resource.plural}"
    path_names = ["namespace"] if kind.resource.namespaced else []
    yield collection, _item(kind, {"get": "list", "post": "post", "delete": "deletecollection"}, path_names, version)
    verbs = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
    yield f"{collection}/{{name}}", _item(kind, verbs, ["name", *path_names], version)


def _item(kind: KindInfo, verbs: Mapping[str, str], path_names: list[str], version: int) -> JsonObject:
    item: JsonObject = {"parameters": [_parameter(name, "path", version) for name in path_names]}
    for method, action in verbs.items():
        item[method] = _operation(kind, method, action, version)
    return item


def _operation(kind: KindInfo, method: str, action: str, version: int) -> JsonObject:
    shape = {"$ref": f"#/definitions/{kind.definition}"}
    if version == 3:
        shape = {"$ref": f"#/components/schemas/{kind.definition}"}
    response: JsonObject = {"description": "OK"}
    response |= {"content": {"application/json": {"schema": shape}}} if version == 3 else {"schema": shape}
    operation: JsonObject = {
        "description": f"{action} objects of kind {kind.resource.kind}",
        "responses": {"200": response},
        "x-kubernetes-action": action,
        _GVK: _gvk(kind),
    }
    if method in {"post", "put", "patch"}:
        operation["parameters"] = [_parameter(name, "query", version) for name in _WRITE_PARAMETERS]
        consumes = patch_types(kind) if method == "patch" else JSON_OR_YAML
        if version == 2:
            operation["consumes"] = list(consumes)
        else:
            operation["requestBody"] = {"content": {name: {"schema": shape} for name in consumes}}
    return operation


def _parameter(name: str, place: str, version: int) -> JsonObject:
    parameter: JsonObject = {"name": name, "in": place, "description": f"{name} of the request"}
    if place == "path":
        parameter["required"] = True
    return {**parameter, "schema": {"type": "string"}} if version == 3 else {**parameter, "type": "string"}


def _swagger_schema(raw: Any) -> Any:
    """Return a schema in Swagger 2.0, without a type if the field may be null or preserves unknown fields."""
    if isinstance(raw, list):
        return [_swagger_schema(item) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    if raw.get("x-kubernetes-int-or-string"):
        kept = {name: raw[name] for name in ("description", "default") if name in raw}
        return {**kept, "type": "string", "format": "int-or-string"}
    swagger = {}
    for name, value in raw.items():
        if name in _UNPUBLISHED_V2:
            continue
        if name == "properties":
            swagger[name] = {field: _swagger_schema(schema) for field, schema in value.items()}
        elif name in {"items", "additionalProperties", "allOf"}:
            swagger[name] = _swagger_schema(value)
        else:
            swagger[name] = value
    if raw.get("nullable") or raw.get("x-kubernetes-preserve-unknown-fields"):
        for name in ("type", "properties", "items", "additionalProperties"):
            swagger.pop(name, None)
    return swagger
