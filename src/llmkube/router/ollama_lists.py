"""What a client is told that asks in Ollama's words which models there are."""

from collections.abc import Collection, Sequence

import attrs

from llmkube.base.http.message import Headers, Response
from llmkube.router.dialects.ollama_models import VERSION, listed, running, shown
from llmkube.router.dispatch.request_body import BodyError, parse_body


@attrs.frozen
class Listed:
    """One model that a client can ask for.

    Attributes:
        name: What it is called.
        runs: Whether an engine of ours serves it now.
        tags: What it can, in the words of `Backend.capabilities`.
    """

    name: str
    runs: bool
    tags: Collection[str] = ()


def refused_method(method: str, path: str) -> Response | None:
    """Return what is said of a method that one of the `LISTS` does not have; None of one that it has."""
    allowed = ("POST",) if path == "/api/show" else ("GET", "HEAD")
    if method in allowed:
        return None
    said = {"error": f"{method} is not allowed on {path}"}
    return Response.json(405, said, headers=Headers.of({"Allow": ", ".join(allowed)}))


def ollama_list(path: str, body: bytes, models: Sequence[Listed], created: int) -> Response:
    """Answer one of the `LISTS`.

    Args:
        path: Which.
        body: Of `/api/show`: names a model.
        models: Those that this client can ask for.
        created: Since when, in seconds since 1970.
    """
    if path == "/api/version":
        return Response.json(200, {"version": VERSION})
    if path == "/api/tags":
        return Response.json(200, listed([each.name for each in models], created))
    if path == "/api/ps":
        return Response.json(200, running([each.name for each in models if each.runs]))
    try:
        wanted = parse_body(body)["model"]
    except BodyError as exc:
        return Response.json(400, {"error": str(exc)})
    one = next((each for each in models if each.name == wanted), None)
    if one is None:
        return Response.json(404, {"error": f"model {wanted!r} not found"})
    return Response.json(200, shown(one.tags, created))
