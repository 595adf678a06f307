"""Label selectors as kubectl takes them, checked before anything starts and matched where no API server can be asked.

Grammar: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (x,y)`, `a notin (x,y)`, joined by commas. As in Kubernetes, a label
that is not there fits `!=` and `notin` (Kubernetes, "Labels and Selectors").
"""

import re
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError

_KEY: Final = r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_EQUAL: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})", re.ASCII)
_AMONG: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)", re.ASCII)
_THERE: Final = re.compile(rf"(!?)\s*({_KEY})", re.ASCII)
_PARTS: Final = re.compile(r",(?![^()]*\))")


@attrs.frozen
class Requirement:
    """One thing that is asked of the labels: that a key has, or has not, one of some values, or any at all."""

    key: str
    wanted: bool
    values: frozenset[str] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels are as required."""
        if self.values is None:
            return (self.key in labels) is self.wanted
        return (labels.get(self.key) in self.values) is self.wanted


@attrs.frozen
class Selector:
    """A label selector, in its own words and in parts; the empty one selects everything."""

    text: str = ""
    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_selector(text: str) -> Selector:
    """Read a selector.

    Raises:
        UserError: It is none; the sentence names the part that is wrong.
    """
    text = text.strip()
    return Selector(text, tuple(_requirement(part.strip()) for part in _PARTS.split(text)) if text else ())


def _requirement(part: str) -> Requirement:
    if found := _EQUAL.fullmatch(part):
        return Requirement(found[1], found[2] != "!=", frozenset({found[3]}))
    if found := _AMONG.fullmatch(part):
        return Requirement(found[1], found[2] == "in", frozenset(value.strip() for value in found[3].split(",")))
    if found := _THERE.fullmatch(part):
        return Requirement(found[2], not found[1])
    raise UserError(
        f'"{part}" is not a label selector; such as team=ml, team!=ml, team in (ml,web), team or !team, with commas'
    )
