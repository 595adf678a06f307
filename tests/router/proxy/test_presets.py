"""Settings of a model id: one engine serves several ids, and each request gets those of the id that it names."""

import json

import pytest

from llmkube.router.config.routing_config import Adapter, Budget, Preset
from router.proxy import router_lab as rl
from router.proxy.test_default_route import CHAT, Engine, open_world

BRIEF = {
    "name": "brief",
    "temperature": "0.2",
    "topP": "0.9",
    "topK": 40,
    "minP": "0.05",
    "maxTokens": 64,
    "thinking": False,
    "system": "Be brief.",
}
SETTINGS = {"temperature": 0.2, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 64}
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 64}),
        ("/api/chat", {"messages": HI}),
        ("/api/generate", {"prompt": "hi"}),
    ],
)
async def test_a_chat_in_every_dialect_gets_the_settings_of_its_id(path, body):
    """The engine gets them in its own dialect, and its own id; the service's own name has none."""
    engine = Engine()
    async with open_world(engine) as world:
        world.serve("chat", spec={"presets": [BRIEF]})
        for name in ("brief", "chat"):
            assert (await world.ask(path, {"model": name, "stream": False} | body)).status == 200
    first, second = (json.loads(sent) for _, _, sent in engine.asked)
    assert first["model"] == second["model"] == "engine-alias"
    assert {name: first.get(name) for name in SETTINGS} == SETTINGS
    assert (first["messages"], first["chat_template_kwargs"]) == (TURNS, {"enable_thinking": False})
    assert second["messages"] == HI
    assert not (SETTINGS.keys() | {"chat_template_kwargs"}) - {"max_tokens"} & second.keys()


async def test_what_the_client_sends_takes_precedence():
    """Also as another name of the setting; null counts as not sent."""
    own = {"temperature": 0, "top_k": None, "max_completion_tokens": 5, "reasoning_effort": "low"}
    turns = [{"role": "developer", "content": "Mine."}, *HI]
    engine = Engine(completions={"by": "the engine"})
    async with open_world(engine) as world:
        world.serve("chat", spec={"presets": [BRIEF]})
        await world.answer(CHAT, {"model": "brief:latest", "messages": turns, **own})
        await world.answer("/v1/completions", {"model": "brief", "prompt": "hi"})
    chat, completion = (json.loads(sent) for _, _, sent in engine.asked)
    assert {name: chat.get(name) for name in ("temperature", "top_k", "max_completion_tokens")} == {
        "temperature": 0,
        "top_k": 40,
        "max_completion_tokens": 5,
    }
    assert chat["messages"][0]["content"] == "Mine."
    assert "max_tokens" not in chat
    assert "chat_template_kwargs" not in chat
    assert completion == {"model": "engine-alias", "prompt": "hi"} | SETTINGS


async def test_a_preset_with_the_name_of_the_service_is_its_default_and_others_are_listed():
    """A name that is a service's leads to that service."""
    engine = Engine()
    presets = [{"name": "chat", "temperature": "0.1"}, {"name": "hot", "temperature": "1.5"}, {"name": "taken"}]
    async with open_world(engine) as world:
        world.serve("chat", spec={"presets": presets, "aliases": ["also"]})
        world.serve("taken")
        for name in ("chat", "ml/chat", "also", "hot", "taken"):
            await world.answer(CHAT, {"model": name, "messages": HI})
        listed = (await world.answer("/v1/models", method="GET"))["data"]
        tags = (await world.answer("/api/tags", method="GET"))["models"]
    chats = [json.loads(sent) for path, _, sent in engine.asked if path == CHAT]
    assert [each.get("temperature") for each in chats] == [0.1, 0.1, 0.1, 1.5, None]
    assert {each["id"]: each.get("parent") for each in listed} == {
        "chat": None,
        "taken": None,
        "also": "chat",
        "hot": "chat",
    }
    assert {each["name"] for each in tags} == {"chat", "taken", "also", "hot"}


async def test_a_router_finds_a_preset_by_its_name_and_reserves_what_it_allows():
    """Under BackendNameMatch; a budget reserves its limit of tokens, and keeps it."""
    mac = rl.local("mac", presets=(Preset(name="brief", max_tokens=64, system="Be brief."),))
    budget = Budget(name="all", scope="router", window_seconds=3600, max_tokens=4000)
    async with rl.open_lab(rl.config_of(mac, rules=(), by_model=True, budgets=(budget,)), mac=rl.answer()) as lab:
        assert (await lab.ask({"model": "brief", "messages": HI})).status == 200
        assert (await lab.ask({"model": "unknown", "messages": HI})).status == 404
        listed = json.loads((await lab.ask(None, "/v1/models", method="GET")).body)["data"]
    (sent,) = lab.players["mac"].bodies
    assert (sent["max_tokens"], sent["messages"]) == (64, TURNS)
    assert [each["id"] for each in listed] == ["mac", "brief"]


ADAPTERS = (("", 0.25), ("poet", 1.0), ("clerk", 0.5))


async def test_each_request_names_all_adapters_of_its_engine():
    """By the numbers that the running engine has for them; one that it does not have is answered with 503."""
    engine = Engine()
    spec = {
        "adapters": [
            {"modelRef": "always"},
            {"modelRef": "p", "name": "poet"},
            {"modelRef": "c", "name": "clerk", "scale": "0.5"},
        ],
        "presets": [{"name": "both", "adapters": [{"name": "poet", "scale": "0.1"}, {"name": "clerk"}]}],
    }
    expected = {"chat": [0.25, 0, 0], "poet": [0.25, 1, 0], "clerk": [0.25, 0, 0.5], "both": [0.25, 0.1, 0.5]}
    async with open_world(engine) as world:
        world.serve("chat", spec=spec, adapters=ADAPTERS)
        for path in (CHAT, "/api/chat"):
            for name in expected:
                await world.ask(path, {"model": name, "messages": HI, "stream": False})
            own = {"model": "chat", "messages": HI, "lora": [{"id": 1, "scale": 1}], "stream": False}
            assert (await world.ask(CHAT, own)).status == 400
        world.serve("chat", spec=spec, adapters=(("clerk", 0.5),))  # an engine of an earlier spec
        for path, name, status in ((CHAT, "poet", 503), ("/api/chat", "poet", 503), (CHAT, "clerk", 200)):
            assert (await world.ask(path, {"model": name, "messages": HI, "stream": False})).status == status
    *sent, last = (json.loads(body) for _, _, body in engine.asked)
    assert [[each["scale"] for each in one["lora"]] for one in sent] == [*expected.values()] * 2
    assert all(one["cache_prompt"] for one in sent)
    assert last["lora"] == [{"id": 0, "scale": 0.5}]


async def test_a_router_refuses_numbers_of_adapters():
    """A team that may use one name must not reach another adapter by its number."""
    adapters = (Adapter("poet", 1.0), Adapter("clerk", 1.0))
    presets = tuple(Preset(name=each.name, adapters=(each,)) for each in adapters)
    mac = rl.local("mac", presets=presets, adapters=adapters)
    async with rl.open_lab(rl.config_of(mac), mac=rl.answer()) as lab:
        refused = await lab.ask({"model": "poet", "messages": HI, "lora": [{"id": 1, "scale": 1}]})
        assert (refused.status, b"selects adapters by number" in refused.body) == (400, True)
        assert (await lab.ask({"model": "poet", "messages": HI})).status == 200
    (sent,) = lab.players["mac"].bodies
    assert sent["lora"] == [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}]
