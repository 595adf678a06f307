"""Names of services that were given only a source."""

import re

import pytest

from llmkube.cli.object_names import looks_like_source, name_for


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hf://bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "llama-3.2-1b-instruct"),
        ("hf://Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf@7c41481f57cb95916b40956ab2f0b139b296d974", "qwen3-8b"),
        ("unsloth/gpt-oss-20b-GGUF", "gpt-oss-20b"),
        ("org/repo@main", "repo"),
        ("unsloth/Qwen3-4B-GGUF:Q4_K_M", "qwen3-4b"),
        ("https://huggingface.co/unsloth/Qwen3-4B-GGUF", "qwen3-4b"),
        ("hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M@v1", "qwen3-4b"),
        ("/models/My Model.Q8_0.gguf", "my-model"),
        ("https://example.org/m-00001-of-00003.gguf?sig=a/b", "m"),
        ("builtin://demo", "demo"),
        ("/models/___.gguf", "model"),
        (f"/models/{'x' * 200}.gguf", "x" * 50),
    ],
)
def test_a_source_has_a_name(source, name):
    """The name is the file's or repository's without quantization, part and suffix, valid in Kubernetes."""
    assert name_for(source) == name
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name)


@pytest.mark.parametrize(("text", "is_source"), [("chat", False), ("m.gguf", True), ("a/b", True), ("x://y", True)])
def test_a_name_is_no_source(text, is_source):
    """A word without a slash is a name."""
    assert looks_like_source(text) is is_source
