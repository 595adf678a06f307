"""The built-in kinds' schemas, as data: what kubectl may send, how lists merge, what is filled in.

Facts: the OpenAPI document of Kubernetes 1.32 (types, list types, map keys, patch strategies, defaults); the field
descriptions are our own words and are kept to what `kubectl explain` needs.
"""

from typing import Any, Final

JsonObject = dict[str, Any]


def _text(about: str = "", **more: Any) -> JsonObject:
    return {"type": "string", **({"description": about} if about else {}), **more}


def _number(about: str = "", **more: Any) -> JsonObject:
    return {"type": "integer", "format": "int32", **({"description": about} if about else {}), **more}


def _long(about: str = "", **more: Any) -> JsonObject:
    return _number(about, **{"format": "int64", **more})


def _flag(about: str = "", **more: Any) -> JsonObject:
    return {"type": "boolean", **({"description": about} if about else {}), **more}


def _time(about: str = "") -> JsonObject:
    return _text(about, format="date-time", nullable=True)


def _micro_time(about: str = "") -> JsonObject:
    return _text(about, format="date-time", nullable=True)


def _or_null(schema: JsonObject) -> JsonObject:
    """A list or a time that is written as null when there is nothing in it."""
    return {**schema, "nullable": True, "default": None}


def _always(schema: JsonObject) -> JsonObject:
    """A structure that is there even when nothing in it is set."""
    return {**schema, "default": {}}


def _object(
    about: str = "",
    more: JsonObject | None = None,
    *,
    required: tuple[str, ...] = (),
    atomic: bool = False,
    **properties: JsonObject,
) -> JsonObject:
    """An object's schema; `more` are further properties that are computed."""
    schema: JsonObject = {"type": "object", "description": about, "properties": {**properties, **(more or {})}}
    if required:
        schema["required"] = list(required)
    if atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _map(value: JsonObject, about: str = "", *, atomic: bool = False) -> JsonObject:
    schema: JsonObject = {"type": "object", "description": about, "additionalProperties": value}
    return {**schema, "x-kubernetes-map-type": "atomic"} if atomic else schema


def _list(item: JsonObject, about: str = "") -> JsonObject:
    return {"type": "array", "description": about, "items": item, "x-kubernetes-list-type": "atomic"}


def _set(item: JsonObject, about: str = "", *, merges: bool = False) -> JsonObject:
    schema: JsonObject = {"type": "array", "description": about, "items": item, "x-kubernetes-list-type": "set"}
    return {**schema, "x-kubernetes-patch-strategy": "merge"} if merges else schema


def _merging(
    item: JsonObject, *keys: str, about: str = "", patch_key: str = "", associative: bool = True
) -> JsonObject:
    """A list whose items have keys; `patch_key` is the strategic merge's, which knows one key only."""
    schema: JsonObject = {"type": "array", "description": about, "items": item}
    if associative:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    else:
        schema["x-kubernetes-list-type"] = "atomic"
    if patch_key:
        schema |= {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": patch_key}
    return schema


_INT_OR_STRING: Final[JsonObject] = {"x-kubernetes-int-or-string": True}

_OWNER_REFERENCE: Final = _object(
    "An object that this one belongs to: when the last owner is gone, this one goes too.",
    required=("apiVersion", "kind", "name", "uid"),
    atomic=True,
    apiVersion=_text("API version of the owner."),
    blockOwnerDeletion=_flag("Whether the owner's foreground deletion waits for this object."),
    controller=_flag("Whether the owner manages this object; at most one does."),
    kind=_text("Kind of the owner."),
    name=_text("Name of the owner."),
    uid=_text("UID of the owner."),
)

_MANAGED_FIELDS_ENTRY: Final = _object(
    "Which fields a manager set.",
    apiVersion=_text("Version that the field set is written in."),
    fieldsType=_text("Always FieldsV1."),
    fieldsV1={"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "The set of fields."},
    manager=_text("Who wrote."),
    operation=_text("Apply or Update."),
    subresource=_text("The subresource that was written through; empty for the object itself."),
    time=_time("When the entry last changed."),
)

OBJECT_META: Final = _object(
    "Standard object's metadata.",
    annotations=_map(_text(), "Free-form notes for tools."),
    creationTimestamp=_time("When the object was created; set by the server."),
    deletionGracePeriodSeconds=_long("Seconds that a graceful deletion may take; set by the server."),
    deletionTimestamp=_time("When deletion was asked for; set by the server."),
    finalizers=_set(_text(), "The object stays until this list is empty.", merges=True),
    generateName=_text("Prefix of a name that the server completes."),
    generation=_long("Grows with every change of the desired state; set by the server."),
    labels=_map(_text(), "Names and values to select objects by."),
    managedFields=_list(_MANAGED_FIELDS_ENTRY, "Which manager set which fields; kept by the server."),
    name=_text("Unique within the namespace; cannot change."),
    namespace=_text("The space that the name is unique in; cannot change."),
    ownerReferences=_merging(
        _OWNER_REFERENCE, "uid", about="Owners; all gone means this object goes.", patch_key="uid"
    ),
    resourceVersion=_text("Opaque version of the stored object."),
    selfLink=_text("Unused."),
    uid=_text("Unique in time and space; set by the server."),
)


def _kind(about: str, *, required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    """The schema of a top-level object."""
    return _object(
        about,
        properties,
        required=required,
        apiVersion=_text("Version of this representation of the object."),
        kind=_text("The kind of the object."),
        metadata=OBJECT_META,
    )


def _condition(*, generations: bool = True) -> JsonObject:
    more = {"observedGeneration": _long("The generation that the condition was computed from.")} if generations else {}
    return _object(
        "One observed aspect of the object.",
        more,
        required=("type", "status"),
        type=_text("Name of the aspect."),
        status=_text("True, False or Unknown."),
        reason=_text("One word for machines."),
        message=_text("A sentence for people."),
        lastTransitionTime=_time("When status last changed."),
    )


_OBJECT_REFERENCE: Final = _object(
    "A pointer to another object.",
    atomic=True,
    apiVersion=_text(),
    fieldPath=_text(),
    kind=_text(),
    name=_text(),
    namespace=_text(),
    resourceVersion=_text(),
    uid=_text(),
)

NAMESPACE: Final = _kind(
    "A space that names are unique in.",
    spec=_always(
        _object("Desired state.", finalizers=_list(_text(), "Must be empty before the namespace is removed."))
    ),
    status=_always(
        _object(
            "Observed state.",
            phase=_text("Active or Terminating."),
            conditions=_merging(_condition(generations=False), "type", patch_key="type"),
        )
    ),
)

CONFIG_MAP: Final = _kind(
    "Configuration data.",
    data=_map(_text(), "UTF-8 values."),
    binaryData=_map(_text(format="byte"), "Base64 values; keys must not occur in data."),
    immutable=_flag("Once true, data cannot change."),
)

SECRET: Final = _kind(
    "Data that should not be shown.",
    data=_map(_text(format="byte"), "Base64 values."),
    stringData=_map(_text(), "Plain values, written into data; never read back."),
    type=_text("What the data is for.", default="Opaque"),
    immutable=_flag("Once true, data cannot change."),
)

SERVICE_ACCOUNT: Final = _kind(
    "An identity for processes.",
    automountServiceAccountToken=_flag("Whether pods get its token by default."),
    imagePullSecrets=_merging(_object("", atomic=True, name=_text()), patch_key="name", associative=False),
    secrets=_merging(_OBJECT_REFERENCE, "name", patch_key="name"),
)

_SERVICE_PORT: Final = _object(
    "A port of a service.",
    appProtocol=_text("A hint at the protocol inside, such as kubernetes.io/h2c."),
    name=_text("Needed when there is more than one port."),
    nodePort=_number("The port on every node, for types NodePort and LoadBalancer."),
    port=_number("The port that clients use."),
    protocol=_text("TCP, UDP or SCTP.", default="TCP"),
    targetPort={**_INT_OR_STRING, "description": "The port of the endpoints; the same as port when left out."},
)

SERVICE: Final = _kind(
    "A stable name and address for a set of endpoints.",
    spec=_always(
        _object(
            "Desired state.",
            allocateLoadBalancerNodePorts=_flag(),
            clusterIP=_text('Virtual address; "None" for a headless service; cannot change.'),
            clusterIPs=_list(_text()),
            externalIPs=_list(_text()),
            externalName=_text(),
            externalTrafficPolicy=_text(),
            healthCheckNodePort=_number(),
            internalTrafficPolicy=_text(),
            ipFamilies=_list(_text()),
            ipFamilyPolicy=_text(),
            loadBalancerClass=_text(),
            loadBalancerIP=_text(),
            loadBalancerSourceRanges=_list(_text()),
            ports=_merging(_SERVICE_PORT, "port", "protocol", about="The ports of the service.", patch_key="port"),
            publishNotReadyAddresses=_flag(),
            selector=_map(
                _text(), "Labels of the pods behind it; none means that somebody else writes endpoints.", atomic=True
            ),
            sessionAffinity=_text("None or ClientIP.", default="None"),
            sessionAffinityConfig=_object("", clientIP=_object("", timeoutSeconds=_number())),
            trafficDistribution=_text(),
            type=_text("ClusterIP, NodePort, LoadBalancer or ExternalName.", default="ClusterIP"),
        )
    ),
    status=_always(
        _object(
            "Observed state.",
            conditions=_merging(_condition(), "type", patch_key="type"),
            loadBalancer=_always(
                _object(
                    "",
                    ingress=_list(
                        _object(
                            "",
                            hostname=_text(),
                            ip=_text(),
                            ipMode=_text(),
                            ports=_list(
                                _object(
                                    "", required=("port", "protocol"), error=_text(), port=_number(), protocol=_text()
                                )
                            ),
                        )
                    ),
                )
            ),
        )
    ),
)

_ENDPOINT_ADDRESS: Final = _object(
    "",
    atomic=True,
    hostname=_text(),
    ip=_text(),
    nodeName=_text(),
    targetRef=_OBJECT_REFERENCE,
)

ENDPOINTS: Final = _kind(
    "The addresses behind a service, in one object. Deprecated in favour of EndpointSlice.",
    subsets=_list(
        _object(
            "Addresses that share the same ports.",
            addresses=_list(_ENDPOINT_ADDRESS, "Ready addresses."),
            notReadyAddresses=_list(_ENDPOINT_ADDRESS, "Addresses that should get no traffic yet."),
            ports=_list(
                _object(
                    "",
                    required=("port",),
                    atomic=True,
                    appProtocol=_text(),
                    name=_text(),
                    port=_number(),
                    protocol=_text(default="TCP"),
                )
            ),
        )
    ),
)

_HINTS: Final = _object("", forZones=_list(_object("", required=("name",), name=_text())))

ENDPOINT_SLICE: Final = _kind(
    "Some of the addresses behind a service.",
    required=("addressType",),
    addressType=_text("IPv4, IPv6 or FQDN; cannot change."),
    endpoints=_or_null(
        _list(
            _object(
                "One endpoint.",
                addresses=_or_null(_set(_text(), "Addresses of the endpoint; clients use the first.")),
                conditions=_always(_object("", ready=_flag(), serving=_flag(), terminating=_flag())),
                deprecatedTopology=_map(_text()),
                hints=_HINTS,
                hostname=_text(),
                nodeName=_text(),
                targetRef=_OBJECT_REFERENCE,
                zone=_text(),
            )
        )
    ),
    ports=_or_null(
        _list(
            _object(
                "",
                atomic=True,
                appProtocol=_text(),
                name=_text(default=""),
                port=_number(),
                protocol=_text(default="TCP"),
            ),
            "Ports of every endpoint in the slice.",
        )
    ),
)

LEASE: Final = _kind(
    "A claim that its holder is alive, renewed from time to time.",
    spec=_always(
        _object(
            "The claim.",
            acquireTime=_micro_time("When the holder took the lease."),
            holderIdentity=_text("Who holds it."),
            leaseDurationSeconds=_number("How long after renewTime others wait before they take it."),
            leaseTransitions=_number("How often the holder changed."),
            preferredHolder=_text(),
            renewTime=_micro_time("When the holder last renewed it."),
            strategy=_text(),
        )
    ),
)

EVENT: Final = _kind(
    "Something that happened to an object.",
    required=("involvedObject",),
    action=_text("What was done."),
    count=_number("How often it happened."),
    eventTime=_or_null(_micro_time("When it was first seen.")),
    firstTimestamp=_or_null(_time("When it was first seen.")),
    involvedObject=_OBJECT_REFERENCE,
    lastTimestamp=_or_null(_time("When it was last seen.")),
    message=_text("A sentence for people."),
    reason=_text("One word for machines."),
    related=_OBJECT_REFERENCE,
    reportingComponent=_text("Which program reports.", default=""),
    reportingInstance=_text("Which instance of it reports.", default=""),
    series=_object("", count=_number(), lastObservedTime=_micro_time()),
    source=_always(_object("Which program reports.", component=_text(), host=_text())),
    type=_text("Normal or Warning."),
)

_NAMES: Final = _object(
    "How the kind is called.",
    required=("plural", "kind"),
    categories=_list(_text()),
    kind=_text(),
    listKind=_text(),
    plural=_text(),
    shortNames=_list(_text()),
    singular=_text(),
)
# The schema of a schema refers to itself; structural rules (crds.py) judge it, and nothing in it is ever merged.
_JSON_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "description": "OpenAPI v3 schema, structural.",
    "x-kubernetes-preserve-unknown-fields": True,
}

CUSTOM_RESOURCE_DEFINITION: Final = _kind(
    "A kind that users add to the API.",
    required=("spec",),
    spec=_object(
        "Desired state.",
        required=("group", "names", "scope"),
        conversion=_object(
            "",
            required=("strategy",),
            strategy=_text(default="None"),
            webhook={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
        group=_text("API group of the kind."),
        names=_NAMES,
        preserveUnknownFields=_flag(),
        scope=_text("Namespaced or Cluster."),
        versions=_list(
            _object(
                "One version of the kind.",
                required=("name", "served", "storage"),
                additionalPrinterColumns=_list(
                    _object(
                        "A column of kubectl get.",
                        required=("jsonPath", "name", "type"),
                        description=_text(),
                        format=_text(),
                        jsonPath=_text(),
                        name=_text(),
                        priority=_number(),
                        type=_text(),
                    )
                ),
                deprecated=_flag(),
                deprecationWarning=_text(),
                name=_text(),
                schema=_object("", openAPIV3Schema=_JSON_SCHEMA),
                selectableFields=_list(_object("", required=("jsonPath",), jsonPath=_text())),
                served=_flag(),
                storage=_flag(),
                subresources=_object(
                    "",
                    scale=_object(
                        "",
                        required=("specReplicasPath", "statusReplicasPath"),
                        labelSelectorPath=_text(),
                        specReplicasPath=_text(),
                        statusReplicasPath=_text(),
                    ),
                    status={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                ),
            )
        ),
    ),
    status=_object(
        "Observed state.",
        acceptedNames=_NAMES,
        conditions=_merging(_condition(generations=False), "type"),
        storedVersions=_list(_text()),
    ),
)

SCALE: Final = _kind(
    "The replica count of another object, seen through its scale subresource.",
    spec=_object("", replicas=_number("How many are wanted.", default=0)),
    status=_object("", required=("replicas",), replicas=_number("How many there are."), selector=_text()),
)
"""Schema of `autoscaling/v1` Scale, for the scale subresource of custom kinds."""
