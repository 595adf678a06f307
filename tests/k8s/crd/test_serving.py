"""The rules of speculative decoding."""

from typing import Any

import celpy
import pytest

from llmkube.k8s.crd.serving import SpeculativeDecoding
from llmkube.k8s.fields import Rule


def broken_rules(cls: Any, value: dict[str, Any]) -> list[str]:
    """The messages of the rules that a value breaks, by a real CEL evaluator."""
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
