"""Write the objects that we own: only where they differ, only onto the state that was seen, never another owner's.

* **Compared** field by field: what others have added (an injected annotation, a defaulted field) is theirs.
* **Made** by an apply that can only create (`NO_VERSION`), and made again only for an owner that is still there.
* **Taken over** once, where another controller has made it for the same owner: nothing of its fields stays.
* **Changed** and **removed** at the very version that was compared: who wrote in between is not overwritten, also by a
  controller that has lost its Lease and does not know it yet (its machine was suspended).
* **Left alone** while it has another owner: a foreign one, or a predecessor of the same name that is being collected.
* **Shared** with another program of ours: what that has set stays. Such an object is made anew where it has to change,
  and let go of instead of removed.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import parse_quantity
from llmkube.controller.informer import Informer
from llmkube.controller.render.labels import DIGEST, MANAGED_BY
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NameTakenError,
    NotFoundError,
    SchemaMismatchError,
)
from llmkube.k8s.fields import wire_fields
from llmkube.k8s.reflector import is_older
from llmkube.k8s.resource import Key, Object, controller_key, is_controlled_by
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import PersistentVolumeClaim

T = TypeVar("T", bound=Object)

_AMOUNTS: Final = frozenset({"requests", "limits", "sizeLimit", "averageValue"})
"""Fields whose values a server spells in its own way: 1000m is 1 to it."""

_OWNERS: Final[Mapping[str, type[Object]]] = {
    kind.RESOURCE.kind: kind for kind in (InferenceService, Model, ModelRouter, PersistentVolumeClaim)
}
"""What objects are made for."""

REFUSED: Final = (NameTakenError, BadRequestError, ForbiddenError, InvalidError, SchemaMismatchError)
"""Errors of a manifest whose name is taken, or that the API server refuses: it alone knows many rules of a spec.

A quota that is used up, and most admission webhooks, say Forbidden: the status of the service has to show it.
"""

_PRESERVED_MANAGERS: Final = frozenset({"kube-controller-manager", "kubelet", "kube-scheduler"})
"""Who sets fields of our objects besides us, and may go on to."""

REFUSED_RETRY_SECONDS: Final = 60.0
"""Between two tries to make such an object: what has its name is not watched, and a node port or a quota may become
free."""

NO_VERSION: Final = str(2**63 - 1)
"""A resourceVersion that no object has: etcd counts its writes in 64 bits with a sign, from 1.

kube-apiserver (1.36) compares it where an object exists, in the transaction that writes: 409, nothing is changed. Where
there is none it creates, and drops it. No other field does that: an apply ignores a wrong creationTimestamp and
generation, keeps a deletionTimestamp in what it creates, and does not create with a uid.
"""


@attrs.frozen
class _Record(Generic[T]):
    """The last state of an object that needs no write, and the manifest that says so.

    Attributes:
        manifest: What the object shall be.
        live: The object: the answer to our write, or what the cache had when it was compared.
        is_answer: It is the answer to a write, so the cache may still lag behind it.
    """

    manifest: Mapping[str, Any]
    live: T
    is_answer: bool


@attrs.define(eq=False)
class OwnedObjects(Generic[T]):
    """All objects of one kind that the controller has made.

    Attributes:
        client: The API server.
        informer: Those with our label.
        sharer: How the field managers of another program begin that writes such objects for the same owners, if any.
    """

    client: Client
    informer: Informer[T]
    sharer: str = ""
    _records: dict[Key, _Record[T]] = attrs.field(factory=dict, init=False)

    @property
    def kind(self) -> type[T]:
        """Their kind."""
        return self.informer.kind

    def get(self, key: Key) -> T | None:
        """Return the object as far as we know it: the answer to our last write while the cache still lags behind."""
        cached, last = self.informer.get(key), self._records.get(key)
        if last is None or not last.is_answer:
            return cached
        version = last.live.metadata.resource_version
        if cached is not None:
            return last.live if is_older(cached.metadata.resource_version, version) else cached
        position = self.informer.cache.position
        return last.live if not position or is_older(position, version) else None

    async def ensure(self, manifest: Mapping[str, Any]) -> T:
        """Make the object as the manifest has it, and return it; one write at most, and none if it is so already.

        A read comes only after a refusal to make it, or before it is made again. A caller that hands over the same
        manifest again (the same object, unchanged) is spared the comparison.

        Raises:
            NameTakenError: There is an object of that name which is not this owner's.
            ConflictError: It, or its owner, has changed meanwhile; look again.
            NotFoundError: Its owner is gone.
            ApiError: The API server could not or would not.
        """
        key = Key.of(manifest)
        live = self.get(key)
        if live is None:
            if key in self._records:
                # It has vanished. If its owner has too, the garbage collector would take away what is made here again.
                await self._confirm_owner(manifest)
            try:
                # The cache holds only what has our label, and a plain apply would merge into an object that has none.
                return await self._apply(key, manifest, NO_VERSION)
            except ConflictError as refusal:
                live = await self._read_unseen(key, refusal)
        if self._is_known(manifest, live):
            return live
        owner = manifest["metadata"]["ownerReferences"][0]
        if not is_controlled_by(live, owner["uid"]) or live.metadata.deletion_timestamp:
            raise self._name_taken(live, owner)
        if self._is_up_to_date(manifest, live):
            self._records[key] = _Record(manifest, live, is_answer=self.is_own(live))
            return live
        if await self._is_shared(live):
            await self._delete(live)
            return await self._apply(key, manifest, NO_VERSION)
        if DIGEST not in live.metadata.annotations:  # it was made for this owner, and not by this controller
            live = await self._take_over(live)
        return await self._apply(key, manifest, live.metadata.resource_version)

    async def label_predecessors(self, key: Key, owner_uid: str) -> None:
        """Put our label on what another controller has made for this owner, so that the cache has it from now on.

        Nothing else of it changes before it is taken over (`ensure`). Asked of the server: the cache has only ours.

        Raises:
            ConflictError: It has changed meanwhile.
            ApiError: The API server could not or would not.
        """
        if key in self._records or self.informer.get(key) is not None:
            return
        try:
            live = await self.client.get(self.kind, key)
        except NotFoundError:
            return
        if not is_controlled_by(live, owner_uid) or MANAGED_BY in live.metadata.labels:
            return
        labels = {MANAGED_BY: CONTROLLER_FIELD_MANAGER}
        patch = {"metadata": {"resourceVersion": live.metadata.resource_version, "labels": labels}}
        await self.client.patch(self.kind, key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def ensure_or_remove(self, manifest: dict[str, Any] | None, key: Key, owner_uid: str) -> None:
        """Write the object that is wanted, or delete this owner's if none is."""
        await (self.remove(key, owner_uid) if manifest is None else self.ensure(manifest))

    async def remove(self, key: Key, owner_uid: str) -> None:
        """Delete the object if it is there and this owner's, or what we have set of it if another program shares it.

        Raises:
            ConflictError: It has changed meanwhile, or is another one; look again.
            ApiError: The API server could not or would not.
        """
        live = self.get(key)
        self.forget(key)
        if live is None or live.metadata.deletion_timestamp or not is_controlled_by(live, owner_uid):
            return
        try:
            await (self._release(live) if await self._is_shared(live) else self._delete(live))
        except NotFoundError:
            return

    def is_own(self, live: T) -> bool:
        """Whether an object is as our last write has left it; the reconcile that wrote it has seen this state."""
        last = self._records.get(live.key)
        return last is not None and last.is_answer and _is_same(last.live, live)

    def forget(self, key: Key) -> None:
        """Drop the record of an object whose owner is gone."""
        self._records.pop(key, None)

    async def _confirm_owner(self, manifest: Mapping[str, Any]) -> None:
        desired = manifest["metadata"]["ownerReferences"][0]
        kind = _OWNERS[desired["kind"]]
        owner = await self.client.get(kind, Key(manifest["metadata"]["namespace"], desired["name"]))
        if owner.metadata.uid != desired["uid"]:
            raise ConflictError(f"{desired['kind']} {owner.key} was deleted and made anew meanwhile")

    async def _read_unseen(self, key: Key, refusal: ConflictError) -> T:
        """Return what the cache lacks: it lags behind, our label was removed, or the object has another owner."""
        try:
            return await self.client.get(self.kind, key)
        except NotFoundError:
            raise refusal from None  # gone again: the next look makes it

    async def _apply(self, key: Key, manifest: Mapping[str, Any], version: str) -> T:
        body = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        answer = await self.client.apply(self.kind, body, field_manager=CONTROLLER_FIELD_MANAGER)
        self._records[key] = _Record(manifest, answer, is_answer=True)
        return answer

    async def _is_shared(self, live: T) -> bool:
        """Whether the sharer has set fields of an object; asked of the server, for caches keep no managedFields."""
        if not self.sharer:
            return False
        newest = await self.client.get(self.kind, live.key)
        return any(str(entry.get("manager")).startswith(self.sharer) for entry in newest.metadata.managed_fields)

    async def _take_over(self, live: T) -> T:
        """Become the manager of every field that another controller has set, so that our next apply removes the rest.

        An apply alone would merge: the fields that we do not name (init containers, volumes, annotations) would stay.
        Writing the managers anew is how a client-side owner becomes one by apply (client-go's `csaupgrade`). What
        Kubernetes' own controllers have set stays theirs.
        """
        newest = await self.client.get(self.kind, live.key)
        taken: dict[str, Any] = {}
        preserved: list[Mapping[str, Any]] = []
        for entry in newest.metadata.managed_fields:
            ours = entry.get("manager") == CONTROLLER_FIELD_MANAGER
            if entry.get("subresource") or (entry.get("manager") in _PRESERVED_MANAGERS and not ours):
                preserved.append(entry)
            else:
                taken = _union(taken, entry.get("fieldsV1") or {})
        if not taken:
            return newest
        entry = {
            "manager": CONTROLLER_FIELD_MANAGER,
            "operation": "Apply",
            "apiVersion": self.kind.RESOURCE.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": taken,
        }
        version = {"resourceVersion": newest.metadata.resource_version}
        patch = {"metadata": {**version, "managedFields": [entry, *preserved]}}
        return await self.client.patch(self.kind, live.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def _delete(self, live: T) -> None:
        seen = live.metadata
        await self.client.delete(
            self.kind, live.key, uid=seen.uid, resource_version=seen.resource_version, propagation="Background"
        )

    async def _release(self, live: T) -> None:
        """Apply nothing: what only this controller has set goes, and the rest stays."""
        seen = live.metadata
        metadata = {"name": seen.name, "namespace": seen.namespace, "resourceVersion": seen.resource_version}
        body = {"apiVersion": self.kind.RESOURCE.api_version, "kind": self.kind.RESOURCE.kind, "metadata": metadata}
        await self.client.apply(self.kind, body, field_manager=CONTROLLER_FIELD_MANAGER)

    def _is_known(self, manifest: Mapping[str, Any], live: T) -> bool:
        """Whether these two have been compared before, or the one is the server's answer to the other."""
        last = self._records.get(live.key)
        return last is not None and last.manifest is manifest and differs_in_status_only(last.live, live)

    def _is_up_to_date(self, manifest: Mapping[str, Any], live: T) -> bool:
        actual = encode(live)
        # A field that we no longer want leaves no trace in what there is: the digest in the manifest differs then.
        if is_subset(manifest, actual):
            return True
        # Asked for before, and the server made something else of it: asking again would change nothing.
        last = self._records.get(live.key)
        if last is None or last.manifest != manifest or last.live.metadata.uid != live.metadata.uid:
            return False
        return bool(_project(manifest, encode(last.live)) == _project(manifest, actual))

    def _name_taken(self, live: T, owner: Mapping[str, Any]) -> NameTakenError:
        theirs, kind = controller_key(live, owner["kind"]), owner["kind"]
        why = f"exists already and does not belong to this {kind}; rename the {kind}, or delete that object"
        if theirs is not None:
            why = f"belongs to another {kind}, or is being deleted; this object leaves it alone"
        error = NameTakenError(f'{self.kind.RESOURCE.kind} "{live.key.name}" {why}')
        error.passing = bool(live.metadata.deletion_timestamp) or (theirs is not None and theirs.name == owner["name"])
        return error


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of both (`FieldsV1`)."""
    return {**one, **{name: _union(one.get(name, {}), inner) for name, inner in other.items()}}


def _is_same(one: Object, other: Object) -> bool:
    mine, its = one.metadata, other.metadata
    return (mine.uid, mine.resource_version) == (its.uid, its.resource_version)


def differs_in_status_only(one: Object, other: Object) -> bool:
    """Whether two states of an object differ in nothing that a manifest can ask for; most changes are of the status."""
    if _is_same(one, other):
        return True
    mine, its = one.metadata, other.metadata
    if mine.uid != its.uid or mine.deletion_timestamp != its.deletion_timestamp:
        return False
    if (mine.labels, mine.annotations, mine.owner_references) != (its.labels, its.annotations, its.owner_references):
        return False
    kind: type = type(one)
    parts = {slot.attribute for slot in wire_fields(kind)} - {"metadata", "status"} | {"wire"}
    return all(getattr(one, name) == getattr(other, name) for name in parts)


def is_subset(desired: Any, actual: Any, *, amount: bool = False) -> bool:
    """Whether everything that is wanted is there; what is there besides does not count.

    Lists have to be of the same length; nothing and an empty list or map are the same; amounts are compared by value.
    """
    if isinstance(desired, Mapping):
        held = actual or {}
        return isinstance(held, Mapping) and all(
            is_subset(value, held.get(name), amount=amount or name in _AMOUNTS) for name, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        held = actual or []
        return len(held) == len(desired) and all(
            is_subset(one, other, amount=amount) for one, other in zip(desired, held, strict=True)
        )
    return bool(desired == actual) or (amount and actual is not None and _same_amount(desired, actual))


def _same_amount(desired: Any, actual: Any) -> bool:
    try:
        return parse_quantity(desired) == parse_quantity(actual)
    except UserError:
        return False


def _project(desired: Any, actual: Any) -> Any:
    """Return what is there of the fields that are wanted."""
    if isinstance(desired, Mapping) and isinstance(actual, Mapping):
        return {name: _project(value, actual.get(name)) for name, value in desired.items()}
    if isinstance(desired, list | tuple) and isinstance(actual, list | tuple) and len(desired) == len(actual):
        return [_project(one, other) for one, other in zip(desired, actual, strict=True)]
    return actual
