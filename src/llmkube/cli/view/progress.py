"""The steps of a service on its way: what each has brought, how long it took, and which phases have changed. Pure."""

from collections.abc import Iterable, Mapping

import attrs

from llmkube.cli.view.output import printable, reason_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import STEPS


def detail_of(step: str, service: InferenceService, model: Model | None) -> str:
    """Return what is worth knowing about a step that is done."""
    if step == "fetch" and model is not None:
        return model.status.size
    if step == "load" and model is not None and model.status.gguf is not None:
        facts = model.status.gguf
        return ", ".join(part for part in (facts.architecture, facts.quantization) if part)
    return service.status.endpoint if step == "ready" else ""


@attrs.define
class Stopwatch:
    """Measures each step from the end of the one before; several that are seen done at once share the first's time."""

    since: float
    laps: dict[str, float] = attrs.field(factory=dict)

    def see(self, done: int, now: float) -> list[str]:
        """Return the steps that are newly done; a step that is undone later keeps its time."""
        new = [step for step in STEPS[:done] if step not in self.laps]
        for step in new:
            self.lap(step, now)
        return new

    def lap(self, step: str, now: float) -> None:
        """End a step."""
        self.laps[step] = now - self.since
        self.since = now


Phases = Mapping[Key, tuple[str, str]]


def phases_of(services: Iterable[InferenceService]) -> Phases:
    """Return each service's phase, and why it is not on its way to serve if it is not.

    Both by the controller's word: the agent reports faster, and a pair of both would show each step twice.
    """
    return {service.key: (service.status.phase or "New", reason_of(service)) for service in services}


def changes(before: Phases, after: Phases) -> list[str]:
    """Return one line per service that is new, gone or in another phase."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            lines.append(f"{key}: gone")
        elif before.get(key) != after[key]:
            phase, reason = after[key]
            lines.append(f"{key}: {phase}" + (f" ({printable(reason)})" if reason else ""))
    return lines
