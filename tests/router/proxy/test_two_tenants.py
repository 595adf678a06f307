"""Two tenants with keys: none of the quiet one's requests is refused, whatever the hostile one sends."""

import contextlib
import json
import re
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from llmkube.base.http.limits import Limits
from llmkube.base.loop_shares import current_client
from llmkube.router import model_field
from llmkube.router.budgets.meter import answer_count, prompt_bytes
from llmkube.router.config.routing_config import Auth, Budget
from llmkube.router.proxy import handler
from router.proxy import router_lab as rl

HOSTILE = {"authorization": "Bearer hostile"}
QUIET = {"authorization": "Bearer quiet"}
WRITTEN = {"model": "m", "max_tokens": 100}
TIMED = rl.ANSWER | {"timings": {"cache_n": 0, "prompt_n": 2, "predicted_n": 100, "prompt_ms": 1, "predicted_ms": 1}}


@pytest.fixture
def auth(tmp_path):
    for each in ("hostile", "quiet"):
        (tmp_path / each).write_text(f"{each}\n")
    return Auth(keys_folder=str(tmp_path))


def big(length, **more):
    return json.dumps(rl.ASKED | {"user": "x" * length} | more).encode()


def chats(*bodies):
    """Return chats of the hostile tenant."""
    return [("POST", rl.CHAT, HOSTILE, body) for body in bodies]


def response(at):
    """Return a request that continues a response of another tenant, or one that does not exist."""
    body = json.dumps({"model": "m", "input": "hi", "previous_response_id": f"resp_{at}"}).encode()
    return "POST", "/v1/responses", HOSTILE, body


FLOODS = {
    "malformed": chats(*[b"{", b"[]", b'{"model": 1}', big(9, tools=[1]), big(9, messages=7)] * 20),
    "values": chats(*[big(9, unknown=[{}] * 300_000)] * 5),
    "oversized": chats(*[big(17 << 20)] * 3),
    "long names": chats(*[big(9, model="m" * 100_000)] * 20),
    "large": chats(*[big(8 << 20)] * 24),
    "many": chats(*[big(9)] * 400),
    "streams": chats(*[big(9, stream=True)] * 400),
    "arrays": chats(*[big(9, prompt=["a"] * 60, messages=[])] * 20),
    "keys": [("POST", rl.CHAT, {"authorization": f"Bearer {at}"}, big(9)) for at in range(400)],
    "responses": [("GET", f"/v1/responses/resp_{at}", HOSTILE, b"") for at in range(200)]
    + [*map(response, range(200))],
    "models": chats(*[big(9, model=f"m{at}") for at in range(400)]),
}
"""Requests, all at the same time."""

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer hostile\r\n"


async def trickle(lab, begin, each=b""):
    """Send a beginning, then these bytes every five seconds, and read nothing until the connection ends."""
    async with await lab.front.connect("router", 80) as connection:
        with contextlib.suppress(*rl.GONE):
            await connection.send_all(begin)
            while True:
                await trio.sleep(5)
                await connection.send_all(each)


SLOW = {
    "connections": (700, b"", b""),
    "heads": (700, HEAD, b"X: y\r\n"),
    "bodies": (700, HEAD + b"Content-Length: 99999\r\n\r\n", b" "),
    "answers": (200, HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(big(9, stream=True)), big(9, stream=True)), b""),
}
"""Connections, what each sends first, and then now and then."""

SECONDS = 1.0
"""Time that the engine takes for the quiet tenant."""


async def ask_quietly(lab, count):
    """Send the quiet tenant's requests one after another; return how long the longest took."""
    longest = 0.0
    for at in range(count):
        began = trio.current_time()
        found = await lab.ask(rl.ASKED | {"user": f"quiet {at} " + "x" * 100_000}, headers=QUIET)
        assert found.status == 200, found.body
        longest = max(longest, trio.current_time() - began)
    return longest


@pytest.mark.parametrize("flood", [*FLOODS, *SLOW])
async def test_no_request_of_the_quiet_tenant_is_refused(auth, flood, autojump_clock):
    """The engine answers the hostile tenant after ten minutes; no request of the other takes twice its usual time."""

    async def answer(connection):
        is_quiet = "quiet" in lab.players["mac"].asked[-1][1].decode()
        await trio.sleep(SECONDS if is_quiet else 600)
        await connection.send_all(rl.answer())

    async def attack(method, path, headers, body):
        try:
            statuses.append((await lab.ask(body, path, headers, method)).status)
        except Exception as exc:  # noqa: BLE001 (however its connection ends)
            statuses.append(exc)

    statuses = []
    rule = rl.Rule(name="m", match=rl.Match(models=("m",)), backends=("mac",))
    config = rl.config_of(rl.local("mac"), rules=(rule,), auth=auth)
    async with rl.open_lab(config, mac=answer) as lab, trio.open_nursery() as nursery:
        alone = await ask_quietly(lab, 3)
        for each in FLOODS.get(flood, ()):
            nursery.start_soon(attack, *each)
        count, *sent = SLOW.get(flood, (0,))
        for _ in range(count):
            nursery.start_soon(trickle, lab, *sent)
        await trio.testing.wait_all_tasks_blocked()
        assert await ask_quietly(lab, 20) <= 2 * alone
        nursery.cancel_scope.cancel()
    assert 200 not in statuses


class Mortal:
    """The script of an engine that a request with "crash" ends, with all its other requests; it is back at once.

    The quiet tenant's requests take some seconds, others ten minutes.
    """

    def __init__(self, seconds=SECONDS):
        self.death = trio.Event()
        self.seconds = seconds

    async def __call__(self, connection):
        body = self.player.asked[-1][1]
        if b"crash" in body:
            self.death.set()
            self.death = trio.Event()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.end, self.death, nursery.cancel_scope)
            await trio.sleep(self.seconds if b"quiet" in body else 600)
            await connection.send_all(rl.answer())
            nursery.cancel_scope.cancel()

    async def end(self, death, scope):
        await death.wait()
        scope.cancel()


NEXT = ("mac", "pc", "nuc")
"""The engines; a request for the model of one is tried at it first."""


@pytest.mark.parametrize("at_once", [1, 2, 8])
async def test_a_tenant_that_ends_engines_ends_no_request_of_another(auth, at_once, autojump_clock):
    """Each of its requests ends two engines; the others are tried again, and none is blamed."""

    async def attack(lab, number):
        for at in range(10):
            await lab.ask(big(9, model=NEXT[at % 3], stop=f"crash {number} {at}"), headers=HOSTILE)
            await trio.sleep(0.3)

    engines = {name: Mortal() for name in NEXT}
    orders = (NEXT[at:] + NEXT[:at] for at in range(3))
    rules = tuple(rl.Rule(name=each[0], match=rl.Match(models=each[:1]), backends=each) for each in orders)
    rules += (rl.Rule(name="all", match=rl.Match(), backends=NEXT),)
    config = rl.config_of(*map(rl.local, engines), rules=rules, auth=auth)
    async with rl.open_lab(config, **engines) as lab:
        for name, engine in engines.items():
            engine.player = lab.players[name]
        alone = await ask_quietly(lab, 3)
        async with trio.open_nursery() as nursery:
            for number in range(at_once):
                nursery.start_soon(attack, lab, number)
            longest = await ask_quietly(lab, 20)
        assert longest <= 2 * alone


async def test_bodies_of_tenants_are_scanned_in_turn(auth, monkeypatch):
    """Scanning is work of the one processor that all tenants share, however many bodies one of them sends."""
    scanned = []

    def note(*_):
        scanned.append(current_client.get())
        return ()

    async def ask(headers):
        assert (await lab.ask(big(600_000), headers=headers)).status == 200

    monkeypatch.setattr(model_field, "_MEMBER", SimpleNamespace(finditer=note))
    config = rl.config_of(rl.local("mac"), auth=auth)
    async with rl.open_lab(config, mac=rl.answer()) as lab, trio.open_nursery() as nursery:
        for headers in [HOSTILE] * 9 + [QUIET]:
            nursery.start_soon(ask, headers)
    first, second = (at for at, tenant in enumerate(scanned) if tenant == "quiet")
    assert second - first <= 4  # nearly ten if all wait in one queue


async def test_bodies_take_no_more_memory_than_a_router_has(auth, monkeypatch):
    """One tenant has half of it at most, and is refused more; the other is not."""
    monkeypatch.setattr(handler, "MEMORY_BYTES", 3 << 20)
    config = rl.config_of(rl.local("mac"), auth=auth)
    waits = rl.saying(b"", then=rl.until_gone)
    async with rl.open_lab(config, mac=(waits, rl.answer())) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(lab.ask, big(600_000), rl.CHAT, HOSTILE)
        await trio.testing.wait_all_tasks_blocked()
        refused = await lab.ask(big(600_000), headers=HOSTILE)
        assert (refused.status, refused.headers.get("retry-after")) == (503, "2")
        assert json.loads(refused.body)["error"]["code"] == "bodies_full"
        assert (await lab.ask(big(600_000), headers=QUIET)).status == 200
        nursery.cancel_scope.cancel()


async def test_engines_reuse_no_prompt_of_another_tenant(auth):
    """Each tenant has caches of its own, which a client can neither name nor select."""
    more = {"cache_prompt": True, "id_slot": 0, "cache_salt": "quiet", "n_cache_reuse": 9}
    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=auth), mac=rl.answer()) as lab:
        for key in (HOSTILE, QUIET, QUIET):
            await lab.ask(rl.ASKED | more, headers=key)
        sent, (line, *_) = lab.players["mac"].bodies, lab.audit
        assert [each["cache_prompt"] for each in sent] == [False] * 3
        assert sent[0]["cache_salt"] != sent[1]["cache_salt"] == sent[2]["cache_salt"] != "quiet"
        assert not any("id_slot" in each or "n_cache_reuse" in each for each in sent)
        assert set(line["droppedFields"]) == set(more)


CACHED = {
    "prompt_tokens": 2000,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 1111},
    "prompt_cache_miss_tokens": 889,
    "cost": 0.1234,
}


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("path", [rl.CHAT, "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_provider_s_cache_shows_nothing_of_another_tenant(auth, path, streams, shares):
    """All teams share the key of a provider and so its cache: the operator sees its counters, and clients do not."""
    timings = (
        {} if streams else {"cache_n": 1111, "prompt_n": 889, "predicted_n": 3, "prompt_ms": 777.5, "predicted_ms": 9.0}
    )
    whole = TIMED | {"usage": CACHED, "timings": timings}
    last = {"object": "chat.completion.chunk", "choices": [], "usage": CACHED, "timings": timings}
    script = rl.stream(rl.piece("yes", "stop"), b"data: %b\n\n" % json.dumps(last).encode(), rl.DONE)
    given = Auth(keys_folder=auth.keys_folder, shares_caches=shares)
    config = rl.config_of(rl.cloud("gpt"), auth=given)
    of_path = {"model": "m", "input": "hi"} if path == "/v1/responses" else rl.MESSAGE
    asked = of_path | {"stream": streams}
    async with rl.open_lab(config, gpt=script if streams else rl.answer(body=whole)) as lab:
        found = await lab.ask(asked, path, headers=QUIET)
    # Identifiers are hexadecimal digits by chance, and are no counters.
    written = f"{found.headers.get('server-timing')} {found.body.decode()}"
    seen = set(re.findall(r"(?<!\w)\d+(?!\w)", written))
    assert ("1111" in seen) == shares
    assert found.status == 200
    assert shares or not seen & {"889", "1234", "777"}
    assert lab.audit[-1]["cachedTokens"] == 1111


async def test_an_engine_shows_a_tenant_what_is_cached_of_its_own_prompts(auth):
    """Its caches are separate: the counters are in the answer and in `Server-Timing`."""
    whole = TIMED | {"usage": CACHED}
    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=auth), mac=rl.answer(body=whole)) as lab:
        found = await lab.ask(headers=QUIET)
        assert lab.players["mac"].bodies[0]["cache_salt"]
    assert json.loads(found.body)["usage"] == CACHED
    assert 'cached;desc="1111"' in found.headers.get("server-timing")


@pytest.mark.parametrize("shared", [Auth(), None])
async def test_a_router_may_share_caches(auth, shared):
    """Without keys there are no tenants; with them, it is the owner's decision."""
    given = shared or Auth(keys_folder=auth.keys_folder, shares_caches=True)
    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=given), mac=rl.answer(body=TIMED)) as lab:
        for _ in range(2):
            found = await lab.ask(big(900, id_slot=0, messages=[{"role": "user", "content": "x" * 900}]), headers=QUIET)
        assert lab.players["mac"].bodies[0]["id_slot"] == 0
        assert "cache_salt" not in lab.players["mac"].bodies[0]
        assert "diverged" not in found.headers.get("server-timing")


@pytest.mark.parametrize(
    ("body", "answers", "size"),
    [
        ({"prompt": ["a"] * 20}, 20, 100),
        ({"prompt": ["a"] * 20, "n": 2}, 40, 100),
        ({"prompt": [[1, 2], [3]]}, 2, 100),
        ({"prompt": [1, 2, 3]}, 1, 100),
        ({"input": ["a", "b"]}, 2, 100),
        ({"query": "four", "documents": ["a"] * 10}, 10, 136),
        ({"query": "four", "texts": ["a"] * 10}, 10, 136),
    ],
)
def test_a_request_has_the_price_of_all_its_prompts(body, answers, size):
    assert (answer_count(body), prompt_bytes(body, 100)) == (answers, size)


async def test_an_array_of_prompts_is_charged_by_its_parts():
    """llama.cpp's server reports the tokens of one of them: the reservation is charged."""
    budget = Budget(name="b", scope="router", window_seconds=60, max_tokens=100_000)
    config = rl.config_of(rl.local("mac"), budgets=(budget,))
    async with rl.open_lab(config, mac=rl.answer(body=TIMED)) as lab:
        await lab.ask(WRITTEN | {"prompt": ["a"] * 20}, "/v1/completions")
        [used] = lab.router.budgets()
        assert 2000 <= used["tokensUsed"] <= 2200


async def test_an_engine_gets_no_more_prompts_than_it_has_slots():
    """Its own queue, which is in order of arrival, would have the others before another tenant's request."""
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=2)), mac=rl.answer()) as lab:
        refused = await lab.ask(WRITTEN | {"prompt": ["a", "b", "c"]}, "/v1/completions")
        assert refused.status == 400
        assert b"send at most 2 in a request" in refused.body
        assert (await lab.ask(WRITTEN | {"prompt": ["a", "b"]}, "/v1/completions")).status == 200
        assert (await lab.ask({"model": "m", "input": ["a"] * 9}, "/v1/embeddings")).status == 200


async def test_an_array_takes_as_many_slots_as_it_has_prompts():
    """No other request is sent until it ends, and then all slots are free again."""
    waits = rl.saying(b"", then=rl.until_gone)
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=2)), mac=(waits, rl.answer())) as lab:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.ask, WRITTEN | {"prompt": ["a", "b"]}, "/v1/completions")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lab.ask)
            await trio.testing.wait_all_tasks_blocked()
            assert len(lab.players["mac"].asked) == 1
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert [(await lab.ask()).status for _ in range(3)] == [200] * 3


async def test_probes_have_places_that_requests_do_not_take():
    """Beyond them, requests get 503 and health checks an answer."""
    waits = rl.saying(b"", then=rl.until_gone)
    limits = Limits(max_connections=16)
    async with rl.open_lab(rl.MAC, mac=waits, limits=limits) as lab, trio.open_nursery() as nursery:
        for _ in range(15):
            nursery.start_soon(lab.ask)
        await trio.testing.wait_all_tasks_blocked()
        assert (await lab.ask()).status == 503
        assert (await lab.ask(path="/healthz", method="GET")).status == 200
        nursery.cancel_scope.cancel()
