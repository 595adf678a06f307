"""Which services belong on this host, as a value; pure."""

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key


@attrs.frozen
class Desired:
    """One service that this host should look after, with the Model that it refers to."""

    service: InferenceService
    model: Model

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.service.key

    @property
    def running(self) -> bool:
        """Whether a process is wanted: not suspended, and at least one replica (a host runs one of them)."""
        return not self.service.spec.suspend and self.service.spec.replicas > 0

    def same_wish(self, other: "Desired | None") -> bool:
        """Whether nothing that matters here differs: identity, specs and their generations, not status or labels.

        A spec that was edited there and back is another generation of itself, and has to be told that it is accepted.
        """
        return other is not None and _wish(self) == _wish(other)


def slots(desired: Desired) -> int:
    """How many hosts may claim a service: one per replica, and one to keep its name when there are none."""
    return max(1, desired.service.spec.replicas)


def _wish(desired: Desired) -> tuple[object, ...]:
    service, model = desired.service, desired.model
    return tuple((each.key, each.metadata.uid, each.metadata.generation, each.spec) for each in (service, model))


def model_key(service: InferenceService) -> Key:
    """The key of the Model that a service refers to; always in its own namespace."""
    return Key(service.key.namespace, service.spec.model_ref)


def accelerator(model: Model) -> str:
    """What a Model asks to run on; `cpu` when it does not say."""
    return model.spec.hardware.accelerator if model.spec.hardware else "cpu"


def desired_here(
    service: InferenceService | None, model: Model | None, current: Desired | None, accelerators: frozenset[str]
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
    return Desired(service, model)
