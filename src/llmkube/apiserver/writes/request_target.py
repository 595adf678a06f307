"""The target of a request, and the outcome of a decision about it."""

from collections.abc import Callable
from typing import Any

import attrs

from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.kinds.scale import scale_of
from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.apiserver.values.api_errors import Subject
from llmkube.apiserver.writes import strategy
from llmkube.k8s.resource import Key


@attrs.frozen
class Target:
    """An object or (without a name) a collection, seen through one version of its kind."""

    kind: KindInfo
    ref: Ref
    subresource: str = ""

    @property
    def subject(self) -> Subject:
        """The object as Statuses name it: by the plural of its kind."""
        resource = self.kind.resource
        return Subject(resource.plural, resource.group, self.ref.key.name)

    @property
    def kind_subject(self) -> Subject:
        """The object as Statuses about its content name it: by its kind."""
        resource = self.kind.resource
        return Subject(resource.kind, resource.group, self.ref.key.name)

    def subject_with_uid(self, stored: Object) -> Subject:
        """Return the subject of a completed delete."""
        return attrs.evolve(self.subject, uid=stored["metadata"]["uid"])

    def at(self, name: str) -> "Target":
        """Return the target of that name in the same collection."""
        return attrs.evolve(self, ref=Ref(self.ref.kind, Key(self.ref.key.namespace, name)))

    def scale_of(self, stored: Object) -> dict[str, Any]:
        """Return the object's Scale; its kind must have one."""
        assert self.kind.scale is not None, "the route has no scale otherwise"
        return scale_of(stored, self.kind.scale)


@attrs.frozen
class Outcome:
    """The content of a response.

    An object of the target's kind is shown in the form that the client prefers, other content as it is.
    """

    object: Any
    status: int = 200
    is_object: bool = attrs.field(default=True, kw_only=True)
    warnings: tuple[str, ...] = attrs.field(default=(), kw_only=True)


Decision = Callable[[Transaction], Outcome]


@attrs.frozen
class PlannedWrite:
    """A decision to be made under the server's lock, and whether it is a dry run."""

    decide: Decision
    dry_run: bool


def outcome_of(target: Target, stored: Object, *, status: int = 200, warnings: list[str] | None = None) -> Outcome:
    """Return the outcome with the object, or its Scale.

    A write passes its `warnings`, even if there are none, and the kind's own are added.
    """
    messages = () if warnings is None else tuple(warnings)
    if warnings is not None and target.subresource != "status":
        messages = (*messages, *strategy.warnings(target.kind, stored))
    shown = target.scale_of(stored) if target.subresource == "scale" else stored
    return Outcome(shown, status, warnings=messages)
