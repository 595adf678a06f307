"""The status that an agent reports of a service and its Model, under its own field manager. Pure.

The controller derives phases from its conditions. The agent never reads a status back.
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
"""Conditions that one writer reports of one object."""

SERVICE_FIELDS = ("acceleration", "activation", "engine", "schedulingStatus", "schedulingMessage")
"""Status fields of a service that agents write besides conditions; the host policies refuse others."""

MODEL_FIELDS = ("path", "size", "sha256", "gguf", "projector")
"""The same for a Model."""

SERVICE_CONDITIONS = ("Accepted", "Loaded", "MemoryPressure", "Published", "SpecHonoured", "UpToDate")
"""The conditions that agents report of a service; each agent always reports all of them.

An apply that lacks an earlier condition would remove the fields of it that this agent alone owns, and leave those that
it shares with the previous host. The API server refuses a condition without its time, so no status of this service
could be written any more.
"""

MODEL_CONDITIONS = ("Fetched",)
"""The conditions that agents report of a Model."""


@attrs.frozen
class Slot:
    """An object, or one of its subresources, that this agent writes to."""

    kind: type[Object]
    key: Key
    subresource: str = ""

    def __str__(self) -> str:
        """`EndpointSlice default/chat.mac`."""
        return f"{self.kind.RESOURCE.kind} {self.key}{'/' + self.subresource if self.subresource else ''}"


def settle(statements: Iterable[Statement], before: Conditions, *, now: datetime.datetime) -> Conditions:
    """Return the statements as conditions, in a stable order.

    A transition time changes only if the status differs from the condition that this writer reported before.
    """
    since = {one["type"]: (one["status"], one["lastTransitionTime"]) for one in before}
    in_order = sorted(statements, key=lambda each: each.type)
    after = tuple(settled(each, since.get(each.type), generation=0, now=now) for each in in_order)
    return before if after == before else after  # the same objects as in the status that is kept as written


def service_status(service: InferenceService, conditions: Conditions, view: ServiceView, mode: str) -> dict[str, Any]:
    """Return the status patch of one InferenceService: conditions, and the engine that serves or why none does.

    `mode` is its activation mode.
    """
    waiting = not view.ready and view.reason not in {Reason.SCALED_TO_ZERO, Reason.IDLE}
    # Clients of the Go implementation know only its one word for both, temporary and permanent.
    reason = Reason.INSUFFICIENT_MEMORY if view.reason == Reason.EXCEEDS_MEMORY else view.reason
    status: dict[str, Any] = {
        "activation": mode,
        "schedulingStatus": str(reason) if waiting else "",
        "schedulingMessage": view.message.partition("\n")[0] if waiting else "",
        "conditions": [*conditions, *_unknown_conditions(service, conditions)],
    }
    engine = {"runtime": view.engine, "build": view.build, "weightsFormat": view.weights_format}
    if view.ready and (known := {name: value for name, value in engine.items() if value}):
        status["engine"] = known
    if view.ready and (offload := view.offload) is not None:
        total = {} if offload.total is None else {"layersTotal": offload.total}
        status["acceleration"] = {"device": offload.device, "layersOffloaded": offload.layers, **total}
    return _patch(service.key, status)


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
    """Return the status patch of one Model on this host: its file, and the facts in its header."""
    status: dict[str, Any] = {"conditions": list(conditions)}
    if weights is not None:
        status |= {"path": str(weights.path), "size": format_bytes(weights.size_bytes)}
        if weights.sha256:
            status["sha256"] = weights.sha256
    if isinstance(facts, GGUFFacts):
        status["gguf"] = gguf_status(facts)
        if facts.projector is not None:
            status["projector"] = str(facts.projector)
    return _patch(model.key, status)


def gguf_status(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf`: the facts in the header under their API names, without those that it lacks."""
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
    """Return the reason of a `Fetched=False` condition."""
    kind = Reason.SOURCE_INVALID if isinstance(error, UserError) else Reason.FETCH_FAILED
    return getattr(error, "reason", "") or kind


def _patch(key: Key, status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": key.name, "namespace": key.namespace}, "status": status}
