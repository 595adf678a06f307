"""Lists of models in OpenAI's and Ollama's formats, and llama.cpp's commands to load and unload one.

Context length, sizes and input types are those that the engine reports, which may differ from its spec; for a list each
engine is queried once, for the details of one model every time. A model whose engine does not respond is listed with
the facts of its file.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response, netloc
from llmkube.router.backends import Activator, Backend, ModelDirectory, State, no_such_model
from llmkube.router.client_models import client_of
from llmkube.router.dialects.dialect import LINES
from llmkube.router.dialects.ollama_models import (
    MODEL_NAME,
    POST_PATHS,
    VERSION,
    ModelFacts,
    known_name,
    listed,
    running,
    shown,
)
from llmkube.router.dispatch.request_body import BodyError, parse_body
from llmkube.router.health.health_state import Reply
from llmkube.router.refusals import refused

LIST_TIMEOUT_SECONDS: Final = 2.0
"""For all engines together: people and menus wait for a list."""

_ENGINE_FIELDS: Final = ("meta", "architecture")
_CAPABILITIES: Final[Mapping[str, str]] = {"chat": "completion", "embedding": "embedding", "rerank": "rerank"}
_READS_PICTURES: Final = {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
_NO_FACTS: Final = ModelFacts()


AskEngine = Callable[[str], Awaitable[Response | Reply]]
"""Sends a GET request to the engine of a model, at a path from the root of its host; raises HttpError."""

DescribeService = Callable[[str], ModelFacts]
"""Returns the facts about a service that its objects have, by its namespace and name."""


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
        facts: Facts that are known without its engine.
        ask: Queries its engine for details; None for none.
        service: Namespace and name of its service; "" for none.
        loads: Whether it is loaded on request.
    """

    name: str
    owner: str = "llmkube"
    is_alias: bool = False
    runs: bool = False
    tags: Collection[str] = ()
    members: Mapping[str, Any] = attrs.field(factory=dict)
    engine: Backend | None = None
    facts: ModelFacts = _NO_FACTS
    ask: AskEngine | None = None
    service: str = ""
    loads: bool = False


def models_in(
    directory: ModelDirectory, client: HttpClient | None = None, describe: DescribeService = lambda _: _NO_FACTS
) -> list[ModelEntry]:
    """Return one entry for each id of each model in a directory.

    Args:
        directory: The models.
        client: HTTP client for queries to engines; None queries none.
        describe: Returns the facts about a service.
    """
    ids = [(one, False) for one in directory.model_ids()] + [(one, True) for one in directory.aliases()]
    found = []
    names: dict[str, str] = {}
    for name, is_alias in ids:
        state = directory.lookup(name)
        if state is None:
            continue
        facts = describe(state.service)
        entry = partial(ModelEntry, name=name, is_alias=is_alias, facts=facts, service=state.service)
        parent = {"parent": names[state.service]} if is_alias and state.service in names else {}
        names.setdefault(state.service, name)
        if isinstance(state, Backend):
            uses = {"capabilities": [_CAPABILITIES[state.mode]]} if state.mode in _CAPABILITIES else {}
            fields = {**uses, **parent, "status": {"value": State.LOADED.value}}
            ask = partial(_ask, client, state) if client is not None else None
            found.append(entry(runs=True, tags={state.mode}, members=fields, engine=state, ask=ask))
        else:
            status: dict[str, Any] = {"value": state.state.value, "reason": state.reason, "message": state.message}
            inputs = {"architecture": _READS_PICTURES} if "vision" in facts.abilities else {}
            fields = {**inputs, **parent, "status": status | ({"failed": True} if state.failed else {})}
            found.append(entry(tags={facts.mode}, members=fields, loads=state.wakes or state.failed))
    return found


@attrs.define(eq=False)
class ModelList:
    """The lists of one route.

    Attributes:
        listed: Returns the models that the client of a request may use.
        created: Unix time for `created`, which is mandatory in OpenAI's objects.
        client: HTTP client for queries to engines; None queries none.
        activator: Loads and unloads services; None if all are always loaded.
    """

    listed: Callable[[StreamExchange], Sequence[ModelEntry]]
    created: int
    client: HttpClient | None = None
    activator: Activator | None = None
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
        return Response.json(200, objects[models.index(_required(models, wanted))])

    def switch(self, exchange: StreamExchange, command: str) -> Response:
        """Serve `/models/load` and `/models/unload` of llama.cpp's server, which do not wait.

        Raises:
            RefusedError: There is no such model, it has that state already, or only the command in the message changes
                it.
        """
        if exchange.head.method != "POST":
            message = f"{exchange.head.method} is not allowed on /models/{command}"
            raise refused(405, message, "method_not_allowed", {"Allow": "POST"})
        if (client := client_of(exchange)) is not None and not client.is_owner:
            raise refused(403, "loading and unloading models needs a key of the team `owner`", "owner_only")
        models = self.listed(exchange)
        try:
            wanted = parse_body(exchange.body)["model"]
        except BodyError as exc:
            raise refused(400, str(exc), exc.code) from exc
        one = _required(models, wanted)
        value, loads = one.members["status"]["value"], command == "load"
        if loads == (value != State.UNLOADED.value):
            message = f"model {wanted!r} is {value}; it is {'already' if loads else 'not'} running"
            raise refused(400, message, "already_running" if loads else "not_running")
        if self.activator is not None and (one.loads if loads else self.activator.unload(one.service)):
            if loads:
                self.activator.load(one.service)
            return Response.json(200, {"success": True})
        fix = f"run `llmkube scale {wanted} {int(loads)}`"
        message = f"model {wanted!r} is {value}: this gateway does not {command} models on request; {fix}"
        raise refused(501, message, "not_supported")

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
        of = {each.name: self._fields.get(each.engine, {}) if each.engine else {} for each in models}
        return [{"id": each.name, **common, "owned_by": each.owner, **each.members, **of[each.name]} for each in models]

    async def ollama(self, exchange: StreamExchange, path: str) -> Response:
        """Serve one of `LIST_PATHS`."""
        allowed = ("POST",) if path in POST_PATHS else ("GET", "HEAD")
        if exchange.head.method not in allowed:
            fields = {"error": f"{exchange.head.method} is not allowed on {path}"}
            return Response.json(405, fields, headers=Headers.of({"Allow": ", ".join(allowed)}))
        if path == "/api/version":
            return Response.json(200, {"version": VERSION})
        models = self.listed(exchange)
        if path not in POST_PATHS:
            objects = zip(models, await self.objects(models), strict=True)
            known = [(each, each.facts.with_meta(fields.get("meta", {}))) for each, fields in objects]
            if path == "/api/tags":
                return Response.json(200, listed([(each.name, facts) for each, facts in known], self.created))
            return Response.json(200, running([(each.name, facts) for each, facts in known if each.runs]))
        try:
            body = parse_body(exchange.body, MODEL_NAME)
        except BodyError as exc:
            return Response.json(400, {"error": str(exc)})
        one = _named(models, body["model"])
        if path == "/api/pull":
            return _pulled(body, one)
        if one is None:
            return Response.json(404, {"error": f"model {body['model']!r} not found"})
        return Response.json(200, shown(one.name, one.tags, await _facts_of(one), self.created))

    async def _fetch_fields(self, client: HttpClient, engine: Backend) -> None:
        try:
            answer = await _ask(client, engine, "/v1/models")
            self._fields[engine] = _fields_in(_json_in(answer), engine.alias)
        except (HttpError, orjson.JSONDecodeError):
            return  # the next list queries it again


async def _ask(client: HttpClient, engine: Backend, path: str) -> Response:
    url = f"http://{netloc((engine.host, engine.port))}{path}"
    return await client.request("GET", url, headers=engine.credential_headers, max_body_bytes=1 << 20)


def _json_in(answer: Response | Reply) -> object:
    return orjson.loads(answer.body) if answer.status == 200 else None


async def _facts_of(entry: ModelEntry) -> ModelFacts:
    """Return the facts of a model, with those that its engine reports in time."""
    facts, ask = entry.facts, entry.ask
    if ask is None:
        return facts
    with trio.move_on_after(LIST_TIMEOUT_SECONDS):
        try:
            fields = _fields_in(_json_in(await ask("/v1/models")), entry.name)
            facts = facts.with_meta(fields.get("meta", {}))
            props = _json_in(await ask("/props"))
            facts = facts.with_props(props if isinstance(props, dict) else {})
        except (HttpError, orjson.JSONDecodeError):
            pass  # such as an engine without `/props`
    return facts


def _named(models: Sequence[ModelEntry], wanted: str) -> ModelEntry | None:
    """Return the model with an id, which may have Ollama's default tag."""
    by_name = {each.name: each for each in models}
    return by_name.get(known_name(wanted, by_name.__contains__))


def _required(models: Sequence[ModelEntry], wanted: str) -> ModelEntry:
    if (found := _named(models, wanted)) is None:
        raise no_such_model(wanted, [each.name for each in models if not each.is_alias])
    return found


def _pulled(body: Mapping[str, Any], found: ModelEntry | None) -> Response:
    """Return the response to a pull, which succeeds if the model exists; as in Ollama, a stream's errors have 200."""
    error = {"error": f"model {body['model']!r} is not served here; deploy it with `llmkube deploy`"}
    fields = {"status": "success"} if found is not None else error
    if body.get("stream") is False:
        return Response.json(200 if found is not None else 404, fields)
    return Response(200, Headers.of({"Content-Type": LINES}), orjson.dumps(fields) + b"\n")


def _fields_in(answer: object, alias: str) -> Mapping[str, Any]:
    """Return the fields of a model in a list: by its id, or those of the only model, whatever its id."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    ids = {alias, alias.rpartition("/")[2]}  # a gateway lists the short id if it is unique among namespaces
    fields = next((each for each in models if each.get("id") in ids), models[0] if len(models) == 1 else {})
    context = fields.get("max_model_len")  # vLLM's and SGLang's name
    known = {"meta": {"n_ctx": context}} if isinstance(context, int) else {}
    return known | {name: fields[name] for name in _ENGINE_FIELDS if isinstance(fields.get(name), dict)}
