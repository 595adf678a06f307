"""Find the kinds that an API server serves, and apply manifests of any of them with server-side apply."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError, ForbiddenError, NotFoundError, TransportError
from llmkube.k8s.request import APPLY_PATCH
from llmkube.k8s.resource import Key, Resource

FIELD_MANAGER = "llmkube-up"
_WRITTEN_BY_SERVER = frozenset({"managedFields", "resourceVersion", "generation"})


@attrs.frozen
class Manifest:
    """An object to apply, and its place in a file."""

    where: str
    body: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def title(self) -> str:
        """Kind and name, for people: `Model demo`."""
        return f"{self.body['kind']} {self.body['metadata']['name']}"


@attrs.frozen
class ApplyResult:
    """The result of applying a manifest.

    Attributes:
        manifest: The manifest.
        key: Key of the object.
        resource: Its kind, if the API server serves it.
        change: `created`, `configured` or `unchanged`; "" if the API server refused it.
        error: Why the API server refused it.
    """

    manifest: Manifest
    key: Key
    resource: Resource | None = None
    change: str = ""
    error: ApiError | UserError | None = None


@attrs.define(eq=False)
class ServedKinds:
    """The kinds of one API server; each of its API versions is discovered once."""

    client: Client
    _versions: dict[str, Mapping[str, Resource]] = attrs.field(factory=dict)

    async def of(self, body: Mapping[str, Any]) -> Resource:
        """Return the kind of an object.

        Raises:
            UserError: The API server does not serve it.
        """
        api_version, kind = body["apiVersion"], body["kind"]
        found = await self._kinds(api_version)
        if kind not in found:
            del self._versions[api_version]  # discover again: a CRD may add the kind before the next manifest
            raise UserError(f"{api_version} has no kind {kind}; it has {', '.join(sorted(found))}", field="kind")
        return found[kind]

    async def find(self, word: str) -> Resource | None:
        """Return the kind with a name that kubectl accepts: `models`, `mdl`, `models.inference.llmkube.dev`."""
        groups = (await self.client.get_json("/apis"))["groups"]
        for api_version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
            for each in (await self._kinds(api_version)).values():
                names = {each.plural, each.singular, *each.short_names}
                if word in names | {f"{name}.{each.group}" for name in names if each.group}:
                    return each
        return None

    async def _kinds(self, api_version: str) -> Mapping[str, Resource]:
        if api_version not in self._versions:
            self._versions[api_version] = await self._discover(api_version)
        return self._versions[api_version]

    async def _discover(self, api_version: str) -> Mapping[str, Resource]:
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            answer = await self.client.get_json(path)
        except (NotFoundError, TransportError) as exc:
            if exc.code != 404:
                raise
            raise UserError(f"the API server does not serve {api_version}; apply its CRD", field="apiVersion") from exc
        return {
            each["kind"]: Resource(
                group,
                version,
                each["kind"],
                each["name"],
                namespaced=each["namespaced"],
                short_names=tuple(each.get("shortNames", ())),
            )
            for each in answer["resources"]
            if "/" not in each["name"]  # the list contains subresources, too
        }


@attrs.define(eq=False)
class Applier:
    """Applies manifests to one API server.

    Attributes:
        client: A client of the API server.
        namespace: Namespace of objects that name none.
        manager: The field manager.
        force: Whether to take over fields of other managers.
        dry_run: Whether the API server only checks.
    """

    client: Client
    namespace: str = "default"
    manager: str = FIELD_MANAGER
    force: bool = True
    dry_run: bool = False
    _kinds: ServedKinds = attrs.field(default=attrs.Factory(lambda self: ServedKinds(self.client), takes_self=True))

    async def apply_all(
        self, manifests: Iterable[Manifest], report: Callable[[ApplyResult], None]
    ) -> tuple[ApplyResult, ...]:
        """Apply all manifests in order; a refused one is reported and does not stop the others.

        Raises:
            TransportError: The API server does not respond.
        """
        results = []
        for manifest in manifests:
            results.append(await self._apply(manifest))
            report(results[-1])
        return tuple(results)

    async def _apply(self, manifest: Manifest) -> ApplyResult:
        metadata = manifest.body["metadata"]
        resource, key = None, Key(metadata.get("namespace") or self.namespace, metadata["name"])
        try:
            resource = await self._kinds.of(manifest.body)
            if not resource.namespaced:
                key = Key("", key.name)
            path = resource.path(key.namespace, key.name)
            before = await self._read(path)
            params = {"fieldManager": self.manager, "fieldValidation": "Strict"}
            params |= {"force": "true"} if self.force else {}
            params |= {"dryRun": "All"} if self.dry_run else {}
            after = await self.client.request_json(
                "PATCH", path, params=params, body=manifest.body, content_type=APPLY_PATCH
            )
        except TransportError:
            raise
        except (ApiError, UserError) as exc:
            return ApplyResult(manifest, key, resource, error=exc)
        change = "created" if before is None else "configured"
        return ApplyResult(manifest, key, resource, "unchanged" if before == _content(after) else change)

    async def _read(self, path: str) -> Mapping[str, Any] | None:
        try:
            return _content(await self.client.get_json(path))
        except (NotFoundError, ForbiddenError):  # it may be written, but not read
            return None


def _content(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what users write in an object: without its status, its version and its managers."""
    metadata = {name: value for name, value in item["metadata"].items() if name not in _WRITTEN_BY_SERVER}
    return {name: value for name, value in item.items() if name != "status"} | {"metadata": metadata}
