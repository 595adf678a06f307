"""What a Model's Job and the controller say to each other: one JSON object, left where Kubernetes keeps it. Pure.

`llmkube fetch` writes it, the kubelet puts it into the pod's status, and the controller reads it there. It may come
from a container of another version, or from none of ours: what does not decode says nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.codec import DecodeError, decode
from llmkube.k8s.crd.model import GGUFStatus
from llmkube.k8s.fields import REQUIRED, Wired, field

TERMINATION_LOG: Final = "/dev/termination-log"
"""Where the kubelet looks for a container's message, unless the pod names another file."""

MAX_BYTES: Final = 4096
"""What the kubelet keeps of it; the rest is cut off, and what is left is no JSON."""

REACHED: Final = "ok"
"""What `llmkube reach` tells of an address at which the right host answers."""

_NOT_A_MESSAGE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, DecodeError)


@attrs.frozen(kw_only=True)
class Fetched(Wired):
    """What `llmkube fetch` tells of a fetch that has succeeded.

    Attributes:
        path: Where the engine's file is, below the folder that was asked for.
        size_bytes: Of all files together.
        sha256: Digest of the engine's file, if it is a single one.
        gguf: What its header says.
        files: All of them, by name.
        etag: The server's word for the version.
        kept: Why the source could not be compared with what was there; empty when it was.
    """

    path: str = field("", REQUIRED)
    size_bytes: int = field("", REQUIRED)
    sha256: str = ""
    gguf: GGUFStatus | None = None
    files: tuple[str, ...] = ()
    etag: str = ""
    kept: str = ""


def to_bytes(message: Mapping[str, Any]) -> bytes:
    """Return a message of at most `MAX_BYTES`: the last of many files with long names are left out."""
    files: Sequence[str] = message.get("files", ())
    while files and len(_to_json(message)) > MAX_BYTES:
        files = files[:-1]
        message = {**message, "files": files}
    return _to_json(message)


def truncate(text: str, max_bytes: int) -> str:
    """Return the beginning of a text that takes so many bytes in JSON."""
    size = 0
    for index, character in enumerate(text):
        size += len(_to_json(character)) - len('""')
        if size > max_bytes:
            return text[:index]
    return text


def parse_fetch_result(text: str) -> Fetched | None:
    """Return what a fetch that has succeeded tells; None when the message is not one of ours."""
    try:
        result = decode(Fetched, json.loads(text))
    except _NOT_A_MESSAGE:
        return None
    leads_out = result.path.startswith("/") or ".." in result.path.split("/")  # of the folder that was asked for
    return None if leads_out else result


def parse_failure(text: str) -> tuple[str, str] | None:
    """Return the reason and the sentence of a fetch that has failed; None when the message is not one of ours."""
    try:
        failure = json.loads(text)
        return str(failure["reason"]), str(failure["message"])
    except _NOT_A_MESSAGE:
        return None


def parse_reach_result(text: str) -> str | None:
    """Return what `llmkube reach` tells of an address; None when the message is not one of ours."""
    try:
        return str(json.loads(text)["result"])
    except _NOT_A_MESSAGE:
        return None


def _to_json(message: object) -> bytes:
    # In UTF-8: escapes would be three times as long, or six.
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
