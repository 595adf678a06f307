"""The rules of autoscaling."""

from typing import Any

import celpy
import pytest

from llmkube.k8s.crd.placement import Autoscaling
from llmkube.k8s.fields import Rule


def broken_rules(cls: Any, value: dict[str, Any]) -> list[str]:
    """The messages of the rules that a value breaks, by a real CEL evaluator."""
    environment = celpy.Environment()
    rules: tuple[Rule, ...] = cls.RULES
    activation = {"self": celpy.json_to_cel(value)}
    programs = [(environment.program(environment.compile(rule.rule)), rule.message) for rule in rules]
    return [message for program, message in programs if not program.evaluate(activation)]


@pytest.mark.parametrize(
    ("minimum", "maximum", "broken"),
    [(1, 1, []), (1, 5, []), (3, 2, ["minReplicas must not exceed maxReplicas"])],
)
def test_autoscaling_rule(minimum: int, maximum: int, broken: list[str]) -> None:
    """A floor above the ceiling is refused."""
    assert broken_rules(Autoscaling, {"minReplicas": minimum, "maxReplicas": maximum}) == broken
