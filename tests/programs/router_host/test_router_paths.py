"""The mapping of the gateway's paths to routers."""

import json
from types import SimpleNamespace

import pytest

from http_lab import MemoryListener, head_of
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.base.http.server import run_server
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.router_paths import refuse_models, router_url, routers_handler, split_target


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/routers/ml/front/v1/models", (Key("ml", "front"), "/v1/models")),
        ("/routers/ml/front/v1/models?a=/b", (Key("ml", "front"), "/v1/models?a=/b")),
        ("/routers/ml/front", (Key("ml", "front"), "/")),
        ("/routers/ml/front/", (Key("ml", "front"), "/")),
        ("/routers/ml", None),
        ("/routers//front/v1", None),
        ("/routers/", None),
        ("/v1/models", None),
        ("/routersml/front", None),
    ],
)
def test_a_target_is_split(target, expected):
    """Namespace, name, and the path within the router; other targets belong to no router."""
    assert split_target(target) == expected


def test_a_router_s_address_leads_to_it():
    """The gateway understands the address of the status."""
    url = router_url("http://127.0.0.1:8080", Key("ml", "front"))
    assert split_target(url.removeprefix("http://127.0.0.1:8080") + "/v1") == (Key("ml", "front"), "/v1")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 403),
        ("GET", "/models", 403),
        ("GET", "/api/tags", 403),
        ("POST", "/v1/chat/completions", 403),
        ("POST", "/api/chat", 403),
        ("POST", "/v1/messages", 403),
        ("POST", "/infill", 403),
        ("DELETE", "/v1/responses/resp_1", 403),
        ("POST", "/health", 403),
        ("GET", "/health", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/", 200),
        ("GET", "/routers/ml/front/v1/models", 404),
        ("GET", "/%72outers/ml/front/v1/models", 403),
    ],
)
async def test_a_gateway_that_serves_routers_only(nursery, method, path, status):
    """No path of a service is answered, and an error has the format of the path's API, and the fix."""
    front = MemoryListener()
    await nursery.start(run_server, routers_handler(lambda key: None, refuse_models), [front])
    async with open_http_client(front.connect) as client:
        answer = await client.request(method, f"http://gw{path}", headers=Headers.of({}), body=b"")
    assert answer.status == status
    if status == 403:
        error = json.loads(answer.body)["error"]
        message = error if isinstance(error, str) else error["message"]
        assert "(--gateway-serves routers); a router's path is /routers/NAMESPACE/NAME/v1" in message


@pytest.mark.parametrize(
    ("path", "message_of"),
    [
        ("/routers/ml/gone/api/chat?x=1", lambda body: body["error"]),
        ("/routers/ml/gone/v1/messages", lambda body: body["error"]["message"] if body["type"] == "error" else None),
        ("/routers/ml/gone/v1/models", lambda body: body["error"]["message"]),
        ("/routers/ml", lambda body: body["error"]["message"]),
    ],
)
async def test_a_missing_router_is_reported_in_the_dialect_of_the_path(path, message_of):
    """The client would not read an error of another API."""
    answers = []

    async def respond(answer):  # noqa: ASYNC124
        answers.append(answer)

    exchange = SimpleNamespace(head=head_of(path), respond=respond)
    await routers_handler(lambda _: None, None)(exchange)
    (answer,) = answers
    assert (answer.status, "no router is running" in message_of(json.loads(answer.body))) == (404, True)
