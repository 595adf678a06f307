"""A forwarded port of `up` answers for one model as its engine would, and reaches no other one."""

import json
from functools import partial

import attrs
import pytest
import trio

from cli.cli_objects import service
from llmkube.base.http.client import open_http_client
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.inference.one_model import run_one_model
from llmkube.cli.commands.inference.service_route import Way

CHAT = "/v1/chat/completions"
LISTED = [{"id": "other", "meta": {"n_ctx": 1}}, {"id": "chat", "meta": {"n_ctx": 512}}, {"id": "nick", "meta": {}}]


async def gateway(exchange):
    """Says which model was asked, and lists two."""
    if exchange.head.method == "GET":
        await exchange.respond(Response.json(200, {"data": LISTED}))
    else:
        await exchange.respond(Response.json(200, {"asked": json.loads(exchange.body)["model"]}))


class Port:
    def __init__(self, url, http):
        self.url, self.http = url, http

    async def get(self, path, **headers):
        return await self.http.request("GET", self.url + path, headers=Headers.of(headers))

    async def post(self, path, body, **headers):
        told = Headers.of({"Content-Type": "application/json", **headers})
        return await self.http.request("POST", self.url + path, headers=told, body=json.dumps(body).encode())


@pytest.fixture
async def port():
    found = service("chat")
    found = attrs.evolve(found, spec=attrs.evolve(found.spec, aliases=("nick",)))
    behind = await open_listeners("127.0.0.1", 0, field="TEST")
    listeners = await open_listeners("127.0.0.1", 0, field="LOCAL")
    way = Way("127.0.0.1", behind[0].socket.getsockname()[1], "default/chat", "the gateway")

    async def find():
        await trio.lowlevel.checkpoint()
        return way

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, gateway, behind))
        nursery.start_soon(run_one_model, listeners, found, way, find)
        async with open_http_client() as http:
            yield Port(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", http)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("named", [{}, {"model": "chat"}, {"model": "default/chat"}, {"model": "nick"}])
async def test_its_ids_and_none_lead_to_the_model(port, named):
    """A request that names no model means this one, as at an engine's port."""
    answer = await port.post(CHAT, named)
    assert (answer.status, json.loads(answer.body)) == (200, {"asked": "default/chat"})


async def test_another_model_is_not_there(port):
    """What the gateway has beside it is refused by name, and the list has this model with its own context."""
    answer = await port.post(CHAT, {"model": "other"})
    assert (answer.status, "no model 'other'; there is 'chat'" in answer.body.decode()) == (404, True)
    listed = json.loads((await port.get("/v1/models")).body)["data"]
    assert [(each["id"], each["meta"]["n_ctx"]) for each in listed] == [("chat", 512), ("nick", 512)]


async def test_a_page_from_elsewhere_may_not_use_it(port):
    """The port is as closed to web pages as the gateway: one of this machine may, and is named."""
    refused = await port.post(CHAT, {}, Origin="https://evil.example")
    assert (refused.status, "may not use this gateway" in refused.body.decode()) == (403, True)
    own = await port.post(CHAT, {}, Origin="http://localhost:8000")
    assert (own.status, own.headers.get("Access-Control-Allow-Origin")) == (200, "http://localhost:8000")
