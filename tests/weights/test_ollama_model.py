"""Names of Ollama's library, as sources: one spelling for each, and no server of a user's choice."""

import pytest

from llmkube.weights.errors import SourceError
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.source import parse_source


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ollama://llama3.2", "llama3.2:latest"),
        ("ollama://llama3.2:3b-instruct-q4_K_M", "llama3.2:3b-instruct-q4_K_M"),
        ("ollama://someone/their_model:1", "someone/their_model:1"),
    ],
)
def test_a_name_is_read_with_its_tag(text, name):
    """The same model has one name."""
    source = parse_source(text)
    assert source == OllamaModel(name)
    assert source.redacted == f"ollama://{name}"


@pytest.mark.parametrize(
    "text",
    [
        "ollama://",
        "ollama://:3b",
        "ollama://llama3.2:",
        "ollama://registry.example:5000/a/b",
        "ollama://hf.co/org/repo",
        "ollama://10.0.0.1/a/b:c",
        "ollama://../a",
        "ollama://a b",
        "ollama://a@sha256:1",
        f"ollama://{'a' * 90}",
    ],
)
def test_what_is_no_name_of_its_library_is_refused(text):
    """A server among them: a Model must not choose whom a program of the host asks."""
    with pytest.raises(SourceError, match="write ollama://NAME:TAG"):
        parse_source(text)
