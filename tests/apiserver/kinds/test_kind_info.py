"""The table of kinds, and kinds made from CRDs."""

from apiserver.kinds.widget_definition import CRD_KIND, SCHEMA, crd
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, kinds_from_crd
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.writes import strategy


def test_every_builtin_kind_is_named_once():
    """No two built-in kinds share a resource or an OpenAPI name, and each knows apiVersion, kind and metadata."""
    assert len({kind.resource.full_name for kind in BUILTIN_KINDS}) == len(BUILTIN_KINDS)
    assert len({kind.definition for kind in BUILTIN_KINDS}) == len(BUILTIN_KINDS)
    assert all({"apiVersion", "kind", "metadata"} <= kind.schema.properties.keys() for kind in BUILTIN_KINDS)


def test_every_keyed_list_declares_its_keys():
    """Keyed lists of built-in kinds have object items with every key declared."""

    def walk(schema: Schema) -> None:
        if schema.list_type == "map":
            assert schema.items is not None
            assert set(schema.list_map_keys) <= schema.items.properties.keys()
        for inner in (*schema.properties.values(), schema.items, schema.additional):
            if inner is not None:
                walk(inner)

    for kind in BUILTIN_KINDS:
        walk(kind.schema)


def test_a_kind_from_a_crd_has_the_crds_names():
    """Names, scale, columns, short names and the OpenAPI name come from the CRD."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n", "priority": 1}],
        "selectableFields": [{"jsonPath": ".spec.n"}],
        "deprecated": True,
    }
    old = {**version, "name": "v1beta1", "served": False, "storage": False}
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]}
    completed, _ = strategy.complete(CRD_KIND, crd(versions=[version, old], names=names))
    (kind,) = kinds_from_crd(completed)
    assert (kind.singular, kind.list_kind, kind.definition) == ("widget", "WidgetList", "dev.test.v1.Widget")
    assert kind.resource.short_names == ("wd",)
    assert kind.resource.subresources == ("status", "scale")
    assert kind.scale is not None
    assert kind.scale["specReplicasPath"] == ".spec.replicas"
    assert kind.printer_columns[0]["priority"] == 1
    assert kind.selectable_fields == ("spec.n",)
    assert kind.deprecation_warning == "test.dev/v1 Widget is deprecated"


def test_a_custom_kinds_metadata_merges_and_is_closed():
    """A custom object's finalizers are a set and unknown metadata is dropped, whatever the CRD says of metadata."""
    completed, _ = strategy.complete(CRD_KIND, crd())
    (kind,) = kinds_from_crd(completed)
    assert kind.schema.properties["metadata"].properties["finalizers"].list_type == "set"
    _, dropped = strategy.complete(kind, {"metadata": {"name": "a", "colour": "red"}, "spec": {"n": 1, "z": 2}})
    assert dropped == ("metadata.colour", "spec.z")


def test_a_crd_may_restrict_names():
    """A pattern for metadata.name in the CRD's schema is enforced."""
    body = {
        **SCHEMA,
        "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    (kind,) = kinds_from_crd(crd(versions=[version]))
    errors = strategy.check(kind, {"metadata": {"name": "long-name"}}, None)
    assert [str(error) for error in errors] == ["metadata.name: Too long: may not be more than 3 bytes"]
