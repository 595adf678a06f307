"""Names, labels and annotations that agent and controller derive independently and identically.

A host publishes a Service and one EndpointSlice per InferenceService and host; the controller finds them by name and
label. Kubernetes is stricter about these names than about the names of our own kinds:

* a Service's name is a DNS-1035 label (RFC 1035: at most 63 characters, a letter first), because it becomes one label
  of a host name; an InferenceService's may be any DNS-1123 subdomain (253 characters, dots, digits first);
* the names of EndpointSlices and Leases are DNS-1123 subdomains;
* a label's value has at most 63 characters.

Each function depends only on its arguments and is idempotent where applicable.
"""

import hashlib
import re
from typing import Final, Literal

from llmkube.k8s.wire import name_rules

MAX_LABEL: Final = 63
"""The longest DNS label and the longest label value, in characters."""

MAX_NAME: Final = 253
"""The longest DNS-1123 subdomain, in characters."""

SERVICE_LABEL: Final = "inference.llmkube.dev/service"
"""Label on the Service and the slices of an InferenceService: `label_value(name)`."""

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Label on an InferenceService: the LocalQueue of Kueue that admits its pods; on its Deployment and pods as well."""

HOST_LABEL: Final = "inference.llmkube.dev/host"
"""Label on slices and Leases: `host_id(host_name)`."""

LOADED_LABEL: Final = "inference.llmkube.dev/loaded"
"""Label on slices: `false` while the endpoint accepts requests for a model that is not loaded; absent otherwise."""

RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""Annotation on pods, in `spec.podAnnotations`: a new value restarts them, as `kubectl rollout restart` does."""

LOAD_REQUESTED_AT: Final = "inference.llmkube.dev/load-requested-at"
"""Annotation on an InferenceService: a new value loads its model if it is not loaded, and ends a back-off."""

UNLOAD_REQUESTED_AT: Final = "inference.llmkube.dev/unload-requested-at"
"""Annotation on an InferenceService: a new value unloads its model until the next request (`spec.activation`)."""

ACCELERATORS_ANNOTATION: Final = "inference.llmkube.dev/accelerators"
"""Annotation on a host's Lease: the accelerators that it serves, comma-separated."""

MACHINE_ANNOTATION: Final = "inference.llmkube.dev/machine"
"""Annotation on a host's Lease: the identity of the machine, which distinguishes two machines of one name."""

AGENT_VERSION_ANNOTATION: Final = "inference.llmkube.dev/agent-version"
"""Annotation on a host's Lease: the version of its agent."""

ENGINE_ANNOTATION: Final = "inference.llmkube.dev/engine"
"""Annotation on a host's Lease: its engine and that engine's build."""

RUNTIMES_ANNOTATION: Final = "inference.llmkube.dev/runtimes"
"""Annotation on a host's Lease: the runtimes whose programs it has, comma-separated; `none` if it has none."""

MEMORY_TOTAL_ANNOTATION: Final = "inference.llmkube.dev/memory-total-bytes"
"""Annotation on a host's Lease: its memory."""

MEMORY_BUDGET_ANNOTATION: Final = "inference.llmkube.dev/memory-budget-bytes"
"""Annotation on a host's Lease: the memory budget of all its models together."""

MEMORY_FREE_ANNOTATION: Final = "inference.llmkube.dev/memory-free-bytes"
"""Annotation on a host's Lease: the memory that was available to one more model at the last renewal."""

SERVICES_ANNOTATION: Final = "inference.llmkube.dev/services"
"""Annotation on a host's Lease: the number of services that it manages."""

ADDRESS_ANNOTATION: Final = "inference.llmkube.dev/address"
"""Annotation on a host's Lease: the address that it advertises; empty if it advertises none."""

ADDRESS_REASON_ANNOTATION: Final = "inference.llmkube.dev/address-reason"
"""Annotation on a host's Lease: the reason why it advertises that address, or none."""

CREDENTIAL_ANNOTATION: Final = "inference.llmkube.dev/credential"
"""Annotation on a host's Lease: the problem of the host's credential, and its fix."""

CORDON_ANNOTATION: Final = "inference.llmkube.dev/cordon"
"""Annotation on a host's Lease: the end of the host's cordon; a cordoned host lists no accelerator."""

ADDRESSES_ANNOTATION: Final = "inference.llmkube.dev/addresses"
"""Annotation on a host's ServiceAccount: the networks in which its engines may be, as comma-separated CIDRs."""

HOST_ACCOUNT_PREFIX: Final = "llmkube-agent-"
"""The prefix of `host_id(host_name)` in the name of a host's ServiceAccount."""

CLAIM_LABEL: Final = "inference.llmkube.dev/claim"
"""Label on a claim, the Lease by which a host takes one replica: `label_value(name)` of the service."""

CLAIMED_ANNOTATION: Final = "inference.llmkube.dev/inferenceservice"
"""Annotation on a claim: `namespace/name` of the service."""

SLOT_ANNOTATION: Final = "inference.llmkube.dev/slot"
"""Annotation on a claim: the index of the replica, from 0."""

MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
"""The well-known label that keeps other controllers away from a slice."""

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""The well-known label that ties a slice to its Service."""

SERVICE_PORT: Final = 8080
"""The port of every Service for an engine on a host; the engine's own port is in the slice."""

AGENT_MANAGER: Final = "llmkube-agent"
"""Value of `MANAGED_BY_LABEL` on the slices that agents write."""

PREDECESSOR_LABEL: Final = "llmkube.ai/managed-by"
"""Label on the Services, slices and Endpoints of the Go implementation's agent: `PREDECESSOR`."""

PREDECESSOR: Final = "metal-agent"
"""Value of `PREDECESSOR_LABEL`."""

PREDECESSOR_SERVICE_LABEL: Final = "llmkube.ai/inference-service"
"""Label on the same objects: the InferenceService's name."""

CONTROLLER_FIELD_MANAGER: Final = "llmkube-controller"
"""Field manager of all applies by the controller."""

_RESERVED_PREFIXES: Final = ("claim.", CONTROLLER_FIELD_MANAGER)


def is_object_name(name: str) -> bool:
    """Return whether a name is valid for our kinds: a DNS-1123 subdomain, which cannot lead out of a folder."""
    return not name_rules.subdomain(name)


def service_name(isvc_name: str) -> str:
    """Return the name of the Service for an InferenceService: its own name if that is valid for a Service.

    Other names are reduced to the characters that a Service allows, with `-` and 6 hex digits of their SHA-256, so that
    `a.b` and `a-b`, or two names that differ only after the 63rd character, never share a Service.
    """
    if not name_rules.label_1035(isvc_name):
        return isvc_name
    spelled = re.sub(r"[^a-z0-9]+", "-", isvc_name.lower()).strip("-")
    if not spelled[:1].isalpha():
        spelled = f"s-{spelled}".rstrip("-")
    return with_digest(spelled, isvc_name)


def host_id(host_name: str) -> str:
    """Return the id of a host: the name of its Lease, a part of its slices' names, and a label's value.

    A DNS-1123 subdomain of at most 63 characters is unchanged; any other name (`Ann's Mac`, `mac_mini`) is reduced to
    valid characters, with 6 hex digits of its SHA-256; so is a name that is reserved for our other Leases.
    """
    reserved = host_name.startswith(_RESERVED_PREFIXES)
    if len(host_name) <= MAX_LABEL and is_object_name(host_name) and not reserved:
        return host_name
    if reserved:
        return with_digest(f"host-{re.sub(r'[^a-z0-9]+', '-', host_name.lower())}", host_name)
    spelled = re.sub(r"[^a-z0-9]+", "-", host_name.lower()).strip("-")
    return with_digest(spelled or "host", host_name)


def label_value(name: str) -> str:
    """Return an object's name as a label's value: unchanged up to 63 characters, else its head and 6 hex digits.

    A DNS-1123 subdomain is a valid label value except for its length, up to 253. The digits are of its SHA-256.
    """
    return shortened(name, MAX_LABEL)


def slice_name(service: str, host: str, family: Literal["IPv4", "IPv6"] = "IPv4") -> str:
    """Return the name of the EndpointSlice of one host for one Service; at most 132 of 253 characters.

    Args:
        service: The result of `service_name`.
        host: The host's name, in any spelling.
        family: The address family of the slice, part of the name because a slice's `addressType` is immutable.
    """
    # A Service's name has no dot. With a hyphen, `chat` on `mac-studio` and `chat-mac` on `studio` would be one object.
    return f"{service}.{host_id(host)}" + (".ipv6" if family == "IPv6" else "")


def claim_name(namespace: str, isvc_name: str, slot: int) -> str:
    """Return the name of the Lease by which a host claims one replica of an InferenceService.

    The name of the service may contain dots; the namespace and the slot have none, so the parts are unambiguous. If the
    result would be too long for a Lease, a digest replaces the end of the service's name.
    """
    limit = MAX_NAME - len(f"claim.{namespace}..{slot}")
    return f"claim.{namespace}.{shortened(isvc_name, limit, digits=64)}.{slot}"


def endpoint_url(service: str, namespace: str, *, port: int, path: str, cluster_domain: str = "cluster.local") -> str:
    """Return the URL of a Service for clients in the cluster; `path` begins with a slash or is empty."""
    return f"http://{service}.{namespace}.svc.{cluster_domain}:{port}{path}"


def shortened(name: str, limit: int, *, ending: str = "", digits: int = 6) -> str:
    """Return a name and an ending; if they exceed `limit` characters, digits of a SHA-256 replace the name's end."""
    if len(name) + len(ending) <= limit:
        return name + ending
    return with_digest(name, name, limit, ending=ending, digits=digits)


def with_digest(spelled: str, original: str, limit: int = MAX_LABEL, *, ending: str = "", digits: int = 6) -> str:
    """Return the head of a spelling, hex digits of the original's SHA-256 and an ending: at most `limit` characters."""
    digest = hashlib.sha256(original.encode()).hexdigest()[:digits]
    return f"{spelled[: limit - digits - 1 - len(ending)].rstrip('-.')}-{digest}{ending}"
