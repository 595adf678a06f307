"""Registries of images: where a manifest and its blobs are, who may read them, and which layer is the model. Pure.

OCI's distribution and image specifications, with Docker's way to ask for a token. A layer is taken whose bytes are the
file itself: ModelPack's raw weights, Docker's models, and what ORAS and its like push. Archives are not unpacked.
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
"""What a manifest may be."""

_NAME_KEYS: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_WEIGHTS_TYPES: Final = ("application/vnd.cncf.model.weight.v1.raw", "application/vnd.docker.ai.gguf.v3")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_PARAMETER: Final = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_HEADER_VALUE: Final = re.compile(r"[!-~]{1,16384}", re.ASCII)  # what may stand in a header
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
_MAX_SHOWN: Final = 12


@attrs.frozen
class RegistryAccess:
    """Who asks a registry; without a user, only what is public can be had."""

    user: str = ""
    password: str = attrs.field(default="", repr=False)

    @classmethod
    def read(cls, text: str, registry: str, *, where: str) -> "RegistryAccess":
        """Read what a `.dockerconfigjson` says for one registry; nothing where it does not name it.

        Raises:
            SourceError: It is none, or the entry cannot be used; nothing of it is shown.
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
                f"{CONFIG_KEY} in {where} cannot be read: it takes auths with username and password, or auth, for each "
                "registry, as `docker login` and `kubectl create secret docker-registry` write them"
            ) from exc
        if not (isinstance(user, str) and isinstance(password, str) and user and ":" not in user):
            raise SourceError(f"{CONFIG_KEY} in {where} has no user and password for {registry}")
        return cls(user, password)


@attrs.frozen
class Challenge:
    """What a registry wants: a token of the server at `realm`; without one, a user and password itself."""

    realm: WebUrl | None = None
    service: str = ""

    def token_url(self, repository: str) -> WebUrl:
        """Return where a token for reading one repository is had; the scope is ours, and not what the server asks."""
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


def manifest_url(source: ImageSource, reference: str) -> WebUrl:
    """Return where a manifest is, by its tag or digest."""
    return _below(source, f"manifests/{reference}")


def blob_url(source: ImageSource, layer: Layer) -> WebUrl:
    """Return where the bytes of a layer are."""
    return _below(source, f"blobs/sha256:{layer.sha256}")


def parse_challenge(shown: str, registry: WebUrl, header: str) -> Challenge:
    """Read the `WWW-Authenticate` of a 401.

    Raises:
        FetchError: It is neither Basic nor Bearer, or its realm would take a password over plain http.
    """
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() == "basic":
        return Challenge()
    content = {name.lower(): value for name, value in _PARAMETER.findall(rest)}
    if scheme.lower() != "bearer" or "realm" not in content:
        raise FetchError(f"{shown}: the registry asks for a login of a kind that is not known ({scheme[:40]!r})")
    try:
        realm = parse_url(content["realm"])[0]
    except BadUrlError as exc:
        raise FetchError(f"{shown}: the registry names no usable server for tokens: {exc}") from exc
    if realm.scheme != "https" and realm.origin != registry.origin:
        raise FetchError(f"{shown}: the registry sends its clients to {realm.shown} for tokens, which is not https")
    return Challenge(realm, content.get("service", ""))


def parse_token(shown: str, body: bytes) -> str:
    """Return the token in the answer of a server for tokens.

    Raises:
        FetchError: There is none.
    """
    try:
        content = json.loads(body)
        token = content.get("token") or content.get("access_token") or ""
    except (ValueError, AttributeError, RecursionError):
        token = ""
    if not isinstance(token, str) or not _HEADER_VALUE.fullmatch(token):
        raise FetchError(f"{shown}: the registry's server for tokens sent none")
    return token


def parse_manifest(source: ImageSource, reference: str, body: bytes) -> Sequence[Layer] | str:
    """Read a manifest: the layers of its model, or the digest of another manifest that it leads to.

    It is held against its own digest where it was asked for by that.

    Raises:
        DigestMismatchError: It has another digest.
        SourceError: It is an image of archives, or an index of several.
        FetchError: It is no manifest.
    """
    shown = source.redacted
    if ":" in reference and (found := hashlib.sha256(body).hexdigest()) != reference.partition(":")[2]:
        raise DigestMismatchError(f"{shown}: the registry sent another manifest, with the digest sha256:{found}")
    try:
        content = json.loads(body)
        if content.get("mediaType") in _INDEXES or "manifests" in content:
            return _single_digest(shown, content["manifests"])
        layers = [(each, _layer(each)) for each in content["layers"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise FetchError(f"{shown}: the registry's manifest cannot be decoded") from exc
    models = [layer for each, layer in layers if _is_model(each["mediaType"], layer.name)]
    if not models:
        raise SourceError(
            f"{shown} holds no .gguf file as a layer of its own, and no host unpacks archives; name an artefact that "
            "does (ModelPack's raw weights, Docker's models, or `oras push`)"
        )
    return models


def choose_layers(source: ImageSource, layers: Sequence[Layer]) -> Sequence[Layer]:
    """Return the layers of the model in the order of its parts: those of `spec.files`, else of the only one.

    Raises:
        SourceNotFoundError: There is none, or a part is missing; the message lists what is there.
        AmbiguousSourceError: There are several.
    """
    by_name = {layer.name: layer for layer in layers}
    listed = [f"{layer.name or 'without a name'} ({format_bytes(layer.size_bytes)})" for layer in layers]
    more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    listing = ", ".join(listed[:_MAX_SHOWN]) + more
    first = {part_names(layer.name)[0] for layer in layers}
    duplicates = [layer.name for layer in layers if by_name[layer.name].sha256 != layer.sha256]
    if duplicates:
        which = duplicates[0] or "without a name"
        raise AmbiguousSourceError(f"{source.redacted} holds several models {which}; push it anew, each with its name")
    if not source.file and len(first) > 1:
        raise AmbiguousSourceError(f"{source.redacted} holds several models; name one of them in spec.files: {listing}")
    names = part_names(source.file or next(iter(first)))
    missing = [name for name in names if name not in by_name]
    if missing:
        raise SourceNotFoundError(f"{source.redacted} has no {', '.join(missing[:5])}; it has {listing}")
    return [by_name[name] for name in names]


def _below(source: ImageSource, path: str) -> WebUrl:
    host = "registry-1.docker.io" if source.registry in _DOCKER_HUB else source.registry
    scheme = "http" if re.sub(r":\d+$", "", host) in _LOOPBACK else "https"
    try:
        return parse_url(f"{scheme}://{host}/v2/{source.repository}/{path}")[0]
    except BadUrlError as exc:
        raise SourceError(f"{source.redacted} names no registry: {exc}") from exc


def _single_digest(shown: str, entries: Sequence[Mapping[str, Any]]) -> str:
    digests = [each["digest"] for each in entries if each.get("platform", {}).get("os") != "unknown"]  # attestations
    if len(digests) != 1 or not _DIGEST.fullmatch(digests[0]):
        raise SourceError(f"{shown} is an index of {len(digests)} images; name one of them by its digest")
    return str(digests[0])


def _layer(content: Mapping[str, Any]) -> Layer:
    found, size = _DIGEST.fullmatch(content["digest"]), content["size"]
    if found is None or type(size) is not int or size < 0 or not isinstance(content["mediaType"], str):
        raise ValueError("no descriptor")
    annotations = content.get("annotations") or {}
    return Layer(found[1], size, next((str(annotations[name]) for name in _NAME_KEYS if annotations.get(name)), ""))


def _is_model(media_type: str, name: str) -> bool:
    if re.search(r"\.tar\b|\btar\+|\+(gzip|zstd)$", media_type):
        return False
    return name.lower().endswith(".gguf") if name else media_type in _WEIGHTS_TYPES
