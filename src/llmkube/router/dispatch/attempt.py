"""One attempt: a request to one backend, until it has failed or its answer has started.

A complete answer is read before a byte of it is forwarded, a stream up to its first event: until then, the router can
fall back to another backend. Timeouts limit how long a backend is silent, never the duration of an answer.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.event_stream import OversizedEventError
from llmkube.base.http.client import OnSent
from llmkube.base.http.errors import ConnectError, HttpError
from llmkube.base.http.message import Headers
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.base.json_text import loads_well_formed
from llmkube.base.loop_shares import long_step
from llmkube.router.auth.key_files import BackendKeys
from llmkube.router.backends import UnavailableModel, engine_of
from llmkube.router.budgets.usage import Usage, usage_of_answer
from llmkube.router.config.routing_config import Adapter, Backend
from llmkube.router.dialects.chat_form import ChatForm
from llmkube.router.dialects.dialect import AnswerTranslator, DialectError
from llmkube.router.dialects.engine_form import without_old_pictures
from llmkube.router.dialects.error_shapes import find_words, parsed_refusal
from llmkube.router.dialects.messages_backend import chat_of_message
from llmkube.router.dialects.providers import FIELDS
from llmkube.router.dispatch.event_stream import AnswerEvent, AnswerState, Kind
from llmkube.router.dispatch.forwarded_headers import request_lines
from llmkube.router.dispatch.request_body import COUNT_TOKENS, rebuild, uses_messages_api
from llmkube.router.dispatch.transport import Transport
from llmkube.router.dispatch.verdicts import Cause, Failure, error_in, failure_in, status_of_error
from llmkube.router.health.engine_watch import FROZEN, WaitingRequest
from llmkube.router.health.health_state import Reply
from llmkube.router.policy.permits import Permit
from llmkube.router.presets import NotLoadedError
from llmkube.router.refusals import RefusedError, error_object

MAX_ANSWER_BYTES: Final = 32 << 20
"""A longer non-streamed answer is a fault of the backend."""

MIN_BYTES_PER_SECOND: Final = 512
"""Minimum rate of a non-streamed answer; a slower one times out."""


MAX_HEALTH_BYTES: Final = 256 << 10
"""Maximum bytes to read of a response to a health check; `/slots` with 64 slots has 90 KB."""


@attrs.frozen(kw_only=True)
class ClientRequest:
    """A client's request, translated to OpenAI's API.

    Attributes:
        path: Path below `/v1`.
        size: Bytes of the client's body and of the stored conversation that it continues.
        request_id: ID in logs, here and at the backend.
        trace: Trace headers.
        translator: Translates the answer to the client's dialect; None forwards it.
        dropped: Fields of the client's request that were lost in translation.
        cache_salt: Separates the prompt caches of tenants; "" if they share them.
        keep_seconds: As `Translation.keep_seconds`; None if it has no effect.
    """

    path: str
    body: Mapping[str, Any] = attrs.field(repr=False)
    size: int
    request_id: str
    trace: Mapping[str, str]
    translator: AnswerTranslator | None = attrs.field(default=None, repr=False)
    dropped: tuple[str, ...] = ()
    cache_salt: str = ""
    keep_seconds: float | None = None

    @property
    def streams(self) -> bool:
        """Whether the client requests a stream."""
        return bool(self.body.get("stream"))

    def hides_cache(self, backend: Backend) -> bool:
        """Whether the client gets no counters of the backend's prompt cache: providers have one for all tenants."""
        return bool(self.cache_salt and backend.provider)


@attrs.frozen(kw_only=True)
class Answer:
    """A complete answer.

    Attributes:
        status: HTTP status for the client.
        headers: Headers of the backend; Content-Length may not match `body`.
        usage: Tokens, if reported.
        model: Model name that the backend reported.
        error_code: Code of an error, for the audit log; "" otherwise.
        dropped: Request fields that the backend did not receive.
    """

    status: int
    headers: Headers
    body: bytes = attrs.field(repr=False)
    usage: Usage | None = None
    model: str = ""
    error_code: str = ""
    dropped: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, eq=False)
class Stream:
    """A stream that has started.

    Attributes:
        answer: Source of the rest of the stream.
        state: Reads its events; it has processed `events`.
        events: First events, up to the first with content.
        silence_seconds: Longest time between two events.
        hides_usage: Whether to hide the usage from the client, which did not request it.
        dropped: Request fields that the backend did not receive.
    """

    answer: StreamedResponse
    state: AnswerState
    events: tuple[AnswerEvent, ...]
    silence_seconds: float
    hides_usage: bool = False
    dropped: tuple[str, ...] = ()


def without_unseen_pictures(inbound: ClientRequest, found: Answer | Stream | Failure) -> ClientRequest | None:
    """Return a request without its earlier pictures, if the model cannot see them; None to keep what was found."""
    answered = found.body.decode("utf-8", "replace") if isinstance(found, Answer) and found.error_code else ""
    words = found.detail if isinstance(found, Failure) else answered
    if not words or not find_words("blind", words):
        return None
    dropped: list[str] = []
    body = {**inbound.body, "messages": without_old_pictures(inbound.body.get("messages") or [], dropped)}
    return attrs.evolve(inbound, body=body, dropped=(*inbound.dropped, *dropped)) if dropped else None


@attrs.frozen(eq=False)
class Attempts:
    """Sends requests to backends.

    Attributes:
        keys: API keys of the backends.
    """

    transport: Transport
    keys: BackendKeys

    async def ask(self, permit: Permit, path: str) -> Reply:
        """Send a health check to a backend, at a path from the root of its host.

        Raises:
            HttpError: It does not respond.
        """
        backend, credentials = permit.backend, b""
        if (directory := self.transport.directory_of(backend)) is not None:
            found = directory.lookup(backend.directory_id)
            if found is None:
                raise ConnectError(f"service {backend.directory_id} not found")
            if isinstance(found, UnavailableModel):
                # Not unhealthy, as if it were loading: otherwise its circuit would stay open until the next probe after
                # its engine is back, and clients would not get the reason.
                return Reply(503, is_loading=True)
            credentials = found.credentials
        key = self.keys.key_of(backend.key_file) if backend.key_file else ""
        answer = await self.transport.ask(permit, path, request_lines(backend, key, "health", {}) + credentials)
        try:
            body = bytearray()
            while len(body) <= MAX_HEALTH_BYTES and (piece := await answer.receive_some()):
                body += piece
            return reply_of(answer.status, answer.headers, bytes(body), ours=not backend.provider)
        finally:
            await self.transport.release(permit, answer)  # noqa: ASYNC102 (closes at once, even when cancelled)

    def _resolve(self, backend: Backend, key: str, path: str) -> tuple[Backend, bytes] | Failure:
        """Return a backend with the model id and credentials from the directory, or why it gets no request."""
        if (missing := _unavailable(backend, key, path)) is not None:
            return missing
        directory = self.transport.directory_of(backend)
        if directory is None:
            return backend, b""
        try:
            found = engine_of(directory, backend.directory_id, f"/v1{path}")
        except RefusedError as refusal:
            reply = refusal.response
            failure = failure_in(reply.status, reply.headers, error_in(orjson.loads(reply.body)), ours=True)
            assert failure is not None, "engine_of raises no error that is an answer"
            return failure
        adapters = tuple(Adapter(*each) for each in found.adapters)
        if found.alias != backend.model or adapters != backend.adapters:
            backend = attrs.evolve(backend, model=found.alias, adapters=adapters)
        return backend, found.credentials

    async def make(
        self,
        permit: Permit,
        inbound: ClientRequest,
        silence_seconds: float,
        waiting: WaitingRequest | None = None,
        on_sent: OnSent | None = None,
    ) -> Answer | Stream | Failure:
        """Send the request to one backend; the caller must release a returned stream.

        Args:
            permit: Permission for this backend.
            inbound: Request to send.
            silence_seconds: Longest wait for the first byte, and between two later ones.
            waiting: Gets the cancel scope of the wait, to extend it while the engine is alive and to cancel it if the
                engine is frozen.
            on_sent: Called once the whole request has been sent.
        """
        backend = permit.backend
        key = self.keys.key_of(backend.key_file) if backend.key_file else ""
        resolved = self._resolve(backend, key, inbound.path)
        if isinstance(resolved, Failure):
            return resolved
        backend, credentials = resolved
        try:
            async with long_step(inbound.size):
                rebuilt = rebuild(inbound.path, inbound.body, backend, inbound.cache_salt)
        except DialectError as exc:
            is_loading = isinstance(exc, NotLoadedError)
            return Failure(Cause.NOT_LOADED, str(exc), 503, 5) if is_loading else Failure(Cause.UNSUPPORTED, str(exc))
        lines = request_lines(backend, key, inbound.request_id, inbound.trace) + credentials
        answer, handed_over = None, False
        try:
            began_at = trio.current_time() if waiting is None else waiting.began_at
            with trio.CancelScope(deadline=began_at + silence_seconds) as silence:
                if waiting is not None:
                    waiting.begin(silence)
                answer = await self.transport.start(permit, rebuilt.path, lines, rebuilt.body, on_sent)
                uses_messages = uses_messages_api(inbound.path, backend)
                name = str(inbound.body.get("model"))
                kind = {"uses_messages": uses_messages, "hides_cache": inbound.hides_cache(backend)}
                reader = _AnswerReader(answer, silence, silence_seconds, backend, name, **kind)
                found = await reader.read(inbound.streams)
                dropped = inbound.dropped + rebuilt.dropped
                if isinstance(found, Stream):
                    handed_over = True
                    return attrs.evolve(found, hides_usage=rebuilt.usage_added, dropped=dropped)
                return attrs.evolve(found, dropped=dropped) if dropped and isinstance(found, Answer) else found
            if waiting is not None and waiting.is_frozen:
                return Failure(Cause.FROZEN, FROZEN)
            return Failure(Cause.TIMEOUT, f"no data for {silence_seconds:g} seconds")
        except ConnectError as exc:
            late = isinstance(exc.__cause__, TimeoutError)
            return Failure(Cause.TIMEOUT if late else Cause.CONNECT, str(exc))
        except HttpError as exc:
            return Failure(Cause.BROKEN, str(exc))
        except OversizedEventError as exc:
            return Failure(Cause.MALFORMED, str(exc))
        finally:
            if answer is not None and not handed_over:
                await self.transport.release(permit, answer)  # noqa: ASYNC102 (closes at once, even when cancelled)


def reply_of(status: int, headers: Headers, body: bytes, *, ours: bool) -> Reply:
    """Return the result of a health check."""
    try:
        error = error_in(orjson.loads(body)) if status == 503 else None
    except orjson.JSONDecodeError:
        error = None
    failure = failure_in(status, headers, error, ours=ours)
    is_loading = failure is not None and failure.cause is Cause.LOADING
    return Reply(status, headers.get("server") or "", is_loading, body)


def _encoding_and_type(headers: Headers) -> tuple[str, str]:
    """Return the content encoding and the media type of an answer."""
    encoding = (headers.get("content-encoding") or "identity").lower()
    return encoding, (headers.get("content-type") or "").partition(";")[0].strip().lower()


def _unavailable(backend: Backend, key: str, path: str) -> Failure | None:
    if backend.missing or not backend.base_url:
        return Failure(Cause.MISSING, backend.missing or "address unknown")
    if path not in FIELDS or (backend.dialect == "anthropic" and path not in ("/chat/completions", COUNT_TOKENS)):
        return Failure(Cause.MISSING, f"it does not serve {path}")
    if path == COUNT_TOKENS and backend.provider and backend.dialect != "anthropic":
        return Failure(Cause.UNSUPPORTED, f"backend {backend.name} cannot count tokens; use a model that can")
    if backend.key_file and not key:
        return Failure(Cause.KEY, f"no key can be read from {backend.key_file}")
    return None


@attrs.frozen(eq=False)
class _AnswerReader:
    """Reads one answer until it can be classified.

    Attributes:
        silence: Its deadline moves with each byte, or with each event of a stream.
        silence_seconds: Distance of that deadline.
        model: Name of the model in the client's request, which the answer gets.
        uses_messages: Whether the answer is in Anthropic's Messages format.
        hides_cache: Whether the client gets no counters of the backend's prompt cache.
    """

    answer: StreamedResponse
    silence: trio.CancelScope
    silence_seconds: float
    backend: Backend
    model: str
    uses_messages: bool
    hides_cache: bool

    async def read(self, streams: bool) -> Answer | Stream | Failure:
        head = self.answer.head
        encoding, media_type = head.lines.derived(_encoding_and_type)
        if encoding != "identity":
            return Failure(Cause.MALFORMED, f"its answer has an unrequested Content-Encoding: {encoding}", head.status)
        if head.status == 200 and streams and media_type == "text/event-stream":
            return await self._read_stream()
        return await self._read_body(streams)

    async def _read_stream(self) -> Stream | Answer | Failure:
        state = AnswerState(self.model, uses_messages=self.uses_messages, hides_cache=self.hides_cache)
        events: list[AnswerEvent] = []  # not sent to the client yet, so an invalid one causes a fallback
        while True:
            # Only events with content move the deadline: a backend could send comments and partial events forever.
            piece = await self.answer.receive_some()
            for event in state.feed(piece) if piece else state.end():
                events.append(event)
                has_written = any(each.kind is Kind.PIECE for each in events)
                if event.kind is Kind.ERROR:
                    found = self._error(state.error or {}, 200, b"")
                    return attrs.evolve(found, status=200) if has_written and isinstance(found, Failure) else found
                if (event.kind is Kind.GARBAGE and piece) or (event.kind is Kind.DONE and not has_written):
                    return Failure(Cause.MALFORMED, "its stream has an invalid event", 200)
            if any(event.kind is Kind.PIECE for event in events):
                seconds = self.silence_seconds
                return Stream(answer=self.answer, state=state, events=tuple(events), silence_seconds=seconds)
            if not piece:
                return Failure(Cause.BROKEN, "its stream ended without content")

    async def _read_body(self, streams: bool) -> Answer | Failure:
        if self.answer.has_full_body:
            return self._classify(self.answer.take_body(), streams)
        received, started_at = bytearray(), None
        while piece := await self.answer.receive_some():
            received += piece
            if len(received) > MAX_ANSWER_BYTES:
                text = f"its answer is longer than {MAX_ANSWER_BYTES} bytes"
                return Failure(Cause.MALFORMED, text, self.answer.status)
            if self.answer.ended:
                break
            now = trio.current_time()
            if not received.isspace():  # providers send whitespace as keep-alive before the answer: no minimum rate
                started_at = now if started_at is None else started_at
                slowest = started_at + self.silence_seconds + len(received) / MIN_BYTES_PER_SECOND
                self.silence.deadline = min(now + self.silence_seconds, slowest)
        return self._classify(bytes(received), streams)

    def _classify(self, body: bytes, streams: bool) -> Answer | Failure:
        status, headers = self.answer.status, self.answer.head.lines
        try:
            reply = loads_well_formed(body)
            usage, changed = None, self.uses_messages and isinstance(reply, dict) and (status < 400 or "error" in reply)
            if changed:
                reply = chat_of_message(reply)
            if isinstance(reply, dict):
                model = reply.get("model")
                usage = usage_of_answer(reply)
                changed = ChatForm(self.model, self.hides_cache).convert(reply, "message") or changed
            body = orjson.dumps(reply) if changed else body
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, DialectError):
            reply = parsed_refusal(body) if status >= 400 else None
        error = error_in(reply, refused=status >= 400)
        if error is not None:
            is_verbatim = isinstance(reply, dict) and error == reply.get("error")
            return self._error(error, status, body if is_verbatim else b"")
        if (failure := failure_in(status, headers, None, ours=not self.backend.provider)) is not None:
            return failure
        if status in (401, 403):
            return self._error({}, status, body)
        if status >= 400:
            return self._own(status, f"the backend returned HTTP {status} without a readable error", "backend_refused")
        if not isinstance(reply, dict):
            return Failure(Cause.MALFORMED, "its answer is not a JSON object", status)
        if streams:
            return Failure(Cause.MALFORMED, "its answer is not a stream, although one was requested", status)
        model = model if isinstance(model, str) else ""
        return Answer(status=status, headers=headers, body=body, usage=usage, model=model)

    def _error(self, error: Mapping[str, Any], status: int, body: bytes) -> Answer | Failure:
        """Classify an error, by the status that it should have had if it came with 200."""
        effective = status if status >= 300 else status_of_error(error)
        if (found := failure_in(effective, self.answer.head.lines, error, ours=not self.backend.provider)) is not None:
            return found
        if effective in (401, 403) and (self.backend.provider or self.backend.key_file):
            # The credentials are the router's: the provider's message about them is not for the client.
            message = "the backend rejected the router's credentials; the router's operator must replace them"
            return self._own(502, message, "backend_refused_credentials")
        code = str(error.get("code") or error.get("type") or "error")
        text = body if status == effective and body else orjson.dumps({"error": dict(error)})
        return Answer(status=effective, headers=self.answer.head.lines, body=text, error_code=code)

    def _own(self, status: int, message: str, code: str) -> Answer:
        body = orjson.dumps({"error": error_object(status, message, code)})
        return Answer(status=status, headers=self.answer.head.lines, body=body, error_code=code)
