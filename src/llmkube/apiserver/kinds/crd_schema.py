"""The schema of what makes kinds, CustomResourceDefinition, as data."""

from typing import Final

from llmkube.apiserver.schema.parts import (
    JsonObject,
    condition,
    flag,
    list_of,
    merging,
    number,
    structure,
    text,
    top_level,
)

_NAMES: Final = structure(
    "How the kind is called.",
    required=("plural", "kind"),
    categories=list_of(text()),
    kind=text(),
    listKind=text(),
    plural=text(),
    shortNames=list_of(text()),
    singular=text(),
)
# The schema of a schema refers to itself; structural rules (crds.py) judge it, and nothing in it is ever merged.
_JSON_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "description": "OpenAPI v3 schema, structural.",
    "x-kubernetes-preserve-unknown-fields": True,
}

CUSTOM_RESOURCE_DEFINITION: Final = top_level(
    "A kind that users add to the API.",
    required=("spec",),
    spec=structure(
        "Desired state.",
        required=("group", "names", "scope"),
        conversion=structure(
            "",
            required=("strategy",),
            strategy=text(default="None"),
            webhook={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
        group=text("API group of the kind."),
        names=_NAMES,
        preserveUnknownFields=flag(),
        scope=text("Namespaced or Cluster."),
        versions=list_of(
            structure(
                "One version of the kind.",
                required=("name", "served", "storage"),
                additionalPrinterColumns=list_of(
                    structure(
                        "A column of kubectl get.",
                        required=("jsonPath", "name", "type"),
                        description=text(),
                        format=text(),
                        jsonPath=text(),
                        name=text(),
                        priority=number(),
                        type=text(),
                    )
                ),
                deprecated=flag(),
                deprecationWarning=text(),
                name=text(),
                schema=structure("", openAPIV3Schema=_JSON_SCHEMA),
                selectableFields=list_of(structure("", required=("jsonPath",), jsonPath=text())),
                served=flag(),
                storage=flag(),
                subresources=structure(
                    "",
                    scale=structure(
                        "",
                        required=("specReplicasPath", "statusReplicasPath"),
                        labelSelectorPath=text(),
                        specReplicasPath=text(),
                        statusReplicasPath=text(),
                    ),
                    status={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                ),
            )
        ),
    ),
    status=structure(
        "Observed state.",
        acceptedNames=_NAMES,
        conditions=merging(condition(generations=False), "type"),
        storedVersions=list_of(text()),
    ),
)
