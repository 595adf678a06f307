"""The list of models: state, uses, and the engine's own figures."""

import json

import orjson
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.router.backends import Backend, State, UnavailableModel
from llmkube.router.model_list import ModelList, models_in

META = {"n_ctx": 512, "n_ctx_train": 32768, "n_params": 885888}
TEXT = {"input_modalities": ["text"], "output_modalities": ["text"]}


class Directory:
    def __init__(self, **entries):
        self.entries = entries

    def model_ids(self):
        return list(self.entries)

    def aliases(self):
        return []

    def lookup(self, model_id):
        return self.entries.get(model_id)


async def engine(nursery, answers):
    """Start an engine that gives these answers in turn; return how to connect to it, and the received requests."""
    listener, asked = MemoryListener(), []

    async def handle(exchange):
        asked.append((exchange.request.target, exchange.request.headers.get("authorization")))
        await exchange.respond(Response(200, Headers(), answers.pop(0)))

    await nursery.start(run_server, handle, [listener])
    return listener, asked


async def test_the_context_is_the_engines_own_and_asked_for_once(nursery):
    """The list has the engine's value, requested with its key, and requests it again only from another engine."""
    listed = {"data": [{"id": "x", "meta": META, "architecture": TEXT, "owned_by": "llamacpp"}]}
    listener, asked = await engine(nursery, [orjson.dumps(listed)])
    chat = Backend("h", 1, "x", b"Authorization: Bearer k\r\n", "chat")
    async with open_http_client(listener.connect) as client:
        models, directory = ModelList(None, 7, client), Directory(chat=chat)
        for _ in range(2):
            assert await models.objects(models_in(directory)) == [{
                "id": "chat", "object": "model", "created": 7, "owned_by": "llmkube", "capabilities": ["completion"],
                "status": {"value": "loaded"}, "meta": META, "architecture": TEXT,
            }]  # fmt: skip
    assert asked == [("/v1/models", "Bearer k")]


async def test_the_context_of_vllm_has_the_same_name(nursery):
    """Its list has `max_model_len`."""
    listener, _ = await engine(nursery, [b'{"data": [{"id": "x", "max_model_len": 4096}]}'])
    async with open_http_client(listener.connect) as client:
        (model,) = await ModelList(None, 7, client).objects(models_in(Directory(chat=Backend("h", 1, "x"))))
    assert model["meta"] == {"n_ctx": 4096}


async def test_unreported_figures_are_omitted(nursery):
    """A model is listed without figures if its engine returns something else, or is not running."""
    answers = [b"no JSON", b"[]", json.dumps({"data": []}).encode(), json.dumps({"data": [{"meta": "?"}]}).encode()]
    for answer in answers:
        listener, _ = await engine(nursery, [answer])
        async with open_http_client(listener.connect) as client:
            (model,) = await ModelList(None, 7, client).objects(
                models_in(Directory(e=Backend("h", 1, "e", mode="embedding")))
            )
        assert (model["capabilities"], model["status"], "meta" in model) == (["embedding"], {"value": "loaded"}, False)

    async def nothing(host, port):  # noqa: ASYNC124
        raise ConnectionRefusedError(111, "Connection refused")

    async with open_http_client(nothing) as client:
        (model,) = await ModelList(None, 7, client).objects(models_in(Directory(e=Backend("h", 1, "e"))))
    assert model["id"] == "e"


async def test_an_engine_that_does_not_answer_holds_the_list_up_for_two_seconds(autojump_clock, nursery):
    """The list then comes without its figures."""

    async def silent(exchange):
        await trio.sleep_forever()

    listener = MemoryListener()
    await nursery.start(run_server, silent, [listener])
    async with open_http_client(listener.connect) as client:
        began = trio.current_time()
        (model,) = await ModelList(None, 7, client).objects(models_in(Directory(e=Backend("h", 1, "e"))))
    assert (model["id"], round(trio.current_time() - began)) == ("e", 2)


async def test_an_unavailable_model_has_a_reason():
    """The list has state, reason, message, and whether to wait."""
    entries = {
        "a": UnavailableModel("Loading", "it loads", 2),
        "b": UnavailableModel("ScaledToZero", "it is stopped", None, State.UNLOADED),
        "c": UnavailableModel("SourceNotFound", "no such file", None, State.UNLOADED, failed=True),
    }
    async with open_http_client() as client:
        listed = await ModelList(None, 7, client).objects(models_in(Directory(**entries)))
    assert [model["status"] for model in listed] == [
        {"value": "loading", "reason": "Loading", "message": "it loads"},
        {"value": "unloaded", "reason": "ScaledToZero", "message": "it is stopped"},
        {"value": "unloaded", "reason": "SourceNotFound", "message": "no such file", "failed": True},
    ]
