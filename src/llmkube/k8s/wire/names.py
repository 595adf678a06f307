"""Names that both programs derive for themselves, so that they meet without asking each other.

A host publishes a Service and one EndpointSlice per InferenceService and host; the controller finds them again by name
and label. Kubernetes is stricter about these names than about the names of our own kinds:

* a Service is a DNS-1035 label (RFC 1035: at most 63 characters, a letter first), because it becomes one label of a
  host name, while an InferenceService may be called anything that is a DNS-1123 subdomain (253, dots, digits first);
* an EndpointSlice and a Lease are DNS-1123 subdomains;
* a label's value has at most 63 characters.

Every function here is a pure function of its arguments and idempotent where that makes sense.
"""

import hashlib
import re
from typing import Final, Literal

MAX_LABEL: Final = 63
"""The longest DNS label and the longest label value, in characters."""

SERVICE_LABEL: Final = "inference.llmkube.dev/service"
"""Label on the Service and the slices of an InferenceService; its value is `label_value(name)`."""

HOST_LABEL: Final = "inference.llmkube.dev/host"
"""Label on slices and Leases; its value is `host_id(host_name)`."""

RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""Annotation of pods, in `spec.podAnnotations`: another value starts them anew, as after `kubectl rollout restart`."""

ACCELERATORS_ANNOTATION: Final = "inference.llmkube.dev/accelerators"
"""Annotation on a host's Lease: the accelerators that it serves, comma-separated."""

MACHINE_ANNOTATION: Final = "inference.llmkube.dev/machine"
"""Annotation on a host's Lease: which machine it is, so that another one of the same name is told from it."""

AGENT_VERSION_ANNOTATION: Final = "inference.llmkube.dev/agent-version"
"""Annotation on a host's Lease: the version of its agent."""

ENGINE_ANNOTATION: Final = "inference.llmkube.dev/engine"
"""Annotation on a host's Lease: its engine and that engine's build."""

MEMORY_TOTAL_ANNOTATION: Final = "inference.llmkube.dev/memory-total-bytes"
"""Annotation on a host's Lease: how much memory it has."""

MEMORY_BUDGET_ANNOTATION: Final = "inference.llmkube.dev/memory-budget-bytes"
"""Annotation on a host's Lease: how much of its memory models may take together."""

MEMORY_FREE_ANNOTATION: Final = "inference.llmkube.dev/memory-free-bytes"
"""Annotation on a host's Lease: how much memory one more model could get, when it was renewed."""

SERVICES_ANNOTATION: Final = "inference.llmkube.dev/services"
"""Annotation on a host's Lease: how many services it looks after."""

ADDRESS_ANNOTATION: Final = "inference.llmkube.dev/address"
"""Annotation on a host's Lease: the address that it advertises; empty when it publishes none."""

ADDRESS_REASON_ANNOTATION: Final = "inference.llmkube.dev/address-reason"
"""Annotation on a host's Lease: why it advertises that address, or why none."""

CREDENTIAL_ANNOTATION: Final = "inference.llmkube.dev/credential"
"""Annotation on a host's Lease: what is wrong with the host's credential, and what mends it."""

CORDON_ANNOTATION: Final = "inference.llmkube.dev/cordon"
"""Annotation on a host's Lease: its owner has taken it back, until when; it then lists no accelerator."""

ADDRESSES_ANNOTATION: Final = "inference.llmkube.dev/addresses"
"""Annotation on a host's ServiceAccount: the networks in which its engines may be, as CIDRs with commas between."""

HOST_ACCOUNT_PREFIX: Final = "llmkube-agent-"
"""What comes before `host_id(host_name)` in the name of a host's ServiceAccount."""

CLAIM_LABEL: Final = "inference.llmkube.dev/claim"
"""Label on a claim, the Lease by which a host runs one replica; its value is `label_value(name)` of the service."""

CLAIMED_ANNOTATION: Final = "inference.llmkube.dev/inferenceservice"
"""Annotation on a claim: `namespace/name` of the service."""

SLOT_ANNOTATION: Final = "inference.llmkube.dev/slot"
"""Annotation on a claim: which replica it is about, from 0."""

MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
"""The well-known label that keeps other controllers away from a slice."""

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""The well-known label that ties a slice to its Service."""

SERVICE_PORT: Final = 8080
"""The port of every Service in front of a host's engine; the engine's own port is in the slice."""

AGENT_MANAGER: Final = "llmkube-agent"
"""Value of `MANAGED_BY_LABEL` on the slices that agents write."""

PREDECESSOR_LABEL: Final = "llmkube.ai/managed-by"
"""Label on the Services, slices and Endpoints of the Go implementation's agent; its value is `PREDECESSOR`."""

PREDECESSOR: Final = "metal-agent"
"""Value of `PREDECESSOR_LABEL`."""

PREDECESSOR_SERVICE_LABEL: Final = "llmkube.ai/inference-service"
"""Label on the same objects: the InferenceService's name."""

CONTROLLER_FIELD_MANAGER: Final = "llmkube-controller"
"""Field manager of everything that the controller applies."""

_DIGEST_CHARS: Final = 6
_MAX_SUBDOMAIN: Final = 253
_RESERVED_PREFIXES: Final = ("claim.", CONTROLLER_FIELD_MANAGER)
_DNS_1035_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_DNS_1123_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


def is_object_name(name: str) -> bool:
    """Whether Kubernetes allows this name for our kinds: a DNS-1123 subdomain, which is no way out of a folder."""
    return len(name) <= _MAX_SUBDOMAIN and _DNS_1123_SUBDOMAIN.fullmatch(name) is not None


def service_name(isvc_name: str) -> str:
    """Return the name of the Service in front of an InferenceService: its own name wherever a Service may have it.

    Any other name is spelled with the characters that a Service allows and gets `-` and 6 hex digits of its SHA-256, so
    that `a.b` and `a-b`, or two names that differ beyond the 63rd character, never share a Service.
    """
    if len(isvc_name) <= MAX_LABEL and _DNS_1035_LABEL.fullmatch(isvc_name):
        return isvc_name
    spelled = re.sub(r"[^a-z0-9]+", "-", isvc_name.lower()).strip("-")
    if not spelled[:1].isalpha():
        spelled = f"s-{spelled}".rstrip("-")
    return _with_digest(spelled, isvc_name)


def host_id(host_name: str) -> str:
    """Return the name by which a host is known: the name of its Lease, a part of its slices' names and a label's value.

    A name that is a DNS-1123 subdomain of at most 63 characters is itself; any other one (`Ann's Mac`, `mac_mini`) is
    respelled and gets 6 hex digits of its SHA-256; so does one that would be the name of another kind of Lease of ours.
    """
    reserved = host_name.startswith(_RESERVED_PREFIXES)
    if len(host_name) <= MAX_LABEL and _DNS_1123_SUBDOMAIN.fullmatch(host_name) and not reserved:
        return host_name
    if reserved:
        return _with_digest(f"host-{re.sub(r'[^a-z0-9]+', '-', host_name.lower())}", host_name)
    spelled = re.sub(r"[^a-z0-9]+", "-", host_name.lower()).strip("-")
    return _with_digest(spelled or "host", host_name)


def label_value(name: str) -> str:
    """Return an object's name as a label's value: itself up to 63 characters, else its head and 6 hex of its SHA-256.

    A DNS-1123 subdomain is a valid label value as it is, except that it may be four times too long.
    """
    return name if len(name) <= MAX_LABEL else _with_digest(name, name)


def slice_name(service: str, host: str, family: Literal["IPv4", "IPv6"] = "IPv4") -> str:
    """Return the name of the EndpointSlice in which one host lists its endpoint of one Service.

    The separator is a dot, which no Service's name can contain: with a hyphen, `chat` on `mac-studio` and `chat-mac` on
    `studio` would be one object that two hosts overwrite in turn. The family is part of the name because a slice's
    `addressType` cannot be changed. At most 132 characters; a slice's name may have 253.

    Args:
        service: What `service_name` returned.
        host: The host's name, in any spelling.
        family: Of the address in the slice.
    """
    return f"{service}.{host_id(host)}" + (".ipv6" if family == "IPv6" else "")


def claim_name(namespace: str, isvc_name: str, slot: int) -> str:
    """Return the name of the Lease by which a host claims one replica of an InferenceService.

    A namespace has no dots and neither has a slot's number, so the name of the service is all that lies between them,
    whatever dots it has. A name that would be too long for a Lease gets a digest instead of its end.
    """
    name = f"claim.{namespace}.{isvc_name}.{slot}"
    if len(name) <= _MAX_SUBDOMAIN:
        return name
    digest = hashlib.sha256(isvc_name.encode()).hexdigest()
    head = isvc_name[: _MAX_SUBDOMAIN - len(f"claim.{namespace}.-{digest}.{slot}")].rstrip("-.")
    return f"claim.{namespace}.{head}-{digest}.{slot}"


def endpoint_url(service: str, namespace: str, *, port: int, path: str, cluster_domain: str = "cluster.local") -> str:
    """Return the URL at which a client in the cluster reaches a Service; `path` begins with a slash or is empty."""
    return f"http://{service}.{namespace}.svc.{cluster_domain}:{port}{path}"


def _with_digest(spelled: str, original: str) -> str:
    digest = hashlib.sha256(original.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{spelled[: MAX_LABEL - _DIGEST_CHARS - 1].rstrip('-.')}-{digest}"
