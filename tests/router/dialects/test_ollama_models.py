"""Ollama's model list and details: required fields are present, and no size is invented."""

from llmkube.router.dialects.ollama_models import listed, running, shown


def test_a_list_has_what_clients_read():
    """The digest is long enough for clients that truncate it, and stable."""
    first, second = listed(["a", "b"], 0)["models"]
    assert (first["name"], first["model"], first["size"]) == ("a", "a", 0)
    assert first["modified_at"] == "1970-01-01T00:00:00Z"
    assert len(first["digest"]) == 64
    assert first["digest"] != second["digest"]
    assert running(["a"])["models"][0]["digest"] == first["digest"]


def test_what_a_model_can_is_what_its_backend_is_tagged_with():
    """A model without a tag supports completion."""
    assert shown({"chat", "tools", "odd"}, 0)["capabilities"] == ["completion", "tools"]
    assert shown((), 0)["capabilities"] == ["completion"]
