"""What the agent reports about a service and its Model: conditions of its own, under its own field manager. Pure.

The controller turns these into phases; nothing here reads a status back.
"""

import datetime
from typing import Any

import attrs

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.units import format_bytes
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import Statement, settled
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.nouns.lifecycle import ServiceView
from llmkube.weights.download.fetch import WeightsFile
from llmkube.weights.formats.gguf import GGUFFacts

OF_SERVICE = ("Accepted", "Loaded", "MemoryPressure", "Published", "SpecHonoured", "UpToDate")
"""The conditions that agents state of a service.

Each agent states all of them, always. One that left out what it has stated earlier would give the fields of that
condition back that it alone owns; those that it shares with the host that spoke before it would stay, and the API
server refuses a condition without its time: no status of this service would ever be written again.
"""


@attrs.define
class Conditions:
    """The conditions that one writer holds on one object; a transition time moves only when the status flips."""

    _items: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def set(
        self, kind: str, status: bool | None, reason: str, message: str, *, generation: int, now: datetime.datetime
    ) -> None:
        """State a condition; the status None means that it is not known."""
        before = self._items.get(kind)
        since = (before["status"], before["lastTransitionTime"]) if before is not None else None
        statement = Statement(kind, status, reason, message)
        self._items[kind] = settled(statement, since, generation=generation, now=now)

    def holds(self, kind: str) -> bool | None:
        """Whether a condition holds; None when it was never stated."""
        return self._items[kind]["status"] == "True" if kind in self._items else None

    def has(self, kind: str) -> bool:
        """Whether a condition was ever stated."""
        return kind in self._items

    def as_list(self) -> list[dict[str, Any]]:
        """The conditions as the API wants them, in a stable order."""
        return [dict(self._items[kind]) for kind in sorted(self._items)]


def service_status(service: InferenceService, conditions: Conditions, view: ServiceView) -> dict[str, Any]:
    """Return the status patch of one InferenceService: the agent's conditions and why it is not serving, if so."""
    waiting = not view.ready and view.reason is not Reason.SCALED_TO_ZERO
    return _patch(
        InferenceService,
        service.key,
        {
            "schedulingStatus": str(view.reason) if waiting else "",
            "schedulingMessage": view.message.partition("\n")[0] if waiting else "",
            "conditions": [*conditions.as_list(), *_unstated(service, conditions)],
        },
    )


def _unstated(service: InferenceService, conditions: Conditions) -> list[dict[str, Any]]:
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": "NotStated",
            "message": "there is nothing to say about it",
            "lastTransitionTime": service.metadata.creation_timestamp,
        }
        for kind in OF_SERVICE
        if not conditions.has(kind)
    ]


def model_status(
    model: Model, conditions: Conditions, weights: WeightsFile | None, facts: GGUFFacts | None
) -> dict[str, Any]:
    """Return the status patch of one Model on this host: whether its file is here, and what its header says."""
    status: dict[str, Any] = {"conditions": conditions.as_list()}
    if weights is not None:
        status |= {"path": str(weights.path), "size": format_bytes(weights.size_bytes)}
        if weights.sha256:
            status["sha256"] = weights.sha256
    if facts is not None:
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
    return getattr(error, "reason", "") or ("SourceInvalid" if isinstance(error, UserError) else "FetchFailed")


def _patch(kind: type[Any], key: Key, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": kind.RESOURCE.api_version,
        "kind": kind.RESOURCE.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "status": status,
    }
