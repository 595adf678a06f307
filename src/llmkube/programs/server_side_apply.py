"""Apply manifests of any kind with discovery and server-side apply."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError, NotFoundError, TransportError
from llmkube.k8s.request import APPLY_PATCH
from llmkube.k8s.resource import Key, Resource

FIELD_MANAGER = "llmkube-up"


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
    """The result of applying a manifest; `error` is why the API server refused it, or ""."""

    manifest: Manifest
    key: Key
    error: str = ""


@attrs.define(eq=False)
class Applier:
    """Applies manifests to one API server; its kinds are discovered once per API version."""

    client: Client
    namespace: str = "default"
    _versions: dict[str, Mapping[str, Resource]] = attrs.field(factory=dict)

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
        key = Key(metadata.get("namespace") or self.namespace, metadata["name"])
        try:
            resource = await self._resource(manifest.body["apiVersion"], manifest.body["kind"])
            if not resource.namespaced:
                key = Key("", key.name)
            await self.client.request_json(
                "PATCH",
                resource.path(key.namespace, key.name),
                params={"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"},
                body=manifest.body,
                content_type=APPLY_PATCH,
            )
        except TransportError:
            raise
        except (ApiError, UserError) as exc:
            return ApplyResult(manifest, key, str(exc))
        return ApplyResult(manifest, key)

    async def _resource(self, api_version: str, kind: str) -> Resource:
        if api_version not in self._versions:
            self._versions[api_version] = await self._discover(api_version)
        try:
            return self._versions[api_version][kind]
        except KeyError:
            known = ", ".join(sorted(self._versions[api_version]))
            del self._versions[api_version]  # discover again: a CRD may add the kind before the next manifest
            raise UserError(f"{api_version} has no kind {kind}; it has {known}", field="kind") from None

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
            each["kind"]: Resource(group, version, each["kind"], each["name"], namespaced=each["namespaced"])
            for each in answer["resources"]
            if "/" not in each["name"]  # the list contains subresources, too
        }
