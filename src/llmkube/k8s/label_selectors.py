"""Label selectors in kubectl's syntax; errors have kube-apiserver's texts.

Grammar: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (x,y)`, `a notin (x,y)`, `a>1`, `a<1`, joined by commas. A missing
label matches `!=` and `notin` (Kubernetes, "Labels and Selectors").
Facts: `k8s.io/apimachinery/pkg/labels`.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.wire import name_rules

_PARTS: Final = re.compile(r",(?![^()]*\))")
_TOKEN: Final = re.compile(r"\s*(==|!=|[=!(),<>]|[^=!(),<>\s]+)")
_OPERATORS: Final = ("in", "notin", "=", "==", "!=", ">", "<")
_SIGNS: Final = frozenset("=!(),<>") | {"==", "!="}
_END: Final = ""


class SelectorError(ValueError):
    """The text is not a label selector."""


@attrs.frozen
class Requirement:
    """One condition on the labels; without an operator, the key must be present."""

    key: str
    operator: str = ""  # one of `_OPERATORS`, `!`, or empty
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the requirement; a missing label matches `!=` and `notin`."""
        if self.operator in {"", "!"}:
            return (self.key in labels) is not bool(self.operator)
        if self.operator in {">", "<"}:
            return self._compares(labels)
        wanted = self.operator not in {"!=", "notin"}
        return (self.key in labels and labels[self.key] in self.values) is wanted

    def _compares(self, labels: Mapping[str, str]) -> bool:
        try:
            given = int(labels[self.key])
        except (KeyError, ValueError):
            return False
        bound = int(next(iter(self.values)))
        return given > bound if self.operator == ">" else given < bound


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """Return the requirements of a selector; an empty selector has none.

    Raises:
        SelectorError: The text is not a selector; the message is kube-apiserver's.
    """
    tokens = _Tokens(_TOKEN.findall(text))
    found = []
    while tokens.next != _END:
        if tokens.next in _SIGNS - {"!"}:
            raise SelectorError(f"found '{tokens.next}', expected: !, identifier, or 'end of string'")
        found.append(_requirement(tokens))
        comma = tokens.take()
        if comma not in {_END, ","}:
            raise SelectorError(f"found '{comma}', expected: ',' or 'end of string'")
        if comma and tokens.next in (_SIGNS - {"!"}) | {_END}:
            raise SelectorError(f"found '{tokens.next}', expected: identifier after ','")
    return tuple(found)


class _Tokens:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = deque(tokens)

    @property
    def next(self) -> str:
        return self._tokens[0] if self._tokens else _END

    def take(self) -> str:
        return self._tokens.popleft() if self._tokens else _END


def _requirement(tokens: _Tokens) -> Requirement:
    absent = tokens.next == "!"
    if absent:
        tokens.take()
    key = tokens.take()
    if key in _SIGNS or key == _END:
        raise _parse_error(f"found '{key}', expected: identifier")
    if problems := name_rules.label_key(key):
        raise _parse_error(_listed([f'<nil>: Invalid value: "{key}": {each}' for each in problems], "; "))
    if tokens.next in {_END, ","}:
        return Requirement(key, "!" if absent else "")
    operator = tokens.take()
    if operator not in _OPERATORS:
        raise _parse_error(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
    values = _set(tokens) if operator in {"in", "notin"} else [_value(tokens)]
    return _validated(key, operator, values)


def _value(tokens: _Tokens) -> str:
    if tokens.next in {_END, ","}:
        return ""
    value = tokens.take()
    if value in _SIGNS:
        raise _parse_error(f"found '{value}', expected: identifier")
    return value


def _set(tokens: _Tokens) -> list[str]:
    opening = tokens.take()
    if opening != "(":
        raise _parse_error(f"found '{opening}' expected: '('")
    if tokens.next in (_SIGNS - {",", ")"}) | {_END}:
        raise _parse_error(f"found '{tokens.next}', expected: ',', ')' or identifier")
    values = [""]
    while (word := tokens.take()) != ")":
        if word == ",":
            values.append("")
        elif word in _SIGNS or word == _END or values[-1]:
            raise _parse_error(f"found '{word}', expected: ',' or ')'")
        else:
            values[-1] = word
    return values


def _validated(key: str, operator: str, values: list[str]) -> Requirement:
    problems = []
    for index, value in enumerate(values):
        if operator in {">", "<"} and not re.fullmatch(r"[-+]?\d+", value, re.ASCII):
            reason = "for 'Gt', 'Lt' operators, the value must be an integer"
            problems.append(f'values[{index}]: Invalid value: "{value}": {reason}')
        elif reason := name_rules.label_value(value):
            problems.append(f'values[{index}][{key}]: Invalid value: "{value}": {reason}')
    if problems:
        raise _parse_error(_listed(problems, ", "))
    return Requirement(key, operator, frozenset(values))


def _listed(errors: list[str], separator: str) -> str:
    return errors[0] if len(errors) == 1 else f"[{separator.join(errors)}]"


def _parse_error(reason: str) -> SelectorError:
    return SelectorError(f"unable to parse requirement: {reason}")


@attrs.frozen
class Selector:
    """A label selector, as text and parsed; an empty one selects everything."""

    text: str = ""
    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)


def parse_selector(text: str) -> Selector:
    """Parse a selector from a command line or a config file, where `>` and `<` are not allowed.

    Raises:
        UserError: The text is not such a selector; the message names the invalid part.
    """
    text = text.strip()
    return Selector(text, tuple(_parse_part(part.strip()) for part in _PARTS.split(text)) if text else ())


def _parse_part(part: str) -> Requirement:
    try:
        [requirement] = parse_requirements(part)
        if requirement.operator not in {">", "<"}:
            return requirement
    except ValueError:
        pass
    raise UserError(
        f'"{part}" is not a label selector; use team=ml, team!=ml, team in (ml,web), team or !team, joined by commas'
    )
