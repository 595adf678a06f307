"""Tables for `kubectl get`: columns from the CRD, or the well-known ones of built-in kinds.

Facts: Kubernetes API concepts, "Receiving resources as Tables"; meta.k8s.io/v1 Table; columns as a kube-apiserver 1.36
sends them.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.kinds.scale import is_scale
from llmkube.apiserver.storage.revisions import Object
from llmkube.apiserver.values import json_text, jsonpath
from llmkube.base.units import format_age

JsonObject = dict[str, Any]
Cell = Callable[[Object, datetime], Any]

_NONE: Final = "<none>"
_MAX_INTEGER: Final = 2**63  # the cell of a larger integer stays empty


@attrs.frozen
class Column:
    """A column, and the function that makes its cells."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> JsonObject:
        """Return the entry of the column in `columnDefinitions`."""
        facts = attrs.asdict(self, filter=attrs.filters.exclude("cell"))
        return {**facts, "description": self.description or f"{self.name} of the object."}


def columns_of(kind: KindInfo) -> tuple[Column, ...]:
    """Return the columns of a kind, the name first."""
    if kind.printer_columns:
        return (_NAME, *map(_from_printer_column, kind.printer_columns))
    own = _BUILTIN.get(kind.resource.full_name, (_AGE,))
    return own if kind.resource.full_name == "events" else (_NAME, *own)  # an Event's name is meaningless


def table(kind: KindInfo, item: Object, now: datetime, *, include: str, header: bool) -> JsonObject:
    """Return a Table of one object; `header` includes the column definitions, which a watch sends once."""
    columns = _SCALE if is_scale(item) else columns_of(kind)
    metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
    head = table_head(columns if header else None, metadata)
    return {**head, "rows": [table_row(columns, item, now, include)]}


def table_head(columns: Sequence[Column] | None, metadata: Mapping[str, Any]) -> JsonObject:
    """Return a Table without its rows."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": None if columns is None else [column.definition() for column in columns],
    }


def table_row(columns: Sequence[Column], item: Object, now: datetime, include: str) -> JsonObject:
    """Return an object's row; `include` selects what it has of the object: `None`, `Metadata` or `Object`."""
    return {"cells": [column.cell(item, now) for column in columns], "object": _row_object(item, include)}


def partial_metadata(item: Object) -> JsonObject:
    """Return an object's metadata only."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}


def _row_object(item: Object, include: str) -> Any:
    if include == "Object":
        return item
    return None if include == "None" else partial_metadata(item)


def _from_printer_column(column: Mapping[str, Any]) -> Column:
    path = column["jsonPath"]

    def cell(item: Object, now: datetime) -> Any:
        found = jsonpath.find(path, item)
        return None if not found else _typed_cell(column["type"], found[0], now)

    summary = column.get("description") or f"Custom resource definition column (in JSONPath format): {path}"
    return Column(column["name"], cell, column["type"], column.get("format", ""), summary, column.get("priority", 0))


def _typed_cell(kind: str, value: Any, now: datetime) -> Any:
    """Return the cell of a column of that type; None (an empty cell) when the value has another type."""
    match kind:
        case "date":
            return age(value, now) if isinstance(value, str) and value else None
        case "integer":
            is_integer = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER
            return int(value) if is_integer else None
        case "number":
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list):
        return json_text.write(value).decode()
    return "" if value is None else str(value)


def _path(path: str, missing: str = "") -> Cell:
    def cell(item: Object, now: datetime) -> Any:
        found = jsonpath.find(path, item)
        return _text(found[0]) if found and found[0] not in (None, "") else missing

    return cell


def _count(*fields: str) -> Cell:
    return lambda item, _now: sum(len(item.get(field) or ()) for field in fields)


def _age_of(*paths: str) -> Cell:
    """Return cells with the age of the first timestamp that exists."""

    def cell(item: Object, now: datetime) -> str:
        found = [value for path in paths for value in jsonpath.find(path, item) if value]
        return age(found[0] if found else None, now)

    return cell


def _service_ports(item: Object, now: datetime) -> str:
    ports = (item.get("spec") or {}).get("ports") or ()
    shown = [
        f"{port['port']}" + (f":{port['nodePort']}" if port.get("nodePort") else "") + f"/{port.get('protocol', 'TCP')}"
        for port in ports
    ]
    return ",".join(shown) or _NONE


def _selector(item: Object, now: datetime) -> str:
    selector = (item.get("spec") or {}).get("selector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or _NONE


def _external_ip(item: Object, now: datetime) -> str:
    spec = item.get("spec") or {}
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    ips = spec.get("externalIPs") or ()
    return ",".join(ips) or ("<pending>" if spec.get("type") == "LoadBalancer" else _NONE)


def _first_few(shown: list[str], limit: int = 3) -> str:
    if not shown:
        return _NONE
    more = f" + {len(shown) - limit} more..." if len(shown) > limit else ""
    return ",".join(shown[:limit]) + more


def _endpoints(item: Object, now: datetime) -> str:
    shown: list[str] = []
    for subset in item.get("subsets") or ():
        ips = [address["ip"] for address in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        shown += [f"{ip}:{port['port']}" for port in ports for ip in ips] if ports else ips
    return _first_few(shown)


def _slice_ports(item: Object, now: datetime) -> str:
    ports = item.get("ports")
    if not ports:
        return "<unset>"
    return _first_few([str(port.get("port") or port.get("name") or "*") for port in ports])


def _slice_endpoints(item: Object, now: datetime) -> str:
    addresses = [address for endpoint in item.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    return _first_few(addresses) if addresses else "<unset>"


def _event_object(item: Object, now: datetime) -> str:
    involved = item.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_source(item: Object, now: datetime) -> str:
    source = item.get("source") or {}
    parts = (source.get("component") or item.get("reportingComponent"), source.get("host"))
    return ", ".join(str(part) for part in parts if part)


def _event_count(item: Object, now: datetime) -> int:
    series = item.get("series") or {}
    return int(series.get("count") or item.get("count") or 1)


def _event_message(item: Object, now: datetime) -> str:
    return str(item.get("message", "")).strip()


_NAME: Final = Column("Name", _path(".metadata.name"), format="name", description="Name, unique within a namespace.")
_AGE: Final = Column("Age", _age_of(".metadata.creationTimestamp"), description="Time since the object was created.")
_SCALE: Final = (
    _NAME,
    Column("Desired", lambda item, _now: (item.get("spec") or {}).get("replicas", 0), "integer"),
    Column("Available", lambda item, _now: (item.get("status") or {}).get("replicas", 0), "integer"),
    attrs.evolve(_AGE, type="date"),
)
"""Columns of the subresource `scale`, for any kind."""
_FIRST_SEEN: Final = _age_of(".firstTimestamp", ".eventTime", ".metadata.creationTimestamp")
_LAST_SEEN: Final = _age_of(".series.lastObservedTime", ".lastTimestamp", ".firstTimestamp", ".eventTime")

_BUILTIN: Final[Mapping[str, tuple[Column, ...]]] = {
    "namespaces": (Column("Status", _path(".status.phase")), _AGE),
    "configmaps": (Column("Data", _count("data", "binaryData")), _AGE),
    "secrets": (Column("Type", _path(".type")), Column("Data", _count("data")), _AGE),
    "serviceaccounts": (_AGE,),  # until 1.31 there was a column for secrets
    "services": (
        Column("Type", _path(".spec.type")),
        Column("Cluster-IP", _path(".spec.clusterIP", _NONE)),
        Column("External-IP", _external_ip),
        Column("Port(s)", _service_ports),
        _AGE,
        Column("Selector", _selector, priority=1),
    ),
    "endpoints": (Column("Endpoints", _endpoints), _AGE),
    "endpointslices.discovery.k8s.io": (
        Column("AddressType", _path(".addressType")),
        Column("Ports", _slice_ports),
        Column("Endpoints", _slice_endpoints),
        _AGE,
    ),
    "leases.coordination.k8s.io": (Column("Holder", _path(".spec.holderIdentity")), _AGE),
    "events": (
        Column("Last Seen", _LAST_SEEN),
        Column("Type", _path(".type")),
        Column("Reason", _path(".reason")),
        Column("Object", _event_object),
        Column("Subobject", _path(".involvedObject.fieldPath"), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", _event_message),
        Column("First Seen", _FIRST_SEEN, priority=1),
        Column("Count", _event_count, priority=1),
        Column("Name", _path(".metadata.name"), priority=1),
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (
        Column("Created At", _path(".metadata.creationTimestamp"), type="date"),
    ),
}


def age(timestamp: Any, now: datetime) -> str:
    """Return the time since an RFC 3339 timestamp; `<unknown>` when there is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    seconds = (now - then).total_seconds()
    return "<invalid>" if seconds <= -2 else format_age(seconds)
