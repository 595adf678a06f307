"""The route to a served model, and a conversation with it, with streamed answers."""

import contextlib
import ipaddress
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.event_stream import EventParser, OversizedEventError
from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.errors import ConnectError, ConnectionLostError, HttpError
from llmkube.base.http.message import Headers, netloc
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.cli.object_names import find
from llmkube.cli.target_cluster import Cluster
from llmkube.cli.view.describe import summary
from llmkube.cli.view.locations import find_engines
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ForbiddenError, root_cause_text
from llmkube.k8s.port_forward import connect_to_pod
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import pods_of
from llmkube.programs.failures import CommandError
from llmkube.router.dialects.chat_form import unify_texts
from llmkube.router.dialects.error_shapes import error_of, parsed_refusal


@attrs.frozen
class Route:
    """The destination of requests for a model.

    Attributes:
        host: An address.
        port: A TCP port.
        model_id: Value of `model` in requests.
        name: Description of the destination.
        api_key: API key to send; "" for none.
        pod: Pod with this address, to which connections go through the API server; None for other engines.
    """

    host: str
    port: int
    model_id: str
    name: str
    api_key: str = attrs.field(default="", repr=False)
    pod: Key | None = None

    @property
    def url(self) -> str:
        """The base of all URLs."""
        return f"http://{netloc((self.host, self.port))}"


def gateway_route(service: InferenceService) -> Route | None:
    """Return the route through the gateway of `llmkube up`; None if the service's endpoint is not on this machine.

    In `llmkube up`, `status.endpoint` has the gateway's address; in a cluster, it has the name of a Service.
    """
    parts = urlsplit(service.status.endpoint)
    try:
        if parts.scheme != "http" or parts.hostname is None or not ipaddress.ip_address(parts.hostname).is_loopback:
            return None
        port = parts.port or 80
    except ValueError:  # a name, or no port at all
        return None
    return Route(parts.hostname, port, str(service.key), f"the gateway at {parts.netloc}")


async def find_route(cluster: Cluster, service: InferenceService) -> Route:
    """Return the route to a service.

    Raises:
        CommandError: It cannot be reached now; the message has the cause and the fix.
    """
    if service.spec.suspend or service.spec.replicas == 0:
        fix = "set spec.suspend to false" if service.spec.suspend else f"`llmkube scale {service.key.name} 1`"
        raise CommandError(f"InferenceService {service.key} is stopped; {fix} starts it")
    through_gateway = gateway_route(service)
    if through_gateway is not None:
        return through_gateway
    engines = await find_engines(cluster, service.key.namespace, service.key.name)
    ready = next((engine for engine in engines if engine.ready), None)
    if ready is not None:  # directly to a host's address, or through the API server to a pod
        where = f"the engine on {ready.host or 'a node'}"
        return Route(ready.address, ready.port, service.key.name, where, pod=ready.pod)
    if service.status.ready_replicas and not engines and (selector := pods_of(service)):
        raise CommandError(
            f"InferenceService {service.key} is served by pods, but no EndpointSlice has their addresses; "
            f"`kubectl get pods -n {service.key.namespace} -l {selector}` lists them"
        )
    if service.status.ready_replicas and not engines:
        raise CommandError(
            f"InferenceService {service.key} is served, but its agent has published no address; "
            "start that agent with --host-ip and an address that this machine can reach"
        )
    raise CommandError(await not_ready_text(cluster, service))


async def not_ready_text(cluster: Cluster, service: InferenceService) -> str:
    """Return the message that a service is not ready, with the cause and the command that watches it."""
    model = await find(cluster.client, Model, Key(service.key.namespace, service.spec.model_ref))
    return (
        f"InferenceService {service.key} is not ready ({summary(service, model)}); "
        f"`llmkube status {service.key.name} --watch` shows its progress"
    )


DONE: Final = "[DONE]"


class StreamError(Exception):
    """The response is not a stream of chat completions, or the engine reported an error in it."""


@attrs.frozen
class Delta:
    """The part of an answer in one event; `usage` is the server's count of tokens, if the event has it."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: Mapping[str, Any] | None = None


@attrs.define(eq=False)
class EventReader:
    """Reads the events of a streamed chat completion.

    Attributes:
        done: Whether the final event was received.
    """

    done: bool = False
    _parser: EventParser = attrs.field(factory=EventParser)

    def feed(self, piece: bytes) -> list[Delta]:
        """Parse the next bytes, or b"" for the end of the stream, and return the completed events.

        Raises:
            StreamError: An event cannot be read, is an error, or is too long.
        """
        try:
            events = self._parser.feed(piece) if piece else self._parser.end()
        except OversizedEventError as exc:
            raise StreamError(str(exc)) from exc
        found = []
        for event in events:
            text = (event.data or b"").decode("utf-8", "replace").strip()
            if event.name == b"error":
                raise StreamError(error_text(text))
            if text == DONE:
                self.done = True
            elif text:
                found.append(parse_event(text))
        return found


def parse_event(text: str) -> Delta:
    """Parse one event of a streamed chat completion.

    Raises:
        StreamError: It is an error, or not a chat completion.
    """
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        raise StreamError(f"the engine sent something that is not JSON: {text[:120]!r}") from None
    if error_of(event) is not None:
        raise StreamError(error_text(text))
    choices = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(choices, list):
        raise StreamError(f"the engine sent something that is not a chat completion: {text[:120]!r}")
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}  # usage comes in an event without choices
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    unify_texts(delta)
    usage = event.get("usage") if isinstance(event.get("usage"), dict) else None
    return Delta(_text(delta, "content"), _text(delta, "reasoning_content"), _text(choice, "finish_reason"), usage)


def error_text(text: str) -> str:
    """Return the message of an error object, or the beginning of a text that is not one."""
    error = error_of(parsed_refusal(text.encode()), refused=True) or {}
    return str(error.get("message") or text[:200])


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


CONNECT_SECONDS: Final = 10.0
DIRECT_SECONDS: Final = 3.0
"""Connect timeout for a pod's address: from outside the cluster's network it never answers."""
_MAX_ERROR_BYTES: Final = 64 * 1024

_CONTEXT_FULL: Final = ("exceed_context_size", "context_length_exceeded", "maximum context length")
"""Texts with which llama.cpp's server, OpenAI's API and vLLM report a request longer than the context."""

OnDelta = Callable[[Delta], None]


class ContextFullError(CommandError):
    """The conversation is longer than the model's context."""


@attrs.define(eq=False)
class Conversation:
    """The turns of a conversation, sent with each question.

    Attributes:
        system: The system prompt; "" for none.
        sampling: Sampling parameters; the engine has defaults for those that are None.
        turns: The turns so far, without the system prompt.
    """

    system: str = ""
    sampling: Mapping[str, Any] = {}
    turns: list[dict[str, str]] = attrs.field(factory=list)

    def body(self, model_id: str, question: str) -> bytes:
        """Return the body of the request for a question, with all earlier turns."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        request: dict[str, Any] = {
            "model": model_id,
            "stream": True,
            "messages": [*first, *self.turns, {"role": "user", "content": question}],
        }
        request |= {name: value for name, value in self.sampling.items() if value is not None}
        return json.dumps(request).encode()

    def add_exchange(self, question: str, answer: str) -> None:
        """Record a question and its answer, even an incomplete one."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def forget_oldest(self) -> int:
        """Drop the older half of the questions with their answers, at least one; return their number."""
        exchanges = len(self.turns) // 2
        dropped = -(-exchanges // 2)
        del self.turns[: 2 * dropped]
        return dropped

    def forget(self) -> None:
        """Drop all turns; keep the system prompt."""
        self.turns.clear()


async def stream_answer(client: HttpClient, route: Route, body: bytes, on_delta: OnDelta) -> str:
    """Send a request, pass each part of the answer to `on_delta`, and return the finish reason.

    There is no deadline after the connection: a long prompt may take minutes before the first token.

    Raises:
        CommandError: The model cannot be reached, is not ready, rejected the request, or closed the connection.
    """
    url = f"{route.url}/v1/chat/completions"
    headers = Headers.of({"Content-Type": "application/json", "Accept": "text/event-stream"})
    if route.api_key:
        headers = headers.with_("Authorization", f"Bearer {route.api_key}")
    try:
        async with client.open_stream("POST", url, headers=headers, body=body) as answer:
            if answer.status != 200:
                raise await _refusal(answer, route)
            return await _read(answer, route, on_delta)
    except ConnectError as exc:
        raise CommandError(
            f"{route.name} cannot be reached ({exc}); check that it is running and that this machine can reach it"
        ) from exc
    except ConnectionLostError as exc:
        raise CommandError(
            f"the answer is incomplete: {root_cause_text(exc)}; `llmkube status` shows the state of the engine"
        ) from exc
    except HttpError as exc:
        raise CommandError(f"the answer of {route.name} is invalid: {exc}") from exc


async def _read(answer: StreamedResponse, route: Route, on_delta: OnDelta) -> str:
    reader, finish_reason = EventReader(), ""
    while not reader.done:
        piece = await answer.receive_some()
        try:
            deltas = reader.feed(piece)
        except StreamError as exc:
            if not piece:
                break  # in the middle of an event
            raise CommandError(f"the answer ended with an error: {exc}") from exc
        for delta in deltas:
            finish_reason = delta.finish_reason or finish_reason
            on_delta(delta)
        if not piece:
            break
    if not reader.done and not finish_reason:
        raise CommandError(f"the answer is incomplete: {route.name} closed the connection; ask again")
    return finish_reason


async def _refusal(answer: StreamedResponse, route: Route) -> CommandError:
    body = bytearray()
    while len(body) < _MAX_ERROR_BYTES and (piece := await answer.receive_some()):
        body += piece
    text = body.decode("utf-8", "replace")
    message = error_text(text)
    if answer.status == 400 and any(word in text for word in _CONTEXT_FULL):
        fix = "shorten the prompt, or use a service with a larger spec.contextSize"
        return ContextFullError(f"the prompt exceeds the model's context: {message}; {fix}")
    return CommandError(_refusal_text(answer.status, message, route))


def _refusal_text(status: int, message: str, route: Route) -> str:
    if status == 503:
        wait = "`llmkube status --watch` shows its progress; ask again when it is ready"
        return f"the model is not ready: {message}; {wait}"
    if status == 401:
        cause = "rejected the API key" if route.api_key else "requires an API key; pass one with --api-key-file FILE"
        return f"{route.name} {cause}: {message}"
    return f"{route.name} rejected the request ({status}): {message}"


def with_connect_timeout(dial: Connect = dial) -> Connect:
    """Wrap a connect function with a timeout of `CONNECT_SECONDS`."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        with trio.move_on_after(CONNECT_SECONDS):
            return await dial(host, port)
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s")

    return connect


def pod_connector(client: Client, pod: Key) -> Connect:
    """Return a function that connects to a pod through the API server, or directly if the user may not forward ports.

    A direct connection works only from inside the cluster's network.
    """

    async def connect(host: str, port: int) -> trio.abc.Stream:
        try:
            return await connect_to_pod(client, pod, port)
        except ForbiddenError as error:
            missing = error
        with trio.move_on_after(DIRECT_SECONDS), contextlib.suppress(OSError):
            return await dial(host, port)
        raise CommandError(
            f"you may not connect to pod {pod} through the API server, which requires the verbs get and create on "
            f"pods/portforward in namespace {pod.namespace} ({missing}), and its address {netloc((host, port))} cannot "
            "be reached from outside the cluster's network"
        ) from missing

    return connect
