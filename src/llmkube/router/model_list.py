"""What a client is told that asks which models there are, in OpenAI's words and in Ollama's.

Context, sizes and kinds of input are the engine's own words, asked for once per engine: what a spec asks for and what
an engine made of it may differ. A model whose engine does not answer is listed without them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response, netloc
from llmkube.router.backends import Backend, ModelDirectory, State, no_such_model
from llmkube.router.dialects.ollama_models import VERSION, listed, running, shown
from llmkube.router.dispatch.request_body import BodyError, parse_body
from llmkube.router.refusals import refused

PATIENCE_SECONDS: Final = 2.0
"""For all engines together: a list is for people and menus."""

_SAID: Final = ("meta", "architecture")
_USES: Final[Mapping[str, str]] = {"chat": "completion", "embedding": "embedding", "rerank": "rerank"}


@attrs.frozen(kw_only=True)
class Listed:
    """One model that a client can ask for.

    Attributes:
        name: What it is called.
        owner: Who has it, in OpenAI's words.
        further: Whether it is a further id of a model that is listed by its name.
        runs: Whether an engine of ours serves it now.
        tags: What it can, in the words of `Backend.capabilities`.
        members: What OpenAI's clients read of it beside that.
        engine: Whose own words they read as well; None of a model whose engine is not asked.
    """

    name: str
    owner: str = "llmkube"
    further: bool = False
    runs: bool = False
    tags: Collection[str] = ()
    members: Mapping[str, Any] = attrs.field(factory=dict)
    engine: Backend | None = None


def models_in(directory: ModelDirectory) -> list[Listed]:
    """Return each model of a directory under each of its ids."""
    ids = [(one, False) for one in directory.model_ids()] + [(one, True) for one in directory.aliases()]
    found = []
    for name, further in ids:
        state = directory.lookup(name)
        if isinstance(state, Backend):
            uses = {"capabilities": [_USES[state.mode]]} if state.mode in _USES else {}
            said = {**uses, "status": {"value": State.LOADED.value}}
            one = Listed(name=name, further=further, runs=True, tags={state.mode}, members=said, engine=state)
            found.append(one)
        elif state is not None:
            status: dict[str, Any] = {"value": state.state.value, "reason": state.reason, "message": state.message}
            said = {"status": status | ({"failed": True} if state.failed else {})}
            found.append(Listed(name=name, further=further, members=said))
    return found


@attrs.define(eq=False)
class ModelList:
    """The lists of one route.

    Attributes:
        listed: Returns what the client of a request can ask for.
        created: Since when, in seconds since 1970; OpenAI's objects must say.
        client: Reaches the engines whose words are listed.
    """

    listed: Callable[[StreamExchange], Sequence[Listed]]
    created: int
    client: HttpClient | None = None
    _said: dict[Backend, Mapping[str, Any]] = attrs.field(factory=dict)

    async def openai(self, exchange: StreamExchange, path: str) -> Response:
        """Answer `/v1/models`, and what is below it.

        Raises:
            RefusedError: There is no such model, or the method is another one.
        """
        method, wanted = exchange.head.method, path.removeprefix("/v1").removeprefix("/models").removeprefix("/")
        if method not in ("GET", "HEAD"):
            raise refused(405, f"{method} is not allowed on {path}", "method_not_allowed", {"Allow": "GET, HEAD"})
        models = self.listed(exchange)
        objects = await self.objects(models)
        if not wanted:
            return Response.json(200, {"object": "list", "data": objects})
        one = next((each for each in objects if each["id"] == wanted), None)
        if one is None:
            raise no_such_model(wanted, [each.name for each in models if not each.further])
        return Response.json(200, one)

    async def objects(self, models: Sequence[Listed]) -> Sequence[dict[str, Any]]:
        """Return models as OpenAI's clients read them, with llama.cpp's further members."""
        engines = {each.engine for each in models if each.engine is not None}
        self._said = {engine: said for engine, said in self._said.items() if engine in engines}
        if self.client is not None and engines - self._said.keys():
            with trio.move_on_after(PATIENCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for engine in engines - self._said.keys():
                        nursery.start_soon(self._ask, self.client, engine)
        made = {"object": "model", "created": self.created}
        return [
            {"id": each.name, **made, "owned_by": each.owner, **each.members, **self._words(each.engine)}
            for each in models
        ]

    def _words(self, engine: Backend | None) -> Mapping[str, Any]:
        return self._said.get(engine, {}) if engine is not None else {}

    def ollama(self, exchange: StreamExchange, path: str) -> Response:
        """Answer one of the `LISTS`."""
        allowed = ("POST",) if path == "/api/show" else ("GET", "HEAD")
        if exchange.head.method not in allowed:
            said = {"error": f"{exchange.head.method} is not allowed on {path}"}
            return Response.json(405, said, headers=Headers.of({"Allow": ", ".join(allowed)}))
        if path == "/api/version":
            return Response.json(200, {"version": VERSION})
        models = self.listed(exchange)
        if path == "/api/tags":
            return Response.json(200, listed([each.name for each in models], self.created))
        if path == "/api/ps":
            return Response.json(200, running([each.name for each in models if each.runs]))
        try:
            wanted = parse_body(exchange.body)["model"]
        except BodyError as exc:
            return Response.json(400, {"error": str(exc)})
        one = next((each for each in models if each.name == wanted), None)
        if one is None:
            return Response.json(404, {"error": f"model {wanted!r} not found"})
        return Response.json(200, shown(one.tags, self.created))

    async def _ask(self, client: HttpClient, engine: Backend) -> None:
        url = f"http://{netloc((engine.host, engine.port))}/v1/models"
        try:
            answer = await client.request("GET", url, headers=engine.credential_headers, max_body_bytes=1 << 20)
            self._said[engine] = _said_in(orjson.loads(answer.body) if answer.status == 200 else None, engine.alias)
        except (HttpError, orjson.JSONDecodeError):
            return  # it is asked again for the next list


def _said_in(answer: object, alias: str) -> Mapping[str, Any]:
    """Return what a list says of a model: an engine's of its one, whatever its id, a gateway's by its id."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    ids = {alias, alias.rpartition("/")[2]}  # a gateway lists the short one where only one namespace has it
    said = next((each for each in models if each.get("id") in ids), models[0] if len(models) == 1 else {})
    return {name: said[name] for name in _SAID if isinstance(said.get(name), dict)}
