"""What the agent reports about a service and its Model: conditions of its own, under its own field manager. Pure.

The controller turns these into phases; nothing here reads a status back.
"""

import datetime
from collections.abc import Iterable
from typing import Any

import attrs

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.units import format_bytes
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.conditions import Statement, settled
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.weights.formats.shape import GGUFFacts, ModelHeader
from llmkube.weights.store.blobs import WeightsFile

Conditions = tuple[dict[str, Any], ...]
"""What one writer says of one object."""

SERVICE_FIELDS = ("engine", "schedulingStatus", "schedulingMessage")
"""What agents write of a service besides conditions; the policies of hosts let no other through."""

MODEL_FIELDS = ("path", "size", "sha256", "gguf")
"""The same of a Model."""

SERVICE_CONDITIONS = ("Accepted", "Loaded", "MemoryPressure", "Published", "SpecHonoured", "UpToDate")
"""The conditions that agents state of a service.

Each agent states all of them, always. One that left out what it has stated earlier would give the fields of that
condition back that it alone owns; those that it shares with the host that spoke before it would stay, and the API
server refuses a condition without its time: no status of this service would ever be written again.
"""

MODEL_CONDITIONS = ("Fetched",)
"""The conditions that agents state of a Model."""


@attrs.frozen
class Slot:
    """One thing that this agent says: an object, or one of its subresources."""

    kind: type[Object]
    key: Key
    subresource: str = ""

    def __str__(self) -> str:
        """`EndpointSlice default/chat.mac`."""
        return f"{self.kind.RESOURCE.kind} {self.key}{'/' + self.subresource if self.subresource else ''}"


def settle(statements: Iterable[Statement], before: Conditions, *, now: datetime.datetime) -> Conditions:
    """Return the statements as the API wants them, in a stable order.

    A transition time moves only when the status flips against the conditions that this writer has held before.
    """
    since = {one["type"]: (one["status"], one["lastTransitionTime"]) for one in before}
    in_order = sorted(statements, key=lambda each: each.type)
    return tuple(settled(each, since.get(each.type), generation=0, now=now) for each in in_order)


def service_status(service: InferenceService, conditions: Conditions, view: ServiceView) -> dict[str, Any]:
    """Return the status patch of one InferenceService: the agent's conditions, what serves, or why nothing does."""
    waiting = not view.ready and view.reason is not Reason.SCALED_TO_ZERO
    # The Go original's word, which its clients read, tells nothing of how long it is so.
    word = Reason.INSUFFICIENT_MEMORY if view.reason == Reason.EXCEEDS_MEMORY else view.reason
    status: dict[str, Any] = {
        "schedulingStatus": str(word) if waiting else "",
        "schedulingMessage": view.message.partition("\n")[0] if waiting else "",
        "conditions": [*conditions, *_unknown_conditions(service, conditions)],
    }
    engine = {"runtime": view.engine, "build": view.build, "weightsFormat": view.weights_format}
    if view.ready and (known := {name: value for name, value in engine.items() if value}):
        status["engine"] = known
    return _patch(InferenceService, service.key, status)


def _unknown_conditions(service: InferenceService, conditions: Conditions) -> list[dict[str, Any]]:
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": Reason.NOT_STATED,
            "message": "the agent has not reported it yet",
            "lastTransitionTime": service.metadata.creation_timestamp,
        }
        for kind in SERVICE_CONDITIONS
        if kind not in {one["type"] for one in conditions}
    ]


def model_status(
    model: Model, conditions: Conditions, weights: WeightsFile | None, facts: ModelHeader | None
) -> dict[str, Any]:
    """Return the status patch of one Model on this host: whether its file is here, and what its header says."""
    status: dict[str, Any] = {"conditions": list(conditions)}
    if weights is not None:
        status |= {"path": str(weights.path), "size": format_bytes(weights.size_bytes)}
        if weights.sha256:
            status["sha256"] = weights.sha256
    if isinstance(facts, GGUFFacts):
        status["gguf"] = gguf_status(facts)
    return _patch(Model, model.key, status)


def gguf_status(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf`: the header's facts under their API names, those that the header does not give left out."""
    named = {
        "architecture": facts.architecture,
        "contextLength": facts.context_length,
        "embeddingSize": facts.embedding_size,
        "fileVersion": facts.file_version,
        "headCount": facts.head_count,
        "layerCount": facts.layer_count,
        "license": facts.license,
        "modelName": facts.name,
        "quantization": facts.quantization,
        "tensorCount": facts.tensor_count,
    }
    return {name: value for name, value in named.items() if value is not None}


def fetch_reason(error: LLMKubeError) -> str:
    """Return the reason of a `Fetched=False` condition: what kind of thing is wrong with the file or its source."""
    kind = Reason.SOURCE_INVALID if isinstance(error, UserError) else Reason.FETCH_FAILED
    return getattr(error, "reason", "") or kind


def _patch(kind: type[Any], key: Key, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": kind.RESOURCE.api_version,
        "kind": kind.RESOURCE.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "status": status,
    }
