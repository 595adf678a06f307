"""HTTP API for clients and the agent: `/health`, `/metrics`, `/slots`, `/props` and `/v1/…`, as in llama-server.

Only some paths are forwarded to the daemon, and only with our model: a client with this engine's key can neither pull
or delete models, nor use the other models of the daemon's owner.
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
from llmkube.router.model_field import ModelNameRewriter


class RequestBodyError(Exception):
    """The body of a request is not a JSON object; the message is sent to the client."""


def with_model(body: bytes, name: str) -> bytes:
    """Return the body of a request with `model` set to this model, whatever the client requested.

    Ollama's JSON reader (Go's) ignores the case of keys and uses the last of several, so all other spellings of `model`
    are removed.

    Raises:
        RequestBodyError: The body is not a JSON object.
    """
    try:
        request: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestBodyError(f"the body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestBodyError("the body must be a JSON object")
    others = {key: value for key, value in request.items() if key.casefold() != "model"}
    return orjson.dumps({"model": name} | others)


METRICS_TYPE: Final = "text/plain; version=0.0.4"

_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens)":\s*(\d{1,12})')
_TAIL_BYTES: Final = 512


@attrs.define(eq=False)
class UsageReader:
    """Read the token usage that a response reports; its last occurrence applies."""

    _tail: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Process a piece of the response."""
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    def tokens(self) -> tuple[int, int]:
        """Return the numbers of prompt and completion tokens; 0 if not reported."""
        usage = {name: int(number) for name, number in _USAGE.findall(self._tail)}
        return (
            usage.get(b"prompt_tokens", usage.get(b"input_tokens", 0)),
            usage.get(b"completion_tokens", usage.get(b"output_tokens", 0)),
        )


PROXIED: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"}
)
"""Paths that are forwarded to the daemon."""

EMBEDDINGS: Final = frozenset({"/v1/embeddings"})

THREAD_BYTES: Final = 256 * 1024
"""Size above which a body is rewritten in a thread."""

log = structlog.get_logger()


def judge_of(keys: frozenset[str]) -> RequestFilter:
    """Return a filter that requires one of these keys; without keys it admits all requests, like llama-server."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, _peer: str) -> Response | None:
        if not digests or (head.path in OPEN_PATHS and is_read_only(head)) or presents_key(head, digests):
            return None
        return key_refusal("this engine requires a key: send `Authorization: Bearer KEY`")

    return judge


def handler_of(
    keeper: Keeper, client: HttpClient, alias: str, counters: Counters, *, embeds: bool = False
) -> StreamHandler:
    """Return the handler of requests.

    Args:
        keeper: Keeps the model loaded, and knows whether it is.
        client: Client for the daemon.
        alias: Name of the model for clients.
        counters: Counters for `/metrics` and `/slots`.
        embeds: Whether only embeddings are served.
    """
    proxied = EMBEDDINGS if embeds else PROXIED
    local: dict[str, Callable[[], Response]] = {
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
        if path in local and method in ("GET", "HEAD"):
            await exchange.respond(local[path]())
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
            if answer.status in (401, 403):  # our key is refused or missing; the client's was valid
                keeper.sample_soon()
                message = f"{adapter.texts.name} refuses requests from this machine with {answer.status}"
                await exchange.respond(_error(502, message, "server_error"))
                return
            names, usage = ModelNameRewriter.between(adapter.name, alias), UsageReader()
            lines = answer.headers.end_to_end().without("content-length")
            async with exchange.stream(answer.status, lines) as send:
                while piece := await answer.receive_some():
                    counters.decodes += 1
                    usage.feed(piece)
                    await send(names.edit(piece))
                await send(names.edit(b""))
            prompt, predicted = usage.tokens()
            counters.prompt_tokens += prompt
            counters.predicted_tokens += predicted
        if answer.status >= 500:
            keeper.sample_soon()
    except HttpError as error:
        keeper.sample_soon()
        if exchange.begun:
            raise  # a partial response was sent: the server closes the connection, which marks it as incomplete
        message = f"{adapter.texts.name} did not answer"
        log.warning(message, error=str(error))
        await exchange.respond(_error(502, message, "server_error"))


def _loading() -> Response:
    return _error(503, "Loading model", "unavailable_error", Headers.of({"Retry-After": "1"}))


def _error(status: int, message: str, kind: str, headers: Headers = NO_HEADERS) -> Response:
    return Response.json(status, {"error": {"code": status, "message": message, "type": kind}}, headers=headers)


def _models(alias: str, owner: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": alias, "object": "model", "owned_by": owner}]}
