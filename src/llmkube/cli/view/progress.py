"""The steps of a service on its way: what each has brought, how long it took, and which phases have changed. Pure."""

from collections.abc import Iterable, Mapping

import attrs

from llmkube.cli.view.output import printable, reason_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import FETCHED, find_condition
from llmkube.k8s.wire.service_health import STEPS, unready_condition


def choice_of(model: Model) -> str:
    """Return which of several quantizations the file is; empty where there was nothing to choose."""
    fetched = find_condition(model.status.conditions, FETCHED)
    return fetched.message.partition(": ")[2] if fetched is not None and fetched.status == "True" else ""


def detail_of(step: str, service: InferenceService, model: Model | None) -> str:
    """Return what is worth knowing about a step that is done."""
    if step == "fetch" and model is not None:
        return ", ".join(part for part in (model.status.size, choice_of(model)) if part)
    if step == "load" and model is not None and model.status.gguf is not None:
        facts = model.status.gguf
        return ", ".join(part for part in (facts.architecture, facts.quantization) if part)
    return service.status.endpoint if step == "ready" else ""


@attrs.define
class Stopwatch:
    """Measures each step from the end of the one before; several that are seen done at once share the first's time."""

    since: float
    laps: dict[str, float] = attrs.field(factory=dict)

    def mark_done(self, done: int, now: float) -> list[str]:
        """Return the steps that are newly done; a step that is undone later keeps its time."""
        new = [step for step in STEPS[:done] if step not in self.laps]
        for step in new:
            self.lap(step, now)
        return new

    def lap(self, step: str, now: float) -> None:
        """End a step."""
        self.laps[step] = now - self.since
        self.since = now


@attrs.frozen
class Phase:
    """Where a service stands by the controller's word: the agent reports faster, and both would tell each step twice.

    Attributes:
        name: The phase.
        reason: Why it does not serve, as a word; empty when it does, or when the phase says it.
        is_stalled: Whether what it needs does not move.
        message: The reason in words. Figures change in them all the time, so that they make no change of their own.
    """

    name: str
    reason: str
    is_stalled: bool = False
    message: str = attrs.field(default="", eq=False)


Phases = Mapping[Key, Phase]


def phases_of(services: Iterable[InferenceService]) -> Phases:
    """Return where each service stands."""
    return {service.key: _phase_of(service) for service in services}


def _phase_of(service: InferenceService) -> Phase:
    cause = unready_condition(service)
    message = cause.message.partition("\n")[0] if cause is not None else ""
    return Phase(service.status.phase or "New", reason_of(service), message.startswith("waiting since "), message)


def changes(before: Phases, after: Phases) -> list[str]:
    """Return one line per service that is new, gone or in another phase."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            lines.append(f"{key}: gone")
        elif before.get(key) != after[key]:
            phase = after[key]
            message = [phase.name, *([f" ({printable(phase.reason)})"] if phase.reason else [])]
            lines.append(f"{key}: {''.join(message)}" + (f": {printable(phase.message)}" if phase.message else ""))
    return lines
