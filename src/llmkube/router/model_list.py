"""Lists of models in OpenAI's and Ollama's formats.

Context length, sizes and input types are those that the engine reports, which may differ from its spec; each engine is
queried once. A model whose engine does not respond is listed without them.
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

LIST_TIMEOUT_SECONDS: Final = 2.0
"""For all engines together: people and menus wait for a list."""

_ENGINE_FIELDS: Final = ("meta", "architecture")
_CAPABILITIES: Final[Mapping[str, str]] = {"chat": "completion", "embedding": "embedding", "rerank": "rerank"}


@attrs.frozen(kw_only=True)
class ModelEntry:
    """One model that clients can request.

    Attributes:
        name: Model id.
        owner: Value of `owned_by` in OpenAI's format.
        is_alias: Whether it is an additional id of a model that is also listed by its name.
        runs: Whether an engine of ours serves it now.
        tags: Capabilities, as in `Backend.capabilities`.
        members: Further members in OpenAI's format.
        engine: Engine that is queried for more members; None for none.
    """

    name: str
    owner: str = "llmkube"
    is_alias: bool = False
    runs: bool = False
    tags: Collection[str] = ()
    members: Mapping[str, Any] = attrs.field(factory=dict)
    engine: Backend | None = None


def models_in(directory: ModelDirectory) -> list[ModelEntry]:
    """Return one entry for each id of each model in a directory."""
    ids = [(one, False) for one in directory.model_ids()] + [(one, True) for one in directory.aliases()]
    found = []
    for name, is_alias in ids:
        state = directory.lookup(name)
        if isinstance(state, Backend):
            uses = {"capabilities": [_CAPABILITIES[state.mode]]} if state.mode in _CAPABILITIES else {}
            fields = {**uses, "status": {"value": State.LOADED.value}}
            one = ModelEntry(name=name, is_alias=is_alias, runs=True, tags={state.mode}, members=fields, engine=state)
            found.append(one)
        elif state is not None:
            status: dict[str, Any] = {"value": state.state.value, "reason": state.reason, "message": state.message}
            fields = {"status": status | ({"failed": True} if state.failed else {})}
            found.append(ModelEntry(name=name, is_alias=is_alias, members=fields))
    return found


@attrs.define(eq=False)
class ModelList:
    """The lists of one route.

    Attributes:
        listed: Returns the models that the client of a request may use.
        created: Unix time for `created`, which is mandatory in OpenAI's objects.
        client: HTTP client for queries to engines; None queries none.
    """

    listed: Callable[[StreamExchange], Sequence[ModelEntry]]
    created: int
    client: HttpClient | None = None
    _fields: dict[Backend, Mapping[str, Any]] = attrs.field(factory=dict)

    async def openai(self, exchange: StreamExchange, path: str) -> Response:
        """Serve `/v1/models` and the paths below it.

        Raises:
            RefusedError: There is no such model, or the method is not allowed.
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
            raise no_such_model(wanted, [each.name for each in models if not each.is_alias])
        return Response.json(200, one)

    async def objects(self, models: Sequence[ModelEntry]) -> Sequence[dict[str, Any]]:
        """Return models in OpenAI's format, with llama.cpp's additional members."""
        engines = {each.engine for each in models if each.engine is not None}
        self._fields = {engine: fields for engine, fields in self._fields.items() if engine in engines}
        if self.client is not None and engines - self._fields.keys():
            with trio.move_on_after(LIST_TIMEOUT_SECONDS):
                async with trio.open_nursery() as nursery:
                    for engine in engines - self._fields.keys():
                        nursery.start_soon(self._fetch_fields, self.client, engine)
        common = {"object": "model", "created": self.created}
        return [
            {"id": each.name, **common, "owned_by": each.owner, **each.members, **self._fields_of(each.engine)}
            for each in models
        ]

    def _fields_of(self, engine: Backend | None) -> Mapping[str, Any]:
        return self._fields.get(engine, {}) if engine is not None else {}

    def ollama(self, exchange: StreamExchange, path: str) -> Response:
        """Serve one of `LIST_PATHS`."""
        allowed = ("POST",) if path == "/api/show" else ("GET", "HEAD")
        if exchange.head.method not in allowed:
            fields = {"error": f"{exchange.head.method} is not allowed on {path}"}
            return Response.json(405, fields, headers=Headers.of({"Allow": ", ".join(allowed)}))
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

    async def _fetch_fields(self, client: HttpClient, engine: Backend) -> None:
        url = f"http://{netloc((engine.host, engine.port))}/v1/models"
        try:
            answer = await client.request("GET", url, headers=engine.credential_headers, max_body_bytes=1 << 20)
            self._fields[engine] = _fields_in(orjson.loads(answer.body) if answer.status == 200 else None, engine.alias)
        except (HttpError, orjson.JSONDecodeError):
            return  # the next list queries it again


def _fields_in(answer: object, alias: str) -> Mapping[str, Any]:
    """Return the fields of a model in a list: by its id, or those of the only model, whatever its id."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    ids = {alias, alias.rpartition("/")[2]}  # a gateway lists the short id if it is unique among namespaces
    fields = next((each for each in models if each.get("id") in ids), models[0] if len(models) == 1 else {})
    return {name: fields[name] for name in _ENGINE_FIELDS if isinstance(fields.get(name), dict)}
