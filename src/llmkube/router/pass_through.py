"""Any field of a request reaches the user's own engine: the body goes on as it came, and each byte of the answer back.

Which engine that is, its `model` says. Whether it runs, loads or has failed is what the directory knows.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import attrs
import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.router.backends import Backend, ModelDirectory, engine_of
from llmkube.router.model_field import BodyError, read_model, replace_model
from llmkube.router.multipart_model import boundary_of, read_form_model, replace_form_model
from llmkube.router.refusals import refused

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

_ENGINE_PATHS: Final = frozenset({"/infill", "/tokenize", "/detokenize", "/apply-template"})
"""What editors ask llama.cpp's server for beside the paths under `/v1`."""

_WITHOUT_SLOT: Final = frozenset({"/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens"})
"""What an engine answers beside its slots."""


@attrs.frozen
class Body:
    """A body whose `model` was read.

    Attributes:
        content: As it came.
        named: Its `model`; None of one that names none.
        renamed: Returns it with another `model`, and every other byte as it came.
    """

    content: bytes
    named: object
    renamed: Callable[[str], Awaitable[bytes]]


async def _name_of_engine(body: Body, engine: Backend) -> Body:
    if body.named == engine.alias:
        return body
    return attrs.evolve(body, content=await body.renamed(engine.alias))


CORRECTIONS: Final[Mapping[str, Callable[[Body, Backend], Awaitable[Body]]]] = {"model": _name_of_engine}
"""All that is changed of a body, by field: `model` becomes the name that the engine itself goes by."""


UnderWay = Callable[[str, bool], AbstractContextManager[None]]
"""Counts a request of a service until a scope ends, and whether it takes a slot of the engine."""


def _uncounted(_service: str, _takes_slot: bool) -> AbstractContextManager[None]:
    return nullcontext()


@attrs.frozen(eq=False)
class PassThrough:
    """Passes requests on.

    Attributes:
        directory: The models.
        client: Reaches their engines.
        under_way: Counts requests.
    """

    directory: ModelDirectory
    client: HttpClient
    under_way: UnderWay = _uncounted

    async def __call__(self, exchange: StreamExchange, *, unless: Collection[int] = ()) -> bool:
        """Pass a request on and its answer back; return False of an answer with one of these statuses, which stays.

        The client's disconnect cancels this, which closes the engine's connection: that is what stops its generation.

        Raises:
            RefusedError: No engine is asked, or it does not answer.
        """
        head = exchange.head
        path = head.path.rstrip("/")
        if not path.startswith("/v1/") and path not in _ENGINE_PATHS:
            words = f"nothing at {path or '/'}; the API is under /v1, for instance /v1/chat/completions"
            raise refused(404, words, "not_found")
        if head.method != "POST":
            raise refused(405, f"{head.method} is not allowed on {path}", "method_not_allowed", {"Allow": "POST"})
        body = await _read(head, exchange.body)
        engine = engine_of(self.directory, body.named, head.path)
        for correct in CORRECTIONS.values():
            body = await correct(body, engine)
        try:
            origin, keys = (engine.host, engine.port), engine.credentials
            with self.under_way(engine.service, path not in _WITHOUT_SLOT):
                return await forward(exchange, self.client, origin, body.content, credentials=keys, unless=unless)
        except HttpError as exc:
            if exchange.begun:
                raise  # half an answer is out: the server closes the connection, so that no client takes it for a whole
            _log.warning("engine did not answer", model=engine.alias, error=str(exc))
            raise refused(502, f"the engine of {engine.alias!r} did not answer: {exc}", "engine_failed") from exc


async def _read(head: RequestHead, body: bytes) -> Body:
    """Read which model a JSON body or a form names.

    Raises:
        RefusedError: The body is neither.
    """
    media_type = head.lines.get("content-type") or ""
    is_form = media_type.lower().startswith("multipart/form-data")
    try:
        boundary = boundary_of(media_type) if is_form else None
        if boundary is None:
            named, spans = await read_model(body)
            return Body(body, named, lambda name: replace_model(body, name, spans))
        form = await read_form_model(body, boundary)
    except BodyError as exc:
        raise refused(400, str(exc), "invalid_form" if is_form else "invalid_json") from exc

    async def renamed(name: str) -> bytes:  # noqa: ASYNC124 (as for JSON)
        return replace_form_model(body, boundary, form, name)

    return Body(body, form.value, renamed)
