import json

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from cli.cli_objects import condition, service
from cli.memory_cluster import open_cluster_client
from http_lab import MemoryListener, cut
from llmkube.base.event_stream import MAX_EVENT_BYTES
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.inference import conversation
from llmkube.cli.commands.inference.conversation import (
    Conversation,
    Delta,
    EventReader,
    Route,
    StreamError,
    error_text,
    find_route,
    gateway_route,
    parse_event,
    pod_connector,
    stream_answer,
)
from llmkube.cli.target_cluster import Cluster
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.errors import ForbiddenError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, errors_as_messages

POD = Key("default", "chat-0")
ROUTE = Route("127.0.0.1", 8080, "default/chat", "the gateway")
EVENTS = Headers.of({"Content-Type": "text/event-stream"})


async def ask(handler, body=b"{}", route=ROUTE):
    """Return the text of an answer and its finish reason."""
    listener = MemoryListener()
    deltas = []
    with errors_as_messages():  # a nursery raises groups
        async with open_http_client(listener.connect) as client, trio.open_nursery() as nursery:
            await nursery.start(run_server, handler, [listener])
            finish_reason = await stream_answer(client, route, body, deltas.append)
            nursery.cancel_scope.cancel()
    return "".join(delta.text for delta in deltas), finish_reason


def streaming(*pieces):
    async def handler(exchange):
        async with exchange.stream(200, EVENTS) as send:
            for piece in pieces:
                await send(piece)

    return handler


def responding(response):
    async def handler(exchange):
        await exchange.respond(response)

    return handler


TEXT = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n'
STOP = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


async def test_an_answer_comes_in_pieces():
    """Each piece is passed on as it arrives, and the finish reason is returned."""
    assert await ask(streaming(TEXT, TEXT, STOP)) == ("yesyes", "stop")


async def test_api_key_of_a_route_is_sent_and_never_printed():
    """It is sent as a bearer token, and a 401 names the flag."""
    seen = []

    async def handler(exchange):
        seen.append(exchange.request.headers.get("authorization"))
        await exchange.respond(Response.json(401, {"error": {"message": "no"}}))

    keyed = attrs.evolve(ROUTE, api_key="CanaryKey1")
    assert "CanaryKey1" not in repr(keyed)
    with pytest.raises(CommandError, match="requires an API key; pass one with --api-key-file FILE: no"):
        await ask(handler)
    with pytest.raises(CommandError, match="rejected the API key: no") as refused:
        await ask(handler, route=keyed)
    assert seen == [None, "Bearer CanaryKey1"]
    assert "CanaryKey1" not in str(refused.value)


async def test_stream_without_a_finish_reason_is_incomplete():
    with pytest.raises(CommandError, match="the answer is incomplete: the gateway closed the connection"):
        await ask(streaming(TEXT))


async def test_a_broken_connection_is_reported():
    """An engine that exits during an answer is reported in one sentence."""

    async def handler(exchange):
        async with exchange.stream(200, EVENTS) as send:
            await send(TEXT)
            raise trio.BrokenResourceError("the engine is gone")

    with pytest.raises(CommandError, match="the answer is incomplete"):
        await ask(handler)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (
            Response.json(503, {"error": {"message": "model is loading"}}),
            "is not ready: model is loading; `llmkube status",
        ),
        (
            Response.json(400, {"error": {"message": "context is full"}}),
            r"rejected the request \(400\): context is full",
        ),
        (Response.text(500, "oops"), r"\(500\): oops"),
    ],
)
async def test_a_refusal_is_reported_in_its_own_words(response, words):
    """Loading models and refused requests are reported with the server's message."""
    with pytest.raises(CommandError, match=words):
        await ask(responding(response))


@pytest.mark.parametrize(
    "error",
    [
        {"type": "exceed_context_size_error", "message": "request (600 tokens) exceeds the available context size"},
        {"code": "context_length_exceeded", "message": "too long"},
        {"message": "This model's maximum context length is 512 tokens."},
    ],
)
async def test_a_full_context_is_an_error_of_its_own(error):
    """The errors of llama.cpp, OpenAI and vLLM are recognised among other refusals."""
    with pytest.raises(CommandError, match="exceeds the model's context"):
        await ask(responding(Response.json(400, {"error": error})))


def test_older_half_is_dropped_first():
    """Each call drops at least one question with its answer."""
    talk = Conversation()
    for question in "abc":
        talk.add_exchange(question, question.upper())
    assert talk.forget_oldest() == 2
    assert [turn["content"] for turn in talk.turns] == ["c", "C"]
    assert (talk.forget_oldest(), talk.forget_oldest(), talk.turns) == (1, 0, [])


async def test_an_unreachable_server_is_reported():
    """A port without a listener gives one sentence and no traceback."""
    listener = MemoryListener()
    await listener.aclose()
    async with open_http_client(listener.connect) as client:
        with pytest.raises(CommandError, match="the gateway cannot be reached"):
            await stream_answer(client, ROUTE, b"{}", lambda _: None)


def test_requests_carry_the_conversation():
    """Each request has the system prompt and all turns; `/new` keeps only the system prompt."""
    talk = Conversation("Be brief.", {"temperature": 0.0, "max_tokens": 9})
    talk.add_exchange("a?", "A.")
    body = json.loads(talk.body("chat", "b?"))
    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "a?"),
        ("assistant", "A."),
        ("user", "b?"),
    ]
    assert (body["model"], body["stream"], body["temperature"], body["max_tokens"]) == ("chat", True, 0.0, 9)
    talk.forget()
    assert len(json.loads(talk.body("chat", "c?"))["messages"]) == 2
    plain = json.loads(Conversation(sampling={"temperature": None}).body("chat", "c?"))
    assert plain.keys() == {"model", "stream", "messages"}


FORBIDDEN = ForbiddenError('pods "chat-0" is forbidden', code=403)


async def test_a_pod_is_reached_through_the_api_server(monkeypatch):
    """The API server's stream is the connection; the pod's address is not dialled."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def connect_to_pod(client, pod, port):  # noqa: ASYNC124 - stub for a request
        assert (client, pod, port) == ("the client", POD, 8080)
        return theirs

    monkeypatch.setattr(conversation, "connect_to_pod", connect_to_pod)
    assert await pod_connector("the client", POD)("192.0.2.1", 8080) is theirs
    await ours.aclose()


async def test_without_the_right_to_forward_ports_the_pod_is_dialled(monkeypatch):
    """Inside the cluster's network the pod's address works; outside, the missing right is named."""

    async def connect_to_pod(_client, _pod, _port):  # noqa: ASYNC124 - stub for a request
        raise FORBIDDEN

    monkeypatch.setattr(conversation, "connect_to_pod", connect_to_pod)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with listener, await pod_connector(None, POD)("127.0.0.1", port):
        pass
    with pytest.raises(CommandError, match="verbs get and create on pods/portforward in namespace default") as refused:
        await pod_connector(None, POD)("127.0.0.1", port)
    assert f"127.0.0.1:{port} cannot be reached from outside the cluster's network" in refused.value.message


def piece(host, address, *, ready):
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"chat.{host}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "chat", "inference.llmkube.dev/host": host},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
        "ports": [{"name": "http", "port": 51234, "protocol": "TCP"}],
    }


async def route_to(found, *pieces):
    with errors_as_messages():  # the cluster's nurseries raise groups
        async with open_cluster_client() as client:
            for each in pieces:
                await client.apply(EndpointSlice, each, field_manager="test")
            return await find_route(Cluster(client, "default"), found)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:8080/v1/chat/completions", "http://127.0.0.1:8080"),
        ("http://[::1]:9000/v1/chat/completions", "http://[::1]:9000"),
        ("http://chat.default.svc.cluster.local:8080/v1/chat/completions", None),
        ("http://10.0.0.5:8080/v1", None),
        ("https://127.0.0.1:8080/v1", None),
        ("http://127.0.0.1:99999/v1", None),
        ("", None),
    ],
)
def test_a_gateway_is_known_by_its_address(endpoint, url):
    """Only a plain URL on this machine is the gateway of `llmkube up`."""
    route = gateway_route(service(endpoint=endpoint))
    assert (route.url if route else None) == url


async def test_a_ready_engine_is_reached_directly():
    """In a cluster the request goes to the address of a ready engine."""
    pieces = (piece("a", "10.0.0.4", ready=False), piece("b", "10.0.0.5", ready=True))
    assert await route_to(service(), *pieces) == Route("10.0.0.5", 51234, "chat", "the engine on b")


async def test_a_pod_is_known_by_its_name():
    """A slice that names the pod gives a route through the API server."""
    slice_ = piece("node-1", "10.0.0.5", ready=True)
    slice_["endpoints"][0]["targetRef"] = {"kind": "Pod", "name": "chat-0", "namespace": "default"}
    route = await route_to(service(selector="app=chat"), slice_)
    assert (route.host, route.port, route.pod) == ("10.0.0.5", 51234, Key("default", "chat-0"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (service(readyReplicas=1), "its agent has published no address; start that agent with --host-ip"),
        (
            service(readyReplicas=1, selector="app=chat"),
            "is served by pods, but no EndpointSlice has their addresses; `kubectl get pods -n default -l app=chat`",
        ),
        (
            service("chat", condition("Loaded", False, "Loading"), phase="Creating"),
            r"is not ready \(Creating: a Model named chat\)",
        ),
    ],
)
async def test_without_a_route_the_reason_is_reported(found, words):
    """The error names what is missing and the fix."""
    with pytest.raises(CommandError, match=words):
        await route_to(found)


async def test_stopped_service_is_reported_with_the_fix():
    found = service(endpoint="http://127.0.0.1:8080/v1")
    stopped = attrs.evolve(found, spec=attrs.evolve(found.spec, replicas=0))
    with pytest.raises(CommandError, match="is stopped; `llmkube scale chat 1` starts it"):
        await route_to(stopped)
    suspended = attrs.evolve(found, spec=attrs.evolve(found.spec, suspend=True))
    with pytest.raises(CommandError, match=r"set spec\.suspend to false"):
        await route_to(suspended)


def event(**delta):
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}, ensure_ascii=False).encode() + b"\n\n"


STREAM = (
    b": a comment\r\n\r\n"
    + event(role="assistant", content=None)
    + event(content="Grüß ")
    + b"id: 7\nevent: message\n"
    + event(content="Gott, 世界")
    + b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    + b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_pieces_may_end_anywhere(positions):
    """The stream reads the same wherever it is cut, also within a character."""
    reader = EventReader()
    deltas = [delta for piece in cut(STREAM, positions) for delta in reader.feed(piece)]
    assert "".join(delta.text for delta in deltas) == "Grüß Gott, 世界"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert reader.done


def test_reasoning_is_separate():
    """Reasoning is not part of the answer."""
    assert EventReader().feed(event(reasoning_content="hm")) == [Delta(reasoning="hm")]
    assert EventReader().feed(event(reasoning="hm", content=[{"type": "text", "text": "a"}])) == [Delta("a", "hm")]


def test_a_stream_may_end_without_its_last_newline():
    """The last event is complete; what is in the middle of an event is not."""
    reader = EventReader()
    assert reader.feed(b"\xef\xbb\xbf" + event(content="a").replace(b"\n", b"\r") + b"data: [DONE]") == [Delta("a")]
    assert reader.feed(b"") == []
    assert reader.done


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'error: {"code": 500, "message": "slot lost"}\n\n', "slot lost"),
        (b"data: <html>\n\n", "not JSON"),
        (b'data: {"hello": 1}\n\n', "not a chat completion"),
        (b"data: []\n\n", "not a chat completion"),
        (b"x" * (MAX_EVENT_BYTES + 1), "longer than"),
    ],
)
def test_errors_within_a_stream_are_raised(piece, words):
    """An engine that fails during an answer, or another program, ends it with its own message."""
    with pytest.raises(StreamError, match=words):
        EventReader().feed(piece)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": {"message": "no"}}', "no"),
        ('{"error": "no"}', "no"),
        ('{"message": "no"}', "no"),
        ("no", "no"),
        ("[]", "[]"),
    ],
)
def test_every_shape_of_error_has_a_sentence(text, words):
    """OpenAI's shape, older ones and plain text all yield their message."""
    assert error_text(text) == words


def test_strange_deltas_are_empty():
    """A delta of another type adds nothing."""
    assert parse_event('{"choices": [{"delta": {"content": 7}}]}') == Delta()
    assert parse_event('{"choices": [{"delta": "x"}]}') == Delta()
