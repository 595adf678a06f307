"""The model's name in requests and in answers. Pure.

A client can reach one model alone, whatever it asks for. Go's JSON reader, Ollama's, takes `"Model"` for `"model"`, and
the last of several: so no key that it would take is left beside ours.
"""

from typing import Any, Final

import attrs
import orjson

_KEYS: Final = (b'"model":', b'"model": ')


class RequestBodyError(Exception):
    """A request's body is no JSON object; says so to the client."""


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
    """Put the name that clients know in the place of the daemon's, in an answer that comes in pieces.

    Text of a model cannot be taken for it: within a JSON string, quotes have a backslash before them.
    """

    _theirs: tuple[bytes, ...]
    _ours: bytes
    _held: bytes = b""

    @classmethod
    def between(cls, theirs: str, ours: str) -> "AnswerNames":
        """Replace one name by another, whether or not a daemon writes a space after a colon."""
        return cls(tuple(key + orjson.dumps(theirs) for key in _KEYS), _KEYS[0] + orjson.dumps(ours))

    def feed(self, piece: bytes) -> bytes:
        """Return what can be sent; the beginning of a name waits for its rest, which no end of an event is."""
        data = self._held + piece
        for theirs in self._theirs:
            data = data.replace(theirs, self._ours)
        keep = max(_begun(theirs, data) for theirs in self._theirs)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def end(self) -> bytes:
        """Return what has waited."""
        held, self._held = self._held, b""
        return held


def _begun(name: bytes, data: bytes) -> int:
    """Return how many bytes of a name the data end with, of one that is not complete."""
    return next((n for n in range(min(len(name) - 1, len(data)), 0, -1) if data.endswith(name[:n])), 0)
