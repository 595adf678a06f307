"""Requests for models that are loaded on request: they wait, with whatever client, and nothing else loads a model."""

import json
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from llmkube.base.http.message import Response
from llmkube.router.backends import Backend, State, UnavailableModel
from llmkube.router.config.routing_config import Auth, Match, Probe, Rule
from llmkube.router.dispatch import holds
from llmkube.router.dispatch.holds import Holds
from router.proxy import router_lab as rl
from router.proxy import test_default_route
from router.proxy.test_default_route import CHAT, HELLO, MESSAGE, Engine, World
from waiting import until

IDLE = UnavailableModel("Idle", "it is loaded on request", None, State.UNLOADED, wakes=True, estimated_seconds=61.2)
LOADING = attrs.evolve(IDLE, reason="Loading", state=State.LOADING)
FAILED = UnavailableModel("InsufficientMemory", "it needs 20 GiB", None, State.UNLOADED, failed=True)
STOPPED = UnavailableModel("ScaledToZero", "it was stopped", None, State.UNLOADED)
LOAD_SECONDS = 60.0


class Host:
    """A directory and an activator: a model that a request uses is loaded after `seconds`, or has `failure` then."""

    def __init__(self, nursery, *names, host="engine"):
        self.nursery = nursery
        self.engine = Backend(host, 1, "engine-alias", mode="chat")
        self.states = {name: attrs.evolve(IDLE, service=f"ml/{name}") for name in names or ("chat",)}
        self.seconds, self.failure, self.retried = LOAD_SECONDS, None, None
        self.uses, self.calls, self.tenants = dict.fromkeys(self.states, 0), [], []
        self.changed = trio.Event()

    def model_ids(self):
        return list(self.states)

    def aliases(self):
        return ()

    def lookup(self, model_id):
        return self.states.get(model_id.removeprefix("ml/"))

    def put(self, name, state):
        self.states[name] = attrs.evolve(state, service=f"ml/{name}")
        self.changed.set()
        self.changed = trio.Event()

    async def _load(self, name):
        self.put(name, attrs.evolve(LOADING, hold_seconds=self.states[name].hold_seconds))
        await trio.sleep(self.seconds)
        self.put(name, self.failure or self.engine)

    @contextmanager
    def using(self, service, tenant):
        self.tenants.append(tenant)
        found = self.lookup(service)
        if isinstance(found, UnavailableModel) and (found.wakes or found is self.retried):
            self.load(service)
        with self._counted(service, 1):
            yield partial(self._counted, service, -1)

    @contextmanager
    def _counted(self, service, count):
        """Count requests that may be in the engine: those that use a service, without those that are held."""
        name = service.removeprefix("ml/")
        self.uses[name] += count
        try:
            yield
        finally:
            self.uses[name] -= count

    def load(self, service):
        self.calls.append(("load", service))
        name = service.removeprefix("ml/")
        if self.states[name].state is State.UNLOADED:
            self.states[name] = attrs.evolve(self.states[name], state=State.LOADING, wakes=True)
            self.nursery.start_soon(self._load, name)

    def unload(self, service):
        self.calls.append(("unload", service))
        return isinstance(self.lookup(service), Backend)

    def pin(self, service, seconds):
        self.calls.append(("pin", service, seconds))

    async def wait_changed(self, service):
        await self.changed.wait()


class Gateway(World):
    """The gateway of a host, and a client that records when the pieces of an answer arrive."""

    def __init__(self, host, engine):
        super().__init__([engine])
        self.directory = self.host = host
        self.engine = engine
        for name in host.states:
            self.services |= {each.key: each for each in [test_default_route.service(name)]}

    @property
    def there(self):
        return attrs.evolve(super().there, activator=self.host)

    async def arrivals(self, path, body, **headers):
        """Return the pieces of the answer, each with its time, and whether the end was clean."""
        data = json.dumps(body).encode()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: gw\r\n{lines}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        found, connection = [], await self.front.connect("gw", 80)
        async with connection:
            await connection.send_all(head.encode() + data)
            while piece := await connection.receive_some():
                found.append((trio.current_time(), piece))
        return found, found[-1][1].endswith(b"0\r\n\r\n")


@pytest.fixture
async def gateway(nursery):
    """Run a gateway over models that are not loaded."""
    engine = Engine()
    world = Gateway(Host(nursery, "chat", "other"), engine)
    async with test_default_route.run_world(world):
        yield world


STREAMED = HELLO | {"stream": True}
GENERATE = {"model": "chat", "prompt": "hi"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO),
        (CHAT, STREAMED),
        ("/chat/completions", HELLO),
        ("/v1/messages", MESSAGE),
        ("/v1/messages", MESSAGE | {"stream": True}),
        ("/v1/responses", {"model": "chat", "input": "hi"}),
        ("/api/chat", HELLO),
        ("/api/generate", GENERATE | {"stream": False}),
        ("/api/generate", {"model": "chat"}),
    ],
)
async def test_one_request_loads_a_model_and_is_answered(autojump_clock, gateway, path, body):
    """The headers are those of the `openai` package with its defaults; its service is in use until the answer ends."""
    begun = trio.current_time()
    defaults = {"x-stainless-read-timeout": "600", "x-stainless-retry-count": "0"}
    answer = await gateway.ask(path, body, **defaults)
    assert (answer.status, trio.current_time() - begun) == (200, LOAD_SECONDS), answer.body
    asked = [asked for asked, _, _ in gateway.engine.asked]
    assert asked == [each for each in ("/chat/completions", CHAT) if len(body) > 1 and each in (path, CHAT)]
    await until(lambda: not any(gateway.host.uses.values()))
    assert gateway.host.calls == [("load", "ml/chat")]


async def test_a_client_is_one_tenant_in_every_api(autojump_clock, gateway):
    """Otherwise its swaps in one API would delay those in another one, as if they were another client's."""
    for path, body in ((CHAT, HELLO), ("/v1/messages", MESSAGE), ("/api/chat", {"model": "chat"})):
        assert (await gateway.ask(path, body, **{"x-owner": "127.0.0.1 1000"})).status == 200
    assert {*gateway.host.tenants} == {"127.0.0.1 1000"}


@pytest.mark.parametrize(
    ("path", "body", "waiting"),
    [
        (CHAT, STREAMED, b": the model is loading\n\n"),
        ("/chat/completions", STREAMED, b": the model is loading\n\n"),
        ("/v1/messages", MESSAGE | {"stream": True}, b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/responses", {"model": "chat", "input": "hi", "stream": True}, b": waiting\n\n"),
        ("/api/chat", HELLO, b""),
    ],
)
async def test_a_stream_begins_while_the_model_is_loaded(autojump_clock, gateway, path, body, waiting):
    """The client gets the head after two seconds, then comments of its dialect, and at last the whole answer."""
    begun = trio.current_time()
    pieces, is_whole = await gateway.arrivals(path, body)
    received = b"".join(piece for _, piece in pieces)
    times = [round(at - begun) for at, piece in pieces if at - begun < LOAD_SECONDS]
    assert times[0] == 2
    assert pieces[0][1].startswith(b"HTTP/1.1 200 ")
    if waiting:
        assert sorted({*times}) == [2, *range(7, 60, 5)]
        assert received.count(waiting) == len({*times})
    else:
        assert {*times} == {2}
    assert (b"indeed" in received, is_whole) == (True, True)
    assert [asked for asked, _, _ in gateway.engine.asked if asked == CHAT] == [CHAT]


ERROR_EVENTS = [
    (CHAT, STREAMED, b'data: {"error":{"message":"model \'chat\' is not ready (InsufficientMemory): it needs 20 GiB"'),
    ("/v1/messages", MESSAGE | {"stream": True}, b'event: error\ndata: {"type":"error"'),
    ("/v1/responses", {"model": "chat", "input": "hi", "stream": True}, b"event: response.failed\n"),
    ("/api/chat", HELLO, b'{"error":"no backend answered (ml/chat: not_ready (InsufficientMemory))"}\n'),
]


@pytest.mark.parametrize(("path", "body", "event"), ERROR_EVENTS)
async def test_a_load_that_fails_ends_the_request_at_once(autojump_clock, gateway, path, body, event):
    """A stream that has begun gets the error in its dialect, other requests a response with the reason."""
    gateway.host.failure, begun = FAILED, trio.current_time()
    pieces, _ = await gateway.arrivals(path, body)
    assert (round(pieces[-1][0] - begun), event in b"".join(piece for _, piece in pieces)) == (LOAD_SECONDS, True)
    gateway.host.put("other", FAILED)
    for plain in (HELLO, STREAMED):
        answer = await gateway.ask(CHAT, plain | {"model": "other"})
        assert (answer.status, answer.headers.get("x-should-retry")) == (503, "false")
        assert json.loads(answer.body)["error"]["reason"] == "InsufficientMemory"
    assert round(trio.current_time() - begun) == LOAD_SECONDS
    assert gateway.host.uses == {"chat": 0, "other": 0}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat"])
async def test_a_request_repeats_a_failed_load_once_its_back_off_has_ended(autojump_clock, gateway, path, nursery):
    """Only the activator knows when; before, the request fails at once. While it is held, it keeps no engine in use."""
    gateway.host.put("chat", FAILED)
    assert ((await gateway.ask(path, MESSAGE)).status, gateway.host.calls) == (503, [])
    gateway.host.retried, uses = gateway.host.lookup("chat"), []
    nursery.start_soon(lambda: record_later(uses, gateway.host))
    assert ((await gateway.ask(path, MESSAGE)).status, gateway.host.calls[:1]) == (200, [("load", "ml/chat")])
    assert uses == [0]


async def record_later(uses, host):
    await trio.sleep(LOAD_SECONDS / 2)
    uses.append(host.uses["chat"])


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize(
    ("most", "headers", "seconds"),
    [
        (None, {}, 600),
        (30.0, {}, 30),
        (None, {"x-stainless-timeout": "20"}, 19),
        (None, {"x-stainless-read-timeout": "40.0"}, 38),
        (30.0, {"x-stainless-timeout": "600"}, 30),
        (None, {"x-stainless-timeout": "soon", "x-stainless-read-timeout": "-1"}, 600),
    ],
)
async def test_the_wait_is_bounded_by_service_and_client(  # noqa: PLR0917 (a table's columns, not an interface)
    autojump_clock, gateway, path, most, headers, seconds
):
    """The error has the expected time of the load, and reaches the client before it stops waiting."""
    gateway.host.seconds, begun = 10_000.0, trio.current_time()
    if most is not None:
        gateway.host.put("chat", attrs.evolve(IDLE, hold_seconds=most))
    answer = await gateway.ask(path, MESSAGE, **headers)
    assert (answer.status, round(trio.current_time() - begun)) == (503, seconds)
    assert (answer.headers.get("retry-after"), answer.headers.get("x-should-retry")) == ("62", None)
    assert f"was not loaded within {seconds} s (Loading)" in answer.body.decode()
    if path == CHAT:
        error = json.loads(answer.body)["error"]
        assert (error["code"], error["reason"]) == ("model_not_ready", "Loading")
    assert gateway.host.uses == {"chat": 0, "other": 0}


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (CHAT, STREAMED), ("/api/chat", HELLO)])
async def test_a_client_that_leaves_withdraws_its_request(autojump_clock, gateway, path, body):
    """Its service is no longer in use, and its engine is not asked."""
    with trio.move_on_after(10):
        await gateway.ask(path, body)
    await trio.testing.wait_all_tasks_blocked()
    assert gateway.host.uses == {"chat": 0, "other": 0}
    await trio.sleep(LOAD_SECONDS)
    assert gateway.engine.asked == []


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
async def test_only_so_many_requests_wait_for_a_model(autojump_clock, gateway, path, nursery, monkeypatch):
    """A tenant has half of the places; further requests are refused at once, and other models are not affected."""
    monkeypatch.setattr(holds, "MAX_HELD", 4)
    answers = []

    async def ask(model):
        answers.append((model, (await gateway.ask(path, HELLO | {"model": model})).status))

    for model in ("chat", "chat", "chat", "other"):
        nursery.start_soon(ask, model)
        await trio.testing.wait_all_tasks_blocked()
    assert answers == [("chat", 429)]
    await trio.sleep(LOAD_SECONDS + 1)
    assert sorted(answers[1:]) == [("chat", 200), ("chat", 200), ("other", 200)]


async def test_an_engine_that_fails_after_the_head_is_an_error_event(autojump_clock, gateway):
    """It refuses the request or dies: the stream that has begun ends with the words of the error."""

    async def refuse(exchange):
        await exchange.respond(Response.json(400, {"error": {"message": "odd words", "code": 400}}))

    async def die(exchange):
        await exchange.send(b"HTTP/1.1 junk\r\n")

    for handle, words in ((refuse, b"odd words"), (die, b"did not answer")):
        gateway.host.put("chat", IDLE)
        gateway.engine.handle_chat = handle
        pieces, is_whole = await gateway.arrivals(CHAT, STREAMED)
        assert (is_whole, words in pieces[-1][1], pieces[-1][1].count(b'data: {"error":')) == (True, True, 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/chat", None, 200),
        ("GET", "/api/tags", None, 200),
        ("GET", "/api/ps", None, 200),
        ("POST", "/api/show", {"model": "chat"}, 200),
        ("POST", "/api/pull", {"model": "chat"}, 200),
        ("GET", "/props", None, 200),
        ("GET", "/props?model=chat", None, 503),
        ("GET", "/slots?model=chat", None, 503),
        ("GET", "/metrics?model=chat", None, 503),
        ("POST", "/api/chat", HELLO | {"keep_alive": 0, "messages": []}, 200),
        ("POST", "/api/chat", HELLO | {"keep_alive": "soon"}, 400),
        ("POST", CHAT, b"{", 400),
        ("GET", CHAT, None, 405),
    ],
)
async def test_what_computes_nothing_loads_nothing(  # noqa: PLR0917 (as above)
    autojump_clock, gateway, method, path, body, status
):
    """It is answered at once."""
    begun = trio.current_time()
    answer = await gateway.ask(path, body, method=method, host="localhost")
    assert (answer.status, trio.current_time() - begun) == (status, 0), answer.body
    assert [each for each in gateway.host.calls if each[0] != "unload"] == []


async def test_a_stopped_model_is_not_loaded(autojump_clock, gateway):
    """Its error has the command."""
    gateway.host.put("chat", STOPPED)
    for path, body in ((CHAT, HELLO), ("/api/chat", HELLO), ("/api/chat", {"model": "chat"})):
        assert (await gateway.ask(path, body)).status == 503
    refused = await gateway.ask("/models/load", {"model": "chat"})
    assert (refused.status, "`llmkube scale chat 1`" in refused.body.decode()) == (501, True)
    assert gateway.host.calls == []


async def test_llama_cpps_clients_load_and_unload(autojump_clock, gateway):
    """The list has the state meanwhile, and `/props` says that a request loads a model."""

    async def states():
        listed = (await gateway.answer("/models", method="GET"))["data"]
        return [(each["id"], each["status"]["value"]) for each in listed]

    props = json.loads((await gateway.ask("/props", method="GET", host="localhost")).body)
    assert props["models_autoload"] is True
    assert await states() == [("chat", "unloaded"), ("other", "unloaded")]
    assert await gateway.answer("/models/load", {"model": "chat"}) == {"success": True}
    assert await states() == [("chat", "loading"), ("other", "unloaded")]
    assert (await gateway.ask("/models/load", {"model": "chat"})).status == 400
    await trio.sleep(LOAD_SECONDS + 1)
    assert await states() == [("chat", "loaded"), ("other", "unloaded")]
    assert await gateway.answer("/models/unload", {"model": "chat"}) == {"success": True}
    gateway.host.put("other", FAILED)
    assert await gateway.answer("/models/load", {"model": "other"}) == {"success": True}  # its owner's wish
    assert gateway.host.calls == [("load", "ml/chat"), ("unload", "ml/chat"), ("load", "ml/other")]


@pytest.mark.parametrize(
    ("keep_alive", "call"),
    [
        (0, ("unload", "ml/chat")),
        ("0s", ("unload", "ml/chat")),
        ("-0ms", ("unload", "ml/chat")),
        (-1, ("pin", "ml/chat", None)),
        ("-1m", ("pin", "ml/chat", None)),
        (90, ("pin", "ml/chat", 90.0)),
        ("1h30m", ("pin", "ml/chat", 5400.0)),
    ],
)
async def test_ollamas_clients_keep_and_unload(autojump_clock, gateway, keep_alive, call):
    """With a prompt, `keep_alive` applies after the answer, whatever the path; without one it is the whole request."""
    gateway.host.put("chat", gateway.host.engine)
    gateway.engine.more["embeddings"] = {"data": [{"index": 0, "embedding": [1.0]}]}
    for path, body in (
        ("/api/chat", HELLO),
        ("/api/generate", GENERATE),
        ("/api/embed", {"model": "chat", "input": "a"}),
        ("/api/generate", {"model": "chat"}),
    ):
        if path == "/api/embed":
            gateway.host.put("chat", attrs.evolve(gateway.host.engine, mode="embedding"))
        gateway.host.calls.clear()
        answer = await gateway.ask(path, body | {"keep_alive": keep_alive, "stream": False})
        assert (answer.status, gateway.host.calls) == (200, [call]), answer.body
    assert json.loads(answer.body)["done_reason"] == ("unload" if call[0] == "unload" else "load")


@pytest.mark.parametrize("value", ["soon", "5 minutes", True, [], "m"])
async def test_a_keep_alive_without_meaning_is_refused(autojump_clock, gateway, value):
    """The error has field, value and fix."""
    answer = await gateway.ask("/api/chat", HELLO | {"keep_alive": value})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error) == (
        400,
        f'keep_alive is {value!r}; write seconds, "5m", 0 to unload it, or -1 to keep it loaded',
    )


# -- ModelRouters ------------------------------------------------------------------------------------------------------

MAC = rl.local("mac", model="ml/chat")
STREAM = rl.stream(rl.piece("one"), rl.piece(" two", "stop"), rl.DONE)


@asynccontextmanager
async def open_router(nursery, config, **scripts):
    """Run a router of `llmkube up`; the model of its backend `mac` is not loaded."""
    host = Host(nursery, "chat", host="mac")
    async with rl.open_lab(config, holds=Holds(host, host), **scripts) as lab:
        yield lab, host


@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize("body", [rl.ASKED, rl.STREAMED])
async def test_a_router_waits_longer_than_for_a_first_byte(autojump_clock, nursery, body, slots):
    """That limit begins when the model is loaded; the wait is no attempt, and is reported as time of the load."""
    mac, begun = attrs.evolve(MAC, slots=slots), trio.current_time()
    config = rl.config_of(mac, rl.cloud("cloud"), first_byte_seconds=5.0)
    script = rl.saying(STREAM if body is rl.STREAMED else rl.answer(), seconds=4.0)
    async with open_router(nursery, config, mac=script, cloud=rl.answer()) as (lab, host):
        status, text, is_whole = await lab.read(body)
        assert (status, is_whole or body is rl.ASKED) == (200, True), text
        assert round(trio.current_time() - begun) == LOAD_SECONDS
        (line,) = lab.audit
        assert [(each["backend"], each["result"]) for each in line["attempts"]] == [("mac", "answered")]
        assert lab.players["cloud"].asked == []
        if body is rl.STREAMED:
            assert "load;dur=60" in lab.timings[0]
        assert (lab.router.states()["mac"], host.uses) == ("", {"chat": 0})


async def test_a_router_falls_back_when_a_load_fails_or_takes_too_long(autojump_clock, nursery):
    """No circuit opens."""
    config, begun = rl.config_of(MAC, rl.cloud("cloud")), trio.current_time()
    async with open_router(nursery, config, mac=rl.answer(), cloud=rl.answer()) as (lab, host):
        host.put("chat", attrs.evolve(IDLE, hold_seconds=9.0))
        assert ((await lab.ask()).status, trio.current_time() - begun) == (200, 9)
        host.put("chat", IDLE)
        host.failure = FAILED
        assert (await lab.ask()).status == 200
        assert [[each["result"] for each in line["attempts"]] for line in lab.audit] == [
            ["not_loaded", "answered"], ["not_ready", "answered"],
        ]  # fmt: skip
        host.put("chat", host.engine)
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "mac"


async def test_a_request_that_queues_while_its_model_is_unloaded_waits_for_it(autojump_clock, nursery):
    """No engine has it while it queues or is held, even behind one that is held: it delays no other model."""
    config, answers = rl.config_of(attrs.evolve(MAC, slots=1)), []
    async with open_router(nursery, config, mac=rl.saying(rl.answer()[:9], rl.answer()[9:], seconds=4.0)) as (
        lab,
        host,
    ):
        host.put("chat", host.engine)

        async def ask():
            answers.append((await lab.ask()).status)

        for _ in range(3):
            nursery.start_soon(ask)
        await trio.sleep(1)
        host.put("chat", attrs.evolve(LOADING, reason="InsufficientMemory"))
        assert host.uses == {"chat": 1}
        await trio.sleep(9)
        assert (answers, host.uses) == ([200], {"chat": 0})
        host.put("chat", host.engine)
        await trio.sleep(9)
        assert answers == [200, 200, 200]


async def test_a_request_that_queues_at_the_gateway_while_its_model_is_unloaded_waits_for_it(autojump_clock, nursery):
    """The same holds for what passes unchanged."""
    engine, answers = Engine(), []
    engine.pause = 4.0
    world = Gateway(Host(nursery, "chat"), engine)
    only = test_default_route.service("chat", parallelSlots=1)
    world.services |= {only.key: only}
    async with test_default_route.run_world(world):
        world.host.put("chat", world.host.engine)

        async def ask():
            answers.append((await world.ask(CHAT, HELLO)).status)

        for _ in range(3):
            nursery.start_soon(ask)
        await trio.sleep(1)
        world.host.put("chat", attrs.evolve(LOADING, reason="InsufficientMemory"))
        assert world.host.uses == {"chat": 1}
        await trio.sleep(9)
        assert (answers, world.host.uses) == ([200], {"chat": 0})
        world.host.put("chat", world.host.engine)
        await trio.sleep(9)
        assert answers == [200, 200, 200]


async def test_copies_and_probes_load_nothing(autojump_clock, nursery):
    """A router that is ready does not imply a loaded model."""
    rules = (Rule(name="all", match=Match(), backends=("cloud", "mac"), strategy="shadow"),)
    probed = attrs.evolve(MAC, probe=Probe(path="/health", interval_seconds=10, timeout_seconds=5))
    config = rl.config_of(rl.cloud("cloud"), probed, rules=rules)
    async with open_router(nursery, config, mac=rl.answer(), cloud=rl.answer()) as (lab, host):
        assert (await lab.ask()).status == 200
        await trio.sleep(300)
        assert (await lab.ask(path="/readyz", method="GET")).status == 200
        assert (host.calls, lab.players["mac"].asked, lab.router.states()["mac"]) == ([], [], "")


@pytest.mark.parametrize(
    ("body", "loads"),
    [
        ({"model": "m"}, True),
        ({"model": "m", "keep_alive": 0}, True),
        ({"model": "m", "keep_alive": -1}, True),
        ({"model": "m", "prompt": "hi", "keep_alive": 0}, True),
        ({"model": "m", "prompt": "hi", "keep_alive": "-5m"}, True),
        ({"model": "m", "prompt": "hi", "keep_alive": "5m"}, False),
    ],
)
async def test_loading_and_unloading_need_a_key_of_the_owner(autojump_clock, nursery, tmp_path, body, loads):
    """Other keys wake a model with a prompt only; their durations have no effect, and are in the audit log."""
    for team in ("owner", "guests"):
        (tmp_path / team).write_text(f"key-{team}\n")
    config = rl.config_of(MAC, auth=Auth(keys_folder=str(tmp_path)))
    body = body | {"stream": False}
    async with open_router(nursery, config, mac=rl.answer()) as (lab, host):
        guest = await lab.ask(body, "/api/generate", {"Authorization": "Bearer key-guests"})
        if loads:
            assert (guest.status, "team `owner`" in json.loads(guest.body)["error"], host.calls) == (403, True, [])
        else:
            assert (guest.status, host.calls, host.tenants) == (200, [("load", "ml/chat")], ["guests"])
            assert lab.audit[-1]["droppedFields"] == ["keep_alive"]
        owner = await lab.ask(body, "/api/generate", {"Authorization": "Bearer key-owner"})
        assert (owner.status, bool(host.calls), host.uses) == (200, True, {"chat": 0}), owner.body
        assert "droppedFields" not in lab.audit[-1] or not lab.audit[-1]["droppedFields"]
