"""A source is text until this module has read it: a few shapes, and everything else is refused by name."""

import functools
import re
import urllib.parse
from collections.abc import Sequence
from typing import Final

import attrs

from llmkube.weights.errors import FileSetError, SourceError
from llmkube.weights.ollama_model import SCHEME as OLLAMA
from llmkube.weights.ollama_model import OllamaModel, read_name
from llmkube.weights.split_names import part_names
from llmkube.weights.urls import BadUrlError, UserInfo, WebUrl, parse_url

QUANTIZATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""What stands behind the colon of `ORG/REPO:Q4_K_M`."""

_HOST: Final = re.compile(r"(?:https://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<path>.+)", re.IGNORECASE)
_NON_MODEL_PATHS: Final = frozenset({"api", "collections", "datasets", "docs", "models", "papers", "spaces"})


def normalize_hub_source(source: str) -> str:
    """Return a page of a repository, or its name with the hub's, as `hf://…`; any other source as it is.

    `https://huggingface.co/ORG/REPO/blob/main/FILE.gguf` is the page that a browser shows of a file. The address that
    it downloads from (`/resolve/`) is a file on a web server like any other, and stays one.
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
        """What the store knows it by."""
        return f"builtin://{self.name}"


@attrs.frozen
class LocalFile:
    """A file on this host, used where it lies; the path is absolute."""

    path: str


@attrs.frozen
class LocalFolder:
    """A folder on this host with a model's safetensors, used where it lies; the path is absolute."""

    path: str


@attrs.frozen
class WebFile:
    """A file on a web server, and perhaps the user and password that its URL held.

    If its name says that it is a part of a split model (`-00002-of-00003.gguf`), the URL is the first part's.
    """

    url: WebUrl
    user_info: UserInfo | None = None

    @property
    def identity(self) -> str:
        """What the store knows it by, together with a keyed digest of `secret`: who asks may make a difference."""
        return str(self.url)

    @property
    def secret(self) -> str:
        """The user and the password, which are never written down; empty without."""
        return "" if self.user_info is None else f"{self.user_info.user}\0{self.user_info.password}"

    @property
    def redacted(self) -> str:
        """The source without what may be secret in it, for messages."""
        return self.url.shown

    @property
    def parts(self) -> tuple[WebUrl, ...]:
        """The URLs of all parts, in order."""
        return tuple(map(self.url.with_path, part_names(self.url.path)))


@attrs.frozen
class HubFile:
    """A file in a Hugging Face repository; the first part, if it is one of a split model."""

    repository: str
    path: str
    revision: str = DEFAULT_REVISION

    @property
    def identity(self) -> str:
        """What the store knows it by."""
        return f"hf://{self.repository}/{self.path}@{self.revision}"

    @property
    def redacted(self) -> str:
        """The source, for messages; nothing in it is secret."""
        return self.identity.removesuffix(f"@{DEFAULT_REVISION}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The paths of all parts, in order."""
        return part_names(self.path)


@attrs.frozen
class HubRepository:
    """A Hugging Face repository that holds one model as GGUF, in one quantization or in several.

    Attributes:
        name: `ORG/REPO`.
        revision: A branch, a tag or a commit.
        quantization: Which of them is meant, as its files call it; empty for the one that others choose.
    """

    name: str
    revision: str = DEFAULT_REVISION
    quantization: str = ""

    @property
    def identity(self) -> str:
        """What the store knows it by."""
        return f"hf://{self.name}{f':{self.quantization}' if self.quantization else ''}@{self.revision}"

    @property
    def redacted(self) -> str:
        """The source, for messages; nothing in it is secret."""
        return self.identity.removesuffix(f"@{DEFAULT_REVISION}")

    def file(self, path: str) -> HubFile:
        """Name one file in it.

        Raises:
            SourceError: No file can have that name.
        """
        return _hub_file(repr(path), self.name, path, self.revision)


@attrs.frozen
class HubFolder:
    """The files of a Hugging Face repository that an engine is given as one folder: safetensors and what explains them.

    Attributes:
        name: `ORG/REPO`.
        revision: A branch, a tag or a commit.
    """

    name: str
    revision: str = DEFAULT_REVISION

    @property
    def identity(self) -> str:
        """What the store knows it by; the repository as GGUF is another source."""
        return f"hf://{self.name}@{self.revision}#folder"

    @property
    def redacted(self) -> str:
        """The source, for messages; nothing in it is secret."""
        return f"hf://{self.name}@{self.revision}".removesuffix(f"@{DEFAULT_REVISION}")


@attrs.frozen
class BucketFile:
    """An object in a bucket (S3, MinIO and their like); a folder of them while no file of it is picked.

    On which server the bucket is, the credentials say: it is no part of the source.
    """

    bucket: str
    path: str

    @property
    def identity(self) -> str:
        """What the store knows it by."""
        return f"s3://{self.bucket}/{self.path}"

    @property
    def redacted(self) -> str:
        """The source, for messages; nothing in it is secret."""
        return self.identity

    @property
    def parts(self) -> tuple[str, ...]:
        """The paths of all parts, in order."""
        return part_names(self.path)

    def file(self, path: str) -> "BucketFile":
        """Name one file in the folder.

        Raises:
            SourceError: No file can have that name.
        """
        folder = self.path.rstrip("/")
        return _bucket_file(repr(path), self.bucket, f"{folder}/{path}" if folder else path)


@attrs.frozen
class VolumeSource:
    """Weights that this host cannot fetch itself: those on a volume claim."""

    scheme: str
    text: str

    @property
    def redacted(self) -> str:
        """The source without what may be secret in it, for messages."""
        return _redact(self.text)


@attrs.frozen
class ImageSource:
    """Weights in an image or an artefact of a registry (`oci://`).

    Attributes:
        registry: The registry's name, with its port.
        repository: The path there.
        reference: A tag, or a digest (`sha256:…`).
        file: The file that the engine is given; empty for the only one.
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
        """What the store knows it by."""
        return f"oci://{self.image}" + (f"#{self.file}" if self.file else "")

    @property
    def redacted(self) -> str:
        """The source without what may be secret in it, for messages: nothing of it is."""
        return f"oci://{self.image}"

    def pick(self, path: str) -> "ImageSource":
        """Return one of its files.

        Raises:
            SourceError: No file can have that name.
        """
        if not path or path.startswith("/") or any(segment in ("", ".", "..") for segment in path.split("/")):
            raise SourceError(f"{path!r} is no path of a file in an image")
        return attrs.evolve(self, file=path)


RemoteFile = WebFile | HubFile | HubRepository | BucketFile
Remote = RemoteFile | ImageSource | HubFolder
Source = Builtin | LocalFile | RemoteFile | ImageSource | VolumeSource | OllamaModel
EngineSource = Source | LocalFolder | HubFolder
"""What an engine is given of a source: the format of the weights makes a folder of some."""


@functools.lru_cache(maxsize=1024)
def parse_source(text: str) -> Source:
    """Read `spec.source`.

    Args:
        text: The source as the user wrote it. Only its shape is judged: no disk and no network is touched.

    Raises:
        SourceError: It has none of the known shapes; the message lists them.
    """
    shown = repr(_redact(text))
    if not text or any(c.isspace() or not c.isprintable() for c in text[:1] + text[-1:]) or "\0" in text:
        raise SourceError(f"{shown} is empty or has stray white space around it; use {_FORMS}")
    if any("\ud800" <= character <= "\udbff" for character in text):  # the others stand for bytes of a file's name
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
            raise SourceError(f"{shown} names no built-in weights; builtin://demo does")
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
        raise SourceError(f"{shown} names nothing after {scheme}://")
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
            f"{shown} names no image: write oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST"
        )
    return ImageSource(found["registry"], found["repository"], found["digest"] or found["tag"] or "latest")


def _redact(text: str) -> str:
    return _SECRETS.sub("", text)


def _parse_web(shown: str, text: str) -> WebFile:
    try:
        url, user_info = parse_url(text)
    except BadUrlError as exc:
        raise SourceError(f"{shown} cannot be used: {exc}") from exc
    return WebFile(url.with_path(part_names(url.path)[0]), user_info)


def _parse_hub(shown: str, rest: str) -> HubFile | HubRepository:
    location, _, _ = rest.rpartition("@") if "@" in rest else (rest, "", "")
    organisation, _, tail = location.partition("/")
    name, _, path = tail.partition("/")
    name, colon, quantization = name.partition(":")
    repository = f"{organisation}/{name}"
    if not _REPOSITORY.fullmatch(repository):
        raise SourceError(f"{shown} names no repository; write hf://ORG/REPO or hf://ORG/REPO/FILE.gguf")
    revision = _parse_revision(shown, rest)
    if colon and (path or not QUANTIZATION.fullmatch(quantization)):
        raise SourceError(f"{shown} has a malformed quantization; write ORG/REPO:Q4_K_M, or hf://ORG/REPO/FILE.gguf")
    if path:
        return _hub_file(shown, repository, path, revision)
    return HubRepository(repository, revision, quantization)


def _hub_file(shown: str, repository: str, path: str, revision: str) -> HubFile:
    odd = not path.isprintable() or set(path) & set("?#\\")
    if odd or any(segment in ("", ".", "..") for segment in path.split("/")):
        raise SourceError(f"{shown} names no file in a repository; write hf://ORG/REPO/FILE.gguf")
    if not path.lower().endswith(".gguf"):
        raise SourceError(f"{shown} does not name a .gguf file; write hf://ORG/REPO/FILE.gguf[@REVISION]")
    return HubFile(repository, part_names(path)[0], revision)


def _bucket_file(shown: str, bucket: str, path: str) -> BucketFile:
    odd = not path.isprintable() or set(path) & set("?#\\")
    segments = path.rstrip("/").split("/") if path else []
    if not _BUCKET.fullmatch(bucket) or odd or any(segment in ("", ".", "..") for segment in segments):
        raise SourceError(f"{shown} names no object in a bucket; write s3://BUCKET/KEY")
    return BucketFile(bucket, part_names(path)[0])


def _parse_revision(shown: str, text: str) -> str:
    _, at, revision = text.rpartition("@")
    if not at:
        return DEFAULT_REVISION
    if revision.lower().endswith(".gguf"):
        raise SourceError(
            f"{shown} has its revision in the middle; it goes to the end: hf://ORG/REPO/FILE.gguf@REVISION"
        )
    if not _REVISION.fullmatch(revision):
        raise SourceError(f"{shown} has a malformed revision after the @; a branch, a tag or a commit goes there")
    return revision


def _parse_local_file(shown: str, rest: str) -> LocalFile:
    # RFC 8089: file:///path and file://localhost/path name this host, percent escapes included
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not path:
        raise SourceError(f"{shown} must hold an absolute path: file:///PATH, with three slashes")
    decoded = urllib.parse.unquote(path)
    if "\0" in decoded:
        raise SourceError(f"{shown} has a NUL byte in its path")
    return LocalFile(slash + decoded)


FOLDER_FORMATS: Final = frozenset({"mlx", "safetensors"})
"""The values of `spec.format` whose engines are given a folder, and not a file."""


def engine_source(source: Source, files: Sequence[str], weights_format: str) -> EngineSource:
    """Return what an engine of a host is given of a source: a file, or for formats that are folders a folder.

    Args:
        source: What `spec.source` names.
        files: `spec.files`.
        weights_format: `spec.format`.

    Raises:
        FileSetError: As `pick`, or the source is no folder with files of that format.
    """
    if weights_format not in FOLDER_FORMATS:
        return pick(source, files)
    if files:
        raise FileSetError(f"a host fetches all files of a model in {weights_format}: leave spec.files out")
    if isinstance(source, LocalFile):
        return LocalFolder(source.path)
    if isinstance(source, HubRepository) and not source.quantization:
        return HubFolder(source.name, source.revision)
    raise SourceError(
        f"spec.source names no folder of {weights_format} for a host: write hf://ORG/REPO[@REVISION], or the absolute "
        "path of a folder below one that the host's owner lists (--allow-local-sources)"
    )


def pick(source: Source, files: Sequence[str]) -> Source:
    """Return the file that `spec.files` picks from a repository or a bucket; the source itself if it picks nothing.

    Args:
        source: What `spec.source` names.
        files: The first is the one that the engine is given. More of them may only be parts of the same split model:
            an engine on a host has no use for others.

    Raises:
        FileSetError: The source is neither, or has no such files, or they do not belong together.
    """
    if not files:
        return source
    if isinstance(source, ImageSource):
        return _pick_from_image(source, files)
    if not isinstance(source, HubRepository | BucketFile):
        raise FileSetError(
            "picks files from a Hugging Face repository, a folder of a bucket or an image, but spec.source names none; "
            "write spec.source as ORG/REPO, s3://BUCKET/FOLDER or oci://REGISTRY/REPOSITORY, or leave spec.files out"
        )
    chosen = _file_of(source, files[0])
    unrelated = [file for file in files[1:] if _file_of(source, file) != chosen]  # any part is named by the first
    if unrelated:
        raise FileSetError(
            f"a host fetches the parts of one model, and {unrelated[0]!r} is no part of {files[0]!r}; leave it out"
        )
    return chosen


def _file_of(source: HubRepository | BucketFile, file: str) -> HubFile | BucketFile:
    try:
        return source.file(file)
    except SourceError as exc:
        raise FileSetError(f"{file!r} names no .gguf file in a repository; patterns do not work") from exc


def _pick_from_image(source: ImageSource, files: Sequence[str]) -> ImageSource:
    try:
        return source.pick(files[0])
    except SourceError as exc:
        raise FileSetError(f"{exc}; patterns do not work") from exc
