"""Failures of other gateways in 2026, over the data path: each by the number in the issue's list.

Those about policy are in `tests/router/policy/test_defects.py`, the one about installation in `tests/supply`.
"""

import hashlib
import json
import random

import attrs
import pytest
import trio
import trio.testing

from llmkube.router.auth.key_files import ClientKeys
from llmkube.router.config.routing_config import Auth, Budget
from llmkube.router.dialects.inbound import DIALECTS
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy.handler import ROUTES
from router.proxy import router_lab as rl
from router.proxy.test_handler import FULL

TOKEN = "sk-ant-oat01-of-a-client"
CANARY = "canary-9f2e"


@pytest.mark.parametrize("line", [{"Authorization": f"Bearer {TOKEN}"}, {"X-Api-Key": TOKEN}, {"Cookie": f"k={TOKEN}"}])
async def test_a_client_s_token_follows_no_fallback(tmp_path, line):
    """Anthropic fails, Bedrock and Vertex are tried next: each gets its own key, none the client's or another's."""
    names = ("claude", "bedrock", "vertex")
    for name in names:
        (tmp_path / name).write_text(f"key-of-{name}")
    kinds = {"claude": {"provider": "anthropic", "dialect": "anthropic"}, "bedrock": {"provider": "bedrock"}}
    backends = [
        rl.cloud(name, key_file=str(tmp_path / name), **kinds.get(name, {"provider": "vertex_ai"})) for name in names
    ]
    async with rl.open_lab(
        rl.config_of(*backends), claude=rl.error(500), bedrock=rl.error(503), vertex=rl.answer()
    ) as lab:
        assert (await lab.ask(rl.MESSAGE, "/v1/messages", line)).status == 200
        written = b"".join(lab.lines)
    for name in names:
        (head,) = lab.players[name].heads
        assert TOKEN not in head
        assert [each for each in names if f"key-of-{each}" in head] == [name]
    assert TOKEN.encode() not in written


POISON = {
    "api_base": f"http://evil/{CANARY}",
    "base_url": f"http://evil/{CANARY}",
    "api_key": CANARY,
    "headers": {"Authorization": CANARY},
    "extra_headers": {"Authorization": CANARY},
    "litellm_params": {"api_base": f"http://evil/{CANARY}", "api_key": CANARY},
    "aws_bedrock_runtime_endpoint": f"http://evil/{CANARY}",
}


def poisoned(value):
    """Return a copy with an address and a key in every object."""
    if isinstance(value, dict):
        return {name: poisoned(each) for name, each in value.items()} | POISON
    return [poisoned(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "outside", [{}, POISON, {"extra_body": POISON}, {"metadata": POISON}, {"user_config": [POISON]}]
)
async def test_a_client_names_no_address_and_no_key(outside):
    """At any depth, such fields open no connection to another address and are forwarded to no backend."""
    content = [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "user", "content": content}, {"role": "assistant", "tool_calls": [call]}]
    body = {"model": "m", "messages": poisoned(turns), "stream_options": dict(POISON)} | outside
    gateway = rl.cloud("gateway", provider="litellm")
    async with rl.open_lab(
        rl.config_of(gateway, rl.cloud("openai")), gateway=rl.error(500), openai=rl.answer(), evil=rl.answer()
    ) as lab:
        response = await lab.ask(body)
        assert response.status in (200, 400)
        assert lab.players["evil"].listener.dialled == []
        asked = [text for name in ("gateway", "openai") for _, text in lab.players[name].asked]
    assert not [text for text in asked if CANARY.encode() in text]


async def test_fields_without_a_name_of_ours_reach_no_provider():
    """The allowlist decides, so an unknown future field is not forwarded."""
    invented = {"tomorrows_endpoint": f"http://evil/{CANARY}"}
    async with rl.open_lab(rl.config_of(rl.cloud("openai")), openai=rl.answer()) as lab:
        assert (await lab.ask(rl.ASKED | invented)).status == 200
        (line,) = lab.audit
    assert lab.players["openai"].bodies == [rl.ASKED | {"model": "gpt"}]
    assert line["droppedFields"] == ["tomorrows_endpoint"]


@pytest.mark.parametrize(
    "key",
    [
        "' OR 1=1 --",
        "'; DROP TABLE keys; --",
        "red-ke",
        "red-key-",
        "RED-KEY",
        "%00",
        "../teams/red",
        "x" * 8000,
        "\xff",
    ],
)
async def test_a_wrong_key_is_compared_whole_and_reaches_nothing(tmp_path, monkeypatch, key):
    """Only its digest is compared: no file, budget or backend is used, and each key gets the same error."""
    teams = tmp_path / "teams"
    teams.mkdir()
    (teams / "red").write_text("red-key")
    looked_up, holder_of = [], ClientKeys.holder_of
    monkeypatch.setattr(ClientKeys, "holder_of", lambda keys, by: looked_up.append(by) or holder_of(keys, by))
    budget = Budget(name="b", scope="router", window_seconds=60, max_tokens=1000)
    config = rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(teams)), budgets=(budget,))
    async with rl.open_lab(config, mac=rl.answer(), budgets_folder=tmp_path / "kept") as lab:
        unknown = await lab.ask(headers={"X-Api-Key": "unknown"})
        lines, files = list(lab.lines), {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
        for headers in ({"X-Api-Key": key}, {"Authorization": f"Bearer {key}"}):
            response = await lab.ask(headers=headers)
            assert (response.status, response.body) == (401, unknown.body)
        assert lab.lines == lines
        assert {path: path.read_bytes() for path in files} == files
        assert (lab.players["mac"].asked, lab.router.budgets()[0]["tokensUsed"]) == ([], 0)
    assert {len(each) for each in looked_up} == {hashlib.sha256().digest_size}


async def test_a_key_is_known_by_all_of_it(tmp_path):
    """Two keys with the same first forty characters are two teams; their common prefix is not a key."""
    begin = "sk-" + "a" * 37
    for team in ("red", "blue"):
        (tmp_path / team).write_text(f"{begin}{team}")
    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path))), mac=rl.answer()) as lab:
        for team in ("red", "blue", "red"):
            assert (await lab.ask(headers={"X-Api-Key": f"{begin}{team}"})).status == 200
        assert (await lab.ask(headers={"X-Api-Key": begin})).status == 401
        assert (await lab.ask(headers={"X-Api-Key": f"{begin}redder"})).status == 401
        assert [line["team"] for line in lab.audit] == ["red", "blue", "red"]


async def test_the_team_is_fixed_for_a_request(tmp_path):
    """Moving the key to another team does not change a running request."""
    (tmp_path / "red").write_text("key")
    slow, goes_on = [], trio.Event()

    async def wait(connection):
        slow.append(connection)
        await goes_on.wait()
        await connection.send_all(rl.answer())

    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path))), mac=wait) as lab:

        async def ask():
            await lab.ask(headers={"X-Api-Key": "key"})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            (tmp_path / "red").rename(tmp_path / "blue")
            await lab.router.live.reload_if_changed()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            goes_on.set()
        assert sorted(line["team"] for line in lab.audit) == ["blue", "red"]
    principal = Principal(team="red")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        principal.team = "admin"


OF_THE_OPERATOR = ("/metrics", "/backends", "/drained", "/debug", "/admin", "/config", "/mcp-rest/test/connection")


@pytest.mark.parametrize("path", OF_THE_OPERATOR)
async def test_clients_reach_nothing_of_the_operator_s(path):
    """Neither that path nor one below /v1 works, with any Host header."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        for each in (path, f"/v1{path}", f"/v1/..{path}", f"//{path}"):
            for host in ("router", "localhost:9090", "127.0.0.1:9090"):
                for method in ("GET", "POST"):
                    assert (await lab.ask(path=each, method=method, headers={"Host": host})).status in (400, 404)
        assert lab.players["mac"].asked == []


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_has_all_of_its_meters(tmp_path, path):
    """Budgets of a team and of the router both apply: either one stops each route."""
    (tmp_path / "red").write_text("red-key")
    body = FULL[path] | {"model": "m"} if path in FULL else rl.MESSAGE | {"prompt": "p", "input": "i", "query": "q"}
    for scope in ("router", "team"):
        wide, tight = ({"max_tokens": count} for count in (10**9, 1))
        budgets = tuple(
            Budget(name=each, scope=each, window_seconds=60, **(tight if each == scope else wide))
            for each in ("router", "team")
        )
        config = rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path)), budgets=budgets)
        async with rl.open_lab(config, mac=rl.answer()) as lab:
            response = await lab.ask(body, path, {"X-Api-Key": "red-key"})
            assert (response.status, lab.players["mac"].asked) == (429, [])


@pytest.mark.parametrize(
    "path", ["/v1/batches", "/v1/files", "/v1/images/generations", "/anthropic/v1/messages", "/openai/x"]
)
async def test_nothing_is_passed_through(path):
    """A path without metering is refused, even if a backend has it."""
    assert path not in {*ROUTES, *DIALECTS}
    async with rl.open_lab(rl.config_of(rl.cloud("openai")), openai=rl.answer()) as lab:
        assert (await lab.ask(path=path)).status == 404
        assert lab.players["openai"].listener.dialled == []


async def test_what_is_under_way_is_reserved(autojump_clock):
    """Twenty concurrent requests are admitted up to their maximum usage; then the actual usage is charged."""
    each = len(json.dumps(rl.ASKED | {"max_tokens": 100})) + 100
    budget = Budget(name="b", scope="router", window_seconds=3600, max_tokens=3 * each)
    slow, found = rl.saying(b"", rl.answer(body=rl.ANSWER), seconds=9), []
    async with rl.open_lab(rl.config_of(rl.local("mac"), budgets=(budget,)), mac=slow) as lab:

        async def ask():
            await trio.sleep(random.Random(1).uniform(0, 1))
            found.append((await lab.ask(rl.ASKED | {"max_tokens": 100})).status)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert sorted(found) == [200] * 3 + [429] * 17
        assert len(lab.players["mac"].asked) == 3
        assert lab.router.budgets()[0]["tokensUsed"] == 3 * rl.ANSWER["usage"]["total_tokens"]
