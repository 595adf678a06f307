"""What `/v1/models` says: the ids, the state of each model, and what its engine says of itself.

Context, sizes and kinds of input are the engine's own words, asked for once per engine: what a spec asks for and what
an engine made of it may differ. A model whose engine does not answer is listed without them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import netloc
from llmkube.router.backends import Backend, ModelDirectory, State, UnavailableModel

PATIENCE_SECONDS: Final = 2.0
"""For all engines together: a list is for people and menus."""

_SAID: Final = ("meta", "architecture")
_USES: Final[Mapping[str, str]] = {"chat": "completion", "embedding": "embedding", "rerank": "rerank"}


@attrs.define(eq=False)
class ModelList:
    """The models as OpenAI's clients read them, with llama.cpp's further members.

    Attributes:
        directory: The models.
        client: Reaches their engines.
        created: When, in seconds since 1970; OpenAI's objects must say.
    """

    directory: ModelDirectory
    client: HttpClient
    created: int
    _said: dict[Backend, Mapping[str, Any]] = attrs.field(factory=dict)

    async def all(self) -> Sequence[dict[str, Any]]:
        """Return each model under each of its ids."""
        found = {one: self.directory.lookup(one) for one in (*self.directory.model_ids(), *self.directory.aliases())}
        backends = {each for each in found.values() if isinstance(each, Backend)}
        self._said = {backend: said for backend, said in self._said.items() if backend in backends}
        with trio.move_on_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                for backend in backends - self._said.keys():
                    nursery.start_soon(self._ask, backend)
        return [self._object(one, state) for one, state in found.items() if state is not None]

    async def one(self, model_id: str) -> dict[str, Any] | None:
        """Return the model of that id, None if there is none."""
        return next((each for each in await self.all() if each["id"] == model_id), None)

    async def _ask(self, backend: Backend) -> None:
        url = f"http://{netloc((backend.host, backend.port))}/v1/models"
        try:
            answer = await self.client.request("GET", url, headers=backend.credential_headers, max_body_bytes=1 << 20)
            self._said[backend] = _said_in(orjson.loads(answer.body) if answer.status == 200 else None, backend.alias)
        except (HttpError, orjson.JSONDecodeError):
            return  # it is asked again for the next list

    def _object(self, model_id: str, state: Backend | UnavailableModel) -> dict[str, Any]:
        model: dict[str, Any] = {"id": model_id, "object": "model", "created": self.created, "owned_by": "llmkube"}
        if isinstance(state, Backend):
            if state.mode in _USES:
                model["capabilities"] = [_USES[state.mode]]
            return {**model, "status": {"value": State.LOADED.value}, **self._said.get(state, {})}
        status: dict[str, Any] = {"value": state.state.value, "reason": state.reason, "message": state.message}
        return model | {"status": status | ({"failed": True} if state.failed else {})}


def _said_in(answer: object, alias: str) -> Mapping[str, Any]:
    """Return what a list says of a model: an engine's of its one, whatever its id, a gateway's by its id."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    ids = {alias, alias.rpartition("/")[2]}  # a gateway lists the short one where only one namespace has it
    said = next((each for each in models if each.get("id") in ids), models[0] if len(models) == 1 else {})
    return {name: said[name] for name in _SAID if isinstance(said.get(name), dict)}
