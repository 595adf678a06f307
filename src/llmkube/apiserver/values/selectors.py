"""Selectors choose objects by labels or by a few fields; a watch turns a change of mind into ADDED or DELETED.

Label selectors are read token by token, so that what is wrong with one is said in kube-apiserver's words.
Grammar: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (x,y)`, `a notin (x,y)`, `a>1`, `a<1`, joined by commas.
Facts: `k8s.io/apimachinery/pkg/labels`.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.values import name_rules
from llmkube.apiserver.values.api_errors import RequestRefusedError, bad_request

_TOKEN: Final = re.compile(r"\s*(==|!=|[=!(),<>]|[^=!(),<>\s]+)")
_OPERATORS: Final = ("in", "notin", "=", "==", "!=", ">", "<")
_SIGNS: Final = frozenset("=!(),<>") | {"==", "!="}
_END: Final = ""


@attrs.frozen
class Requirement:
    """One thing that is asked of the labels; without an operator, that the key is there."""

    key: str
    operator: str = ""  # one of `_OPERATORS`, `!`, or empty
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels are as required; a missing label fits `!=` and `notin`."""
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
    """Return what a selector asks for; an empty one asks for nothing.

    Raises:
        RequestRefusedError: 400.
    """
    tokens = _Tokens(_TOKEN.findall(text))
    found = []
    while tokens.next != _END:
        if tokens.next in _SIGNS - {"!"}:
            raise bad_request(f"found '{tokens.next}', expected: !, identifier, or 'end of string'")
        found.append(_requirement(tokens))
        comma = tokens.take()
        if comma not in {_END, ","}:
            raise bad_request(f"found '{comma}', expected: ',' or 'end of string'")
        if comma and tokens.next in (_SIGNS - {"!"}) | {_END}:
            raise bad_request(f"found '{tokens.next}', expected: identifier after ','")
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
        raise _unreadable(f"found '{key}', expected: identifier")
    if wrong := name_rules.label_key(key):
        raise _unreadable(_listed([f'<nil>: Invalid value: "{key}": {each}' for each in wrong], "; "))
    if tokens.next in {_END, ","}:
        return Requirement(key, "!" if absent else "")
    operator = tokens.take()
    if operator not in _OPERATORS:
        raise _unreadable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
    values = _set(tokens) if operator in {"in", "notin"} else [_value(tokens)]
    return _judged(key, operator, values)


def _value(tokens: _Tokens) -> str:
    if tokens.next in {_END, ","}:
        return ""
    value = tokens.take()
    if value in _SIGNS:
        raise _unreadable(f"found '{value}', expected: identifier")
    return value


def _set(tokens: _Tokens) -> list[str]:
    opening = tokens.take()
    if opening != "(":
        raise _unreadable(f"found '{opening}' expected: '('")
    if tokens.next in (_SIGNS - {",", ")"}) | {_END}:
        raise _unreadable(f"found '{tokens.next}', expected: ',', ')' or identifier")
    values = [""]
    while (word := tokens.take()) != ")":
        if word == ",":
            values.append("")
        elif word in _SIGNS or word == _END or values[-1]:
            raise _unreadable(f"found '{word}', expected: ',' or ')'")
        else:
            values[-1] = word
    return values


def _judged(key: str, operator: str, values: list[str]) -> Requirement:
    wrong = []
    for index, value in enumerate(values):
        if operator in {">", "<"} and not re.fullmatch(r"[-+]?\d+", value, re.ASCII):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            wrong.append(f'values[{index}]: Invalid value: "{value}": {why}')
        elif why := name_rules.label_value(value):
            wrong.append(f'values[{index}][{key}]: Invalid value: "{value}": {why}')
    if wrong:
        raise _unreadable(_listed(wrong, ", "))
    return Requirement(key, operator, frozenset(values))


def _listed(errors: list[str], between: str) -> str:
    return errors[0] if len(errors) == 1 else f"[{between.join(errors)}]"


def _unreadable(why: str) -> RequestRefusedError:
    return bad_request(f"unable to parse requirement: {why}")


Predicate = Callable[[Mapping[str, Any]], bool]
"""Whether an object is chosen."""


def everything(_: Mapping[str, Any]) -> bool:
    """Choose every object."""
    return True


def both(one: Predicate, other: Predicate) -> Predicate:
    """Choose what each of the two chooses."""
    if one is everything or other is everything:
        return other if one is everything else one
    return lambda candidate: one(candidate) and other(candidate)


def label_selector(text: str) -> Predicate:
    """Return the predicate that the text describes.

    Raises:
        RequestRefusedError: 400, the text is no selector.
    """
    requirements = parse_requirements(text)
    if not requirements:
        return everything

    def chosen(candidate: Mapping[str, Any]) -> bool:
        labels = candidate["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return chosen


def _not_supported(name: str) -> str:
    return f"field label not supported: {name}"


def not_known(name: str) -> str:
    """Say that a field cannot be selected by, as built-in kinds do that have no fields of their own to select by."""
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def field_selector(
    text: str, selectable: Mapping[str, str], unknown: Callable[[str], str] = _not_supported
) -> Predicate:
    """Return the predicate that the text describes; `selectable` maps a field's label to its dotted path.

    Raises:
        RequestRefusedError: 400, not a selector, or the kind cannot be selected by that field.
    """
    tests = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]*?)(!=|==|=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        name, operator, value = match.groups()
        if "=" in value:
            raise bad_request("invalid field selector: unescaped character in value: 61")
        if not name and not value:
            continue  # says nothing about nothing
        if name not in selectable:
            raise bad_request(unknown(name))
        tests.append((selectable[name].split("."), value, operator != "!="))
    if not tests:
        return everything

    def chosen(candidate: Mapping[str, Any]) -> bool:
        return all((_field(candidate, path) == value) is wanted for path, value, wanted in tests)

    return chosen


def _field(candidate: Mapping[str, Any], path: list[str]) -> str:
    value: Any = candidate
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
