"""What the built-in kinds' schemas are made of: each function returns a piece of OpenAPI, as data."""

from typing import Any, Final

JsonObject = dict[str, Any]


def text(about: str = "", **more: Any) -> JsonObject:
    """Return the schema of a text."""
    return {"type": "string", **({"description": about} if about else {}), **more}


def number(about: str = "", **more: Any) -> JsonObject:
    """Return the schema of an integer of 32 bits."""
    return {"type": "integer", "format": "int32", **({"description": about} if about else {}), **more}


def long_number(about: str = "", **more: Any) -> JsonObject:
    """Return the schema of an integer of 64 bits."""
    return number(about, **{"format": "int64", **more})


def flag(about: str = "", **more: Any) -> JsonObject:
    """Return the schema of true or false."""
    return {"type": "boolean", **({"description": about} if about else {}), **more}


def time(about: str = "") -> JsonObject:
    """Return the schema of a time in whole seconds."""
    return text(about, format="date-time", nullable=True)


def micro_time(about: str = "") -> JsonObject:
    """Return the schema of a time in microseconds."""
    return text(about, format="date-time", nullable=True)


def or_null(schema: JsonObject) -> JsonObject:
    """Return the schema of a list or a time that is written as null when there is nothing in it."""
    return {**schema, "nullable": True, "default": None}


def always(schema: JsonObject) -> JsonObject:
    """Return the schema of a structure that is there even when nothing in it is set."""
    return {**schema, "default": {}}


def structure(
    about: str = "",
    more: JsonObject | None = None,
    *,
    required: tuple[str, ...] = (),
    atomic: bool = False,
    **properties: JsonObject,
) -> JsonObject:
    """Return an object's schema; `more` are further properties that are computed."""
    schema: JsonObject = {"type": "object", "description": about, "properties": {**properties, **(more or {})}}
    if required:
        schema["required"] = list(required)
    if atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def map_of(value: JsonObject, about: str = "", *, atomic: bool = False) -> JsonObject:
    """Return the schema of a map with values of one schema."""
    schema: JsonObject = {"type": "object", "description": about, "additionalProperties": value}
    return {**schema, "x-kubernetes-map-type": "atomic"} if atomic else schema


def list_of(item: JsonObject, about: str = "") -> JsonObject:
    """Return the schema of a list that is owned and replaced as a whole."""
    return {"type": "array", "description": about, "items": item, "x-kubernetes-list-type": "atomic"}


def set_of(item: JsonObject, about: str = "", *, merges: bool = False) -> JsonObject:
    """Return the schema of a list of different values, each owned for itself."""
    schema: JsonObject = {"type": "array", "description": about, "items": item, "x-kubernetes-list-type": "set"}
    return {**schema, "x-kubernetes-patch-strategy": "merge"} if merges else schema


def merging(item: JsonObject, *keys: str, about: str = "", patch_key: str = "", associative: bool = True) -> JsonObject:
    """Return the schema of a list whose items have keys; `patch_key` is the one that the strategic merge knows."""
    schema: JsonObject = {"type": "array", "description": about, "items": item}
    if associative:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    else:
        schema["x-kubernetes-list-type"] = "atomic"
    if patch_key:
        schema |= {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": patch_key}
    return schema


INT_OR_STRING: Final[JsonObject] = {"x-kubernetes-int-or-string": True}

_OWNER_REFERENCE: Final = structure(
    "An object that this one belongs to: when the last owner is gone, this one goes too.",
    required=("apiVersion", "kind", "name", "uid"),
    atomic=True,
    apiVersion=text("API version of the owner."),
    blockOwnerDeletion=flag("Whether the owner's foreground deletion waits for this object."),
    controller=flag("Whether the owner manages this object; at most one does."),
    kind=text("Kind of the owner."),
    name=text("Name of the owner."),
    uid=text("UID of the owner."),
)

_MANAGED_FIELDS_ENTRY: Final = structure(
    "Which fields a manager set.",
    apiVersion=text("Version that the field set is written in."),
    fieldsType=text("Always FieldsV1."),
    fieldsV1={"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "The set of fields."},
    manager=text("Who wrote."),
    operation=text("Apply or Update."),
    subresource=text("The subresource that was written through; empty for the object itself."),
    time=time("When the entry last changed."),
)

OBJECT_META: Final = structure(
    "Standard object's metadata.",
    annotations=map_of(text(), "Free-form notes for tools."),
    creationTimestamp=time("When the object was created; set by the server."),
    deletionGracePeriodSeconds=long_number("Seconds that a graceful deletion may take; set by the server."),
    deletionTimestamp=time("When deletion was asked for; set by the server."),
    finalizers=set_of(text(), "The object stays until this list is empty.", merges=True),
    generateName=text("Prefix of a name that the server completes."),
    generation=long_number("Grows with every change of the desired state; set by the server."),
    labels=map_of(text(), "Names and values to select objects by."),
    managedFields=list_of(_MANAGED_FIELDS_ENTRY, "Which manager set which fields; kept by the server."),
    name=text("Unique within the namespace; cannot change."),
    namespace=text("The space that the name is unique in; cannot change."),
    ownerReferences=merging(_OWNER_REFERENCE, "uid", about="Owners; all gone means this object goes.", patch_key="uid"),
    resourceVersion=text("Opaque version of the stored object."),
    selfLink=text("Unused."),
    uid=text("Unique in time and space; set by the server."),
)


def top_level(about: str, *, required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    """Return the schema of a top-level object."""
    return structure(
        about,
        properties,
        required=required,
        apiVersion=text("Version of this representation of the object."),
        kind=text("The kind of the object."),
        metadata=OBJECT_META,
    )


def condition(*, generations: bool = True) -> JsonObject:
    """Return the schema of an item of `status.conditions`."""
    about = "The generation that the condition was computed from."
    more = {"observedGeneration": long_number(about)} if generations else {}
    return structure(
        "One observed aspect of the object.",
        more,
        required=("type", "status"),
        type=text("Name of the aspect."),
        status=text("True, False or Unknown."),
        reason=text("One word for machines."),
        message=text("A sentence for people."),
        lastTransitionTime=time("When status last changed."),
    )
