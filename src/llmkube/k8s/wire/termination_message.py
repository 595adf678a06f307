"""The result of a Model's Job for the controller: one JSON object in the container's termination message. Pure.

`llmkube fetch` writes it, the kubelet copies it into the pod's status, and the controller reads it there. It may be
from a container of another version, or not from ours at all: a message that cannot be decoded is ignored.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.codec import DecodeError, decode
from llmkube.k8s.crd.model import GGUFStatus
from llmkube.k8s.fields import REQUIRED, Wired, field

TERMINATION_LOG: Final = "/dev/termination-log"
"""The file of a container's termination message, unless the pod names another."""

MAX_BYTES: Final = 4096
"""The kubelet's limit; it truncates a longer message, which is then no longer JSON."""

REACHED: Final = "ok"
"""The result of `llmkube reach` for an address at which the right host answers."""

_NOT_A_MESSAGE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, DecodeError)


@attrs.frozen(kw_only=True)
class Fetched(Wired):
    """The result of a successful `llmkube fetch`.

    Attributes:
        path: The engine's file, relative to the requested folder.
        size_bytes: The size of all files together.
        sha256: The digest of the engine's file, if it is a single one.
        gguf: The facts from its header.
        files: The names of all files.
        etag: The ETag of the source.
        kept: Why the source could not be compared with the present files; empty if it was.
    """

    path: str = field("", REQUIRED)
    size_bytes: int = field("", REQUIRED)
    sha256: str = ""
    gguf: GGUFStatus | None = None
    files: tuple[str, ...] = ()
    etag: str = ""
    kept: str = ""


def to_bytes(message: Mapping[str, Any]) -> bytes:
    """Return a message of at most `MAX_BYTES`; if needed, the last file names are omitted."""
    files: Sequence[str] = message.get("files", ())
    while files and len(_to_json(message)) > MAX_BYTES:
        files = files[:-1]
        message = {**message, "files": files}
    return _to_json(message)


def truncate(text: str, max_bytes: int) -> str:
    """Return the beginning of a text that takes at most `max_bytes` in JSON."""
    size = 0
    for index, character in enumerate(text):
        size += len(_to_json(character)) - len('""')
        if size > max_bytes:
            return text[:index]
    return text


def parse_fetch_result(text: str) -> Fetched | None:
    """Return the result of a successful fetch; None if the message is not ours."""
    try:
        result = decode(Fetched, json.loads(text))
    except _NOT_A_MESSAGE:
        return None
    leads_out = result.path.startswith("/") or ".." in result.path.split("/")  # of the requested folder
    return None if leads_out else result


def parse_failure(text: str) -> tuple[str, str] | None:
    """Return the reason and the message of a failed fetch; None if the message is not ours."""
    try:
        failure = json.loads(text)
        return str(failure["reason"]), str(failure["message"])
    except _NOT_A_MESSAGE:
        return None


def parse_reach_result(text: str) -> str | None:
    """Return the result of `llmkube reach` for an address; None if the message is not ours."""
    try:
        return str(json.loads(text)["result"])
    except _NOT_A_MESSAGE:
        return None


def _to_json(message: object) -> bytes:
    # UTF-8: escapes would take two to three times as many bytes.
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
