"""The catalog lists the kinds that are served now: the built-in ones, and those of every CustomResourceDefinition."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, KindInfo, kinds_from_crd
from llmkube.apiserver.storage.revisions import Object, Ref
from llmkube.k8s.resource import Key

CRDS: Final = "customresourcedefinitions.apiextensions.k8s.io"
NAMESPACES: Final = "namespaces"
SERVICES: Final = "services"


def ref_of(kind: KindInfo, namespace: str, name: str) -> Ref:
    """Return the reference to an object; a cluster-scoped one has no namespace."""
    return Ref(kind.resource.full_name, Key(namespace if kind.resource.namespaced else "", name))


def in_version(kind: KindInfo, stored: Object) -> Object:
    """Return a stored object in this version of its kind (conversion strategy None: only apiVersion changes)."""
    version = kind.resource.api_version
    return stored if stored.get("apiVersion") == version else {**stored, "apiVersion": version}


@attrs.define(eq=False)
class Catalog:
    """Kinds by URL and by storage name."""

    builtin: Iterable[KindInfo] = BUILTIN_KINDS
    _last_read: tuple[Mapping[str, Any], tuple[KindInfo, ...]] = ({}, ())
    _by_path: dict[tuple[str, str, str], KindInfo] = attrs.Factory(dict)
    _by_storage: dict[str, tuple[KindInfo, ...]] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        by_storage: dict[str, list[KindInfo]] = {}
        for kind in self.builtin:
            by_storage.setdefault(kind.resource.full_name, []).append(kind)
        for name, kinds in by_storage.items():
            self._serve(name, kinds)

    def find(self, group: str, version: str, plural: str) -> KindInfo | None:
        """Return the kind at that URL, or None."""
        return self._by_path.get((group, version, plural))

    def versions(self, storage: str) -> tuple[KindInfo, ...]:
        """Return the served versions of a kind; empty when it is not served."""
        return self._by_storage.get(storage, ())

    def find_kind(self, api_version: str, kind_name: str) -> KindInfo | None:
        """Return the kind of an object with that apiVersion and kind; any version of the group matches."""
        group = api_version.rpartition("/")[0]
        return next((kind for kind in self if (kind.resource.kind, kind.resource.group) == (kind_name, group)), None)

    def __iter__(self) -> Iterator[KindInfo]:
        for storage in self.storages():
            yield from self.versions(storage)

    def storages(self) -> Iterable[str]:
        """Return the storage names of all kinds that are served."""
        return tuple(self._by_storage)

    def read(self, crd: Mapping[str, Any]) -> tuple[KindInfo, ...]:
        """Return the kinds of a CRD; reading a large one takes long, so the result is cached for `add_crd`."""
        last, kinds = self._last_read
        if last is not crd:
            kinds = kinds_from_crd(crd)
            self._last_read = crd, kinds
        return kinds

    def add_crd(self, crd: Mapping[str, Any]) -> None:
        """Serve the kinds of a CRD, in place of those that it had before."""
        kinds = self.read(crd)
        name = str(crd["metadata"]["name"])
        self.remove_crd(name)
        self._serve(name, kinds)

    def remove_crd(self, name: str) -> None:
        """Stop serving a CRD's kinds."""
        for kind in self._by_storage.pop(name, ()):
            resource = kind.resource
            self._by_path.pop((resource.group, resource.version, resource.plural), None)

    def _serve(self, name: str, kinds: Iterable[KindInfo]) -> None:
        served = tuple(kinds)
        self._by_storage[name] = served
        for kind in served:
            self._by_path[(kind.resource.group, kind.resource.version, kind.resource.plural)] = kind
