"""Reads `metadata.managedFields` into a table of managers, and writes it back in Kubernetes' order.

Facts: `k8s.io/apimachinery/pkg/util/managedfields`: the identity of a manager, the order of entries, and that at most
ten managers of updates have entries of their own.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from llmkube.apiserver.fields.fieldset import FieldSet, FieldSetError
from llmkube.apiserver.schema.structural import JsonObject
from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.json_values import is_object

Operation = Literal["Apply", "Update"]

MAX_UPDATERS: Final = 10
ANCIENT: Final = "ancient-changes"
"""The manager that takes over the fields of the oldest updaters when there are too many."""


@attrs.frozen
class Writer:
    """A manager, its operation and its subresource; entries with equal writers are merged."""

    name: str
    operation: Operation
    api_version: str  # empty for an applier, which stays the same manager in a new version
    subresource: str = ""

    def __str__(self) -> str:
        """Return the writer as conflicts name it: `"kubectl-edit" using v1`."""
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


@attrs.frozen
class Entry:
    """The fields that a writer owns, and the time of its last change."""

    fields: FieldSet
    api_version: str
    time: str = ""  # RFC 3339; empty when no change was ever recorded


Managers = dict[Writer, Entry]


def applier(name: str, subresource: str = "") -> Writer:
    """Return the writer of a server-side apply."""
    return Writer(name, "Apply", "", subresource)


def updater(name: str, api_version: str, subresource: str = "") -> Writer:
    """Return the writer of a create, an update or a patch."""
    return Writer(name, "Update", api_version, subresource)


def parse(raw: Any) -> Managers:
    """Parse `managedFields`; several entries of a writer are merged.

    Raises:
        FieldSetError: It is malformed.
    """
    managers: Managers = {}
    for item in raw or ():
        if not isinstance(item, Mapping) or item.get("operation") not in {"Apply", "Update"}:
            raise FieldSetError("an entry of managedFields needs an operation, Apply or Update")
        if item.get("fieldsType") != "FieldsV1":
            raise FieldSetError(f"unsupported fieldsType {item.get('fieldsType')!r} in managedFields")
        fields = _fields(json_text.write(item.get("fieldsV1") or {}))
        operation: Operation = item["operation"]
        version = item.get("apiVersion") or ""
        writer = Writer(
            item.get("manager") or "unknown",
            operation,
            "" if operation == "Apply" else version,
            item.get("subresource") or "",
        )
        if writer in managers:
            fields = fields.union(managers[writer].fields)
        managers[writer] = Entry(fields, version, item.get("time") or "")
    return managers


def parse_or_none(raw: Any) -> Managers:
    """Parse `managedFields`; malformed ones are ignored, since a client may have written anything there."""
    try:
        return parse(raw)
    except FieldSetError:
        return {}


def strip(obj: Mapping[str, Any]) -> JsonObject:
    """Return an object without `managedFields`, which are never merged; it shares everything else."""
    metadata = obj.get("metadata")
    if not is_object(metadata):
        return dict(obj)
    return {**obj, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def to_json(managers: Mapping[Writer, Entry]) -> list[JsonObject]:
    """Return the entries for `managedFields`; writers that own nothing are omitted."""
    return [
        _entry_json(writer, entry)
        for writer, entry in sorted(managers.items(), key=lambda item: _sort_key(*item))
        if entry.fields
    ]


def cap_updaters(managers: Managers) -> Managers:
    """Return the managers with the oldest updaters of each version merged into one, so that ten or fewer remain."""
    updaters = sorted(
        (writer for writer in managers if writer.operation == "Update"),
        key=lambda writer: (managers[writer].time, str(writer)),
    )
    excess = len(updaters) - MAX_UPDATERS
    kept = dict(managers)
    first: dict[str, Writer] = {}
    for writer in updaters:
        if excess <= 0:
            break
        version = managers[writer].api_version
        if version not in first:
            first[version] = writer
            continue
        bucket = updater(ANCIENT, version)
        if bucket not in kept:
            kept[bucket] = kept.pop(first[version])
        if writer != bucket:
            folded = kept.pop(writer)
            kept[bucket] = Entry(kept[bucket].fields.union(folded.fields), version, folded.time)
            excess -= 1
    return kept


@functools.lru_cache(maxsize=512)
def _fields(text: bytes) -> FieldSet:
    """Parse an entry's `fieldsV1`; cached, because most writes do not change the entries of other managers."""
    return FieldSet.parse(json_text.read(text))


def all_owned(managers: Mapping[Writer, Entry]) -> FieldSet:
    """Return the fields that any manager owns."""
    return functools.reduce(FieldSet.union, (entry.fields for entry in managers.values()), FieldSet())


def _sort_key(writer: Writer, entry: Entry) -> tuple[str, ...]:
    return (writer.operation, entry.time, writer.name, entry.api_version, writer.subresource)


def _entry_json(writer: Writer, entry: Entry) -> JsonObject:
    written: JsonObject = {
        "manager": writer.name,
        "operation": writer.operation,
        "apiVersion": entry.api_version,
        "time": entry.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields.json,
        "subresource": writer.subresource,
    }
    return {name: value for name, value in written.items() if value != ""}
