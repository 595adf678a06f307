"""Every field that a user of the original knows is there, with its type, values, bounds and default.

`data/crd-fields.tsv` has the fields of the original's kinds, the parts of pods expanded. Where ours differ, they differ
on purpose, and `data/crd-differences.yaml` says why.
"""

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from llmkube.k8s.crd.definitions import all_crds

Facts = Mapping[str, Any]
Place = tuple[str, str]
"""A kind and a path: `("Model", "spec.files")`; items of a list are `[]`."""

TABLE: Final = Path(__file__).parents[1] / "data" / "crd-fields.tsv"
ROOTS: Final = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in all_crds()
}
_NUMBERS: Final = ("min", "max", "minLength", "maxLength", "minItems", "maxItems", "rules")


@attrs.frozen
class Difference:
    """A difference from the original: the facts, the fields, and the reason."""

    paths: str  # a pattern, after the kind
    facts: str  # separated by spaces
    why: str

    def covers(self, place: Place, fact: str) -> bool:
        return fact in self.facts.split() and any(
            fnmatch.fnmatchcase(" ".join(place).replace("[]", "()"), pattern.replace("[]", "()"))
            for pattern in self.paths.split(", ")
        )


_DIFFERENCES: Final = yaml.safe_load(TABLE.with_name("crd-differences.yaml").read_text(encoding="utf-8"))
DELIBERATE: Final = tuple(Difference(**row) for row in _DIFFERENCES["deliberate"])
EXTRA: Final = tuple(_DIFFERENCES["extra"])
"""Prefixes of fields that the original does not have."""


def read_table() -> dict[Place, dict[str, Any]]:
    _, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        kind, path, type_, default, facts_text = line.split("\t")
        facts: dict[str, Any] = {"type": type_}
        if default:
            facts["default"] = json.loads(default)
        for fact in facts_text.split("; ") if facts_text else ():
            name, _, value = fact.partition("=")
            facts[name] = float(value) if name in _NUMBERS else set(value.split(",")) if name == "enum" else value
        found[kind, path] = facts
    return found


def read_schema() -> dict[Place, dict[str, Any]]:
    found: dict[Place, dict[str, Any]] = {}
    for kind, root in ROOTS.items():
        for name in ("spec", "status"):
            required = name in root["required"]
            found |= dict(_fields(kind, name, root["properties"][name], required=required))
    return found


def _fields(kind: str, path: str, schema: Mapping[str, Any], *, required: bool) -> Iterator[tuple[Place, Any]]:
    yield (kind, path), _facts(schema, required=required)
    if schema.get("type") == "array":
        path, schema = f"{path}[]", schema["items"]
    for name, inner in schema.get("properties", {}).items():
        yield from _fields(kind, f"{path}.{name}", inner, required=name in schema.get("required", ()))


def _facts(schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    facts = {
        "type": _type(schema),
        "required": "" if required else None,
        "default": schema.get("default"),
        "enum": {str(value) for value in schema["enum"]} if "enum" in schema else None,
        "min": schema.get("minimum"),
        "over": schema.get("exclusiveMinimum"),
        "max": schema.get("maximum"),
        "pattern": None if "x-kubernetes-int-or-string" in schema else schema.get("pattern"),
        "by": ",".join(schema.get("x-kubernetes-list-map-keys", ())) or None,
        "atomic": "" if schema.get("x-kubernetes-map-type") == "atomic" else None,
        "rules": len([*_rules(schema), *_rules(schema.get("items", {}))]) or None,
        **{name: schema.get(name) for name in ("minLength", "maxLength", "minItems", "maxItems")},
    }
    return {name: value for name, value in facts.items() if value is not None}


def _rules(schema: Mapping[str, Any]) -> Sequence[Any]:
    return schema.get("x-kubernetes-validations", ())


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "int-or-string"
    if schema["type"] == "array":
        return f"[]{_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map[string]{_type(schema['additionalProperties'])}"
    widths = {"boolean": "bool", "date-time": "date-time"}
    return str(widths.get(schema["type"]) or schema.get("format") or schema["type"])


ORIGINAL: Final = read_table()
OURS: Final = read_schema()


def differing() -> Iterator[tuple[Place, str]]:
    """Each fact of a common field that is not as in the original."""
    for place in ORIGINAL.keys() & OURS.keys():
        theirs, ours = ORIGINAL[place], OURS[place]
        yield from ((place, fact) for fact in theirs.keys() | ours.keys() if theirs.get(fact) != ours.get(fact))


def test_every_field_is_there() -> None:
    """No field of the original is missing from ours."""
    assert sorted(ORIGINAL.keys() - OURS.keys()) == []
    assert len(ORIGINAL) > 900


def test_what_differs_does_so_on_purpose() -> None:
    """Type, values, bounds, default and number of rules are the original's, or there is a reason."""
    unexplained = [
        f"{' '.join(place)}: {fact}: {ORIGINAL[place].get(fact)!r}, ours {OURS[place].get(fact)!r}"
        for place, fact in differing()
        if not any(each.covers(place, fact) for each in DELIBERATE)
    ]
    assert sorted(unexplained) == []


@pytest.mark.parametrize("difference", DELIBERATE, ids=lambda each: each.paths)
def test_every_reason_is_needed(difference: Difference) -> None:
    """Each reason explains something, pattern by pattern and fact by fact; the list does not outlive what it is for."""
    found = list(differing())
    for pattern in difference.paths.split(", "):
        narrowed = attrs.evolve(difference, paths=pattern)
        assert any(narrowed.covers(place, fact) for place, fact in found), pattern
    for fact in difference.facts.split():
        assert any(difference.covers(place, fact) for place, which in found if which == fact), fact


def test_what_is_new_is_known() -> None:
    """We have no field of our own but those listed here."""
    new = [" ".join(place) for place in OURS.keys() - ORIGINAL.keys()]
    assert [path for path in sorted(new) if not path.startswith(EXTRA)] == []
