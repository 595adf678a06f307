"""A link sends what an httpx client would send, and hands back what it would hand back."""

import gzip
import json
from typing import Any

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest

from k8s.scripted import Body, ScriptedServer, config_map, ok
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Client
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.resource import Key

KEY = Key("default", "a")
SERVER = "https://user@rancher:8443/k8s/clusters/c-1/"
HEADERS = {"User-Agent": "test", "X-Extra": "1", "Accept": "text/html"}


def over_link(server: ScriptedServer) -> Any:
    return TransportSender(server, SERVER, HEADERS)


def over_httpx(server: ScriptedServer) -> Any:
    return httpx.AsyncClient(transport=server, base_url=SERVER, headers=HEADERS)


@pytest.mark.parametrize("link", [over_link, over_httpx])
async def test_a_request_is_complete(link):
    """Address, host, length and media types are those of the request; the caller's default headers are kept."""
    server = ScriptedServer(*[ok(config_map("a", 1))] * 3, ok({"kind": "Status"}))
    client = Client(link(server))
    await client.get(ConfigMap, KEY)
    await client.patch(ConfigMap, KEY, {"data": {"é": "ü"}}, field_manager="a b&c")
    await client.request_json("POST", "/apis/x/v1/things")
    await client.delete(ConfigMap, KEY)
    read, patch, post, delete = server.calls
    assert patch.path == "/k8s/clusters/c-1/api/v1/namespaces/default/configmaps/a"
    assert patch.params == {"fieldManager": "a b&c"}
    assert json.loads(patch.body) == {"data": {"é": "ü"}}
    lengths = [call.headers.get("content-length") for call in server.calls]
    assert lengths == [None, str(len(patch.body)), "0", str(len(delete.body))]
    assert [call.headers.get("content-type") for call in (read, post)] == [None, None]
    for call in server.calls:
        assert call.headers.get_list("host") == ["rancher:8443"]
        assert call.headers.get_list("accept") == ["application/json"]
        assert (call.headers["user-agent"], call.headers["x-extra"]) == ("test", "1")


@pytest.mark.parametrize("link", [over_link, over_httpx])
async def test_a_compressed_answer_is_read(link):
    """An answer in gzip, in several pieces, is the object in it."""
    packed = gzip.compress(json.dumps(config_map("a", 7)).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = httpx.Response(200, stream=Body([packed[:20], packed[20:]]), headers=headers)
    assert (await Client(link(ScriptedServer(answer))).get(ConfigMap, KEY)).metadata.resource_version == "7"
    assert answer.is_closed


async def test_a_body_is_read_where_it_is_asked_for():
    """Without `stream` the answer comes with its body; with it, it knows the request that it belongs to."""
    request = httpx.Request("GET", "http://apiserver/x")
    link = TransportSender(
        ScriptedServer(*(httpx.Response(200, stream=Body([b"a", b"b"])) for _ in range(2))), "http://apiserver"
    )
    assert (await link.send(request, stream=False)).content == b"ab"
    assert (await link.send(request, stream=True)).request is request
