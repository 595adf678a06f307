"""Where a kind lives in the API, and what identifies an object."""

import functools
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import attrs

from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.fields import Wired


@attrs.frozen
class Resource:
    """A kind's coordinates: enough to build its URLs and to describe it in discovery."""

    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        """The kind in lower case, as `kubectl get model NAME` says it."""
        return self.kind.lower()

    @property
    def list_kind(self) -> str:
        """The kind of a collection's answer."""
        return f"{self.kind}List"

    @property
    def api_version(self) -> str:
        """The group and version as objects carry them: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The plural with its group, unique in a cluster: `models.inference.llmkube.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, an object or a subresource.

        Args:
            namespace: Empty or None means all namespaces, or a cluster-scoped object.
            name: Empty means the collection.
            subresource: Such as `status`; needs a name.

        Raises:
            ValueError: The parts do not name anything: an object of a namespaced kind without a namespace, a namespace
                for a cluster-scoped kind, a subresource without an object.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster-scoped, yet namespace {namespace!r} was given")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        if subresource and not name:
            raise ValueError(f"subresource {subresource!r} of {self.kind} needs a name")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(map(_quoted, parts))


@functools.lru_cache(maxsize=4096)
def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


@attrs.frozen(order=True)
class Key:
    """An object's namespace and name; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, obj: "Object | Mapping[str, Any]") -> Self:
        """The key of a typed object or of a JSON one."""
        if isinstance(obj, Mapping):
            metadata = obj.get("metadata") or {}
            return cls(metadata.get("namespace") or "", metadata.get("name") or "")
        return cls(obj.metadata.namespace, obj.metadata.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `namespace/name` or `name`.

        Raises:
            ValueError: The text has an empty part or more than one slash.
        """
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or bool(slash) != bool(namespace):
            raise ValueError(f"expected NAME or NAMESPACE/NAME, got {text!r}")
        return cls(namespace, name)


@attrs.frozen(kw_only=True)
class Object(Wired):
    """Any typed kind: an attrs class that knows its coordinates and its name."""

    RESOURCE: ClassVar[Resource]

    metadata: ObjectMeta

    @property
    def key(self) -> Key:
        """The object's namespace and name; the namespace of a cluster-scoped object is empty."""
        return Key(self.metadata.namespace, self.metadata.name)


def controller_reference(owner: Object) -> dict[str, Any]:
    """Return the reference of what `owner` controls, as a manifest has it.

    `blockOwnerDeletion` stays false: to set it takes a right on the owner's finalizers that no program here has.
    """
    return {
        "apiVersion": owner.RESOURCE.api_version,
        "kind": owner.RESOURCE.kind,
        "name": owner.key.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def is_controlled_by(owned: Object, uid: str) -> bool:
    """Whether the owner of that uid is the one that manages the object."""
    return any(owner.controller and owner.uid == uid for owner in owned.metadata.owner_references)


def controller_key(owned: Object, kind: str) -> Key | None:
    """Return the owner of this kind that manages the object; None when there is none."""
    for owner in owned.metadata.owner_references:
        if owner.controller and owner.kind == kind:
            return Key(owned.metadata.namespace, owner.name)
    return None
