"""A source is text until this module has read it: three shapes, and everything else is refused by name."""

import re
import urllib.parse
from typing import Final

import attrs

from llmkube.weights.errors import SourceError

REMOTE_SCHEMES: Final = ("http", "https", "hf", "pvc", "s3")
_FORMS: Final = (
    "builtin://NAME, an absolute path, file:///PATH, https://URL, hf://ORG/REPO, pvc://CLAIM/PATH or s3://BUCKET/KEY"
)
_SECRETS: Final = re.compile(r"(?<=://)[^/]*@|[?#].*", re.DOTALL)  # credentials in a URL, and signatures in its query
_BUILTIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.\-/]+)?")  # a hub repository, as org/repo


@attrs.frozen
class Builtin:
    """Weights that ship inside this package, by name (`builtin://demo`)."""

    name: str


@attrs.frozen
class LocalFile:
    """A file on this host, used where it lies; the path is absolute."""

    path: str


@attrs.frozen
class Remote:
    """Weights that somebody must download: the scheme, and the source as it was written."""

    scheme: str
    text: str

    @property
    def redacted(self) -> str:
        """The source without what may be secret in it, for messages."""
        return _redact(self.text)


Source = Builtin | LocalFile | Remote


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
    if text.startswith("/"):
        return LocalFile(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if _REPOSITORY.fullmatch(text):
            return Remote("hf", text)
        raise SourceError(f"{shown} is neither an absolute path nor a URL; use {_FORMS}")
    if scheme == "builtin":
        if not _BUILTIN_NAME.fullmatch(rest):
            raise SourceError(f"{shown} names no built-in weights; builtin://demo does")
        return Builtin(rest)
    if scheme == "file":
        return _local_file(shown, rest)
    if scheme not in REMOTE_SCHEMES:
        raise SourceError(f"{shown} has the unknown scheme {scheme!r}; use {_FORMS}")
    if not rest.strip("/"):
        raise SourceError(f"{shown} names nothing after {scheme}://")
    return Remote(scheme, text)


def _redact(text: str) -> str:
    return _SECRETS.sub("", text)


def _local_file(shown: str, rest: str) -> LocalFile:
    # RFC 8089: file:///path and file://localhost/path name this host, percent escapes included
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not path:
        raise SourceError(f"{shown} must hold an absolute path: file:///PATH, with three slashes")
    decoded = urllib.parse.unquote(path)
    if "\0" in decoded:
        raise SourceError(f"{shown} has a NUL byte in its path")
    return LocalFile(slash + decoded)
