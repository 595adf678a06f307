"""Three kinds of patch are functions from an object to a new object; the fourth, apply, is in `apply.py`.

Facts: RFC 7386 (merge patch), RFC 6902 and 6901 (JSON patch and pointers). Errors of a JSON patch are worded as
kube-apiserver's library words them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.jsonvalues import copy, is_list, is_object, same
from llmkube.apiserver.strategic import strategic_merge_patch
from llmkube.base.errors import UserError

__all__ = ["PatchDocumentError", "PatchFailedError", "json_patch", "merge_patch", "strategic_merge_patch"]

MAX_OPERATIONS: Final = 10_000
"""The most operations that kube-apiserver takes in one JSON patch."""

_END: Final = "-"  # the place behind an array's last item
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")


class PatchDocumentError(UserError):
    """The patch itself is malformed: an HTTP 400."""


class PatchFailedError(UserError):
    """The patch is well formed and does not apply to this object: an HTTP 422."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target after a JSON merge patch (RFC 7386): nulls delete, objects merge, all else replaces.

    The result shares what did not change with the target.
    """
    if not is_object(patch):
        return patch
    merged = dict(target) if is_object(target) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(target: Any, operations: Any) -> Any:
    """Return the target after a JSON patch (RFC 6902); all operations apply, or none.

    Raises:
        PatchDocumentError: The document is no list of operations.
        PatchFailedError: An operation does not apply, or a test fails.
    """
    if not is_list(operations):
        raise PatchDocumentError("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise PatchDocumentError(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        )
    document = copy(target)
    for operation in operations:
        if not is_object(operation):
            raise PatchDocumentError("error decoding patch: an operation is an object")
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: Mapping[str, Any]) -> Any:
    name = operation.get("op")
    path = _pointer(operation, "path")
    if name in {"add", "replace", "test"} and "value" not in operation:
        raise PatchDocumentError(f'error decoding patch: operation "{name}" needs a value')
    if name == "add":
        return _add(document, path, copy(operation["value"]), "add")
    if name == "remove":
        return _remove(document, path, "remove")
    if name == "replace":
        _get(document, path, "replace")
        return _put(document, path, copy(operation["value"]))
    if name == "test":
        if not same(_get(document, path, "test"), operation["value"]):
            raise PatchFailedError(f"testing value {operation['path']} failed: test failed")
        return document
    if name in {"move", "copy"}:
        return _transfer(document, _pointer(operation, "from"), path, name)
    raise PatchDocumentError(f"Unexpected kind: {name}")


def _transfer(document: Any, source: tuple[str, ...], path: tuple[str, ...], operation: str) -> Any:
    value = copy(_get(document, source, operation))
    if operation == "copy":
        return _add(document, path, value, operation)
    if path == source:
        return document
    if path[: len(source)] == source:
        raise PatchFailedError("move operation does not apply: a value cannot move into itself")
    return _add(_remove(document, source, operation), path, value, operation)


def _pointer(operation: Mapping[str, Any], name: str) -> tuple[str, ...]:
    text = operation.get(name)
    if not isinstance(text, str):
        raise PatchDocumentError(f'error decoding patch: operation "{operation.get("op")}" needs "{name}"')
    if not text:
        return ()
    if text[0] != "/" or re.search(r"~(?![01])", text):
        raise PatchDocumentError(f"error decoding patch: {text!r} is no JSON pointer")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def _missing(operation: str, path: Sequence[str]) -> PatchFailedError:
    pointer = "/" + "/".join(path)
    return PatchFailedError(f"{operation} operation does not apply: doc is missing path: {pointer}: missing value")


def _index(container: Sequence[Any], token: str, operation: str, path: Sequence[str], *, last: int) -> int:
    """Read an array index from 0 to `last`."""
    if not _INDEX.fullmatch(token):
        raise PatchFailedError(f"{operation} operation does not apply: {token!r} is no index in /{'/'.join(path)}")
    index = int(token)
    if index > last:
        raise PatchFailedError(
            f"{operation} operation does not apply: Unable to access invalid index: {index}: invalid index referenced"
        )
    return index


def _get(document: Any, path: Sequence[str], operation: str) -> Any:
    for token in path:
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list):
            document = document[_index(document, token, operation, path, last=len(document) - 1)]
        else:
            raise _missing(operation, path)
    return document


def _add(document: Any, path: Sequence[str], value: Any, operation: str) -> Any:
    if not path:
        return value
    *above, token = path
    container = _get(document, above, operation)
    if isinstance(container, dict):
        container[token] = value
    elif isinstance(container, list):
        end = len(container)
        container.insert(end if token == _END else _index(container, token, operation, path, last=end), value)
    else:
        raise _missing(operation, path)
    return document


def _put(document: Any, path: Sequence[str], value: Any) -> Any:
    """Replace what `_get` has found."""
    if not path:
        return value
    container = _get(document, path[:-1], "replace")
    container[path[-1] if isinstance(container, dict) else int(path[-1])] = value
    return document


def _remove(document: Any, path: Sequence[str], operation: str) -> Any:
    _get(document, path, operation)
    if not path:
        return None
    container = _get(document, path[:-1], operation)
    del container[path[-1] if isinstance(container, dict) else int(path[-1])]
    return document
