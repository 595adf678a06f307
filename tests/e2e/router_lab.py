"""`llmkube router -f` as a child of the test, with its engines and providers."""

import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import attrs
import trio

import llmkube.weights
from e2e.up_process import Program, environment, open_program
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

DEMO = Path(llmkube.weights.__file__).parent / "builtin" / "demo.gguf"


@attrs.frozen
class Router:
    """A running router: its program, its URL and that of its admin port."""

    program: Program
    url: str
    admin: str


def router_command(folder, config, *, keys=None, services=None, state="state"):
    """Write a router's config and its keys' files; return the command that runs it, with the ports of its services."""
    file = folder / "router.yaml"
    file.write_text(config)
    words = ["router", "-f", str(file), "--port", "0", "--admin-port", "0", "--state-dir", str(folder / state)]
    for name, key in (keys or {}).items():
        (folder / "keys" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "keys" / name).write_text(key)
    if keys:
        words += ["--keys-dir", str(folder / "keys")]
    for name, port in (services or {}).items():
        words += ["--service", f"{name}=http://127.0.0.1:{port}/v1"]
    return words


@contextlib.asynccontextmanager
async def open_router(folder, config, **options):
    """Run a router of `router_command`; terminate it after the block and wait until it has exited."""
    async with open_program(folder, *router_command(folder, config, **options)) as program:
        url = (await program.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
        yield Router(program, url, (await program.wait_for("err", r'"admin":"(\S+?)"'))[1])
        program.process.terminate()
        await program.process.wait()


async def serve(nursery, handler):
    """Serve on a free port; return it."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(run_server, handler, listeners)
    return listeners[0].socket.getsockname()[1]


async def run_clients(folder, packages, *words, stdin=b""):
    """Run a Python program with only the clients' packages; return the JSON of its last line."""
    env = environment(folder) | {"PYTHONPATH": str(packages), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = await trio.run_process([sys.executable, "-S", *words], env=env, stdin=stdin, capture_stdout=True)
    return json.loads(done.stdout.splitlines()[-1])  # litellm prints as well


@contextlib.asynccontextmanager
async def open_engine(folder, port, *, model=DEMO, flags=()):
    """Run a real llama-server with the demo's model; yield its process."""
    command = [f"{sys.prefix}/bin/llmkube-llama-server", "--model", str(model), "--host", "127.0.0.1"]
    with (folder / "engine.log").open("wb") as log:
        command += ["--port", str(port), *flags]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdout=log, stderr=log, check=False))
            await healthy(port)
            yield process
            nursery.cancel_scope.cancel()


async def healthy(port):
    """Wait until an engine has loaded its model."""
    async with open_http_client() as http:
        while True:
            with contextlib.suppress(Exception):
                if (await http.request("GET", f"http://127.0.0.1:{port}/health")).status == 200:
                    return
            await trio.sleep(0.05)


async def open_provider(nursery, asked):
    """Serve a provider that answers like OpenAI's and records its requests; return its port."""

    async def answer(exchange):
        body = json.loads(exchange.body)
        asked.append((exchange.head.lines, body))
        choice = {"index": 0, "message": {"role": "assistant", "content": "from the cloud"}, "finish_reason": "stop"}
        if body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": '{"city": "Rome"}'}}
            choice = choice | {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
        reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice],
                 "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}  # fmt: skip
        if "slow" in json.dumps(body["messages"]):
            await trio.sleep_forever()
        if not body.get("stream"):
            await exchange.respond(Response.json(200, reply))
            return
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            deltas = [{"content": text} for text in ("from", " the", " cloud")]
            if body.get("tools"):
                deltas = [{"tool_calls": [{"index": 0} | call]}]
            for delta in deltas:
                part = {"index": 0, "delta": delta, "finish_reason": None}
                await send(b"data: %b\n\n" % json.dumps(reply | {"choices": [part]}).encode())
            if "break" in json.dumps(body["messages"]):
                raise OSError("the provider dies")
            part = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
            await send(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(reply | {"choices": [part]}).encode())

    return await serve(nursery, answer)
