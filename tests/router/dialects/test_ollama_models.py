"""What Ollama's clients read of models: what they need is there, and no size is made up."""

from llmkube.router.dialects.ollama_models import listed, running, shown


def test_a_list_has_what_clients_read():
    """A digest is long enough to be cut by them, and the same each time."""
    first, second = listed(["a", "b"], 0)["models"]
    assert (first["name"], first["model"], first["size"]) == ("a", "a", 0)
    assert first["modified_at"] == "1970-01-01T00:00:00Z"
    assert len(first["digest"]) == 64
    assert first["digest"] != second["digest"]
    assert running(["a"])["models"][0]["digest"] == first["digest"]


def test_what_a_model_can_is_what_its_backend_is_tagged_with():
    """Without a tag it completes."""
    assert shown({"chat", "tools", "odd"}, 0)["capabilities"] == ["completion", "tools"]
    assert shown((), 0)["capabilities"] == ["completion"]
