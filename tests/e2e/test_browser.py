"""A page in a real browser uses the gateway: what it sends, and what it can read of each answer."""

import json
import os
from collections.abc import Sequence
from functools import partial

import attrs
import pytest
import trio

from e2e.addresses import own_address
from e2e.router_lab import serve
from e2e.test_listen import network_url
from e2e.up_process import ANSWER, DEMO, FREE_PORTS, open_up
from llmkube.base.http.message import Headers, Response, netloc
from security.chromium import INSTALL_HINT, find_chromium, show

pytestmark = pytest.mark.e2e

EVIL = "evil.example"

# The headers are those of OpenAI's client for JavaScript: each causes a preflight.
PAGE = """<script>
const QUESTION = 'What is LLMKube?', results = {}, [bases, key, report] = %s
const attempt = async (name, what) => {
  try { results[name] = await what() } catch (error) { results[name] = 'blocked' }
}
const ask = (base, body, shown) => fetch(base + '/v1/chat/completions', {
  method: 'POST',
  headers: {'Content-Type': 'application/json', 'X-Stainless-Os': 'Browser', Authorization: `Bearer ${shown}`},
  body: JSON.stringify({model: 'demo', temperature: 0, messages: [{role: 'user', content: QUESTION}], ...body}),
})
const events = async answer => {
  let text = ''
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
  for (let piece; !(piece = await reader.read()).done;) text += piece.value
  const parts = text.split('\\n').filter(line => line.startsWith('data: {')).map(line => JSON.parse(line.slice(6)))
  return [parts.length > 9, parts.map(part => part.choices[0]?.delta.content ?? '').join('')]
}
(async () => {
  for (const [name, base] of Object.entries(bases)) {
    await attempt(`${name} plain`, async () => (await (await ask(base, {}, key)).json()).choices[0].message.content)
    await attempt(`${name} streaming`, async () => events(await ask(base, {stream: true}, key)))
    await attempt(`${name} models`, async () => {
      const answer = await fetch(base + '/v1/models', {headers: {Authorization: `Bearer ${key}`}})
      return (await answer.json()).data.map(model => model.id)
    })
    await attempt(`${name} unknown`, async () => (await (await ask(base, {model: 'gone'}, key)).json()).error.code)
    await attempt(`${name} no key`, async () => {
      const answer = await ask(base, {max_tokens: 1}, 'wrong')
      return [answer.status, (await answer.json()).error?.code ?? '']
    })
  }
  await fetch(report, {method: 'POST', mode: 'no-cors', body: JSON.stringify(results)})
})()
</script>"""


@attrs.define(eq=False)
class Site:
    """A web site with one page, which reports what it can read."""

    bases: dict[str, str]
    key: str
    report: str = ""
    results: dict[str, object] = attrs.field(factory=dict)
    reported: trio.Event = attrs.field(factory=trio.Event)

    async def handle(self, exchange):
        if exchange.head.path == "/page":
            page = PAGE % json.dumps([self.bases, self.key, self.report])
            await exchange.respond(Response(200, Headers.of({"Content-Type": "text/html"}), page.encode()))
        elif exchange.head.path == "/report":
            self.results = json.loads(exchange.body)
            self.reported.set()
            await exchange.respond(Response(204))
        else:
            await exchange.respond(Response(404))


@pytest.fixture(scope="module")
def chromium():
    found = find_chromium()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(INSTALL_HINT)
    return found


async def visit(site: Site, command: Sequence[str], url: str, profile, names: str = "") -> dict[str, object]:
    """Show the page until it has reported; return its results."""
    site.reported = trio.Event()
    async with trio.open_nursery() as shown:
        shown.start_soon(partial(show, command, url, profile, names=names))
        with trio.fail_after(120):
            await site.reported.wait()
        shown.cancel_scope.cancel()
    return site.results


@pytest.mark.ci
async def test_a_page_of_this_machine_talks_to_both_addresses_and_a_foreign_one_reads_nothing(tmp_path, chromium):
    """A local page's preflights pass, and it reads answers, streams and refusals; a foreign page reads nothing."""
    state = tmp_path / "state"
    args = ("--state-dir", str(state), *FREE_PORTS, "--listen", netloc((own_address(), 0)))
    async with open_up(tmp_path, *args, "-f", str(DEMO)) as up:
        _, gateway, _ = await up.urls()
        await up.wait_for("out", r"default/demo: Ready\n")
        bases = {"loopback": gateway, "network": network_url(up)}
        site = Site(bases, (state / "listen-key").read_text().strip())
        async with trio.open_nursery() as nursery:
            port = await serve(nursery, site.handle)
            site.report = f"http://127.0.0.1:{port}/report"
            near = await visit(site, chromium, f"http://localhost:{port}/page", tmp_path / "near")
            for name in bases:
                assert near[f"{name} plain"] == ANSWER
                assert near[f"{name} streaming"] == [True, ANSWER]
                assert near[f"{name} models"] == ["demo"]
                assert near[f"{name} unknown"] == "model_not_found"
            assert near["loopback no key"] == [200, ""]
            assert near["network no key"] == [401, "invalid_api_key"]
            rules = f"MAP {EVIL}:80 127.0.0.1:{port}"
            far = await visit(site, chromium, f"http://{EVIL}/page", tmp_path / "far", rules)
            assert set(far.values()) == {"blocked"}
            nursery.cancel_scope.cancel()
