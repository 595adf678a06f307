"""Selectors choose objects by labels or by a few fields."""

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
    """Choose the objects that both predicates choose."""
    if one is everything or other is everything:
        return other if one is everything else one
    return lambda candidate: one(candidate) and other(candidate)


def label_selector(text: str) -> Predicate:
    """Return the predicate that the text describes.

    Raises:
        RequestRefusedError: 400, the text is not a selector.
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
    """Return the message for an unknown field of a built-in kind without selectable fields of its own."""
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def field_selector(text: str, paths: Mapping[str, str], unknown: Callable[[str], str] = _not_supported) -> Predicate:
    """Return the predicate that the text describes; `paths` maps a field's label to its dotted path.

    Raises:
        RequestRefusedError: 400, not a selector, or objects of the kind cannot be selected by that field.
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
            continue  # an empty term has no effect
        if name not in paths:
            raise bad_request(unknown(name))
        tests.append((paths[name].split("."), value, operator != "!="))
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
