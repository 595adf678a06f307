"""Ollama's lists of models."""

import json
from types import SimpleNamespace

import pytest

from http_lab import head_of
from llmkube.router.model_list import ModelEntry, ModelList

MODELS = ModelList(lambda _: [ModelEntry(name="chat", runs=True, tags={"tools"}), ModelEntry(name="off")], 0)


def answer(path, body=b"", method=None):
    head = head_of(path, method=method or ("POST" if path == "/api/show" else "GET"))
    return MODELS.ollama(SimpleNamespace(head=head, body=body), path)


def asked(path, body=b""):
    found = answer(path, body)
    return found.status, json.loads(found.body)


def names(path):
    return [each["name"] for each in asked(path)[1]["models"]]


def test_all_are_listed_and_those_that_run_apart():
    """`/api/tags` has all models, `/api/ps` those with an engine."""
    assert names("/api/tags") == ["chat", "off"]
    assert names("/api/ps") == ["chat"]
    assert asked("/api/version")[1]["version"]


def test_one_is_shown_by_its_name():
    """An unknown name is 404, and a body without a name is a client error."""
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
    """Other methods are refused with the allowed one."""
    response = answer(path, b"{}", method)
    assert (response.headers.get("allow"), response.status == 405) == (allow, allow is not None)
