"""The steps of a service's start, with their results and durations, and changes of phases. Pure."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import attrs

from llmkube.cli.view.output import printable, reason_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import FETCHED, find_condition
from llmkube.k8s.wire.service_health import STEPS, unready_condition


def choice_of(model: Model) -> str:
    """Return the chosen quantization of the file; empty if there was no choice."""
    fetched = find_condition(model.status.conditions, FETCHED)
    return fetched.message.partition(": ")[2] if fetched is not None and fetched.status == "True" else ""


def detail_of(step: str, service: InferenceService, model: Model | None) -> str:
    """Return details of a step that is done."""
    if step == "fetch" and model is not None:
        return ", ".join(part for part in (model.status.size, choice_of(model)) if part)
    if step == "load" and model is not None and model.status.gguf is not None:
        facts = model.status.gguf
        return ", ".join(part for part in (facts.architecture, facts.quantization) if part)
    return service.status.endpoint if step == "ready" else ""


@attrs.define
class Stopwatch:
    """Measures each step from the end of the previous one; of several that end at once, the first gets all the time."""

    since: float
    laps: dict[str, float] = attrs.field(factory=dict)

    def mark_done(self, done: int, now: float) -> list[str]:
        """Return the steps that are newly done; a step that is undone later keeps its duration."""
        new = [step for step in STEPS[:done] if step not in self.laps]
        for step in new:
            self.lap(step, now)
        return new

    def lap(self, step: str, now: float) -> None:
        """Record the end of a step."""
        self.laps[step] = now - self.since
        self.since = now


@attrs.frozen
class Phase:
    """The phase of a service, with its cause.

    Attributes:
        name: The phase.
        reason: Why it is not ready, as a reason; empty if it is, or if the reason is the phase.
        is_stalled: Whether its download makes no progress.
        message: The message of the reason.
        of: The service.
    """

    # Only the controller's conditions: with the agent's, which come earlier, each step would be reported twice.
    name: str
    reason: str
    is_stalled: bool = False
    message: str = attrs.field(default="", eq=False)  # numbers in it change all the time
    of: InferenceService | None = attrs.field(default=None, eq=False, repr=False)


Phases = Mapping[Key, Phase]


def phases_of(services: Iterable[InferenceService], before: Phases = MappingProxyType({})) -> Phases:
    """Return the phase of each service; that of an object that was not replaced is taken from `before`."""
    return {
        service.key: known if (known := before.get(service.key)) and known.of is service else _phase_of(service)
        for service in services
    }


def _phase_of(service: InferenceService) -> Phase:
    cause = unready_condition(service)
    message = cause.message.partition("\n")[0] if cause is not None else ""
    return Phase(
        service.status.phase or "New", reason_of(service), message.startswith("waiting since "), message, service
    )


def changes(before: Phases, after: Phases) -> list[str]:
    """Return one line per service that is new, deleted or in another phase."""
    lines = []
    for key in sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
        if key not in after:
            lines.append(f"{key}: deleted")
        else:
            phase = after[key]
            message = [phase.name, *([f" ({printable(phase.reason)})"] if phase.reason else [])]
            lines.append(f"{key}: {''.join(message)}" + (f": {printable(phase.message)}" if phase.message else ""))
    return lines
