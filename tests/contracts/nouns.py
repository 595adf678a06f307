"""The nouns of the script: where things are, and how the smallest of each is made."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from contracts.session import Session
from contracts.widgets import GROUP

WIDGETS: Final = f"/apis/{GROUP}/v1/namespaces/{{ns}}/widgets"
GADGETS: Final = f"/apis/{GROUP}/v1/namespaces/{{ns}}/gadgets"
CORE: Final = "/api/v1/namespaces/{ns}"
MAPS: Final = f"{CORE}/configmaps"
SERVICES: Final = f"{CORE}/services"
SECRETS: Final = f"{CORE}/secrets"
ENDPOINTS: Final = f"{CORE}/endpoints"
EVENTS: Final = f"{CORE}/events"
SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
NOWHERE: Final = f"/apis/{GROUP}/v1/namespaces/no-such-home/widgets"
SUBRESOURCES: Final = frozenset({"", "status", "scale", "finalize"})
"""Compared subresources of a kind: the embedded server has no pods to proxy to, and signs no tokens."""

Chapter = Callable[[Session], Awaitable[None]]
"""A part of the script: it only sends; what is right is what kube-apiserver answers."""


def widget(name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": name, **metadata},
        "spec": {"size": 3} if spec is None else spec,
    }


def gadget(name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {**widget(name, spec, **metadata), "kind": "Gadget"}


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def slice_of(name: str, kind: str, *addresses: Any, **more: Any) -> dict[str, Any]:
    endpoints = [{"addresses": list(addresses)}] if addresses else []
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name},
        "addressType": kind,
        "endpoints": endpoints,
        **more,
    }


def owner(path: str, name: str, *, version: str = f"{GROUP}/v1", kind: str = "Widget", **more: Any) -> list[Any]:
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": f"{{uid:{path}/{name}}}", **more}]
