"""The rules of classes, judged by a real CEL evaluator."""

from typing import Any

import celpy
import pytest

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.placement import Autoscaling
from llmkube.k8s.crd.serving import SPECULATION_TYPES, SpeculativeDecoding
from llmkube.k8s.fields import Rule


def broken_rules(cls: Any, value: dict[str, Any]) -> list[str]:
    """The messages of the rules that a value breaks."""
    environment = celpy.Environment()
    rules: tuple[Rule, ...] = cls.RULES
    activation = {"self": celpy.json_to_cel(value)}
    programs = [(environment.program(environment.compile(rule.rule)), rule.message) for rule in rules]
    return [message for program, message in programs if not program.evaluate(activation)]


PERMISSIONS, NONE, BOTH = (rule.message for rule in SpeculativeDecoding.RULES)


FILE, REF = {"draftModel": "draft.gguf"}, {"draftModelRef": "small"}


@pytest.mark.parametrize(
    ("value", "broken"),
    [
        ({"type": "draft"}, [PERMISSIONS]),
        ({"type": "draft", **FILE}, []),
        ({"type": "draft-eagle3", **REF}, []),
        ({"type": "draft-simple", **FILE, **REF}, [BOTH]),
        ({"type": "draft-mtp"}, []),
        ({"type": "draft-mtp", **REF}, []),
        ({"type": "mtp"}, []),
        ({"type": "mtp", **FILE}, []),
        ({"type": "ngram-mod"}, []),
        ({"type": "ngram-mod", **FILE}, [NONE]),
        ({"type": "none", **FILE, **REF}, [NONE, BOTH]),
    ],
)
def test_speculation_rules(value: dict[str, Any], broken: list[str]) -> None:
    """A draft model is named exactly where the method uses one, and once."""
    assert broken_rules(SpeculativeDecoding, value) == broken


@pytest.mark.parametrize("method", SPECULATION_TYPES)
def test_every_method_can_be_used(method: str) -> None:
    """No method is ruled out altogether: each is admitted with a draft model or without."""
    assert [] in (broken_rules(SpeculativeDecoding, {"type": method, **extra}) for extra in ({}, FILE))


@pytest.mark.parametrize(
    ("minimum", "maximum", "broken"),
    [(1, 1, []), (1, 5, []), (3, 2, ["minReplicas must not exceed maxReplicas"])],
)
def test_autoscaling_rule(minimum: int, maximum: int, broken: list[str]) -> None:
    """A floor above the ceiling is refused."""
    assert broken_rules(Autoscaling, {"minReplicas": minimum, "maxReplicas": maximum}) == broken


@pytest.mark.parametrize(
    ("activation", "is_valid"), [({}, False), ({"mode": "Always"}, False), ({"mode": "OnRequest"}, True)]
)
def test_no_replicas_need_requests_to_start_them(activation: dict[str, Any], is_valid: bool) -> None:
    """A floor of 0 is refused unless the service is loaded on request; one of 1 needs nothing."""
    spec = {"modelRef": "phi", "runtime": "llamacpp", "activation": activation}
    floor = {"minReplicas": 0, "maxReplicas": 3}
    assert (not broken_rules(InferenceServiceSpec, spec | {"autoscaling": floor})) == is_valid
    assert broken_rules(InferenceServiceSpec, {"modelRef": "phi", "runtime": "llamacpp"}) == []
