"""Write owned objects: only if they differ, only at the version that was compared, and never those of another owner.

* **Compare** field by field, ignoring what others have added (an injected annotation, a defaulted field).
* **Create** by an apply that cannot update (`NO_VERSION`); create again only if the owner still exists.
* **Take over** an object that another controller has created for the same owner: none of that controller's fields stay.
* **Update** and **delete** only at the version that was compared. A write in between is not overwritten, not even by a
  controller that has lost its Lease without noticing (its machine was suspended).
* **Never touch** an object of another owner, such as a deleted predecessor of the same name.
* **Share** an object with an agent, and retain the agent's fields. To change such an object, delete it and create it
  again; to remove it, only release our fields.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import parse_quantity
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
from llmkube.k8s.informer import Informer
from llmkube.k8s.reflector import is_older
from llmkube.k8s.resource import Key, Object, controller_key, is_controlled_by
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import PersistentVolumeClaim

T = TypeVar("T", bound=Object)

_AMOUNTS: Final = frozenset({"requests", "limits", "sizeLimit", "averageValue"})
"""Fields whose values a server normalizes: 1000m becomes 1."""

_OWNERS: Final[Mapping[str, type[Object]]] = {
    kind.RESOURCE.kind: kind for kind in (InferenceService, Model, ModelRouter, PersistentVolumeClaim)
}
"""Kinds of owners."""

REFUSED: Final = (NameTakenError, BadRequestError, ForbiddenError, InvalidError, SchemaMismatchError)
"""Errors of a manifest whose name is taken or which the API server refuses.

Only the API server knows all rules of a spec, quotas and admission webhooks. The status of the owner shows the error.
"""

SCALER: Final = "llmkube-scaler"
"""Field manager of the controller's writes of a number of pods that its manifest does not contain."""

_PRESERVED_MANAGERS: Final = frozenset({"kube-controller-manager", "kubelet", "kube-scheduler", SCALER})
"""Field managers whose fields are retained when an object is taken over."""

REFUSED_RETRY_SECONDS: Final = 60.0
"""Interval between retries after such an error: the object with that name is not watched, and a node port or a quota
may become available."""

NO_VERSION: Final = str(2**63 - 1)
"""A resourceVersion that no object has: etcd numbers its writes with signed 64-bit integers, from 1.

If an object exists, kube-apiserver (1.36) compares the version in the writing transaction, and answers 409 without a
change. If none exists, it creates one and ignores the version. No other field has this effect: an apply ignores a wrong
creationTimestamp and generation, retains a deletionTimestamp in what it creates, and does not create with a uid.
"""


@attrs.frozen
class _Record(Generic[T]):
    """The last state of an object that matched its manifest.

    Attributes:
        live: The object: the response to our write, or the cached object that was compared.
        is_write_response: It is the response to a write, which the cache may not have yet.
    """

    manifest: Mapping[str, Any]
    live: T
    is_write_response: bool


@attrs.define(eq=False)
class OwnedObjects(Generic[T]):
    """All objects of one kind that the controller has created.

    Attributes:
        informer: Cache of the objects with our label.
        sharer: Prefix of the field managers of another program that writes these objects for the same owners; empty if
            there is none.
    """

    client: Client
    informer: Informer[T]
    sharer: str = ""
    _records: dict[Key, _Record[T]] = attrs.field(factory=dict, init=False)

    @property
    def kind(self) -> type[T]:
        """The kind of these objects."""
        return self.informer.kind

    def get(self, key: Key) -> T | None:
        """Return the newest known version of an object: until the cache catches up, the response to our write."""
        cached, last = self.informer.get(key), self._records.get(key)
        if last is None or not last.is_write_response:
            return cached
        version = last.live.metadata.resource_version
        if cached is not None:
            return last.live if is_older(cached.metadata.resource_version, version) else cached
        position = self.informer.cache.position
        return last.live if not position or is_older(position, version) else None

    async def ensure(self, manifest: Mapping[str, Any]) -> T:
        """Create or update an object by its manifest if they differ, and return it.

        The object is read only if it cannot be created, is taken over or shared; its owner before it is created again.
        The comparison is skipped if the manifest is the same Python object as before and only the status has changed.

        Raises:
            NameTakenError: An object of that name has another owner.
            ConflictError: The object or its owner has changed in the meantime; reconcile again.
            NotFoundError: The owner is gone.
            ApiError: The request failed or was refused.
        """
        key = Key.of(manifest)
        live = self.get(key)
        if live is None:
            if key in self._records:
                # It has vanished. If its owner has too, the garbage collector would delete a new object again.
                await self._confirm_owner(manifest)
            try:
                # The cache has only objects with our label, and a plain apply would merge into one without it.
                return await self._apply(key, manifest, NO_VERSION)
            except ConflictError as refusal:
                live = await self._read_uncached(key, refusal)
        if self._is_known(manifest, live):
            return live
        owner = manifest["metadata"]["ownerReferences"][0]
        if not is_controlled_by(live, owner["uid"]) or live.metadata.deletion_timestamp:
            raise self._name_taken(live, owner)
        if self._is_up_to_date(manifest, live):
            self._records[key] = _Record(manifest, live, is_write_response=self.is_own(live))
            return live
        if await self._is_shared(live):
            await self._delete(live)
            return await self._apply(key, manifest, NO_VERSION)
        if DIGEST not in live.metadata.annotations:  # another controller created it for this owner
            live = await self._take_over(live)
        return await self._apply(key, manifest, live.metadata.resource_version)

    async def label_predecessors(self, key: Key, owner_uid: str) -> None:
        """Add our label to an object that another controller created for this owner, so that the cache includes it.

        Nothing else is changed before it is taken over (`ensure`). This reads from the API server, since the cache has
        only objects with our label.

        Raises:
            ConflictError: The object has changed in the meantime.
            ApiError: The request failed or was refused.
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
        labelled = await self.client.patch(self.kind, key, patch, field_manager=CONTROLLER_FIELD_MANAGER)
        self._records[key] = _Record({}, labelled, is_write_response=True)  # `get` returns it before the cache has it

    async def scale(self, live: T, replicas: int) -> T:
        """Set the number of pods of exactly this version of a workload, and change nothing else in it.

        Raises:
            ConflictError: The object has changed in the meantime; reconcile again.
        """
        patch = {"metadata": {"resourceVersion": live.metadata.resource_version}, "spec": {"replicas": replicas}}
        return self._note(await self.client.patch(self.kind, live.key, patch, field_manager=SCALER))

    async def hand_over_replicas(self, live: T, replicas: int) -> T:
        """Own the present number of pods by another field manager too, before our manifest ceases to contain it.

        A field that no manager owns any more is removed, and would be set to its default of 1. A patch does not
        suffice: one that leaves the value as it is changes no owner.
        """
        seen = live.metadata
        metadata = {"name": seen.name, "namespace": seen.namespace, "resourceVersion": seen.resource_version}
        body = {"metadata": metadata, "spec": {"replicas": replicas}}
        return self._note(await self.client.apply(self.kind, body, field_manager=SCALER))

    def _note(self, live: T) -> T:
        """Record the response to a write beside our manifest; return it."""
        last = self._records.get(live.key)
        self._records[live.key] = _Record(last.manifest if last is not None else {}, live, is_write_response=True)
        return live

    async def ensure_or_remove(self, manifest: dict[str, Any] | None, key: Key, owner_uid: str) -> None:
        """Create or update the object by its manifest, or delete this owner's if there is none."""
        await (self.remove(key, owner_uid) if manifest is None else self.ensure(manifest))

    async def remove(self, key: Key, owner_uid: str) -> None:
        """Delete the object if it belongs to this owner, or only our fields if another program shares it.

        Raises:
            ConflictError: The object has changed in the meantime, or was recreated; reconcile again.
            ApiError: The request failed or was refused.
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
        """Whether an object is unchanged since our last write: the reconcile that wrote it knows this version."""
        last = self._records.get(live.key)
        return last is not None and last.is_write_response and _is_same(last.live, live)

    def forget(self, key: Key) -> None:
        """Drop the record of an object whose owner is gone."""
        self._records.pop(key, None)

    async def _confirm_owner(self, manifest: Mapping[str, Any]) -> None:
        desired = manifest["metadata"]["ownerReferences"][0]
        kind = _OWNERS[desired["kind"]]
        owner = await self.client.get(kind, Key(manifest["metadata"]["namespace"], desired["name"]))
        if owner.metadata.uid != desired["uid"]:
            raise ConflictError(f"{desired['kind']} {owner.key} was deleted and recreated")

    async def _read_uncached(self, key: Key, refusal: ConflictError) -> T:
        """Read an object that the cache lacks: the cache is stale, our label was removed, or the owner is another."""
        try:
            return await self.client.get(self.kind, key)
        except NotFoundError:
            raise refusal from None  # gone again: the next reconcile creates it

    async def _apply(self, key: Key, manifest: Mapping[str, Any], version: str) -> T:
        body = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        applied = await self.client.apply(self.kind, body, field_manager=CONTROLLER_FIELD_MANAGER)
        self._records[key] = _Record(manifest, applied, is_write_response=True)
        return applied

    async def _is_shared(self, live: T) -> bool:
        """Whether the sharer has set fields of an object; read from the API server, since caches omit managedFields."""
        if not self.sharer:
            return False
        newest = await self.client.get(self.kind, live.key)
        return any(str(entry.get("manager")).startswith(self.sharer) for entry in newest.metadata.managed_fields)

    async def _take_over(self, live: T) -> T:
        """Take over all fields that other managers own, so that our next apply removes obsolete ones.

        An apply alone would merge, and retain fields that we do not set (init containers, volumes, annotations).
        Rewriting managedFields is the way to migrate a client-side owner to server-side apply (client-go's
        `csaupgrade`). Kubernetes' own controllers keep their fields.
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
        """Apply an empty manifest, which removes the fields that only this controller has set."""
        seen = live.metadata
        metadata = {"name": seen.name, "namespace": seen.namespace, "resourceVersion": seen.resource_version}
        await self.client.apply(self.kind, {"metadata": metadata}, field_manager=CONTROLLER_FIELD_MANAGER)

    def _is_known(self, manifest: Mapping[str, Any], live: T) -> bool:
        """Whether this manifest is known to match this object, apart from its status."""
        last = self._records.get(live.key)
        return last is not None and last.manifest is manifest and differs_in_status_only(last.live, live)

    def _is_up_to_date(self, manifest: Mapping[str, Any], live: T) -> bool:
        actual = encode(live)
        # This cannot detect a field that a new manifest omits, but then the digest in the annotations differs.
        if is_subset(manifest, actual):
            return True
        # The same manifest was applied before and the server changed it: applying it again would change nothing.
        last = self._records.get(live.key)
        if last is None or last.manifest != manifest or last.live.metadata.uid != live.metadata.uid:
            return False
        return bool(_project(manifest, encode(last.live)) == _project(manifest, actual))

    def _name_taken(self, live: T, owner: Mapping[str, Any]) -> NameTakenError:
        other, kind = controller_key(live, owner["kind"]), owner["kind"]
        why = f"already exists and does not belong to this {kind}; rename the {kind}, or delete that object"
        if other is not None:
            why = f"belongs to another {kind}, or is being deleted; it is left unchanged"
        error = NameTakenError(f'{self.kind.RESOURCE.kind} "{live.key.name}" {why}')
        error.transient = bool(live.metadata.deletion_timestamp) or (other is not None and other.name == owner["name"])
        return error


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two sets of fields (`FieldsV1`)."""
    return {**one, **{name: _union(one.get(name, {}), inner) for name, inner in other.items()}}


def _is_same(one: Object, other: Object) -> bool:
    mine, its = one.metadata, other.metadata
    return (mine.uid, mine.resource_version) == (its.uid, its.resource_version)


def differs_in_status_only(one: Object, other: Object) -> bool:
    """Whether two versions of an object differ in nothing that a manifest can set; most changes are to the status."""
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
    """Whether the actual value contains everything in the desired one; additional fields are ignored.

    Lists must have the same length. None equals an empty list or map. Amounts are compared by value.
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
    """Return the actual values of the desired fields."""
    if isinstance(desired, Mapping) and isinstance(actual, Mapping):
        return {name: _project(value, actual.get(name)) for name, value in desired.items()}
    if isinstance(desired, list | tuple) and isinstance(actual, list | tuple) and len(desired) == len(actual):
        return [_project(one, other) for one, other in zip(desired, actual, strict=True)]
    return actual
