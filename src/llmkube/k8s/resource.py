"""Kinds in the API (`Resource`) and the identity of objects (`Key`)."""

import functools
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import attrs

from llmkube.k8s.crd.meta import GROUP, VERSION, ObjectMeta
from llmkube.k8s.fields import Wired


@attrs.frozen
class Resource:
    """The coordinates of a kind, from which its URLs and its discovery entry are built."""

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
        """The kind in lower case, as in `kubectl get model NAME`."""
        return self.kind.lower()

    @property
    def list_kind(self) -> str:
        """The kind of a list response."""
        return f"{self.kind}List"

    @property
    def api_version(self) -> str:
        """The group and version as in objects: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def type_meta(self) -> dict[str, str]:
        """The fields of an object that name its kind."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    @property
    def full_name(self) -> str:
        """The plural with its group, unique in a cluster: `models.inference.llmkube.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource.

        Args:
            namespace: Empty or None means all namespaces, or a cluster-scoped object.
            name: Empty means the collection.
            subresource: Such as `status`; requires a name.

        Raises:
            ValueError: The parts are inconsistent: an object of a namespaced kind without a namespace, a namespace
                for a cluster-scoped kind, a subresource without an object.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster-scoped, but namespace {namespace!r} was given")
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


def own_resource(kind: str, short_name: str, *further: str) -> Resource:
    """Return the coordinates of a kind of LLMKube's; `further` are its subresources besides `status`."""
    plural, subresources = f"{kind.lower()}s", ("status", *further)
    short_names, categories = (short_name,), ("llmkube",)
    return Resource(
        GROUP, VERSION, kind, plural, short_names=short_names, subresources=subresources, categories=categories
    )


@attrs.frozen(order=True)
class Key:
    """An object's namespace and name; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, obj: "Object | Mapping[str, Any]") -> Self:
        """Return the key of a typed object or of a JSON one."""
        if isinstance(obj, Mapping):
            metadata = obj.get("metadata") or {}
            return cls(metadata.get("namespace") or "", metadata.get("name") or "")
        return cls(obj.metadata.namespace, obj.metadata.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `namespace/name` or `name`.

        Raises:
            ValueError: The text has an empty part or more than one slash.
        """
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or bool(slash) != bool(namespace):
            raise ValueError(f"expected NAME or NAMESPACE/NAME, got {text!r}")
        return cls(namespace, name)


@attrs.frozen(kw_only=True)
class Object(Wired):
    """The base of all typed kinds: an attrs class with its coordinates and its metadata."""

    RESOURCE: ClassVar[Resource]

    metadata: ObjectMeta

    @property
    def key(self) -> Key:
        """The object's namespace and name; the namespace of a cluster-scoped object is empty."""
        return Key(self.metadata.namespace, self.metadata.name)


def controller_reference(owner: Object) -> dict[str, Any]:
    """Return the ownerReference to `owner` for the manifests of objects that it controls."""
    return {
        **owner.RESOURCE.type_meta,
        "name": owner.key.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # true requires a permission on the owner's finalizers, which no program here has
    }


def is_controlled_by(owned: Object, uid: str) -> bool:
    """Return whether the controlling owner of the object has this uid."""
    return any(owner.controller and owner.uid == uid for owner in owned.metadata.owner_references)


def controller_key(owned: Object, kind: str) -> Key | None:
    """Return the key of the controlling owner of this kind; None when there is none."""
    for owner in owned.metadata.owner_references:
        if owner.controller and owner.kind == kind:
            return Key(owned.metadata.namespace, owner.name)
    return None
