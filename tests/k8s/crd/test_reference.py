"""The schema keeps what the CRD reference promises, row by row."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.meta import QUANTITY

DATA = Path(__file__).parents[1] / "data"
REFERENCE = (DATA / "crd-reference.md").read_text(encoding="utf-8")
KINDS = ("Model", "InferenceService")
CRDS = {crd["spec"]["names"]["kind"]: crd for crd in all_crds()}

TYPES = {
    "string": {"type": "string"},
    "enum": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32"},
    "float": {"type": "number"},
    "quantity": {"type": "string", "pattern": QUANTITY},
    "map[string]string": {"type": "object", "additionalProperties": {"type": "string"}},
}
LEFT_TO_THE_ENGINE = {"—", "runtime default", "agent default"}  # the words for "no default in the schema"


@attrs.frozen
class Row:
    """One row of a table of the reference."""

    kind: str
    path: str
    type: str
    description: str
    default: str

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The range in brackets behind the type, or in a sentence that starts with `Range`."""
        found = re.search(r"\(([\d,]+)\u2013([\d,]+)\)", self.type) or re.search(
            r"Range ([\d,]+)\u2013([\d,]+)", self.description
        )
        return (_number(found[1]), _number(found[2])) if found else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def rows() -> Iterator[Row]:
    for section in REFERENCE.split("\n## ")[1:]:
        kind = section.partition("\n")[0]
        for line in section.splitlines():
            if line.startswith("| spec."):
                yield Row(kind, *(cell.strip() for cell in line.strip("|").split("|")))


ROWS = list(rows())
FIELDS = [row for row in ROWS if row.path != "spec.mlock"]  # the reference says itself that there is no such field


def lookup(row: Row) -> tuple[dict[str, Any], bool]:
    """The schema of a row's field and whether its parent requires it."""
    schema = CRDS[row.kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    required = False
    for step in row.path.split("."):
        required = step in schema.get("required", ())
        schema = schema["properties"][step]
    return schema, required


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: f"{row.kind}.{row.path}")
class TestEveryRow:
    def test_type(self, row: Row) -> None:
        """The field exists and has the type that the reference gives."""
        schema, _ = lookup(row)
        assert schema | TYPES[row.type.partition(" ")[0]] == schema

    def test_bounds(self, row: Row) -> None:
        """The range in the reference is the range in the schema; where none is given, none is enforced."""
        schema, _ = lookup(row)
        bounds = (schema["minimum"], schema["maximum"]) if {"minimum", "maximum"} & schema.keys() else None
        assert bounds == row.bounds

    def test_enum(self, row: Row) -> None:
        """Every value that the reference lists is admitted."""
        schema, _ = lookup(row)
        listed = row.description.partition(".")[0].split(", ") if row.type == "enum" else []
        assert set(listed) <= set(schema.get("enum", ()))
        assert bool(listed) == ("enum" in schema)

    def test_default(self, row: Row) -> None:
        """The default is the reference's, in the schema and in the class alike."""
        schema, required = lookup(row)
        assert required == (row.default == "required")
        if required or row.default in LEFT_TO_THE_ENGINE:
            assert "default" not in schema
        else:
            wanted = row.default if row.type == "enum" else json.loads(row.default)
            assert schema["default"] == wanted


def test_the_whole_reference_is_checked() -> None:
    """All 23 rows of the two tables are read: 8 of Model, 15 of InferenceService."""
    assert [sum(row.kind == kind for row in ROWS) for kind in KINDS] == [8, 15]
    assert len(FIELDS) == 22


def test_short_names() -> None:
    """The short names are the reference's."""
    promised = re.findall(r"## (\w+)\n\nShort name: (\w+)\.", REFERENCE)
    assert promised == [(kind, CRDS[kind]["spec"]["names"]["shortNames"][0]) for kind in KINDS]


def test_mlock_is_an_extra_argument() -> None:
    """There is no spec.mlock, as the reference says; spec.extraArgs takes --mlock."""
    spec = CRDS["InferenceService"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert "mlock" not in spec["properties"]
    assert spec["properties"]["extraArgs"]["items"] == {"type": "string"}
