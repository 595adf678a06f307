"""The desired state of a service on this host, and the target that should run for it; pure."""

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT, UNLOAD_REQUESTED_AT
from llmkube.runtimes.llama_fields import draft_of
from llmkube.runtimes.plan import LaunchPlan, PlanError
from llmkube.weights.estimate.demand import Estimate
from llmkube.weights.formats.shape import Shape
from llmkube.weights.store.blobs import WeightsFile


@attrs.frozen
class Desired:
    """Desired state of one service on this host.

    Attributes:
        service: The service.
        model: The Model that it serves.
        draft: Its draft Model, if it names one that exists.
        adapters: The Models of `spec.adapters`, in the same order; None for those that do not exist.
        pool: The ModelPool in which it takes turns; None if it is in none.
    """

    service: InferenceService
    model: Model
    draft: Model | None = None
    adapters: tuple[Model | None, ...] = ()
    pool: ModelPool | None = None

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.service.key

    @property
    def running(self) -> bool:
        """Whether an engine should run: not suspended, and at least one replica (a host runs one of them)."""
        return not self.service.spec.suspend and self.service.spec.replicas > 0

    @property
    def has_pods(self) -> bool:
        """Whether pods serve it, too; then the controller reports its status and owns its Service."""
        return self.service.spec.hosts is not None

    @property
    def load_requested_at(self) -> str:
        """When a user last asked for the model to be loaded."""
        return self.service.metadata.annotations.get(LOAD_REQUESTED_AT, "")

    @property
    def unload_requested_at(self) -> str:
        """When a user last asked for the model to be unloaded."""
        return self.service.metadata.annotations.get(UNLOAD_REQUESTED_AT, "")

    def has_same_spec(self, other: "Desired | None") -> bool:
        """Whether identities, specs, generations and requests to load or unload are the same; the rest is ignored."""
        # With generations: a spec that was edited and edited back has a new one, which conditions must refer to.
        return other is not None and _identity_and_spec(self) == _identity_and_spec(other)


def slots(desired: Desired) -> int:
    """Return how many hosts may claim a service: one per replica, and one to hold the service at zero replicas."""
    return max(1, desired.service.spec.replicas)


def _identity_and_spec(desired: Desired) -> tuple[object, ...]:
    objects = (desired.service, desired.model, desired.draft, desired.pool, *desired.adapters)
    known = tuple(each and (each.key, each.metadata.uid, each.metadata.generation, each.spec) for each in objects)
    return (*known, desired.load_requested_at, desired.unload_requested_at)


def model_key(service: InferenceService) -> Key:
    """Return the key of the Model that a service refers to; always in its own namespace."""
    return Key(service.key.namespace, service.spec.model_ref)


def draft_key(service: InferenceService) -> Key | None:
    """Return the key of a service's draft Model; None if it names none, or a file."""
    try:
        named = draft_of(service.spec)
    except PlanError:  # reported when the service is planned
        return None
    return Key(service.key.namespace, named) if named and not named.startswith("/") else None


def adapter_keys(service: InferenceService) -> tuple[Key, ...]:
    """Return the keys of the Models of a service's adapters, in order."""
    return tuple(Key(service.key.namespace, each.model_ref) for each in service.spec.adapters)


def accelerator(model: Model) -> str:
    """Return the accelerator that a Model requests; `cpu` by default."""
    return model.spec.hardware.accelerator if model.spec.hardware else "cpu"


def desired_here(
    service: InferenceService | None,
    model: Model | None,
    current: Desired | None,
    accelerators: frozenset[str],
    *,
    draft: Model | None = None,
    adapters: tuple[Model | None, ...] = (),
    pool: ModelPool | None = None,
) -> Desired | None:
    """Return the desired state of a service on this host; None if the service does not belong here.

    A service that is deleted or being deleted belongs nowhere. A Model that is deleted does not stop a running engine:
    the last known Model applies.
    """
    if service is None or service.metadata.deletion_timestamp is not None:
        return None
    if model is None and current is not None and model_key(service) == current.model.key:
        model = current.model
    if model is None or accelerator(model) not in accelerators:
        return None
    if draft is None and current is not None and current.draft is not None and draft_key(service) == current.draft.key:
        draft = current.draft
    known = {each.key: each for each in current.adapters if each is not None} if current is not None else {}
    pairs = zip(adapters, adapter_keys(service), strict=True)
    pool = pool if service.spec.hosts is None else None  # with pods, it is always loaded
    return Desired(service, model, draft, tuple(each or known.get(key) for each, key in pairs), pool)


@attrs.frozen
class Idle:
    """No engine should run, for a reason.

    Attributes:
        launch: The plan that runs once the service is wanted; None if that would not help.
    """

    reason: str
    message: str = ""
    launch: "Launch | None" = None


@attrs.frozen
class Launch:
    """A plan that should run, with its weights.

    Attributes:
        plan: The plan.
        weights: The Model's file.
        estimate: Estimate of its memory; None if not known.
        client_keys: API keys of clients that its engine accepts; plan and journal have only their digest.
        shape: Shape of the model, for estimates of other contexts; None in a launch from the journal.
    """

    plan: LaunchPlan
    weights: WeightsFile
    estimate: Estimate | None = None
    client_keys: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False, kw_only=True)
    shape: Shape | None = attrs.field(default=None, eq=False, repr=False)


Target = Idle | Launch


def launch_of(target: Target) -> Launch | None:
    """Return the plan that runs, or that runs once the service is wanted."""
    return target.launch if isinstance(target, Idle) else target
