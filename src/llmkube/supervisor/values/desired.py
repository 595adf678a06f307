"""Which services belong on this host, and what should run for one right now, as values; pure."""

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.runtimes.llama_fields import draft_of
from llmkube.runtimes.plan import LaunchPlan, PlanError
from llmkube.weights.estimate.demand import Estimate
from llmkube.weights.formats.shape import Shape
from llmkube.weights.store.blobs import WeightsFile


@attrs.frozen
class Desired:
    """One service that this host should look after, with the Model that it refers to.

    Attributes:
        service: The service.
        model: The Model that it serves.
        draft: The Model that guesses ahead for it, where it names one and there is one.
    """

    service: InferenceService
    model: Model
    draft: Model | None = None

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.service.key

    @property
    def running(self) -> bool:
        """Whether a process is wanted: not suspended, and at least one replica (a host runs one of them)."""
        return not self.service.spec.suspend and self.service.spec.replicas > 0

    @property
    def has_pods(self) -> bool:
        """Whether pods serve the same name: then the controller says how the service does, and has its Service."""
        return self.service.spec.hosts is not None

    def has_same_spec(self, other: "Desired | None") -> bool:
        """Whether nothing that matters here differs: identity, specs and their generations, not status or labels.

        A spec that was edited there and back is another generation of itself, and has to be told that it is accepted.
        """
        return other is not None and _identity_and_spec(self) == _identity_and_spec(other)


def slots(desired: Desired) -> int:
    """How many hosts may claim a service: one per replica, and one to keep its name when there are none."""
    return max(1, desired.service.spec.replicas)


def _identity_and_spec(desired: Desired) -> tuple[object, ...]:
    objects = (desired.service, desired.model, desired.draft)
    return tuple(each and (each.key, each.metadata.uid, each.metadata.generation, each.spec) for each in objects)


def model_key(service: InferenceService) -> Key:
    """The key of the Model that a service refers to; always in its own namespace."""
    return Key(service.key.namespace, service.spec.model_ref)


def draft_key(service: InferenceService) -> Key | None:
    """The key of the Model that shall guess ahead for a service; None where it names none that there could be."""
    try:
        named = draft_of(service.spec)
    except PlanError:  # which the plan will say
        return None
    return Key(service.key.namespace, named) if named and not named.startswith("/") else None


def accelerator(model: Model) -> str:
    """What a Model asks to run on; `cpu` when it does not say."""
    return model.spec.hardware.accelerator if model.spec.hardware else "cpu"


def desired_here(
    service: InferenceService | None,
    model: Model | None,
    current: Desired | None,
    accelerators: frozenset[str],
    *,
    draft: Model | None = None,
) -> Desired | None:
    """Return what this host should do for a service, or None when the service is not its business.

    A Model that is gone does not stop what runs: a deleted or unreadable Model is no order to unload its weights, so
    the last known one stands in. A service that is gone or being deleted is not wanted.
    """
    if service is None or service.metadata.deletion_timestamp is not None:
        return None
    if model is None and current is not None and model_key(service) == current.model.key:
        model = current.model
    if model is None or accelerator(model) not in accelerators:
        return None
    if draft is None and current is not None and current.draft is not None and draft_key(service) == current.draft.key:
        draft = current.draft
    return Desired(service, model, draft)


@attrs.frozen
class Idle:
    """Nothing should run, and why."""

    reason: str
    message: str = ""


@attrs.frozen
class Launch:
    """This plan should run, with these weights.

    Attributes:
        plan: What to run.
        weights: The Model's file.
        estimate: How much memory that will take; None when not known.
        client_keys: The API keys of clients that its engine takes; the plan has their digest, the journal none of them.
        shape: What another context would take can be told from it; not known of what an earlier agent left.
    """

    plan: LaunchPlan
    weights: WeightsFile
    estimate: Estimate | None = None
    client_keys: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False, kw_only=True)
    shape: Shape | None = attrs.field(default=None, eq=False, repr=False)


Target = Idle | Launch
