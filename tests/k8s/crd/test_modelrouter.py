"""Meaning of a ModelRouter's backends."""

from typing import Any

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import object_schema
from llmkube.k8s.crd.modelrouter import Backend


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
