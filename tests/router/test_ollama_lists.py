"""What a client reads that asks in Ollama's words which models there are."""

import json

import pytest

from llmkube.router.ollama_lists import Listed, ollama_list, refused_method

MODELS = (Listed("chat", runs=True, tags={"tools"}), Listed("off", runs=False))


def asked(path, body=b""):
    found = ollama_list(path, body, MODELS, 0)
    return found.status, json.loads(found.body)


def names(path):
    return [each["name"] for each in asked(path)[1]["models"]]


def test_all_are_listed_and_those_that_run_apart():
    """`/api/tags` is what there is, `/api/ps` what has an engine."""
    assert names("/api/tags") == ["chat", "off"]
    assert names("/api/ps") == ["chat"]
    assert asked("/api/version")[1]["version"]


def test_one_is_shown_by_its_name():
    """Another name is not found, and a body without one is the client's fault."""
    assert asked("/api/show", b'{"model": "chat"}')[1]["capabilities"] == ["tools"]
    assert asked("/api/show", b'{"model": "none"}') == (404, {"error": "model 'none' not found"})
    assert asked("/api/show", b"{}")[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/tags", None),
        ("HEAD", "/api/ps", None),
        ("POST", "/api/show", None),
        ("POST", "/api/tags", "GET, HEAD"),
        ("GET", "/api/show", "POST"),
    ],
)
def test_each_has_its_method(method, path, allow):
    """Another one is refused, with what there is."""
    said = refused_method(method, path)
    assert (said and said.headers.get("allow")) == allow
