"""Registries of images: URLs of manifests and blobs, authentication, and the choice of the model's layers. Pure.

OCI's distribution and image specifications, with Docker's token authentication. Only layers whose bytes are the file
itself are used: ModelPack's raw weights, Docker's models, and artefacts pushed by ORAS and similar tools. Archives are
not unpacked.
"""

import base64
import hashlib
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.weights.errors import (
    AmbiguousSourceError,
    DigestMismatchError,
    FetchError,
    SourceError,
    SourceNotFoundError,
)
from llmkube.weights.source import ImageSource
from llmkube.weights.split_names import part_names
from llmkube.weights.urls import BadUrlError, WebUrl, parse_url

CONFIG_KEY: Final = ".dockerconfigjson"
"""The key of a Secret of the type kubernetes.io/dockerconfigjson."""

MANIFEST_BYTES: Final = 4 << 20
"""A longer manifest is refused, as registries do."""

_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPT: Final = ", ".join(
    ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json", *_INDEXES)
)
"""The accepted media types of a manifest."""

_NAME_KEYS: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_WEIGHTS_TYPES: Final = ("application/vnd.cncf.model.weight.v1.raw", "application/vnd.docker.ai.gguf.v3")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_PARAMETER: Final = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_HEADER_VALUE: Final = re.compile(r"[!-~]{1,16384}", re.ASCII)  # valid in a header
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
_MAX_SHOWN: Final = 12


@attrs.frozen
class RegistryAccess:
    """The credentials for a registry; without a user, only public images are accessible."""

    user: str = ""
    password: str = attrs.field(default="", repr=False)

    @classmethod
    def read(cls, text: str, registry: str, *, where: str) -> "RegistryAccess":
        """Return the credentials for one registry from a `.dockerconfigjson`; empty ones if it has no entry.

        Raises:
            SourceError: It is not a `.dockerconfigjson`, or the entry is invalid; the message does not contain it.
        """
        names = _DOCKER_HUB if registry in _DOCKER_HUB else (registry,)
        try:
            entries: Mapping[str, Any] = json.loads(text)["auths"]
            by_host = {re.sub(r"^https?://", "", name).partition("/")[0]: entry for name, entry in entries.items()}
            entry = next((by_host[name] for name in names if name in by_host), None)
            if entry is None:
                return cls()
            user, password = entry.get("username"), entry.get("password")
            if user is None or password is None:
                user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise SourceError(
                f"{CONFIG_KEY} in {where} cannot be read: it needs auths with username and password, or auth, for each "
                "registry, as `docker login` and `kubectl create secret docker-registry` write them"
            ) from exc
        if not (isinstance(user, str) and isinstance(password, str) and user and ":" not in user):
            raise SourceError(f"{CONFIG_KEY} in {where} has no user and password for {registry}")
        return cls(user, password)


@attrs.frozen
class Challenge:
    """The login that a registry requires: a token from the server at `realm`; without a realm, user and password."""

    realm: WebUrl | None = None
    service: str = ""

    def token_url(self, repository: str) -> WebUrl:
        """Return the URL of a token for reading one repository; the scope is ours, not the server's."""
        assert self.realm is not None
        query = {"service": self.service} if self.service else {}
        text = urllib.parse.urlencode({**query, "scope": f"repository:{repository}:pull"})
        path, mark, before = self.realm.target.partition("?")
        return attrs.evolve(self.realm, target=f"{path}?{before}{'&' if mark and before else ''}{text}")


@attrs.frozen
class Layer:
    """One file of an artefact."""

    sha256: str
    size_bytes: int
    name: str = ""


def blob_url(source: ImageSource, layer: Layer) -> WebUrl:
    """Return the URL of a layer's bytes."""
    return registry_url(source, f"blobs/sha256:{layer.sha256}")


def parse_challenge(shown: str, registry: WebUrl, header: str) -> Challenge:
    """Parse the `WWW-Authenticate` header of a 401.

    Raises:
        FetchError: It is neither Basic nor Bearer, or a password would be sent to its realm over plain http.
    """
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() == "basic":
        return Challenge()
    content = {name.lower(): value for name, value in _PARAMETER.findall(rest)}
    if scheme.lower() != "bearer" or "realm" not in content:
        raise FetchError(f"{shown}: the registry requires an unknown kind of login ({scheme[:40]!r})")
    try:
        realm = parse_url(content["realm"])[0]
    except BadUrlError as exc:
        raise FetchError(f"{shown}: the registry's token server has no valid URL: {exc}") from exc
    if realm.scheme != "https" and realm.origin != registry.origin:
        raise FetchError(f"{shown}: the registry's token server {realm.shown} is not https")
    return Challenge(realm, content.get("service", ""))


def parse_token(shown: str, body: bytes) -> str:
    """Return the token in the response of a token server.

    Raises:
        FetchError: There is none.
    """
    try:
        content = json.loads(body)
        token = content.get("token") or content.get("access_token") or ""
    except (ValueError, AttributeError, RecursionError):
        token = ""
    if not isinstance(token, str) or not _HEADER_VALUE.fullmatch(token):
        raise FetchError(f"{shown}: the registry's token server sent no token")
    return token


def parse_manifest(source: ImageSource, reference: str, body: bytes) -> Sequence[Layer] | str:
    """Parse a manifest: return the layers of its model, or the digest of another manifest that it refers to.

    If it was requested by its digest, the digest is verified.

    Raises:
        DigestMismatchError: It has another digest.
        SourceError: It is an image of archives, or an index of several images.
        FetchError: It is not a manifest.
    """
    shown = source.redacted
    if ":" in reference and (found := hashlib.sha256(body).hexdigest()) != reference.partition(":")[2]:
        raise DigestMismatchError(f"{shown}: the registry sent a manifest with another digest, sha256:{found}")
    try:
        content = json.loads(body)
        if content.get("mediaType") in _INDEXES or "manifests" in content:
            return _single_digest(shown, content["manifests"])
        layers = [(each, _parse_layer(each)) for each in content["layers"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise FetchError(f"{shown}: the registry's manifest cannot be decoded") from exc
    models = [layer for each, layer in layers if _is_model(each["mediaType"], layer.name)]
    if not models:
        raise SourceError(
            f"{shown} has no layer that is a .gguf file, and archives are not unpacked; use an artefact with one "
            "(ModelPack's raw weights, Docker's models, or `oras push`)"
        )
    return models


def choose_layers(source: ImageSource, layers: Sequence[Layer]) -> Sequence[Layer]:
    """Return the layers of the model in the order of its parts: the one in `spec.files`, or the only one.

    Raises:
        SourceNotFoundError: It is missing, or a part of it; the message lists the layers.
        AmbiguousSourceError: There are several.
    """
    by_name = {layer.name: layer for layer in layers}
    listed = [f"{layer.name or 'without a name'} ({format_bytes(layer.size_bytes)})" for layer in layers]
    more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    listing = ", ".join(listed[:_MAX_SHOWN]) + more
    first = {part_names(layer.name)[0] for layer in layers}
    duplicates = [layer.name for layer in layers if by_name[layer.name].sha256 != layer.sha256]
    if duplicates:
        which = f"named {duplicates[0]}" if duplicates[0] else "without a name"
        raise AmbiguousSourceError(f"{source.redacted} has several models {which}; push them with unique names")
    if not source.file and len(first) > 1:
        raise AmbiguousSourceError(f"{source.redacted} has several models; set spec.files to one of them: {listing}")
    names = part_names(source.file or next(iter(first)))
    missing = [name for name in names if name not in by_name]
    if missing:
        raise SourceNotFoundError(f"{source.redacted} has no {', '.join(missing[:5])}; it has {listing}")
    return [by_name[name] for name in names]


def registry_url(source: ImageSource, path: str) -> WebUrl:
    """Return a URL of a registry's API, such as `manifests/REFERENCE`.

    Raises:
        SourceError: The source has no valid URL.
    """
    host = "registry-1.docker.io" if source.registry in _DOCKER_HUB else source.registry
    scheme = "http" if re.sub(r":\d+$", "", host) in _LOOPBACK else "https"
    try:
        return parse_url(f"{scheme}://{host}/v2/{source.repository}/{path}")[0]
    except BadUrlError as exc:
        raise SourceError(f"{source.redacted} has no valid registry: {exc}") from exc


def _single_digest(shown: str, entries: Sequence[Mapping[str, Any]]) -> str:
    digests = [each["digest"] for each in entries if each.get("platform", {}).get("os") != "unknown"]  # attestations
    if len(digests) > 1:
        raise SourceError(f"{shown} is an index of {len(digests)} images; use the digest of one of them")
    if not digests or not _DIGEST.fullmatch(digests[0]):
        raise SourceError(f"{shown} is an index without an image that has a valid digest; use another tag or digest")
    return str(digests[0])


def _parse_layer(content: Mapping[str, Any]) -> Layer:
    found, size = _DIGEST.fullmatch(content["digest"]), content["size"]
    if found is None or type(size) is not int or size < 0 or not isinstance(content["mediaType"], str):
        raise ValueError("not a descriptor")
    annotations = content.get("annotations") or {}
    return Layer(found[1], size, next((str(annotations[name]) for name in _NAME_KEYS if annotations.get(name)), ""))


def _is_model(media_type: str, name: str) -> bool:
    if re.search(r"\.tar\b|\btar\+|\+(gzip|zstd)$", media_type):
        return False
    return name.lower().endswith(".gguf") if name else media_type in _WEIGHTS_TYPES
