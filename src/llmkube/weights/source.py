"""Parse `spec.source` and `spec.files` into typed sources."""

import functools
import os
import re
import urllib.parse
from collections.abc import Sequence
from typing import Final

import attrs

from llmkube.weights.errors import FileSetError, ProjectorError, SourceError
from llmkube.weights.ollama_model import SCHEME as OLLAMA
from llmkube.weights.ollama_model import OllamaModel, read_name
from llmkube.weights.split_names import part_names
from llmkube.weights.urls import BadUrlError, UserInfo, WebUrl, parse_url

QUANTIZATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""The part after the colon in `ORG/REPO:Q4_K_M`."""

_HOST: Final = re.compile(r"(?:https://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<path>.+)", re.IGNORECASE)
_NON_MODEL_PATHS: Final = frozenset({"api", "collections", "datasets", "docs", "models", "papers", "spaces"})


def normalize_hub_source(source: str) -> str:
    """Return the URL of a repository or of a file's page at Hugging Face as `hf://…`; other sources unchanged.

    `https://huggingface.co/ORG/REPO/blob/main/FILE.gguf` is the page of a file in a browser. Its download URL
    (`/resolve/`) is treated like a file on any web server.
    """
    found = _HOST.fullmatch(source)
    if found is None:
        return source
    segments = [urllib.parse.unquote(segment) for segment in re.split(r"[?#]", found["path"])[0].strip("/").split("/")]
    match segments:
        case [owner, _, *_] if owner.lower() in _NON_MODEL_PATHS:
            return source
        case [owner, name]:
            return f"hf://{owner}/{name}"
        case [owner, name, "tree", revision]:
            return f"hf://{owner}/{name}@{revision}"
        case [owner, name, "blob", revision, *path] if path:
            return f"hf://{owner}/{name}/{'/'.join(path)}@{revision}"
        case _:
            return source


DEFAULT_REVISION: Final = "main"

_FORMS: Final = (
    "builtin://NAME, an absolute path, file:///PATH, https://URL, hf://ORG/REPO/FILE.gguf[@REVISION], "
    "hf://ORG/REPO[:QUANTIZATION][@REVISION], pvc://CLAIM/PATH, s3://BUCKET/KEY, oci://REGISTRY/REPOSITORY[:TAG] "
    "or ollama://NAME:TAG"
)
_SECRETS: Final = re.compile(r"(?<=://)[^/]*@|[?#].*", re.DOTALL)  # credentials in a URL, and signatures in its query
_BUILTIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,254}", re.ASCII)
_COMPONENT: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(  # the grammar of references, github.com/distribution/reference
    rf"(?P<registry>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{{1,5}})?)/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_REVISION: Final = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)*", re.ASCII)


@attrs.frozen
class Builtin:
    """Weights that ship inside this package, by name (`builtin://demo`)."""

    name: str

    @property
    def identity(self) -> str:
        """The identity of the source in the store."""
        return f"builtin://{self.name}"


@attrs.frozen
class LocalFile:
    """A file on this host, used in place; the path is absolute."""

    path: str


@attrs.frozen
class LocalFolder:
    """A folder on this host with a model's safetensors, used in place; the path is absolute.

    With `is_opaque`, it is a file or a folder in a format that only its engine reads.
    """

    path: str
    is_opaque: bool = False


@attrs.frozen
class WebFile:
    """A file on a web server, with the user and password from its URL, if any.

    If the name is that of a part of a split model (`-00002-of-00003.gguf`), the URL is the first part's.
    """

    url: WebUrl
    user_info: UserInfo | None = None
    is_gguf: bool = True

    @property
    def identity(self) -> str:
        """The identity in the store, with a keyed digest of `secret`: the file may depend on the user."""
        return str(self.url)

    @property
    def secret(self) -> str:
        """The user and the password, which are never stored; empty without them."""
        return "" if self.user_info is None else f"{self.user_info.user}\0{self.user_info.password}"

    @property
    def redacted(self) -> str:
        """The source for messages, without secrets."""
        return self.url.shown

    @property
    def parts(self) -> tuple[WebUrl, ...]:
        """The URLs of all parts, in order."""
        return tuple(map(self.url.with_path, part_names(self.url.path)))


@attrs.frozen
class HubFile:
    """A file in a Hugging Face repository; of a split model, the first part."""

    repository: str
    path: str
    revision: str = DEFAULT_REVISION

    @property
    def identity(self) -> str:
        """The identity of the source in the store."""
        return f"hf://{self.repository}/{self.path}@{self.revision}"

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return self.identity.removesuffix(f"@{DEFAULT_REVISION}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The paths of all parts, in order."""
        return part_names(self.path)


@attrs.frozen
class HubRepository:
    """A Hugging Face repository with one model as GGUF, in one or more quantizations.

    Attributes:
        name: `ORG/REPO`.
        revision: A branch, a tag or a commit.
        quantization: The quantization, as in the names of its files; empty for the default.
    """

    name: str
    revision: str = DEFAULT_REVISION
    quantization: str = ""

    @property
    def identity(self) -> str:
        """The identity of the source in the store."""
        return f"hf://{self.name}{f':{self.quantization}' if self.quantization else ''}@{self.revision}"

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return self.identity.removesuffix(f"@{DEFAULT_REVISION}")

    def file(self, path: str) -> HubFile:
        """Return a file of the repository.

        Raises:
            SourceError: The name is not a valid file name.
        """
        return _hub_file(repr(path), self.name, path, self.revision)


@attrs.frozen
class HubFolder:
    """The files of a Hugging Face repository that an engine loads as one folder: safetensors and configuration.

    Attributes:
        name: `ORG/REPO`.
        revision: A branch, a tag or a commit.
    """

    name: str
    revision: str = DEFAULT_REVISION

    @property
    def identity(self) -> str:
        """The identity in the store; the same repository as GGUF is another source."""
        return f"hf://{self.name}@{self.revision}#folder"

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return f"hf://{self.name}@{self.revision}".removesuffix(f"@{DEFAULT_REVISION}")


@attrs.frozen
class BucketFile:
    """An object in a bucket (S3, MinIO and compatible), or a folder before one of its files is selected.

    The server of the bucket is configured with the credentials, not in the source.
    """

    bucket: str
    path: str

    @property
    def identity(self) -> str:
        """The identity of the source in the store."""
        return f"s3://{self.bucket}/{self.path}"

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return self.identity

    @property
    def parts(self) -> tuple[str, ...]:
        """The paths of all parts, in order."""
        return part_names(self.path)

    def file(self, path: str) -> "BucketFile":
        """Return a file in the folder.

        Raises:
            SourceError: The name is not a valid file name.
        """
        folder = self.path.rstrip("/")
        return _bucket_file(repr(path), self.bucket, f"{folder}/{path}" if folder else path)


@attrs.frozen
class VolumeSource:
    """Weights on a PersistentVolumeClaim, which a host cannot fetch."""

    scheme: str
    text: str

    @property
    def redacted(self) -> str:
        """The source for messages, without secrets."""
        return _redact(self.text)


@attrs.frozen
class ImageSource:
    """Weights in an image or artefact in a registry (`oci://`).

    Attributes:
        registry: The registry's host, with its port.
        repository: The path in the registry.
        reference: A tag, or a digest (`sha256:…`).
        file: The file that the engine loads; empty for the only one.
    """

    registry: str
    repository: str
    reference: str
    file: str = ""

    @property
    def image(self) -> str:
        """The reference as container runtimes write it."""
        mark = "@" if ":" in self.reference else ":"
        return f"{self.registry}/{self.repository}{mark}{self.reference}"

    @property
    def identity(self) -> str:
        """The identity of the source in the store."""
        return f"oci://{self.image}" + (f"#{self.file}" if self.file else "")

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return f"oci://{self.image}"

    def pick(self, path: str) -> "ImageSource":
        """Return one of the image's files.

        Raises:
            SourceError: The name is not a valid file name.
        """
        if not path or path.startswith("/") or any(segment in ("", ".", "..") for segment in path.split("/")):
            raise SourceError(f"{path!r} is not a valid path of a file in an image")
        return attrs.evolve(self, file=path)


RemoteFile = WebFile | HubFile | HubRepository | BucketFile
Remote = RemoteFile | ImageSource | HubFolder
Source = Builtin | LocalFile | RemoteFile | ImageSource | VolumeSource | OllamaModel
EngineSource = Source | LocalFolder | HubFolder
"""A source as an engine loads it: for some formats, a folder."""


@functools.lru_cache(maxsize=1024)
def parse_source(text: str) -> Source:
    """Parse `spec.source`; only the text is examined, no disk and no network.

    Raises:
        SourceError: It has none of the known forms; the message lists them.
    """
    shown = repr(_redact(text))
    if not text or any(c.isspace() or not c.isprintable() for c in text[:1] + text[-1:]) or "\0" in text:
        raise SourceError(f"{shown} is empty or has leading or trailing white space; use {_FORMS}")
    if any("\ud800" <= character <= "\udbff" for character in text):  # other surrogates represent bytes of a file name
        raise SourceError(f"{shown} is not valid text")
    if text.startswith("/"):
        return LocalFile(text)
    text = normalize_hub_source(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if _REPOSITORY.fullmatch(re.split("[:@]", text, maxsplit=1)[0]):
            return _parse_hub(shown, text)
        raise SourceError(f"{shown} is neither an absolute path nor a URL; use {_FORMS}")
    return _parse_with_scheme(shown, text, scheme, rest)


def _parse_with_scheme(shown: str, text: str, scheme: str, rest: str) -> Source:
    if scheme == "builtin":
        if not _BUILTIN_NAME.fullmatch(rest):
            raise SourceError(f"{shown} is not a name of built-in weights; use builtin://demo")
        return Builtin(rest)
    if scheme == "file":
        return _parse_local_file(shown, rest)
    if scheme == OLLAMA:
        return read_name(shown, rest)
    if scheme == "oci":
        return _parse_image(shown, rest)
    if scheme not in ("http", "https", "hf", "pvc", "s3"):
        raise SourceError(f"{shown} has the unknown scheme {scheme!r}; use {_FORMS}")
    if not rest.strip("/"):
        raise SourceError(f"{shown} has nothing after {scheme}://")
    if scheme == "hf":
        return _parse_hub(shown, rest)
    if scheme == "s3":
        bucket, _, path = rest.partition("/")
        return _bucket_file(shown, bucket, path)
    return VolumeSource(scheme, text) if scheme == "pvc" else _parse_web(shown, text)


def _parse_image(shown: str, rest: str) -> ImageSource:
    found = _IMAGE.fullmatch(rest)
    if found is None:
        raise SourceError(
            f"{shown} is not an image; use oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST"
        )
    return ImageSource(found["registry"], found["repository"], found["digest"] or found["tag"] or "latest")


def _redact(text: str) -> str:
    return _SECRETS.sub("", text)


def _parse_web(shown: str, text: str) -> WebFile:
    try:
        url, user_info = parse_url(text)
    except BadUrlError as exc:
        raise SourceError(f"{shown} is not a valid URL: {exc}") from exc
    return WebFile(url.with_path(part_names(url.path)[0]), user_info)


def _parse_hub(shown: str, rest: str) -> HubFile | HubRepository:
    location, _, _ = rest.rpartition("@") if "@" in rest else (rest, "", "")
    organisation, _, tail = location.partition("/")
    name, _, path = tail.partition("/")
    name, colon, quantization = name.partition(":")
    repository = f"{organisation}/{name}"
    if not _REPOSITORY.fullmatch(repository):
        raise SourceError(f"{shown} is not a valid repository; use hf://ORG/REPO or hf://ORG/REPO/FILE.gguf")
    revision = _parse_revision(shown, rest)
    if colon and (path or not QUANTIZATION.fullmatch(quantization)):
        raise SourceError(f"{shown} has a malformed quantization; use ORG/REPO:Q4_K_M or hf://ORG/REPO/FILE.gguf")
    if path:
        return _hub_file(shown, repository, path, revision)
    return HubRepository(repository, revision, quantization)


def _hub_file(shown: str, repository: str, path: str, revision: str) -> HubFile:
    odd = not path.isprintable() or set(path) & set("?#\\")
    if odd or any(segment in ("", ".", "..") for segment in path.split("/")):
        raise SourceError(f"{shown} is not a valid path of a file in a repository; use hf://ORG/REPO/FILE.gguf")
    if not path.lower().endswith(".gguf"):
        raise SourceError(f"{shown} is not a .gguf file; use hf://ORG/REPO/FILE.gguf[@REVISION]")
    return HubFile(repository, part_names(path)[0], revision)


def _bucket_file(shown: str, bucket: str, path: str) -> BucketFile:
    odd = not path.isprintable() or set(path) & set("?#\\")
    segments = path.rstrip("/").split("/") if path else []
    if not _BUCKET.fullmatch(bucket) or odd or any(segment in ("", ".", "..") for segment in segments):
        raise SourceError(f"{shown} is not a valid object in a bucket; use s3://BUCKET/KEY")
    return BucketFile(bucket, part_names(path)[0])


def _parse_revision(shown: str, text: str) -> str:
    _, at, revision = text.rpartition("@")
    if not at:
        return DEFAULT_REVISION
    if revision.lower().endswith(".gguf"):
        raise SourceError(
            f"{shown} has its revision in the middle; put it at the end: hf://ORG/REPO/FILE.gguf@REVISION"
        )
    if not _REVISION.fullmatch(revision):
        raise SourceError(f"{shown} has a malformed revision after the @; use a branch, a tag or a commit")
    return revision


def _parse_local_file(shown: str, rest: str) -> LocalFile:
    # RFC 8089: file:///path and file://localhost/path are on this host, and may have percent escapes
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not path:
        raise SourceError(f"{shown} has no absolute path; use file:///PATH, with three slashes")
    decoded = urllib.parse.unquote(path)
    if "\0" in decoded:
        raise SourceError(f"{shown} has a NUL byte in its path")
    return LocalFile(slash + decoded)


FOLDER_FORMATS: Final = frozenset({"mlx", "safetensors"})
"""The values of `spec.format` whose engines load a folder, not a file."""

OPAQUE_FORMATS: Final = frozenset({"custom", "pytorch"})
"""The values of `spec.format` that only engines of a host's owner read; LLMKube checks nothing in such a file."""


def engine_source(source: Source, files: Sequence[str], weights_format: str) -> EngineSource:
    """Return the file or, for `FOLDER_FORMATS`, the folder of a source that an engine on a host loads.

    Args:
        source: The parsed `spec.source`.
        files: `spec.files`.
        weights_format: `spec.format`.

    Raises:
        FileSetError: As in `pick`, or files are selected from a folder.
        SourceError: The source is not a folder.
    """
    if weights_format in OPAQUE_FORMATS and not files and isinstance(source, LocalFile):
        return LocalFolder(source.path, is_opaque=True)
    if weights_format in OPAQUE_FORMATS and not files and isinstance(source, WebFile):
        return attrs.evolve(source, is_gguf=False)
    if weights_format in OPAQUE_FORMATS:
        raise SourceError(
            f"spec.source is not a file of {weights_format} weights for a host; use an https:// URL, "
            "or the absolute path of a file or folder below one that the host's owner lists (--allow-local-sources)"
        )
    if weights_format not in FOLDER_FORMATS:
        return pick(source, files)
    if files:
        raise FileSetError(f"an agent fetches all files of a model in {weights_format}; remove spec.files")
    if isinstance(source, LocalFile):
        return LocalFolder(source.path)
    if isinstance(source, HubRepository) and not source.quantization:
        return HubFolder(source.name, source.revision)
    raise SourceError(
        f"spec.source is not a folder of {weights_format} for a host; use hf://ORG/REPO[@REVISION], or the absolute "
        "path of a folder below one that the host's owner lists (--allow-local-sources)"
    )


def pick(source: Source, files: Sequence[str]) -> Source:
    """Return the file of a repository, bucket or image that `spec.files` selects; the source itself without files.

    Args:
        source: The parsed `spec.source`.
        files: The engine loads the first. The others may only be parts of the same split model: an engine on a host
            cannot use other files.

    Raises:
        FileSetError: The source has no files to select, a name is invalid, or the files do not belong together.
    """
    if not files:
        return source
    if isinstance(source, ImageSource):
        return _pick_from_image(source, files)
    if not isinstance(source, HubRepository | BucketFile):
        raise FileSetError(
            "selects files of a Hugging Face repository, a bucket's folder or an image, but spec.source is not one; "
            "set spec.source to ORG/REPO, s3://BUCKET/FOLDER or oci://REGISTRY/REPOSITORY, or remove spec.files"
        )
    chosen = _file_of(source, files[0])
    unrelated = [file for file in files[1:] if _file_of(source, file) != chosen]  # each part maps to the first
    if unrelated:
        raise FileSetError(
            f"an agent fetches only the parts of one model; {unrelated[0]!r} is not a part of {files[0]!r}; remove it"
        )
    return chosen


NO_PROJECTOR: Final = "none"
"""The value of `spec.mmproj` for a model that is served without a projector, although there may be one."""


def beside(source: Source, name: str) -> Source:
    """Return another file of a model's source, such as its projector.

    Args:
        source: The parsed `spec.source`.
        name: A path in the repository, the bucket's folder or the image; a name in the folder of a single file; or the
            absolute path of a file on this host.

    Raises:
        ProjectorError: The source has no other files, or the name is not valid.
    """
    folder, _, _ = getattr(source, "path", "").rpartition("/")
    inside = f"{folder}/{name}".removeprefix("/")
    try:
        if name.startswith("/") or isinstance(source, LocalFile):
            return LocalFile(os.path.normpath(os.path.join(folder, name)))  # noqa: PTH118 (text only)
        if isinstance(source, WebFile) and ".." not in name.split("/"):
            parent = source.url.path.rpartition("/")[0]
            return attrs.evolve(source, url=source.url.with_path(f"{parent}/{urllib.parse.quote(name)}"))
        if isinstance(source, HubFile):
            return _hub_file(repr(name), source.repository, inside, source.revision)
        if isinstance(source, BucketFile) and source.path.lower().endswith(".gguf"):
            return _bucket_file(repr(name), source.bucket, inside)
        if isinstance(source, HubRepository | BucketFile):
            return source.file(name)
        if isinstance(source, ImageSource):
            return source.pick(name)
    except SourceError as exc:
        raise ProjectorError(f"{name!r} is not the name of a file of the source: {exc}") from exc
    raise ProjectorError(f"{name!r} cannot be fetched from this spec.source; remove it, or give an absolute path")


def _file_of(source: HubRepository | BucketFile, file: str) -> HubFile | BucketFile:
    try:
        return source.file(file)
    except SourceError as exc:
        raise FileSetError(f"{file!r} is not the path of a .gguf file; patterns are not supported") from exc


def _pick_from_image(source: ImageSource, files: Sequence[str]) -> ImageSource:
    try:
        return source.pick(files[0])
    except SourceError as exc:
        raise FileSetError(f"{exc}; patterns are not supported") from exc
