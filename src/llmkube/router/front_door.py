"""Where the requests of a route come in: what needs no engine is answered here, alike for all; the rest is handed on.

```
 head ─ judge ─▶ body ─▶ preflight, health, hint, lists
                          ├─▶ any field     pass_through: the body reaches the user's own engine as it came
                          └─▶ listed fields proxy/handler: a body is written anew, for one backend after the other
```
A ModelRouter takes listed fields. The default route, that of `llmkube up`, takes any field, and has what engines do not
speak answered by listed fields.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import attrs

from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.dialects.inbound import DIALECTS, refusal_at
from llmkube.router.dialects.ollama_models import LISTS
from llmkube.router.model_list import ModelList, models_in
from llmkube.router.origin_policy import is_preflight, preflight_answer
from llmkube.router.pass_through import PassThrough
from llmkube.router.refusals import RefusedError
from llmkube.router.responses.stored_pages import PREFIX as RESPONSES

_HINT: Final = """LLMKube gateway: an OpenAI-compatible API; clients take its address and /v1 as their base URL.

  GET  /v1/models              what is served here
  GET  /health                 whether the gateway is there
  POST /v1/chat/completions    and the other /v1 paths; the request's "model" chooses the engine
  POST /infill, /tokenize, /detokenize, /apply-template    as llama.cpp's server has them
"""
_OLLAMA: Final = (*(path for path in DIALECTS if path.startswith("/api/")), *LISTS)
_OLLAMA_HINT: Final = f"  Ollama's API: {', '.join(_OLLAMA)}\n"

_HEALTH: Final = ("/health", "/healthz")
_OPTIONAL: Final = frozenset({"/v1/messages", "/v1/responses"})
"""What some engines speak, so that its bytes pass, and others do not."""

_NOT_THERE: Final = (404, 405)
"""What an engine says of a path that it does not have."""


@attrs.frozen(eq=False, kw_only=True)
class FrontDoor:
    """The `StreamHandler` of one route.

    Attributes:
        hint: What a person reads who opens the address.
        models: What there is to ask for.
        ready: Returns whether requests can be answered, and why not; None of a route that does not say.
        any_field: Passes requests on; None of a route that takes listed fields alone.
        listed_fields: Answers requests that are written anew; None of a route that only passes them on.
    """

    hint: str
    models: ModelList
    ready: Callable[[], tuple[bool, str]] | None = None
    any_field: PassThrough | None = None
    listed_fields: StreamHandler | None = None

    async def __call__(self, exchange: StreamExchange) -> None:
        """Answer one request."""
        path = exchange.head.path.rstrip("/") or "/"
        try:
            answer = await self._answer(exchange, path)
            if answer is None:
                await self._ask(exchange, path)
                return
        except RefusedError as refusal:
            answer = refusal_at(path, refusal.response)
        await exchange.respond(answer)

    async def _answer(self, exchange: StreamExchange, path: str) -> Response | None:
        """Answer what needs no engine; None for a request that does."""
        head = exchange.head
        if is_preflight(head):
            return preflight_answer(head)
        if head.method in ("GET", "HEAD"):
            if path in _HEALTH:
                return Response.json(200, {"status": "ok"})  # as llama.cpp's server, for those who probe either
            if path == "/readyz" and self.ready is not None:
                is_ready, why = self.ready()
                said = {"status": "ok" if is_ready else "not ready", "reason": why}
                return Response.json(200 if is_ready else 503, said)
            if path in ("/", "/v1"):
                return Response.text(200, self.hint)
        below = path.removeprefix("/v1")
        if below == "/models" or below.startswith("/models/"):
            return await self.models.openai(exchange, path)
        if path in LISTS and self.listed_fields is not None:
            return self.models.ollama(exchange, path)
        return None

    async def _ask(self, exchange: StreamExchange, path: str) -> None:
        passes, listed = self.any_field, self.listed_fields
        if listed is not None and (passes is None or _is_translated(exchange.head, path)):
            await listed(exchange)
        elif passes is not None and (listed is None or path not in _OPTIONAL):
            await passes(exchange)
        elif passes is not None and listed is not None and not await passes(exchange, unless=_NOT_THERE):
            await listed(exchange)


def _is_translated(head: RequestHead, path: str) -> bool:
    """Whether no engine speaks it: Ollama's API, and responses that are kept, for those who read or delete one."""
    return path.startswith("/api/") or (path.startswith(RESPONSES) and head.method != "POST")


def passing_door(passes: PassThrough, utcnow: Callable[[], datetime], listed: StreamHandler | None = None) -> FrontDoor:
    """Return what passes any field of requests to engines.

    Args:
        passes: Passes them on.
        utcnow: The wall clock, for the `created` field that OpenAI's model objects must have.
        listed: Answers what engines do not speak; None leaves such requests to the engines.
    """
    return FrontDoor(
        hint=_HINT if listed is None else _HINT + _OLLAMA_HINT,
        # a model has no birthday here; the gateway's is as good and never changes
        models=ModelList(lambda _: models_in(passes.directory), int(utcnow().timestamp()), passes.client),
        any_field=passes,
        listed_fields=listed,
    )
