"""Which sources a Model may name."""

import re

import pytest

from llmkube.k8s.crd.model import SOURCE_PATTERN


@pytest.mark.parametrize(
    ("source", "admitted"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf", True),
        ("http://host/m.gguf", True),
        ("file:///models/with space.gguf", True),
        ("pvc://claim/path", True),
        ("hf://org/repo@rev", True),
        ("s3://bucket/key", True),
        ("builtin://demo", True),
        ("/models/m.gguf", True),
        ("org/repo", True),
        ("org/repo:Q4_K_M", True),
        ("org/repo:Q4_K_M@main", True),
        ("hf.co/org/repo:Q4_K_M", True),
        ("org/repo:", False),
        ("org/repo-1.5@refs-pr.1", True),
        ("", False),
        ("https://", False),
        ("HTTPS://x", False),
        ("gs://bucket/key", False),
        ("ftp://host/m.gguf", False),
        ("phi3:mini", False),
        ("/with space.gguf", True),
        ("/Users/ann/Library/Application Support/m 1.gguf", True),
        ("/trailing ", False),
        ("org/repo@", False),
        ("../up", False),
        ("/", False),
    ],
)
def test_source_pattern(source: str, admitted: bool) -> None:
    """A source is a URL of a known scheme, an absolute path, or a repository with or without a revision."""
    assert bool(re.search(SOURCE_PATTERN, source)) is admitted
