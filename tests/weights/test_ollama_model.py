"""Names of Ollama's library, as sources: one spelling for each, and no server of a user's choice."""

import pytest

from llmkube.weights.errors import SourceError
from llmkube.weights.ollama_model import AllowedModels, OllamaModel
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
    with pytest.raises(SourceError, match="use ollama://NAME:TAG"):
        parse_source(text)


@pytest.mark.parametrize("text", ["ollama://llmkube/default_chat:1a2b3c4d", "ollama://LLMKube/default_chat"])
def test_what_was_made_for_another_service_is_refused(text):
    """Its weights may have taken a credential of another namespace."""
    with pytest.raises(SourceError, match="use the source of that service's Model"):
        parse_source(text)


ALLOWED = {
    (): (),
    ("llama3.2",): ("llama3.2:latest", "llama3.2:1b", "LLAMA3.2:latest", "library/llama3.2:latest"),
    ("llama3.2:1b",): ("llama3.2:1b",),
    ("llama3.*",): ("llama3.2:latest", "llama3.2:1b", "LLAMA3.2:latest", "library/llama3.2:latest"),
    ("library/llama3.2:1*",): ("llama3.2:1b",),
    ("*",): ("llama3.2:latest", "llama3.2:1b", "LLAMA3.2:latest", "library/llama3.2:latest", "llama3x2:1b"),
    ("*/*",): ("me/secret:latest", "you/secret:1"),
    ("me/*", "llama3.2:1b"): ("me/secret:latest", "llama3.2:1b"),
    ("*:1b",): ("llama3.2:1b", "llama3x2:1b"),
}
NAMES = (
    *("llama3.2:latest", "llama3.2:1b", "LLAMA3.2:latest", "library/llama3.2:latest", "llama3x2:1b"),
    *("me/secret:latest", "you/secret:1"),
)


@pytest.mark.parametrize("patterns", ALLOWED)
def test_an_owner_allows_by_name(patterns):
    """Nothing without a pattern; one without a namespace means no model that has one; a dot is a dot."""
    found = {name for name in NAMES if AllowedModels.of(patterns).admits(OllamaModel(name))}
    assert found == set(ALLOWED[patterns])


@pytest.mark.parametrize("pattern", ["", "ollama://llama3.2", "a/b/c", "a b", "a:", ":b", "[a-z]*", "hf.co/a"])
def test_a_pattern_that_can_match_nothing_is_refused(pattern):
    """With how they are written."""
    with pytest.raises(ValueError, match=r"such as llama3\.2, or"):
        AllowedModels.of([pattern])
