"""The names of our models in Ollama's store."""

import pytest

from llmkube.programs.daemon_engine.ollama.store_names import store_name


@pytest.mark.parametrize(
    ("namespace", "name", "stored"),
    [
        ("default", "chat", "llmkube/default_chat:"),
        ("a", "b" * 253, "llmkube/a_" + "b" * 78 + ":"),
        ("team-a", "llama3.1", "llmkube/team-a_llama3.1:"),
    ],
)
def test_a_service_has_one_name_in_the_store(namespace, name, stored):
    """It is one that Ollama takes; with other weights, or another context, it is another one."""
    first = store_name(namespace, name, "/m/a.gguf", 512)
    assert first.startswith(stored)
    assert len(first) == len(stored) + 8
    assert first != store_name(namespace, name, "/m/a.gguf", 1024)
