"""The rules of a ModelRouter."""

from typing import Any

import celpy
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import object_schema
from llmkube.k8s.crd.modelrouter import Backend
from llmkube.k8s.crd.serving import SPECULATION_TYPES, SpeculativeDecoding
from llmkube.k8s.fields import Rule


def broken_rules(cls: Any, value: dict[str, Any]) -> list[str]:
    """The messages of the rules that a value breaks, by a real CEL evaluator."""
    environment = celpy.Environment()
    rules: tuple[Rule, ...] = cls.RULES
    activation = {"self": celpy.json_to_cel(value)}
    programs = [(environment.program(environment.compile(rule.rule)), rule.message) for rule in rules]
    return [message for program, message in programs if not program.evaluate(activation)]


FILE, REF = {"draftModel": "draft.gguf"}, {"draftModelRef": "small"}


@pytest.mark.parametrize("method", SPECULATION_TYPES)
def test_every_method_can_be_used(method: str) -> None:
    """No method is ruled out altogether: each is admitted with a draft model or without."""
    assert [] in (broken_rules(SpeculativeDecoding, {"type": method, **extra}) for extra in ({}, FILE))


@pytest.mark.parametrize(
    ("backend", "tier"),
    [
        ({"inferenceServiceRef": {"name": "phi"}}, "local"),
        ({"external": {"provider": "openai", "model": "x"}}, "cloud"),
        ({"external": {"provider": "openai", "model": "x", "url": "http://lan"}, "tier": "local"}, "local"),
    ],
)
def test_what_leaves_the_cluster_is_cloud(backend: dict[str, Any], tier: str) -> None:
    """A backend without a tier is local only if it is an InferenceService; no default says otherwise."""
    schema = object_schema(Backend)["properties"]["tier"]
    assert "default" not in schema
    assert decode(Backend, {"name": "b", **backend}).effective_tier == tier
