"""An object is written as JSON once: the database, the answers, the lists and every watch send the same bytes."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from llmkube.apiserver.values import json_text

_TYPE: Final = frozenset({"apiVersion", "kind"})


class StoredObject(dict[str, Any]):
    """An object in the store, never edited, that knows its JSON from the first time that it was asked for."""

    __slots__ = ("_fields",)

    _fields: bytes

    @property
    def fields(self) -> bytes:
        """The JSON without what says the type: `"metadata":{…},"spec":{…}}`."""
        try:
            return self._fields
        except AttributeError:
            self._fields = _fields(self)
            return self._fields


def fields_of(obj: Mapping[str, Any]) -> bytes:
    """Return an object's JSON without what says its type, from the first field that follows to the closing brace."""
    return obj.fields if isinstance(obj, StoredObject) else _fields(obj)


def encoded(obj: Mapping[str, Any], api_version: str = "") -> bytes:
    """Return an object's JSON, as a version of its kind; by default as the one that it says."""
    return type_prefix(api_version or obj["apiVersion"], obj["kind"]) + fields_of(obj)


@lru_cache(maxsize=1024)  # as many as there are kinds
def type_prefix(api_version: str, kind: str) -> bytes:
    """Return what stands before an object's `fields`: `{"apiVersion":"v1","kind":"Service",`."""
    return json_text.write({"apiVersion": api_version, "kind": kind})[:-1] + b","


def _fields(obj: Mapping[str, Any]) -> bytes:
    bare = {name: value for name, value in obj.items() if name not in _TYPE}
    try:
        return json_text.write(bare)[1:]
    except TypeError:  # a database that an earlier version has written may hold what is refused now
        return json.dumps(bare, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")[1:]
