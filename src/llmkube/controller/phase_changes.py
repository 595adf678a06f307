"""A new phase is logged, counted, and recorded as an Event where `kubectl describe` shows it."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import structlog

from llmkube.controller.metrics import Durations
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.events import EventRecorder, EventType
from llmkube.k8s.wire.conditions import PROGRESSING

EVENT_TYPES: Final[Mapping[str, EventType]] = {"Ready": "Normal", "Failed": "Warning"}
"""The phases whose coming is an Event: those that users wait for, and those that they have to look at."""

log = structlog.get_logger()


@attrs.frozen(eq=False)
class PhaseChanges:
    """Where new phases are recorded."""

    recorder: EventRecorder
    durations: Durations
    utcnow: Callable[[], datetime.datetime]

    def tell(self, before: Model | InferenceService, status: Mapping[str, Any]) -> None:
        """Tell of a status that has just been written, if its phase is another one than before."""
        phase = status["phase"]
        if phase == before.status.phase:
            return
        [progressing] = [one for one in status["conditions"] if one["type"] == PROGRESSING]
        reason, message = progressing["reason"], progressing["message"]
        log.info("phase changed", kind=before.RESOURCE.kind, name=str(before.key), phase=phase, reason=reason)
        if phase == "Ready":
            self.durations.became_ready(before, self.utcnow())
        if phase in EVENT_TYPES:
            self.recorder.emit_nowait(before, reason, message, type=EVENT_TYPES[phase])
