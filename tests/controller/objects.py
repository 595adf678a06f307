"""Objects as an API server would return them, with only the facts that a test is about."""

import datetime
from collections.abc import Mapping
from typing import Any

from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.names import ACCELERATORS_ANNOTATION, HOST_LABEL

NOW = datetime.datetime(2025, 6, 1, 12, 0, 0, tzinfo=datetime.UTC)
EARLIER = "2025-06-01T11:00:00Z"

STUDIO = LiveHosts({"studio": frozenset({"metal"})})
NOBODY = LiveHosts()


def condition(
    kind: str, status: str | bool, reason: str, message: str = "", generation: int | None = None
) -> dict[str, Any]:
    word = status if isinstance(status, str) else str(status)
    body = {"type": kind, "status": word, "reason": reason, "message": message, "lastTransitionTime": EARLIER}
    return body if generation is None else {**body, "observedGeneration": generation}


def model(
    *conditions: Mapping[str, Any], source: str = "builtin://demo", accelerator: str = "metal", generation: int = 1
) -> Model:
    return decode(
        Model,
        {
            "metadata": {
                "name": "phi",
                "namespace": "ml",
                "uid": "m-1",
                "resourceVersion": "5",
                "generation": generation,
            },
            "spec": {"source": source, "hardware": {"accelerator": accelerator}},
            "status": {"conditions": list(conditions)},
        },
    )


def fetched_model(**facts: Any) -> Model:
    return model(condition("Fetched", True, "Fetched", "933.8 KiB"), **facts)


def service(
    *conditions: Mapping[str, Any], name: str = "chat", generation: int = 1, spec: Mapping[str, Any] | None = None
) -> InferenceService:
    return decode(
        InferenceService,
        {
            "metadata": {
                "name": name,
                "namespace": "ml",
                "uid": "s-1",
                "resourceVersion": "7",
                "generation": generation,
            },
            "spec": {"modelRef": "phi", **(spec or {})},
            "status": {"conditions": list(conditions)},
        },
    )


def slice_of(host: str, *ready: bool | None) -> EndpointSlice:
    return decode(
        EndpointSlice,
        {
            "metadata": {"name": f"chat.{host}", "namespace": "ml", "labels": {HOST_LABEL: host}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [f"10.0.0.{n}"], "conditions": {} if one is None else {"ready": one}}
                for n, one in enumerate(ready, start=1)
            ],
        },
    )


def lease(
    host: str = "studio",
    version: str = "1",
    *,
    accelerators: str = "metal",
    seconds: int | None = 40,
    label: str | None = None,
    name: str = "",
) -> Lease:
    label = host if label is None else label
    return decode(
        Lease,
        {
            "metadata": {
                "name": name or host,
                "namespace": "llmkube-system",
                "uid": "l-1",
                "resourceVersion": version,
                "labels": {HOST_LABEL: label} if label else {},
                "annotations": {ACCELERATORS_ANNOTATION: accelerators},
            },
            "spec": {"holderIdentity": host} | ({} if seconds is None else {"leaseDurationSeconds": seconds}),
        },
    )
