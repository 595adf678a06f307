"""A hosted router asks engines past the gateway: with the engine's own key, and with no word of a client."""

import pytest

from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Headers, Response
from llmkube.programs.router_host.engine_health import engine_asker
from llmkube.router.backends import Backend, UnavailableModel
from llmkube.router.health.probe_state import Reply
from router.proxy.router_lab import local

ENGINE = Backend("127.0.0.1", 1234, "m", b"Authorization: Bearer k\r\n")


class Directory:
    def __init__(self, found):
        self.found = found

    def lookup(self, model_id):
        return self.found if model_id == "default/m" else None


class Client:
    asked = ()

    async def request(self, method, url, *, headers, max_body_bytes):
        self.asked = method, url, tuple(headers)
        return Response(200, Headers.of({"Server": "llama.cpp"}), b"[]")


async def test_an_engine_is_asked_with_its_own_key():
    """It answers nothing but `/health` without."""
    client = Client()
    reply = await engine_asker(Directory(ENGINE), client)(local("a", model="default/m"), "/slots")
    assert client.asked == ("GET", "http://127.0.0.1:1234/slots", (("Authorization", "Bearer k"),))
    assert reply == Reply(200, "llama.cpp", body=b"[]")


async def test_an_engine_that_is_not_there_says_so():
    """One that loads is waited for."""
    gone = engine_asker(Directory(UnavailableModel("Loading", "it loads")), Client())
    assert (await gone(local("a", model="default/m"), "/slots")).is_loading
    with pytest.raises(ConnectError):
        await gone(local("a", model="default/other"), "/slots")
