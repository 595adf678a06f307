"""How far a service is, read off its objects: the steps done, what is going on, whether waiting makes sense. Pure."""

from collections.abc import Collection, Iterable, Mapping

import attrs

from llmkube.cli.view.output import condition, printable
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

STEPS = ("fetch", "load", "ready")
"""What happens to a service, in this order, before it can be asked."""

# Reasons of `Loaded` after which waiting is no plan; a first exit is restarted at once and is not among them.
HOPELESS = frozenset({"CrashLoopBackOff", "EngineNotFound", "LoadStalled", "InternalError", "ScaledToZero"})
# Reasons of `Fetched` that pass by themselves.
PASSING = frozenset({"Fetching", "FetchFailed", "Stalled", "Throttled", "RangeRefused", "WrongSize"})

_MOVING = frozenset({"Creating", "Progressing", "Ready"})


@attrs.frozen
class Standing:
    """Where a service stands: the number of `STEPS` done, a line about the next one, and why it fails, if it does."""

    done: int
    detail: str = ""
    failure: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can be asked."""
        return self.done == len(STEPS)


def standing(service: InferenceService, model: Model | None, accelerators: Collection[str]) -> Standing:
    """Judge a service by its own and its Model's conditions.

    Args:
        service: The service.
        model: The Model that it refers to, or None if there is none.
        accelerators: What the hosts that it could run on serve.
    """
    if model is None:
        return Standing(0, failure=f"ModelNotFound: there is no Model {service.spec.model_ref}; apply one")
    accelerator = model.spec.hardware.accelerator
    if accelerator not in accelerators:
        served = ", ".join(sorted(accelerators))
        problem = f"NoHost: the Model asks for {accelerator}, and this host serves {served}"
        return Standing(0, failure=f"{problem}; add --accelerator {accelerator}, or change spec.hardware.accelerator")
    fetched = condition(model.status.conditions, "Fetched")
    accepted = condition(service.status.conditions, "Accepted")
    loaded = condition(service.status.conditions, "Loaded")
    if accepted is not None and accepted.status == "False":
        return Standing(0, failure=f"{accepted.reason}: {accepted.message}")
    if loaded is not None and loaded.status == "True":
        is_ready = service.status.phase == "Ready"
        return Standing(3 if is_ready else 2, loaded.message if is_ready else service.status.phase)
    if loaded is not None and loaded.reason in HOPELESS:
        return Standing(1, failure=f"{loaded.reason}: {loaded.message}")
    if fetched is not None and fetched.status == "False":
        if fetched.reason not in PASSING:
            return Standing(0, failure=f"{fetched.reason}: {fetched.message}")
        return Standing(0, _line(fetched.message))
    done = 1 if fetched is not None and fetched.status == "True" else 0
    if loaded is None:
        return Standing(done, "waiting for the agent")
    if done and loaded.reason == "Fetching":  # the Model was written first; its service still tells of the fetch
        return Standing(done)
    return Standing(done, _line(loaded.message or loaded.reason))


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
    return {service.key: (service.status.phase or "New", _halt(service)) for service in services}


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


def _halt(service: InferenceService) -> str:
    available = condition(service.status.conditions, "Available")
    if service.status.phase in _MOVING or available is None or available.status == "True":
        return ""
    return "" if available.reason == service.status.phase else available.reason


def _line(text: str) -> str:
    return printable(text.partition("\n")[0])
