"""Budgets of `llmkube router -f`: a SIGKILL admits no request twice, and two programs share one budget."""

import json

import pytest
import trio

from e2e.router_lab import open_router, router_command, serve
from e2e.up_process import run_program
from llmkube.base.errors import ExternalError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.router.config.config_json import encode_config
from llmkube.router.config.routing_config import Backend, Budget, RedisStore, RoutingConfig
from redis_program import PASSWORD, open_redis

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: limited}
spec:
  backends: [{name: mac, inferenceServiceRef: {name: phi}}]
  defaultRoute: mac
  policy: {budgets: [{name: hour, scope: router, maxTokens: 1000}]}
"""
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}).encode()
MOST = len(BODY) + 100
"""Tokens that each request reserves."""


async def test_a_kill_admits_nothing_twice(tmp_path):
    """Killed repeatedly during requests, the router never sends more than its budget allows."""
    asked, reached = [], trio.Event()

    async def silent(exchange):
        nonlocal reached
        asked.append(exchange.body)
        reached.set()
        await trio.sleep_forever()

    refused = None
    async with trio.open_nursery() as nursery:
        services = {"phi": await serve(nursery, silent)}
        for _ in range(1000 // MOST + 2):
            reached = trio.Event()
            async with (
                open_router(tmp_path, ROUTER, services=services) as router,
                open_http_client() as http,
                trio.open_nursery() as client,
            ):

                async def ask(scope=client.cancel_scope, http=http, url=router.url):
                    nonlocal refused
                    try:
                        answer = await http.request("POST", f"{url}/v1/chat/completions", body=BODY)
                    except ExternalError:  # it was killed
                        return
                    refused = answer.status, answer.body
                    scope.cancel()

                client.start_soon(ask)
                await reached.wait()
                router.program.process.kill()
                await router.program.process.wait()
                client.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    assert len(asked) == 1000 // MOST
    assert refused is not None
    assert refused[0] == 429
    assert b"budget hour cannot cover" in refused[1]


async def test_a_damaged_file_is_named_and_the_router_does_not_start(tmp_path):
    """The error names the budgets; the file is not changed."""
    file = tmp_path / "state" / "router-budgets" / "default.limited.db"
    file.parent.mkdir(mode=0o700, parents=True)
    file.parents[1].chmod(0o700)
    file.write_bytes(b"no database" * 1000)
    code, _, err = await run_program(tmp_path, *router_command(tmp_path, ROUTER, services={"phi": 1}))
    assert code != 0
    assert "Traceback" not in err
    assert "default.limited.db are damaged" in " ".join(err.split())
    assert file.read_bytes().startswith(b"no database")


async def test_two_programs_share_one_budget(tmp_path):
    """With a real redis-server, tokens that one router has used are not available to the other."""
    asked, password = [], tmp_path / "password"
    password.write_text(PASSWORD)

    async def answer(exchange):  # without usage: it is charged as reserved
        asked.append(exchange.body)
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        await exchange.respond(Response.json(200, {"object": "chat.completion", "choices": [choice]}))

    async with open_redis() as server, trio.open_nursery() as nursery:
        url = f"http://127.0.0.1:{await serve(nursery, answer)}/v1"
        config = RoutingConfig(
            name="ml/limited",
            backends={"mac": Backend(name="mac", model_id="mac", base_url=url, local=True)},
            default_backend="mac",
            budgets=(Budget(name="hour", scope="router", window_seconds=3600, max_tokens=MOST),),
            budget_store=RedisStore(host="127.0.0.1", port=server.port, password_file=str(password)),
        )
        written = encode_config(config).decode()
        async with (
            open_router(tmp_path, written, state="one") as one,
            open_router(tmp_path, written, state="other") as other,
            open_http_client() as http,
        ):
            routers = (one, other)
            answers = [await http.request("POST", f"{each.url}/v1/chat/completions", body=BODY) for each in routers]
        nursery.cancel_scope.cancel()
    assert [each.status for each in answers] == [200, 429]
    assert b"budget hour cannot cover" in answers[1].body
    assert len(asked) == 1
