"""Ollama's lists of models."""

import json
from types import SimpleNamespace

import pytest
import trio

from http_lab import head_of
from llmkube.router.dialects.ollama_models import POST_PATHS, ModelFacts
from llmkube.router.model_list import ModelEntry, ModelList

FACTS = ModelFacts(architecture="qwen2", context=8192, parameters=1_540_000_000, quantization="Q4_K_M")
MODELS = ModelList(
    lambda _: [ModelEntry(name="chat", runs=True, tags={"tools"}, facts=FACTS), ModelEntry(name="off")], 0
)


def answer(path, body=b"", method=None):
    head = head_of(path, method=method or ("POST" if path in POST_PATHS else "GET"))
    return trio.run(MODELS.ollama, SimpleNamespace(head=head, body=body), path)


def asked(path, body=b""):
    found = answer(path, body)
    return found.status, json.loads(found.body)


def names(path):
    return [each["name"] for each in asked(path)[1]["models"]]


def test_all_are_listed_and_those_that_run_apart():
    """`/api/tags` has all models, `/api/ps` those with an engine; both have the details of their files."""
    assert names("/api/tags") == ["chat", "off"]
    assert names("/api/ps") == ["chat"]
    (shown,) = asked("/api/ps")[1]["models"]
    assert (shown["context_length"], shown["details"]["parameter_size"]) == (8192, "1.5B")
    assert asked("/api/tags")[1]["models"][0]["details"]["quantization_level"] == "Q4_K_M"


def test_the_version_is_recent_enough_for_codex():
    """Codex requires 0.13.4 for `/v1/responses`."""
    version = asked("/api/version")[1]["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


@pytest.mark.parametrize(
    "body", [b'{"model": "chat"}', b'{"name": "chat"}', b'{"model": "chat:latest"}', b'{"model": "", "name": "chat"}']
)
def test_one_is_shown_by_its_name(body):
    """The older field and the default tag name it as well."""
    status, shown = asked("/api/show", body)
    assert (status, shown["capabilities"]) == (200, ["completion", "tools"])
    assert shown["model_info"]["qwen2.context_length"] == 8192


def test_an_unknown_name_is_404():
    """A body without a name is a client error; another tag than the default one is another model."""
    for name in ("none", "none:latest", "chat:7b"):
        body = json.dumps({"model": name}).encode()
        assert asked("/api/show", body) == (404, {"error": f"model {name!r} not found"})
    assert asked("/api/show", b"{}")[0] == 400


def test_a_pull_of_a_model_that_exists_succeeds():
    """The error of a stream has status 200, as in Ollama, since Codex reads the lines only."""
    pulled = answer("/api/pull", b'{"model": "chat"}')
    assert (json.loads(pulled.body), pulled.headers.get("content-type")) == (
        {"status": "success"}, "application/x-ndjson",
    )  # fmt: skip
    missing = b'{"name": "gpt-oss:20b"%b}'
    status, error = asked("/api/pull", missing % b"")
    assert (status, "deploy it with" in error["error"]) == (200, True)
    assert asked("/api/pull", missing % b', "stream": false') == (404, error)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/tags", None),
        ("HEAD", "/api/ps", None),
        ("POST", "/api/show", None),
        ("POST", "/api/tags", "GET, HEAD"),
        ("GET", "/api/show", "POST"),
        ("GET", "/api/pull", "POST"),
    ],
)
def test_each_has_its_method(method, path, allow):
    """Other methods are refused with the allowed one."""
    response = answer(path, b"{}", method)
    assert (response.headers.get("allow"), response.status == 405) == (allow, allow is not None)
