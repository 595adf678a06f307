"""Specs of our kinds are drawn from their schemas: right ones, wrong ones at the bounds, and nonsense.

`objects` and `values_of` draw any of these; `admitted` draws values that the schema accepts, up to its bounds.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from llmkube.k8s.crd.definitions import all_crds

Schema = Mapping[str, Any]

SPECS: Final[Mapping[str, Schema]] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for crd in all_crds()
}
_NONSENSE: Final = (None, True, 0, -1, 1.5, 0.0, "", "x", [], {}, [1], {"a": 1}, 2**31, 2**53, 1e22, "NaN")
_TEXTS: Final = (
    *("", "x", "a-b", "0", "1", "-1", "1e9", "24Gi", "99.5", "5s", "31m", "28d", "hf://a/b", "pii", "PII", "é", "a\n"),
    *(" a ", "nvidia.com/gpu", "http://host", "x" * 64, "x" * 254),
)
_AMOUNTS: Final = (1, 0, -1, "1", "1Gi", "much")
_MAX_FIELDS: Final = 6


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, Any]:
    """Draw a kind and a spec for it."""
    kind = draw(st.sampled_from(sorted(SPECS)))
    return kind, draw(_values(SPECS[kind]))


def values_of(schema: Schema) -> st.SearchStrategy[Any]:
    """Draw objects that a schema describes: their fields are right, at the bounds, or nonsense."""
    return _objects(schema)


def _values(schema: Schema) -> st.SearchStrategy[Any]:
    right = _right_values(schema)
    return st.integers(0, 19).flatmap(lambda chance: st.sampled_from(_NONSENSE) if chance == 0 else right)


def _right_values(schema: Schema) -> st.SearchStrategy[Any]:
    """Draw values of the right type, including some out of bounds."""
    kind = schema.get("type", "")
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], *schema["enum"], "other"])
    if kind == "boolean":
        return st.booleans()
    if kind in {"integer", "number"}:
        lowest, highest = schema.get("minimum", -2), schema.get("maximum", 100)
        return st.sampled_from([lowest, highest, lowest - 1, highest + 1, int((lowest + highest) // 2)])
    if kind == "array":
        return st.deferred(lambda: st.lists(_values(schema["items"]), max_size=3))
    if kind == "object" and "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from("abc"), _values(schema["additionalProperties"]), max_size=2)
    return _objects(schema) if kind == "object" else st.sampled_from(_TEXTS if kind == "string" else _AMOUNTS)


@st.composite
def _objects(draw: st.DrawFn, schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties", {})
    chosen = draw(st.lists(st.sampled_from(sorted(properties)), max_size=_MAX_FIELDS, unique=True))
    needed = [name for name in schema.get("required", ()) if draw(st.integers(0, 19))]
    return {name: draw(_values(properties[name])) for name in dict.fromkeys([*needed, *chosen])}


# -- what the schema takes --------------------------------------------------------------------------------------------

_HUGE: Final = 20_000
_PATTERNS: Final = (
    *("1", "500m", "1Gi", "0", "999999999999", "1.5", "24Gi"),  # amounts
    *("org/repo", "org/repo@v1", "hf://org/repo/m.gguf", "https://x.org/a.gguf", "pvc://claim/m.gguf", "pvc://claim"),
    *("/data/m.gguf", "file:///m.gguf", "s3://bucket/m.gguf", "s3://bucket/m", "builtin://demo"),
    "https://\u00e9.org/\u2603",
    *("ab" * 32, "example.org/gpu", "5s", "30d", "99.5", "chat", "x" * 63),
)
"""Texts that some pattern of the schemas takes, the ends of what it takes among them."""

_PLAIN: Final = (
    *("", "a", "x-y", "\u65e5\u672c\u8a9e \U0001f98a", "a b\tc", "--flag", "$(HOME)", "0", "None", "a/b.gguf"),
    "x" * _HUGE,
)
_KEYS: Final = ("app", "team", "example.org/role", "a b", "\u00e9", "x" * 64, "inference.llmkube.dev/service")


def admitted(schema: Schema, *, max_fields: int = _MAX_FIELDS) -> st.SearchStrategy[Any]:
    """Draw values that a schema admits: each field at its least, its most, empty, huge or in foreign letters."""
    kind = schema.get("type", "")
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        lowest, highest = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
        return st.sampled_from([lowest, highest, lowest + 1 if lowest < highest else lowest])
    if kind == "number":
        lowest, highest = float(schema.get("minimum", 0)), float(schema.get("maximum", 1e9))
        return st.sampled_from([lowest, highest, (lowest + highest) / 2])
    if kind == "array":
        most = min(3, schema.get("maxItems", 3))
        least = schema.get("minItems", 0)
        return st.deferred(lambda: st.lists(admitted(schema["items"]), min_size=least, max_size=most))
    if kind == "object" and "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(_KEYS), admitted(schema["additionalProperties"]), max_size=3)
    if kind == "object":
        return _admitted_objects(schema, max_fields)
    return st.sampled_from(_admitted_texts(schema)) if kind == "string" else st.sampled_from(_AMOUNTS[:4])


def _admitted_texts(schema: Schema) -> list[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", _HUGE)
    texts = [*_PLAIN, *_PATTERNS] if "pattern" in schema else [*_PLAIN, *_PATTERNS[:2], "x" * most]
    fitting = [text for text in texts if least <= len(text) <= most and re.search(schema.get("pattern", ""), text)]
    return fitting or ["1"]


@st.composite
def _admitted_objects(draw: st.DrawFn, schema: Schema, max_fields: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    fields = st.sampled_from(sorted(properties)) if properties else st.nothing()
    chosen = draw(st.lists(fields, max_size=max_fields, unique=True))
    names = dict.fromkeys([*schema.get("required", ()), *chosen])
    return {name: draw(admitted(properties[name])) for name in names}
