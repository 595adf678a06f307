"""Ollama's model list and details: required fields are present, and no figure is invented."""

import pytest

from llmkube.router.dialects.ollama_models import ModelFacts, known_name, listed, running, shown

META = {
    "n_ctx": 8192,
    "n_ctx_train": 32768,
    "n_params": 3_212_749_888,
    "n_embd": 3072,
    "size": 2019377152,
    "ftype": "Q4",
}
PROPS = {
    "chat_template": "{% if enable_thinking %}",
    "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
    "modalities": {"vision": True, "audio": False},
    "default_generation_settings": {"n_ctx": 4096},
}


def test_a_list_has_what_clients_read():
    """The digest is long enough for clients that truncate it, and stable."""
    facts = ModelFacts().with_meta(META)
    first, second = listed([("a", facts), ("b", ModelFacts())], 0)["models"]
    assert (first["name"], first["model"], first["size"], second["size"]) == ("a", "a", 2019377152, 0)
    assert first["modified_at"] == "1970-01-01T00:00:00Z"
    assert (first["details"]["parameter_size"], second["details"]["parameter_size"]) == ("3.2B", "")
    assert len(first["digest"]) == 64
    assert first["digest"] != second["digest"]
    assert running([("a", facts)])["models"][0]["digest"] == first["digest"]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"chat", "tools", "odd"}, ["completion", "thinking", "tools", "vision"]),
        ((), ["completion", "thinking", "tools", "vision"]),
        ({"embedding"}, ["embedding"]),
        ({"rerank"}, []),
    ],
)
def test_capabilities_are_those_of_the_tags_and_of_the_engine(tags, expected):
    """Abilities of the chat template do not matter for a model that is served for embeddings."""
    facts = ModelFacts().with_props(PROPS)
    assert shown("m", tags, facts, 0)["capabilities"] == expected
    assert shown("m", (), ModelFacts(), 0)["capabilities"] == ["completion"]


def test_details_have_the_file_and_the_context_of_one_request():
    """The engine's context is preferred to that of its list, and a file's quantization to the engine's."""
    facts = ModelFacts(architecture="llama", quantization="Q4_K_M", context=512).with_meta(META).with_props(PROPS)
    found = shown("m", (), facts, 0)
    assert found["model_info"] == {
        "general.architecture": "llama",
        "general.basename": "m",
        "general.parameter_count": 3_212_749_888,
        "llama.context_length": 4096,
        "llama.embedding_length": 3072,
    }
    assert (found["details"]["family"], found["details"]["quantization_level"]) == ("llama", "Q4_K_M")
    assert found["template"] == PROPS["chat_template"]


def test_an_older_engine_reports_its_template_only():
    """A template that has no tools gets none."""
    for template, abilities in (("{% for t in tools %}", {"tools"}), ("{{ messages }}", set())):
        assert ModelFacts().with_props({"chat_template": template}).abilities == abilities


@pytest.mark.parametrize(
    "props",
    [{}, {"chat_template_caps": 1, "chat_template": 7}, {"default_generation_settings": {"n_ctx": "x"}}],
)
def test_odd_properties_leave_the_facts_unchanged(props):
    """Other engines have the path with another answer."""
    facts = ModelFacts(context=7)
    assert facts.with_props(props) == facts
    assert facts.with_meta({"n_ctx": "x", "ftype": 1}) == facts


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("demo:latest", ("demo",), "demo"),
        ("demo:latest", ("demo", "demo:latest"), "demo:latest"),
        ("demo:latest", (), "demo:latest"),
        ("demo:7b", ("demo",), "demo:7b"),
        ("demo", ("demo:latest",), "demo"),
    ],
)
def test_the_default_tag_names_the_same_model(name, known, expected):
    """A model whose id has the tag is preferred."""
    assert known_name(name, known.__contains__) == expected
