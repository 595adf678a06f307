"""The model's name in Ollama's store, in requests and in answers. Pure.

A client can reach one model alone, whatever it asks for. Go's JSON reader takes `"Model"` for `"model"`, and the last
of several: so no key that it would take is left beside ours.
"""

import hashlib
import re
from typing import Any, Final

import attrs
import orjson

PREFIX: Final = "llmkube/"
"""The namespace of our models in a store that others use too."""

_ALLOWED: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST: Final = 80
"""What a part of a name may have (`types/model/name.go` of Ollama, 0.17.4)."""


class RequestBodyError(Exception):
    """A request's body is no JSON object; says so to the client."""


def store_name(namespace: str, name: str, *what: object) -> str:
    """Return what a service's model is called in Ollama's store.

    While a service is given other weights or another context, the models of both have to have names.

    Args:
        namespace: The service's.
        name: The service's.
        what: The weights, and what they are served with.
    """
    tag = hashlib.sha256(repr(what).encode()).hexdigest()[:8]
    return f"{PREFIX}{_ALLOWED.sub('-', f'{namespace}_{name}'.lower())[:_LONGEST]}:{tag}"


def with_model(body: bytes, name: str) -> bytes:
    """Return a request's body that asks for this model.

    Raises:
        RequestBodyError: It is no JSON object.
    """
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestBodyError(f"the body is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise RequestBodyError("the body must be a JSON object")
    kept = {key: value for key, value in said.items() if key.casefold() != "model"}
    return orjson.dumps({"model": name} | kept)


@attrs.define(eq=False)
class AnswerNames:
    """Put the name that clients know in the place of Ollama's, in an answer that comes in pieces.

    Text of a model cannot be taken for it: within a JSON string, quotes have a backslash before them.
    """

    _ollamas: bytes
    _ours: bytes
    _held: bytes = b""

    @classmethod
    def between(cls, ollamas: str, ours: str) -> "AnswerNames":
        """Replace one name by another."""
        return cls(b'"model":' + orjson.dumps(ollamas), b'"model":' + orjson.dumps(ours))

    def feed(self, piece: bytes) -> bytes:
        """Return what can be sent; the beginning of a name waits for its rest, which no end of an event is."""
        data = (self._held + piece).replace(self._ollamas, self._ours)
        keep = next(
            (n for n in range(min(len(self._ollamas) - 1, len(data)), 0, -1) if data.endswith(self._ollamas[:n])), 0
        )
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def end(self) -> bytes:
        """Return what has waited."""
        held, self._held = self._held, b""
        return held
