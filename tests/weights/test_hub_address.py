"""The ways in which people name a repository lead to one source."""

import pytest

from llmkube.weights.errors import SourceError
from llmkube.weights.source import HubFile, HubRepository, WebFile, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/repo:Q4_K_M", HubRepository("org/repo", "main", "Q4_K_M")),
        ("org/repo:UD-Q4_K_XL@v1", HubRepository("org/repo", "v1", "UD-Q4_K_XL")),
        ("hf://org/repo:Q8_0", HubRepository("org/repo", "main", "Q8_0")),
        ("hf.co/org/repo:Q8_0", HubRepository("org/repo", "main", "Q8_0")),
        ("huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo?library=llama-cpp-python", HubRepository("org/repo")),
        ("https://hf.co/org/repo:IQ2_XXS", HubRepository("org/repo", "main", "IQ2_XXS")),
        ("https://huggingface.co/org/repo/tree/v1", HubRepository("org/repo", "v1")),
        ("https://huggingface.co/org/repo/blob/main/q/m.gguf", HubFile("org/repo", "q/m.gguf")),
    ],
)
def test_a_repository_as_people_write_it(text, source):
    """A name with a quantization, the hub's short name, and what a browser shows are the same repository."""
    assert parse_source(text) == source
    assert parse_source(source.identity) == source


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/org/repo/resolve/main/m.gguf",
        "https://huggingface.co/datasets/data",
        "https://x.example/a/b",
    ],
)
def test_what_is_no_page_of_a_repository_stays_a_file(text):
    """Addresses that are downloaded from keep the name by which the store knows them."""
    assert isinstance(parse_source(text), WebFile)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("org/repo:", "malformed quantization"),
        ("org/repo:Q4/x", "malformed quantization"),
        ("hf://org/repo:Q4_K_M/m.gguf", "malformed quantization"),
    ],
)
def test_what_is_refused_says_what_to_write(text, words):
    """A source that cannot be had names the form that can."""
    with pytest.raises(SourceError, match=words):
        parse_source(text)
