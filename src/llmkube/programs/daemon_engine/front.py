"""What clients and the agent reach: `/health`, `/metrics`, `/slots`, `/props` and `/v1/…` as llama-server has them.

Only these paths lead to the daemon, and with our model alone: a client with this engine's key cannot pull or delete
models, nor use the other models of its owner.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson
import structlog
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import RequestFilter, StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import NO_HEADERS, Headers, Response
from llmkube.programs.daemon_engine.keeper import Counters, Keeper
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presents_key
from llmkube.router.engine_proxy import OPEN_PATHS

_KEYS: Final = (b'"model":', b'"model": ')


class RequestBodyError(Exception):
    """A request's body is no JSON object; says so to the client."""


def with_model(body: bytes, name: str) -> bytes:
    """Return a request's body that asks for this model: a client can reach one alone, whatever it asks for.

    Go's JSON reader, Ollama's, takes `"Model"` for `"model"`, and the last of several: so no key that it would take is
    left beside ours.

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
class ModelNameRewriter:
    """Put the name that clients know in the place of the daemon's, in an answer that comes in pieces.

    Text of a model cannot be taken for it: within a JSON string, quotes have a backslash before them.
    """

    _theirs: tuple[bytes, ...]
    _ours: bytes
    _pending: bytes = b""

    @classmethod
    def between(cls, theirs: str, ours: str) -> "ModelNameRewriter":
        """Replace one name by another, whether or not a daemon writes a space after a colon."""
        return cls(tuple(key + orjson.dumps(theirs) for key in _KEYS), _KEYS[0] + orjson.dumps(ours))

    def feed(self, piece: bytes) -> bytes:
        """Return what can be sent; the beginning of a name waits for its rest, which no end of an event is."""
        data = self._pending + piece
        for theirs in self._theirs:
            data = data.replace(theirs, self._ours)
        tail = max(_partial_match(theirs, data) for theirs in self._theirs)
        self._pending = data[len(data) - tail :]
        return data[: len(data) - tail]

    def end(self) -> bytes:
        """Return what has waited."""
        pending, self._pending = self._pending, b""
        return pending


def _partial_match(name: bytes, data: bytes) -> int:
    """Return how many bytes of a name the data end with, of one that is not complete."""
    return next((n for n in range(min(len(name) - 1, len(data)), 0, -1) if data.endswith(name[:n])), 0)


METRICS_TYPE: Final = "text/plain; version=0.0.4"

_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens)":\s*(\d{1,12})')
_TAIL_BYTES: Final = 512


@attrs.define(eq=False)
class UsageReader:
    """Read how many tokens an answer says that it has taken; the last word in it counts."""

    _tail: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Take in a piece of the answer."""
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    def tokens(self) -> tuple[int, int]:
        """Return those of the prompt and those of the answer; 0 where it does not say."""
        said = {name: int(number) for name, number in _USAGE.findall(self._tail)}
        return (
            said.get(b"prompt_tokens", said.get(b"input_tokens", 0)),
            said.get(b"completion_tokens", said.get(b"output_tokens", 0)),
        )


PROXIED: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"}
)
"""What of the daemon is passed on."""

EMBEDDINGS: Final = frozenset({"/v1/embeddings"})

THREAD_BYTES: Final = 256 * 1024
"""A larger body is read and written anew in a thread."""

log = structlog.get_logger()


def judge_of(keys: frozenset[str]) -> RequestFilter:
    """Return what lets requests in that show a key; without keys all are let in, as by llama-server."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, _peer: str) -> Response | None:
        if not digests or (head.path in OPEN_PATHS and is_read_only(head)) or presents_key(head, digests):
            return None
        return key_refusal("this engine asks for a key: send `Authorization: Bearer KEY`")

    return judge


def handler_of(
    keeper: Keeper, client: HttpClient, alias: str, counters: Counters, *, embeds: bool = False
) -> StreamHandler:
    """Return what answers requests.

    Args:
        keeper: Knows whether the model is loaded.
        client: Reaches the daemon.
        alias: The name that clients know the model by.
        counters: What is counted.
        embeds: Whether embeddings alone are served.
    """
    proxied = EMBEDDINGS if embeds else PROXIED
    said: dict[str, Callable[[], Response]] = {
        "/metrics": lambda: Response(200, Headers.of({"Content-Type": METRICS_TYPE}), counters.metrics()),
        "/slots": lambda: Response(200, Headers.of({"Content-Type": "application/json"}), counters.slots()),
        "/props": lambda: Response.json(200, {"model_alias": alias, "build_info": keeper.build}),
        "/v1/models": lambda: Response.json(200, _models(alias, keeper.adapter.texts.name.lower())),
        "/models": lambda: Response.json(200, _models(alias, keeper.adapter.texts.name.lower())),
        "/health": lambda: Response.json(200, {"status": "ok"}) if keeper.ready else _loading(),
        "/v1/health": lambda: Response.json(200, {"status": "ok"}) if keeper.ready else _loading(),
    }

    async def handle(exchange: StreamExchange) -> None:
        path, method = exchange.head.path, exchange.head.method
        if path in said and method in ("GET", "HEAD"):
            await exchange.respond(said[path]())
        elif path not in proxied or method != "POST":
            await exchange.respond(_error(404, "File Not Found", "not_found_error"))
        elif not keeper.ready:
            await exchange.respond(_loading())
        else:
            counters.processing += 1
            try:
                await _forward(exchange, keeper, client, alias, counters)
            finally:
                counters.processing -= 1

    return handle


async def _forward(
    exchange: StreamExchange, keeper: Keeper, client: HttpClient, alias: str, counters: Counters
) -> None:
    adapter = keeper.adapter
    try:
        if len(exchange.body) > THREAD_BYTES:
            body = await trio.to_thread.run_sync(with_model, exchange.body, adapter.name, abandon_on_cancel=True)
        else:
            body = with_model(exchange.body, adapter.name)
    except RequestBodyError as error:
        await exchange.respond(_error(400, str(error), "invalid_request_error"))
        return
    headers = adapter.headers.with_("Content-Type", "application/json").with_("Accept-Encoding", "identity")
    url = adapter.url + exchange.request.origin_target
    try:
        async with client.open_stream("POST", url, headers=headers, body=body) as answer:
            if answer.status in (401, 403):  # it is our key that it refuses, or misses: the client's was good
                keeper.sample_soon()
                said = f"{adapter.texts.name} refuses requests of this host with {answer.status}"
                await exchange.respond(_error(502, said, "server_error"))
                return
            names, usage = ModelNameRewriter.between(adapter.name, alias), UsageReader()
            lines = answer.headers.end_to_end().without("content-length")
            async with exchange.stream(answer.status, lines) as send:
                while piece := await answer.receive_some():
                    counters.decodes += 1
                    usage.feed(piece)
                    await send(names.feed(piece))
                await send(names.end())
            prompt, predicted = usage.tokens()
            counters.prompt_tokens += prompt
            counters.predicted_tokens += predicted
        if answer.status >= 500:
            keeper.sample_soon()
    except HttpError as error:
        keeper.sample_soon()
        if exchange.begun:
            raise  # half an answer is out: the server closes the connection, so that it is not taken for a whole
        said = f"{adapter.texts.name} did not answer"
        log.warning(said, error=str(error))
        await exchange.respond(_error(502, said, "server_error"))


def _loading() -> Response:
    return _error(503, "Loading model", "unavailable_error", Headers.of({"Retry-After": "1"}))


def _error(status: int, message: str, kind: str, headers: Headers = NO_HEADERS) -> Response:
    return Response.json(status, {"error": {"code": status, "message": message, "type": kind}}, headers=headers)


def _models(alias: str, owner: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": alias, "object": "model", "owned_by": owner}]}
