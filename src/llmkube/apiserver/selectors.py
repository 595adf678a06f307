"""Selectors choose objects by labels or by a few fields; a watch turns a change of mind into ADDED or DELETED.

Grammar of label selectors: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (x,y)`, `a notin (x,y)`, `a>1`, `a<1`, joined by
commas.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from llmkube.apiserver.failures import bad_request

Predicate = Callable[[Mapping[str, Any]], bool]
"""Whether an object is chosen."""

_REQUIREMENT: Final = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<absent_key>[\w./-]+)
      | (?P<set_key>[\w./-]+)\s+(?P<set_op>in|notin)\s*\(\s*(?P<values>[^()]*)\)
      | (?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=|>|<)\s*(?P<value>[\w.-]*))?
    )\s*(?:,|$)""",
    re.VERBOSE | re.ASCII,
)


def everything(_: Mapping[str, Any]) -> bool:
    """Choose every object."""
    return True


def label_selector(text: str) -> Predicate:
    """Return the predicate that the text describes.

    Raises:
        RequestRefusedError: 400, the text is no selector.
    """
    tests = []
    at = 0
    while at < len(text.rstrip()):
        match = _REQUIREMENT.match(text, at)
        if match is None or (match.end() == len(text) and text.rstrip().endswith(",")):
            raise bad_request(f"unable to parse requirement: found '{text[at:].strip()}', expected: a label selector")
        tests.append(_requirement(match))
        at = match.end()
    if not tests:
        return everything

    def chosen(candidate: Mapping[str, Any]) -> bool:
        labels = candidate["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return chosen


def field_selector(text: str, selectable: Mapping[str, str]) -> Predicate:
    """Return the predicate that the text describes; `selectable` maps a field's label to its dotted path.

    Raises:
        RequestRefusedError: 400, not a selector, or the kind cannot be selected by that field.
    """
    tests = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        name, operator, value = match.groups()
        if name not in selectable:
            raise bad_request(f"field label not supported: {name}")
        tests.append((selectable[name].split("."), value.strip(), operator != "!="))
    if not tests:
        return everything

    def chosen(candidate: Mapping[str, Any]) -> bool:
        return all((_field(candidate, path) == value) is wanted for path, value, wanted in tests)

    return chosen


_LabelTest = Callable[[Mapping[str, str]], bool]


def _requirement(match: re.Match[str]) -> _LabelTest:
    if match["absent"]:
        absent = match["absent_key"]
        return lambda labels: absent not in labels
    if match["set_op"]:
        key, wanted = match["set_key"], match["set_op"] == "in"
        values = frozenset(value.strip() for value in match["values"].split(","))
        return lambda labels: (key in labels and labels[key] in values) is wanted
    key, operator, value = match["key"], match["op"], match["value"]
    if operator is None:
        return lambda labels: key in labels
    if operator in {">", "<"}:
        return _comparison(key, operator, value)
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _comparison(key: str, operator: str, value: str) -> _LabelTest:
    try:
        bound = int(value)
    except ValueError:
        why = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(f'values[0]: Invalid value: "{value}": {why}') from None

    def compared(labels: Mapping[str, str]) -> bool:
        try:
            given = int(labels[key])
        except (KeyError, ValueError):
            return False
        return given > bound if operator == ">" else given < bound

    return compared


def _field(candidate: Mapping[str, Any], path: list[str]) -> str:
    value: Any = candidate
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
