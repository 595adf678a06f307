"""Selectors choose objects by labels or by a few fields; a watch turns a change of mind into ADDED or DELETED."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from llmkube.apiserver.values.api_errors import bad_request
from llmkube.k8s.label_selectors import SelectorError, parse_requirements

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
    try:
        requirements = parse_requirements(text)
    except SelectorError as exc:
        raise bad_request(str(exc)) from exc
    if not requirements:
        return everything

    def selector(candidate: Mapping[str, Any]) -> bool:
        labels = candidate["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return selector


def _not_supported(name: str) -> str:
    return f"field label not supported: {name}"


def unknown_field_message(name: str) -> str:
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

    def selector(candidate: Mapping[str, Any]) -> bool:
        return all((_field(candidate, path) == value) is wanted for path, value, wanted in tests)

    return selector


def _field(candidate: Mapping[str, Any], path: list[str]) -> str:
    value: Any = candidate
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
