"""What the identity of one host may do: ValidatingAdmissionPolicies, which kube-apiserver 1.31 and later evaluate.

Roles say which kinds an agent writes. These say which objects, and which of their fields: those of its own host, and of
the services that all hosts share. They concern the ServiceAccounts `llmkube-agent-HOST` of one namespace alone; HOST is
the host, so nothing that a host writes says who it is.

Two policies compare with other objects, which come as parameters. The API server evaluates them once per parameter, and
all have to agree: each host's networks stand on its own ServiceAccount, and a Service without our label is one that no
slice of a host may stand behind. These two look at labelled objects alone, so that a parameter which is not to be had
stops no other writer of the cluster.

CEL has no clock. That the holder of a claim is gone is the word of the host that takes the claim over.
"""

from collections.abc import Sequence
from typing import Any, Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Object
from llmkube.k8s.wire.names import (
    ADDRESSES_ANNOTATION,
    AGENT_MANAGER,
    CLAIM_LABEL,
    CLAIMED_ANNOTATION,
    HOST_ACCOUNT_PREFIX,
    HOST_LABEL,
    MANAGED_BY_LABEL,
    PREDECESSOR,
    PREDECESSOR_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    SLOT_ANNOTATION,
)
from llmkube.supervisor.admission_policy import Policy, annotation, both, label, rendered, unchanged
from llmkube.supervisor.cluster.status import FIELDS_OF_MODEL, FIELDS_OF_SERVICE, OF_MODEL, OF_SERVICE

MAX_TOKEN_SECONDS: Final = 30 * 24 * 3600
"""How long a token may live that a host asks for."""

_GROUP: Final = InferenceService.RESOURCE.group
_KIND: Final = InferenceService.RESOURCE.kind


def host_policies(system_namespace: str) -> list[dict[str, Any]]:
    """Return the policies and their bindings for the hosts whose accounts are in one namespace."""
    account = f"system:serviceaccount:{system_namespace}:{HOST_ACCOUNT_PREFIX}"
    return [each for policy in _policies(system_namespace) for each in rendered(policy, account, system_namespace)]


def _policies(system_namespace: str) -> tuple[Policy, ...]:
    return (
        _LEASES,
        _SERVICES,
        _SLICES,
        _ENDPOINTS,
        _addresses(system_namespace),
        _FOREIGN_SERVICES,
        _EVENTS,
        _status(InferenceService, FIELDS_OF_SERVICE, OF_SERVICE),
        _status(Model, FIELDS_OF_MODEL, OF_MODEL),
        _TOKENS,
    )


_THEIRS: Final = (
    f"oldObject != null && {label('oldObject', PREDECESSOR_LABEL)} == '{PREDECESSOR}' && "
    "oldObject.metadata.?ownerReferences.orValue([]).size() == 0"
)
"""The object is one that the Go implementation's agent has left, and belongs to nothing (`cluster/predecessor`)."""

_LEASES: Final = Policy(
    "leases",
    "coordination.k8s.io",
    ("leases",),
    ("CREATE", "UPDATE", "DELETE"),
    (
        (
            "variables.own || variables.claim",
            "a host writes the Lease of its own name, and claims",
        ),
        (
            (
                f"!variables.own || object == null || {label('object', HOST_LABEL)} == variables.host && "
                f"{label('object', CLAIM_LABEL)} == ''"
            ),
            "the Lease of a host carries that host's label, and is no claim",
        ),
        (
            "!variables.claim || object == null || object.spec.?holderIdentity.orValue('') == variables.host",
            "a host claims for itself alone",
        ),
        (
            (
                "!variables.claim || variables.served != '' && "
                "variables.one.metadata.name.startsWith('claim.' + variables.served + '.')"
            ),
            "a claim is named after its service",
        ),
        (
            "!variables.claim || object == null || oldObject == null || ("
            + " && ".join(
                f"{read('object', name)} == {read('oldObject', name)}"
                for read, name in (
                    (label, CLAIM_LABEL),
                    (annotation, CLAIMED_ANNOTATION),
                    (annotation, SLOT_ANNOTATION),
                )
            )
            + ")",
            "a claim stays with its service and replica",
        ),
        (
            (
                "!variables.claim || variables.served == '' || "
                f"authorizer.group('{_GROUP}').resource('{InferenceService.RESOURCE.plural}')"
                ".namespace(variables.served).check('list').allowed()"
            ),
            "a host claims services of the namespaces that it serves",
        ),
    ),
    {
        "one": "object == null ? oldObject : object",
        "own": "variables.one.metadata.name == variables.host",
        "claim": f"variables.one.metadata.name.startsWith('claim.') && {label('variables.one', CLAIM_LABEL)} != ''"
        f" && (oldObject == null || {label('oldObject', CLAIM_LABEL)} != '')",
        "served": f"{annotation('variables.one', CLAIMED_ANNOTATION)}.split('/')[0]",
    },
    inside=True,
)

_SERVICES: Final = Policy(
    "services",
    "",
    ("services",),
    ("CREATE", "UPDATE"),
    (
        (
            (
                f"{label('object', SERVICE_LABEL)} != '' && "
                f"(oldObject == null || {label('oldObject', SERVICE_LABEL)} != '' || {_THEIRS})"
            ),
            f"a host writes Services with the label {SERVICE_LABEL}",
        ),
        (
            (
                f"oldObject == null || {_THEIRS} || "
                f"{label('object', SERVICE_LABEL)} == {label('oldObject', SERVICE_LABEL)}"
            ),
            f"a host leaves the label {SERVICE_LABEL} of a Service as it is",
        ),
        ("object.spec.type == 'ClusterIP'", "the Service of a host has the type ClusterIP"),
        (unchanged("spec.?selector", "{}"), "the Service of a host has no selector"),
        (unchanged("spec.?externalIPs", "[]"), "the Service of a host has no externalIPs"),
        (
            (
                f"{unchanged('metadata.?annotations', '{}')} || {_THEIRS} && "
                "object.metadata.?annotations.orValue({}).all(key, key in oldObject.metadata.?annotations.orValue({}) "
                "&& object.metadata.annotations[key] == oldObject.metadata.annotations[key])"
            ),
            "a host writes no annotations on a Service",
        ),
        (unchanged("metadata.?finalizers", "[]"), "a host writes no finalizers"),
        (
            (
                f"object.metadata.?ownerReferences.orValue([]).all(one, one.kind == '{_KIND}' && "
                f"one.apiVersion.startsWith('{_GROUP}/'))"
            ),
            "the Service of a host belongs to an InferenceService",
        ),
    ),
)

_NO_FINALIZERS: Final = (
    f"object == null || {unchanged('metadata.?finalizers', '[]')}",
    "a host writes no finalizers",
)

_SLICES: Final = Policy(
    "slices",
    "discovery.k8s.io",
    ("endpointslices",),
    ("CREATE", "UPDATE", "DELETE"),
    (
        (
            both(f"{label('{}', HOST_LABEL)} == variables.host") + f" || object == null && {_THEIRS}",
            f"a host writes EndpointSlices with its own label {HOST_LABEL}",
        ),
        (
            (
                "object == null || !variables.service.contains('.') && "
                "object.metadata.name in [variables.service + '.' + variables.host, "
                "variables.service + '.' + variables.host + '.ipv6']"
            ),
            "the slice of a host is named SERVICE.HOST, or SERVICE.HOST.ipv6",
        ),
        (
            (
                f"object == null || {label('object', SERVICE_LABEL)} != '' && "
                f"{label('object', MANAGED_BY_LABEL)} == '{AGENT_MANAGER}'"
            ),
            f"the slice of a host has the label {SERVICE_LABEL}, and {MANAGED_BY_LABEL}={AGENT_MANAGER}",
        ),
        _NO_FINALIZERS,
    ),
    {"service": f"object == null ? '' : {label('object', SERVICE_NAME_LABEL)}"},
)

_ENDPOINTS: Final = Policy(
    "endpoints",
    "",
    ("endpoints",),
    ("CREATE", "UPDATE", "DELETE"),
    (
        (
            both(f"{label('{}', SERVICE_LABEL)} != ''") + f" || object == null && {_THEIRS}",
            f"a host writes Endpoints with the label {SERVICE_LABEL}",
        ),
        _NO_FINALIZERS,
    ),
)

_EVENTS: Final = Policy(
    "events",
    "",
    ("events",),
    ("CREATE", "UPDATE"),
    (
        (
            both(
                f"{{0}}.?reportingComponent.orValue('') == '{AGENT_MANAGER}' && "
                "{0}.?reportingInstance.orValue('') == variables.host"
            ),
            "a host writes its own Events",
        ),
        (
            f"object.involvedObject.?apiVersion.orValue('').startsWith('{_GROUP}/')",
            "a host writes Events about Models and InferenceServices",
        ),
    ),
)

_TOKENS: Final = Policy(
    "tokens",
    "",
    ("serviceaccounts/token",),
    ("CREATE",),
    (
        (
            f"object.spec.?expirationSeconds.orValue(3600) <= {MAX_TOKEN_SECONDS}",
            f"a host's token lives for {MAX_TOKEN_SECONDS} seconds at most",
        ),
    ),
    inside=True,
)


def _addresses(system_namespace: str) -> Policy:
    """Endpoints are in the networks that an administrator has written on the host's account; in none, if on none."""
    inside = "(isIP({0}) && variables.networks.exists(net, cidr(net).containsIP({0})))"
    one = inside.format("address")
    of_classic = "object.?subsets.orValue([]).all(sub, sub.?{}.orValue([]).all(address, {}))"
    mine = (
        "request.userInfo.username != 'system:serviceaccount:' + params.metadata.namespace + ':' + params.metadata.name"
    )
    said = (
        f"the address is outside of the networks in the annotation {ADDRESSES_ANNOTATION} of the host's ServiceAccount"
    )
    return Policy(
        "addresses",
        "*",
        ("endpointslices", "endpoints"),
        ("CREATE", "UPDATE"),
        (
            (
                f"{mine} || object.?endpoints.orValue([]).all(end, end.addresses.all(address, {one}))",
                said,
            ),
            *(
                (f"{mine} || {of_classic.format(field, inside.format('address.ip'))}", said)
                for field in ("addresses", "notReadyAddresses")
            ),
        ),
        {
            "networks": f"{annotation('params', ADDRESSES_ANNOTATION)}.split(',').filter(net, isCIDR(net))",
        },
        labelled=SERVICE_LABEL,
        param=("v1", "ServiceAccount"),
        param_ref={"namespace": system_namespace, "selector": {}, "parameterNotFoundAction": "Deny"},
    )


_FOREIGN_SERVICES: Final = Policy(
    "foreign-services",
    "*",
    ("endpointslices", "endpoints"),
    ("CREATE", "UPDATE"),
    (
        (
            (
                "params.metadata.name != (request.resource.resource == 'endpoints' ? object.metadata.name : "
                f"{label('object', SERVICE_NAME_LABEL)})"
            ),
            f"a host stands behind Services with the label {SERVICE_LABEL} alone",
        ),
    ),
    labelled=SERVICE_LABEL,
    param=("v1", "Service"),
    param_ref={
        "selector": {"matchExpressions": [{"key": SERVICE_LABEL, "operator": "DoesNotExist"}]},
        "parameterNotFoundAction": "Allow",
    },
)


def _status(kind: type[Object], fields: Sequence[str], conditions: Sequence[str]) -> Policy:
    """Fields and conditions of a status that agents do not write stay as they are."""
    ours = str([*fields, "conditions"])
    types = str(list(conditions))
    every = (
        "variables.{}.?conditions.orValue([]).all(one, one.type in {} || one in variables.{}.?conditions.orValue([]))"
    )
    said = f"agents write {', '.join(fields)} and the conditions {', '.join(conditions)} of this status"
    plural = kind.RESOURCE.plural
    return Policy(
        f"{plural}-status",
        kind.RESOURCE.group,
        (f"{plural}/status",),
        ("UPDATE",),
        (
            (
                (
                    f"variables.after.all(key, key in {ours} || "
                    "(key in variables.before && variables.before[key] == variables.after[key]))"
                ),
                said,
            ),
            (f"variables.before.all(key, key in {ours} || key in variables.after)", said),
            (every.format("after", types, "before"), said),
            (every.format("before", types, "after"), said),
        ),
        {"before": "oldObject.?status.orValue({})", "after": "object.?status.orValue({})"},
    )
