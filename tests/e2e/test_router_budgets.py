"""Budgets of `llmkube router -f`: over SIGKILLs, whoever kills it gets nothing twice; two of it have one count."""

import json

import pytest
import trio

from e2e.up_process import open_program
from llmkube.base.errors import WorldError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.router.config.routing_config import Backend, Budget, RedisStore, RoutingConfig
from llmkube.router.config.written_form import encode_config
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
"""What each request reserves."""


async def test_a_kill_admits_nothing_twice(tmp_path):
    """Killed again and again in the middle of requests, the router sends no more of them than its budget holds."""
    asked, reached = [], trio.Event()

    async def silent(exchange):
        nonlocal reached
        asked.append(exchange.body)
        reached.set()
        await trio.sleep_forever()

    manifest = tmp_path / "router.yaml"
    manifest.write_text(ROUTER)
    refused = None
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(run_server, silent, listeners)
        port = listeners[0].socket.getsockname()[1]
        args = ("router", "-f", str(manifest), "--port", "0", "--admin-port", "0")
        args += ("--service", f"phi=http://127.0.0.1:{port}/v1", "--state-dir", str(tmp_path / "state"))
        for _ in range(1000 // MOST + 2):
            reached = trio.Event()
            async with open_program(tmp_path, *args) as router, open_http_client() as http:
                url = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
                async with trio.open_nursery() as client:

                    async def ask(scope=client.cancel_scope, http=http, url=url):
                        nonlocal refused
                        try:
                            answer = await http.request("POST", f"{url}/v1/chat/completions", body=BODY)
                        except WorldError:  # it was killed
                            return
                        refused = answer.status, answer.body
                        scope.cancel()

                    client.start_soon(ask)
                    await reached.wait()
                    router.process.kill()
                    await router.process.wait()
                    client.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    assert len(asked) == 1000 // MOST
    assert refused is not None
    assert refused[0] == 429
    assert b"budget hour has no room" in refused[1]


async def test_a_damaged_file_is_named_and_the_router_does_not_start(tmp_path):
    """It says what to do; the file is left as it is."""
    manifest = tmp_path / "router.yaml"
    manifest.write_text(ROUTER)
    file = tmp_path / "state" / "router-budgets" / "default.limited.db"
    file.parent.mkdir(mode=0o700, parents=True)
    file.parents[1].chmod(0o700)
    file.write_bytes(b"no database" * 1000)
    args = ("router", "-f", str(manifest), "--port", "0", "--admin-port", "0", "--service", "phi=http://127.0.0.1:1/v1")
    async with open_program(tmp_path, *args, "--state-dir", str(tmp_path / "state")) as router:
        assert await router.process.wait() != 0
    assert "Traceback" not in router.err
    assert "default.limited.db are damaged" in " ".join(router.err.split())
    assert file.read_bytes().startswith(b"no database")


async def test_two_programs_share_one_budget(tmp_path):
    """Kept by a real redis-server: what one of them has taken the other does not send."""
    asked, password = [], tmp_path / "password"
    password.write_text(PASSWORD)

    async def answer(exchange):  # without usage: it is charged as reserved
        asked.append(exchange.body)
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        await exchange.respond(Response.json(200, {"object": "chat.completion", "choices": [choice]}))

    async with open_redis() as server, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(run_server, answer, listeners)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        config = RoutingConfig(
            name="ml/limited",
            backends={"mac": Backend(name="mac", model_id="mac", base_url=url, local=True)},
            default_backend="mac",
            budgets=(Budget(name="hour", scope="router", window_seconds=3600, max_tokens=MOST),),
            budget_store=RedisStore(host="127.0.0.1", port=server.port, password_file=str(password)),
        )
        file = tmp_path / "router.json"
        file.write_bytes(encode_config(config))
        args = ("router", "-f", str(file), "--port", "0", "--admin-port", "0", "--state-dir")
        async with (
            open_program(tmp_path, *args, str(tmp_path / "one")) as one,
            open_program(tmp_path, *args, str(tmp_path / "other")) as other,
            open_http_client() as http,
        ):
            said = []
            for router in (one, other):
                own = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
                said.append(await http.request("POST", f"{own}/v1/chat/completions", body=BODY))
        nursery.cancel_scope.cancel()
    assert [each.status for each in said] == [200, 429]
    assert b"budget hour has no room" in said[1].body
    assert len(asked) == 1
