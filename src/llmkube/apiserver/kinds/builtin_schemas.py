"""The built-in kinds' schemas, as data: what kubectl may send, how lists merge, what is filled in.

Facts: the OpenAPI document of Kubernetes 1.32 (types, list types, map keys, patch strategies, defaults); the field
descriptions are our own words and are kept to what `kubectl explain` needs.
"""

from typing import Final

from llmkube.apiserver.schema.parts import (
    INT_OR_STRING,
    JsonObject,
    always,
    condition,
    flag,
    list_of,
    map_of,
    merging,
    micro_time,
    number,
    or_null,
    set_of,
    structure,
    text,
    time,
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


_OBJECT_REFERENCE: Final = structure(
    "A pointer to another object.",
    atomic=True,
    apiVersion=text(),
    fieldPath=text(),
    kind=text(),
    name=text(),
    namespace=text(),
    resourceVersion=text(),
    uid=text(),
)

NAMESPACE: Final = top_level(
    "A space that names are unique in.",
    spec=always(
        structure("Desired state.", finalizers=list_of(text(), "Must be empty before the namespace is removed."))
    ),
    status=always(
        structure(
            "Observed state.",
            phase=text("Active or Terminating."),
            conditions=merging(condition(generations=False), "type", patch_key="type"),
        )
    ),
)

CONFIG_MAP: Final = top_level(
    "Configuration data.",
    data=map_of(text(), "UTF-8 values."),
    binaryData=map_of(text(format="byte"), "Base64 values; keys must not occur in data."),
    immutable=flag("Once true, data cannot change."),
)

SECRET: Final = top_level(
    "Data that should not be shown.",
    data=map_of(text(format="byte"), "Base64 values."),
    stringData=map_of(text(), "Plain values, written into data; never read back."),
    type=text("What the data is for.", default="Opaque"),
    immutable=flag("Once true, data cannot change."),
)

SERVICE_ACCOUNT: Final = top_level(
    "An identity for processes.",
    automountServiceAccountToken=flag("Whether pods get its token by default."),
    imagePullSecrets=merging(structure("", atomic=True, name=text()), patch_key="name", associative=False),
    secrets=merging(_OBJECT_REFERENCE, "name", patch_key="name"),
)

_SERVICE_PORT: Final = structure(
    "A port of a service.",
    appProtocol=text("A hint at the protocol inside, such as kubernetes.io/h2c."),
    name=text("Needed when there is more than one port."),
    nodePort=number("The port on every node, for types NodePort and LoadBalancer."),
    port=number("The port that clients use."),
    protocol=text("TCP, UDP or SCTP.", default="TCP"),
    targetPort={**INT_OR_STRING, "description": "The port of the endpoints; the same as port when left out."},
)

SERVICE: Final = top_level(
    "A stable name and address for a set of endpoints.",
    spec=always(
        structure(
            "Desired state.",
            allocateLoadBalancerNodePorts=flag(),
            clusterIP=text('Virtual address; "None" for a headless service; cannot change.'),
            clusterIPs=list_of(text()),
            externalIPs=list_of(text()),
            externalName=text(),
            externalTrafficPolicy=text(),
            healthCheckNodePort=number(),
            internalTrafficPolicy=text(),
            ipFamilies=list_of(text()),
            ipFamilyPolicy=text(),
            loadBalancerClass=text(),
            loadBalancerIP=text(),
            loadBalancerSourceRanges=list_of(text()),
            ports=merging(_SERVICE_PORT, "port", "protocol", about="The ports of the service.", patch_key="port"),
            publishNotReadyAddresses=flag(),
            selector=map_of(
                text(),
                "Labels of the pods behind it; none means that another program writes the endpoints.",
                atomic=True,
            ),
            sessionAffinity=text("None or ClientIP.", default="None"),
            sessionAffinityConfig=structure("", clientIP=structure("", timeoutSeconds=number())),
            trafficDistribution=text(),
            type=text("ClusterIP, NodePort, LoadBalancer or ExternalName.", default="ClusterIP"),
        )
    ),
    status=always(
        structure(
            "Observed state.",
            conditions=merging(condition(), "type", patch_key="type"),
            loadBalancer=always(
                structure(
                    "",
                    ingress=list_of(
                        structure(
                            "",
                            hostname=text(),
                            ip=text(),
                            ipMode=text(),
                            ports=list_of(
                                structure(
                                    "", required=("port", "protocol"), error=text(), port=number(), protocol=text()
                                )
                            ),
                        )
                    ),
                )
            ),
        )
    ),
)

_ENDPOINT_ADDRESS: Final = structure(
    "",
    atomic=True,
    hostname=text(),
    ip=text(),
    nodeName=text(),
    targetRef=_OBJECT_REFERENCE,
)

ENDPOINTS: Final = top_level(
    "The addresses behind a service, in one object. Deprecated in favour of EndpointSlice.",
    subsets=list_of(
        structure(
            "Addresses that share the same ports.",
            addresses=list_of(_ENDPOINT_ADDRESS, "Ready addresses."),
            notReadyAddresses=list_of(_ENDPOINT_ADDRESS, "Addresses that should get no traffic yet."),
            ports=list_of(
                structure(
                    "",
                    required=("port",),
                    atomic=True,
                    appProtocol=text(),
                    name=text(),
                    port=number(),
                    protocol=text(default="TCP"),
                )
            ),
        )
    ),
)

_HINT: Final = list_of(structure("", required=("name",), name=text()))

ENDPOINT_SLICE: Final = top_level(
    "Some of the addresses behind a service.",
    required=("addressType",),
    addressType=text("IPv4, IPv6 or FQDN; cannot change."),
    endpoints=or_null(
        list_of(
            structure(
                "One endpoint.",
                addresses=or_null(set_of(text(), "Addresses of the endpoint; clients use the first.")),
                conditions=always(structure("", ready=flag(), serving=flag(), terminating=flag())),
                deprecatedTopology=map_of(text()),
                hints=structure("", forNodes=_HINT, forZones=_HINT),
                hostname=text(),
                nodeName=text(),
                targetRef=_OBJECT_REFERENCE,
                zone=text(),
            )
        )
    ),
    ports=or_null(
        list_of(
            structure(
                "",
                atomic=True,
                appProtocol=text(),
                name=text(default=""),
                port=number(),
                protocol=text(default="TCP"),
            ),
            "Ports of every endpoint in the slice.",
        )
    ),
)

LEASE: Final = top_level(
    "A claim that its holder is alive, renewed from time to time.",
    spec=always(
        structure(
            "The claim.",
            acquireTime=micro_time("When the holder took the lease."),
            holderIdentity=text("Who holds it."),
            leaseDurationSeconds=number("How long after renewTime others wait before they take it."),
            leaseTransitions=number("How often the holder changed."),
            preferredHolder=text(),
            renewTime=micro_time("When the holder last renewed it."),
            strategy=text(),
        )
    ),
)

EVENT: Final = top_level(
    "Something that happened to an object.",
    required=("involvedObject",),
    action=text("What was done."),
    count=number("How often it happened."),
    eventTime=or_null(micro_time("When it was first seen.")),
    firstTimestamp=or_null(time("When it was first seen.")),
    involvedObject=_OBJECT_REFERENCE,
    lastTimestamp=or_null(time("When it was last seen.")),
    message=text("A sentence for people."),
    reason=text("One word for machines."),
    related=_OBJECT_REFERENCE,
    reportingComponent=text("Which program reports.", default=""),
    reportingInstance=text("Which instance of it reports.", default=""),
    series=structure("", count=number(), lastObservedTime=micro_time()),
    source=always(structure("Which program reports.", component=text(), host=text())),
    type=text("Normal or Warning."),
)
