"""Merge patch and JSON patch are functions from an object to a new object.

The other patches are in `fields`: `strategic_merge`, and apply in `ownership`.
Facts: RFC 7386 (merge patch), RFC 6902 and 6901 (JSON patch and pointers), and the library by which kube-apiserver
applies them: github.com/evanphx/json-patch, version 4, which is more lenient than they are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.json_values import copy, is_list, is_object, same
from llmkube.base.errors import UserError

MAX_OPERATIONS: Final = 10_000
"""The most operations that kube-apiserver accepts in one JSON patch."""

MAX_COPIED_BYTES: Final = 3 * 1024 * 1024
"""Limit for what the `copy` operations of one JSON patch copy together, as JSON; kube-apiserver's limit.

They may copy as many values as a body may have; kube-apiserver does not limit those.
"""

_MAX_INDEX_DIGITS: Final = 18

_END: Final = "-"  # the place after an array's last item
_INDEX: Final = re.compile(r"[+-]?[0-9]+")


class PatchDocumentError(UserError):
    """The patch itself is malformed: an HTTP 400."""


class PatchTooLargeError(UserError):
    """The patch does too much at once: an HTTP 413."""


class PatchFailedError(UserError):
    """The patch is valid but does not apply to this object: an HTTP 422."""


class CopiedTooMuchError(PatchFailedError):
    """The patch copies more than `MAX_COPIED_BYTES`, or something that is nested too deeply."""


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
    """Return the target after a JSON patch (RFC 6902, as lenient as kube-apiserver); all operations apply, or none.

    A missing value is null; `replace` and `copy` accept a field that does not exist; an index may be negative, and
    counts from the end; only `replace` and `test` accept the whole document.

    Raises:
        PatchDocumentError: The document is not a list of operations.
        PatchTooLargeError: There are too many of them.
        PatchFailedError: An operation does not apply, a test fails, or too much is copied.
    """
    if not is_list(operations):
        raise PatchDocumentError("error decoding patch: a JSON patch must be a list of operations")
    for operation in operations:
        _check_operation(operation)
    if len(operations) > MAX_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise PatchTooLargeError(why)
    document, budget = copy(target), _CopyBudget()
    for operation in operations:
        document = _apply(document, operation or {}, budget)
    return document


@attrs.define(eq=False)
class _CopyBudget:
    """Counts what a patch copies: a few doublings of a list would exhaust memory."""

    size: int = 0
    values: int = 0

    def count(self, value: Any) -> None:
        try:
            text = json_text.write(value)
            self.values += json_text.measure(text).values
        except (json_text.JsonBoundError, TypeError) as exc:  # TypeError: too deep for the writer
            raise CopiedTooMuchError(f"Unable to complete the copy: {exc}") from exc
        self.size += len(text)
        if self.size > MAX_COPIED_BYTES:
            raise CopiedTooMuchError(
                f"Unable to complete the copy, the accumulated size increase of copy is {self.size},"
                f" exceeding the limit {MAX_COPIED_BYTES}"
            )
        if self.values > json_text.MAX_VALUES:
            raise CopiedTooMuchError(f"Unable to complete the copy, limit is {json_text.MAX_VALUES} copied values")


def _check_operation(operation: Any) -> None:
    if not is_object(operation) and operation is not None:
        raise PatchDocumentError("error decoding patch: an operation must be an object")
    for name in ("op", "path", "from"):
        if not isinstance((operation or {}).get(name), str | None):
            raise PatchDocumentError(f"error decoding patch: {name} must be a string")


def _apply(document: Any, operation: Mapping[str, Any], budget: _CopyBudget) -> Any:
    name, path, value = operation.get("op"), operation.get("path"), copy(operation.get("value"))
    if path is None:
        raise PatchFailedError("operation missing path field: missing value")
    match name:
        case "replace" if not path:
            if not is_object(value) and not is_list(value):
                raise PatchFailedError("replace operation value must be object or array")
            return value
        case "test":
            _test(document, path, value)
        case "add" | "replace":
            _put(document, path, value, name)
        case "remove":
            _remove(document, path, name)
        case "move" | "copy":
            _move_or_copy(document, operation.get("from"), path, name, budget)
        case _:
            raise PatchFailedError(f"Unexpected kind: {name or 'unknown'}")
    return document


def _test(document: Any, path: str, value: Any) -> None:
    found = _get(document, path, "test") if path else document
    if not same(found, value):
        raise PatchFailedError(f"testing value {path} failed: test failed")


def _move_or_copy(document: Any, source: str | None, path: str, operation: str, budget: _CopyBudget) -> None:
    if source is None:
        raise PatchFailedError("operation, missing from field: missing value")
    value = _get(document, source, operation)
    if operation == "move":
        _remove(document, source, operation)
    else:
        budget.count(value)
        value = copy(value)
    _put(document, path, value, operation)


def _find(document: Any, path: str, operation: str) -> tuple[Any, str]:
    """Return the container of the pointer's last part, and that part."""
    _, *parts = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    if not parts:
        raise _missing(operation, path)
    for part in parts[:-1]:
        document = _child(document, part, operation, path)
        if not is_object(document) and not is_list(document):
            raise _missing(operation, path)
    return document, parts[-1]


def _child(container: Any, part: str, operation: str, path: str) -> Any:
    """Return the value of that part; null where an object has no such field."""
    if is_object(container):
        return container.get(part)
    return container[_index(container, part, operation, path)]


def _missing(operation: str, path: str) -> PatchFailedError:
    return PatchFailedError(f'{operation} operation does not apply: doc is missing path: "{path}": missing value')


def _index(container: Sequence[Any], part: str, operation: str, path: str, *, extra: int = 0) -> int:
    """Parse the index of an existing item, or of one of `extra` places after the last."""
    if not _INDEX.fullmatch(part) or len(part) > _MAX_INDEX_DIGITS:
        raise PatchFailedError(f"{operation} operation does not apply: {part!r} is not an index in {path}")
    index, size = int(part), len(container) + extra
    if not -size <= index < size:
        raise PatchFailedError(
            f"{operation} operation does not apply: Unable to access invalid index: {index}: invalid index referenced"
        )
    return index + size if index < 0 else index


def _get(document: Any, path: str, operation: str) -> Any:
    container, part = _find(document, path, operation)
    return _child(container, part, operation, path)


def _put(document: Any, path: str, value: Any, operation: str) -> None:
    container, part = _find(document, path, operation)
    if is_object(container):
        container[part] = value  # type: ignore[index]  # `copy` made it, of dicts and lists
    elif operation == "replace":
        container[_index(container, part, operation, path)] = value
    elif part == _END:
        container.append(value)
    else:
        container.insert(_index(container, part, operation, path, extra=1), value)


def _remove(document: Any, path: str, operation: str) -> None:
    container, part = _find(document, path, operation)
    if is_object(container):
        if part not in container:
            raise PatchFailedError(f"Unable to remove nonexistent key: {part}: missing value")
        del container[part]  # type: ignore[attr-defined]  # `copy` made it, of dicts and lists
    else:
        del container[_index(container, part, operation, path)]
