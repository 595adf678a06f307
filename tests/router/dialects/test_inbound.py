"""Dialects by path; chat completions are not translated."""

import json

from llmkube.base.http.message import Response
from llmkube.router.dialects.inbound import DIALECTS, refusal_at, translated_request


def test_what_is_no_dialect_passes_as_it_is():
    """The body is the same, and answers are not translated."""
    body = {"model": "m"}
    found = translated_request("/v1/embeddings", body)
    assert (found.path, found.body, found.translator, found.dropped) == ("/embeddings", body, None, ())
    refused = Response.json(404, {"error": {"message": "no"}})
    assert refusal_at("/v1/embeddings", refused) is refused


def test_each_dialect_has_errors_of_its_own():
    """A path with a trailing slash has them, too."""
    for path in DIALECTS:
        error = json.loads(refusal_at(f"{path}/", Response.json(404, {"error": {"message": "no"}})).body)
        assert "no" in (error["error"], error["error"]["message"] if isinstance(error["error"], dict) else "")
        assert ("type" in error) == path.startswith("/v1/messages")
