"""A router's answers to its clients: requests that are accepted, and errors for the others.

Unreadable requests are counted, and those of authenticated clients are in the audit log.
"""

import json
from datetime import UTC, datetime
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from llmkube.base.http.limits import Limits
from llmkube.router.config.routing_config import Auth, Match, Rule
from llmkube.router.dialects.inbound import DIALECTS
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy import handler
from llmkube.router.proxy.audit_log import PAUSE_SECONDS, AuditLog
from llmkube.router.proxy.handler import ROUTES
from llmkube.router.proxy.metrics import RouterMetrics
from router.proxy.router_lab import ANSWER, ASKED, CHAT, answer, cloud, config_of, local, open_lab

BOTH = config_of(local("mac"), cloud("cloud"))


async def test_a_request_gets_the_answer_of_the_first_backend():
    """The answer is unchanged, and a header names the backend."""
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        response = await lab.ask()
    assert (response.status, json.loads(response.body)) == (200, ANSWER)
    assert response.headers.get("x-llmkube-backend") == "mac"
    assert len(response.headers.get("x-request-id")) == 32
    assert not lab.players["cloud"].asked


@pytest.mark.parametrize(
    ("body", "path", "status", "code", "words"),
    [
        (b"{", "/v1/chat/completions", 400, "invalid_json", "JSON object"),
        (b"[1]", "/v1/chat/completions", 400, "invalid_json", "JSON object"),
        (b"", "/v1/chat/completions", 400, "invalid_json", "JSON object"),
        ({"messages": []}, "/v1/chat/completions", 400, "invalid_model", "/v1/models"),
        ({"model": 7}, "/v1/chat/completions", 400, "invalid_model", "string"),
        (ASKED | {"stream": "yes"}, "/v1/chat/completions", 400, "invalid_value", "true or false"),
        (ASKED | {"temperature": "hot"}, "/v1/chat/completions", 400, "invalid_value", "temperature is 'hot'; write a"),
        (
            {"model": "m", "prompt": {}},
            "/v1/completions",
            400,
            "invalid_value",
            "prompt is {}; write a string or a list",
        ),
        (ASKED, "/v1/images", 404, "not_found", "/v1/embeddings"),
        (
            {
                "model": "m",
                "messages": [{"content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}],
            },
            "/v1/chat/completions",
            400,
            "url_not_allowed",
            "messages[0].content[0].image_url.url must be a data: URL",
        ),
    ],
)
async def test_what_is_no_request_is_refused_with_the_field_and_the_fix(body, path, status, code, words):
    """The error has OpenAI's shape; nothing reaches a backend."""
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        response = await lab.ask(body, path)
        error = json.loads(response.body)["error"]
    assert (response.status, error["code"]) == (status, code)
    assert words in error["message"]
    assert set(error) == {"message", "type", "code"}
    assert not lab.players["mac"].asked


@pytest.mark.parametrize(
    ("path", "error_of"),
    [
        ("/v1/chat/completions", lambda value: value["error"]),
        ("/v1/messages", lambda value: value["error"] if value["type"] == "error" else None),
        ("/api/chat", lambda value: {"code": "body_too_large", "message": value["error"]}),
    ],
)
async def test_a_body_above_the_limit_is_413(path, error_of):
    """It is not read completely; the error has the client's dialect."""
    async with open_lab(BOTH, limits=Limits(max_body_bytes=100), mac=answer(), cloud=answer()) as lab:
        response = await lab.ask(ASKED | {"user": "u" * 200}, path=path)
    assert response.status == 413
    error = error_of(json.loads(response.body))
    assert (error["code"], error["message"]) == ("body_too_large", "the body is larger than 100 bytes")


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/embeddings", "/rerank", "/responses"])
async def test_a_path_may_lack_its_v1(path):
    """llama.cpp's server has these paths; an error has the shape of the API."""
    body = {"model": "m", "messages": [], "input": "a", "prompt": "a", "query": "q", "documents": ["a"]}
    wanted = {"/responses": ("model", "input"), "/chat/completions": ("model", "messages")}.get(path, body)
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        response = await lab.ask({name: body[name] for name in wanted}, path)
        refused = await lab.ask(b"{", path)
    assert response.status == 200
    backend = "/chat/completions" if path == "/responses" else path
    assert [head.split()[1] for head in lab.players["mac"].heads] == [f"/v1{backend}"]
    assert (refused.status, "message" in json.loads(refused.body)["error"]) == (400, True)


async def test_input_tokens_of_a_response_are_counted_by_the_engine():
    """The engine's own count is returned in the shape of the Responses API; history is included, and nothing stored."""
    counted = answer(body={"input_tokens": 9})
    async with open_lab(BOTH, mac=(answer(), counted), cloud=answer()) as lab:
        first = json.loads((await lab.ask({"model": "m", "input": "one"}, "/v1/responses")).body)
        body = {"model": "m", "input": "two", "previous_response_id": first["id"], "truncation": "auto"}
        response = await lab.ask(body, "/v1/responses/input_tokens")
    assert json.loads(response.body) == {"object": "response.input_tokens", "input_tokens": 9}
    head, sent = lab.players["mac"].asked[-1]
    assert head.split()[1] == "/v1/messages/count_tokens"
    assert [turn["role"] for turn in json.loads(sent)["messages"]] == ["user", "assistant", "user"]
    assert lab.audit[-1]["droppedFields"] == ["truncation"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/nothing", {}, 404),
        ("POST", "/api/blobs/sha256:0", {}, 404),
        ("DELETE", "/api/delete", {"model": "m"}, 404),
        ("GET", "/api/chat", None, 405),
        ("POST", "/api/chat", b"{", 400),
        ("POST", "/api/chat", {"messages": []}, 400),
    ],
)
async def test_every_error_of_ollamas_api_is_a_text(method, path, body, status):
    """So are those of paths that do not exist, and of foreign pages."""
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        responses = [await lab.ask(body, path, method=method)]
        responses.append(await lab.ask(body, path, method=method, headers={"Origin": "https://evil.example"}))
    assert [each.status for each in responses] == [status, 403]
    assert all(isinstance(json.loads(each.body)["error"], str) for each in responses)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"name": "mac"}),
        ("/api/generate", {"model": "mac:latest"}),
        ("/api/embed", {"model": "mac", "input": []}),
    ],
)
async def test_a_model_is_loaded_if_its_backend_gets_requests(path, body):
    """Without a prompt nothing is sent; a backend that gets no requests is no loaded model."""
    config = config_of(local("mac"), rules=(), by_model=True)
    async with open_lab(config, mac=answer()) as lab:
        response = await lab.ask(body, path)
        assert not lab.players["mac"].asked
    assert (response.status, response.headers.get("content-type")) == (200, "application/json")
    assert json.loads(response.body).get("done_reason", "load") == "load"
    gone = config_of(local("mac", base_url="", missing="its InferenceService is not there"), rules=(), by_model=True)
    async with open_lab(gone) as lab:
        refused = await lab.ask(body, path)
    assert refused.status == 503
    assert "its InferenceService is not there" in json.loads(refused.body)["error"]


async def test_details_of_a_model_are_those_that_its_engine_reports():
    """The context is that of a request; a provider is not asked."""
    props = {"chat_template_caps": {"supports_tools": True}, "default_generation_settings": {"n_ctx": 4096}}
    config = config_of(local("mac"), cloud("gpt"), rules=(), by_model=True)
    async with open_lab(config, mac=answer(), gpt=answer()) as lab:
        lab.players["mac"].health = answer(body=props)
        mac, gpt = [
            json.loads((await lab.ask({"model": name}, "/api/show")).body) for name in ("mac:latest", "gpt")
        ]  # fmt: skip
        assert [path for _, path in lab.players["mac"].probed] == ["/v1/models", "/props"]
        assert not lab.players["gpt"].probed
    architecture = mac["model_info"]["general.architecture"]
    assert (mac["model_info"][f"{architecture}.context_length"], mac["capabilities"]) == (4096, ["completion", "tools"])
    assert gpt["capabilities"] == ["completion"]


async def test_get_is_refused_where_post_is_meant():
    """The answer has the allowed methods."""
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        response = await lab.ask(method="GET")
    assert (response.status, response.headers.get("allow")) == (405, "POST")


async def test_every_model_that_is_listed_is_routable():
    """Its own id suffices without a header; a model without a rule is not listed."""
    config = config_of(local("mac"), cloud("cloud", model_id="gpt-5"), rules=(), by_model=True)
    async with open_lab(config, mac=answer(), cloud=answer()) as lab:
        listed = json.loads((await lab.ask(path="/v1/models", method="GET")).body)["data"]
        assert [each["id"] for each in listed] == ["mac", "gpt-5"]
        for each in listed:
            assert (await lab.ask(ASKED | {"model": each["id"]})).status == 200
        one = await lab.ask(path="/v1/models/gpt-5", method="GET")
        assert json.loads(one.body)["id"] == "gpt-5"
        gone = await lab.ask(path="/v1/models/gone", method="GET")
        assert (gone.status, "'mac', 'gpt-5'" in gone.body.decode()) == (404, True)
        unknown = await lab.ask(ASKED | {"model": "gone"})
        assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (404, "no_route")


async def test_sensitive_data_stays_or_is_refused():
    """A provider gets no byte of it, whatever rule names it; the refusal has the reason."""
    async with open_lab(config_of(cloud("cloud")), cloud=answer()) as lab:
        response = await lab.ask(headers={"X-LLMKube-Classification": "PII"})
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "not_permitted")
    assert "pii stays local" in json.loads(response.body)["error"]["message"]
    assert lab.metric("llmkube_router_fail_closed_total", rule="default", classification="pii") == 1
    assert not lab.players["cloud"].asked
    assert not lab.players["cloud"].listener.dialled


FACTS = {
    "nothing else": ("red", "small", {}, "cloud"),
    "its team": ("blue", "small", {}, "mac"),
    "its model": ("red", "large", {}, "mac"),
    "a header of a rule": ("red", "small", {"X-Team": "a"}, "mac"),
    "its complexity": ("red", "small", {"X-LLMKube-Task-Complexity": "high"}, "mac"),
    "its class": ("red", "small", {"X-LLMKube-Classification": "pii"}, "mac"),
    "its capabilities": ("red", "small", {"X-LLMKube-Capabilities": "vision"}, "mac"),
    "its regions": ("red", "small", {"X-LLMKube-Region": "eu"}, "mac"),
}
"""Facts of requests: the team, the model, headers, and the backend that answers."""


@pytest.mark.parametrize("most", [len(FACTS), 2])
async def test_a_decision_is_kept_for_equal_facts_only(most, tmp_path, monkeypatch):
    """Each request gets the backend that its own facts allow, in any order; equal facts are decided once."""
    monkeypatch.setattr(handler, "MAX_DECISIONS", most)
    for team in ("red", "blue"):
        (tmp_path / team).write_text(team)
    matches = (Match(headers={"x-team": "a"}), Match(complexity="high"), Match(models=("large",)))
    rules = [Rule(name=f"r{at}", match=match, backends=("mac",)) for at, match in enumerate(matches)]
    rules.append(Rule(name="rest", match=Match(), backends=("cloud", "mac")))
    auth = Auth(keys_folder=str(tmp_path), models_of_team={"red": ("*",), "blue": ("small",)})
    mac = local("mac", capabilities=frozenset({"vision"}), region="eu")
    async with open_lab(
        config_of(mac, cloud("cloud"), rules=tuple(rules), auth=auth), mac=answer(), cloud=answer()
    ) as lab:
        for name, (team, model, headers, backend) in 2 * [*FACTS.items()]:
            response = await lab.ask(ASKED | {"model": model}, headers={"Authorization": f"Bearer {team}"} | headers)
            assert (name, response.status, response.headers.get("x-llmkube-backend")) == (name, 200, backend)
        assert len(lab.router.live.routing.decisions) == most


@pytest.mark.parametrize("changes", [{"strategy": "weighted"}, {"match": Match(latency_seconds=1.0)}])
async def test_a_decision_that_depends_on_more_is_not_kept(changes):
    """Chance or measured times may decide otherwise the next time."""
    rules = (Rule(**{"name": "r", "match": Match(), "backends": ("mac", "cloud")} | changes),)
    async with open_lab(config_of(local("mac"), cloud("cloud"), rules=rules), mac=answer(), cloud=answer()) as lab:
        assert (await lab.ask()).status == 200
        assert lab.router.live.routing.decisions is None


async def test_readyz_lists_unavailable_backends():
    """The status is 503 if no backend can be asked."""
    config = config_of(local("mac", base_url="", missing="its InferenceService is not there"))
    async with open_lab(config) as lab:
        ready = await lab.ask(path="/readyz", method="GET")
        alive = await lab.ask(path="/healthz", method="GET")
    assert (ready.status, alive.status) == (503, 200)
    assert json.loads(ready.body)["reason"] == "mac: its InferenceService is not there"


# -- odd bodies --------------------------------------------------------------------------------------------------------

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": [{"type": "text", "text": "r"}]}
MESSAGES = {
    "max_tokens": 9,
    "temperature": 0.5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, CALL]},
        {"role": "user", "content": [RESULT]},
    ],
}
OLLAMA = {
    "options": {"num_predict": 4, "temperature": 0.5, "stop": ["x"], "num_ctx": 9},
    "format": {"type": "object"},
    "think": True,
    "keep_alive": "5m",
    "images": ["iVBORAAA"],
}
OLLAMA_TURNS = [
    {"role": "user", "content": "a", "images": ["iVBORAAA"]},
    {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "r", "tool_name": "f"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ITEMS = [
    {"role": "developer", "content": "d"},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "f"},
    ]},
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "s"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
    {"type": "custom_tool_call", "call_id": "d", "name": "p", "namespace": "n", "input": "t"},
    {"type": "additional_tools", "tools": [{"type": "custom", "name": "p", "format": {"definition": "x"}}]},
]  # fmt: skip
FULL = {
    "/v1/responses": {
        "input": ITEMS,
        "instructions": "i",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
            {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "p"}]},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "store": True,
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "user": "u",
    },
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": OLLAMA | {"messages": OLLAMA_TURNS, "tools": TOOLS},
    "/api/generate": OLLAMA | {"prompt": "p", "system": "s"},
    "/api/embed": {"input": ["a"], "dimensions": 4},
    "/api/embeddings": {"prompt": "a", "options": {"num_ctx": 7}},
}
FULL["/v1/responses/input_tokens"] = FULL["/v1/responses"]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "url"]), inner),
    max_leaves=4,
)


def places_in(value, path=()):
    """Yield the path of each value, at every depth."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in parts:
        yield (*path, name)
        yield from places_in(each, (*path, name))


def replaced(value, path, odd):
    """Return a copy with one value replaced."""
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copy


def nested(deep):
    """Return nested objects of this depth."""
    value = {}
    for _ in range(deep):
        value = {"a": value}
    return value


async def statuses(path, bodies):
    """Return the status of each body with an engine, a provider of chat completions and one of Messages."""
    claude = cloud("claude", provider="anthropic", dialect="anthropic", model="opus")
    config = config_of(local("mac"), cloud("gpt"), claude, rules=(), by_model=True)
    message = answer(body={"type": "message", "content": [{"type": "text", "text": "yes"}], "input_tokens": 3})
    found = set()
    async with open_lab(config, mac=answer(), gpt=answer(), claude=message) as lab:
        for body in bodies:
            for name in ("mac", "gpt", "claude")[
                : 2 if path.startswith("/api/embed") else 3
            ]:  # Anthropic has no vectors
                response = await lab.ask({"stream": False} | body | {"model": name}, path)
                if response.status == 400:
                    error = json.loads(response.body)
                    assert ("type" in error) == path.startswith("/v1/messages"), "an error of another dialect"
                found.add(response.status)
    return found


def test_every_dialect_has_a_request_here_that_is_taken():
    """Otherwise, odd changes of it would prove nothing."""
    assert set(FULL) == set(DIALECTS)
    for path, full in FULL.items():
        assert 200 in trio.run(partial(statuses, path, [full]))


@pytest.mark.ci
@pytest.mark.parametrize("path", FULL)
@given(data=st.data())
def test_an_odd_body_is_an_answer_or_400_and_never_500(path, data):
    """Each value of a request is replaced, at every depth."""
    places = st.sampled_from(list(places_in(FULL[path])))
    changes = data.draw(st.lists(st.tuples(places, ODD), min_size=1, max_size=3))
    bodies = [replaced(FULL[path], place, odd) for place, odd in changes]
    try:
        json.dumps(bodies).encode()
    except UnicodeEncodeError:
        bodies = []
    unknown_item = {404} if path.startswith("/v1/responses") else set()  # an item without a type is a reference
    assert trio.run(partial(statuses, path, bodies)) <= {200, 400} | unknown_item


@pytest.mark.parametrize("path", ["/v1/chat/completions", *FULL])
async def test_a_body_that_is_nested_as_deeply_as_json_may_be_is_400(path):
    """Nothing reaches a backend."""
    deep = b"[" * 1000 + b"]" * 1000
    body = b'{"model": "m", "stream": false, "max_tokens": 9, "messages": %b, "prompt": %b, "input": %b}'
    async with open_lab(BOTH, mac=answer(), cloud=answer()) as lab:
        response = await lab.ask(body % (deep, deep, deep), path)
    assert response.status == 400
    assert not lab.players["mac"].asked


@pytest.mark.ci
@pytest.mark.parametrize("path", FULL)
def test_a_part_that_is_nested_deeply_is_an_answer_or_400(path):
    """Each position in a body is tried."""
    bodies = [replaced(FULL[path], place, nested(deep)) for place in places_in(FULL[path]) for deep in (300, 900)]
    assert trio.run(partial(statuses, path, bodies)) <= {200, 400}


async def test_lines_that_come_together_share_a_write(autojump_clock):
    """The first is written at once, later ones after a pause; the last ones at the end."""
    written = []

    async def write(lines):
        written.append((trio.current_time() - began, len(lines)))
        await trio.lowlevel.checkpoint()

    audit = AuditLog(write, lambda: datetime(2026, 11, 24, tzinfo=UTC))
    async with trio.open_nursery() as nursery:
        await nursery.start(audit.run)
        began = trio.current_time()
        for _ in range(40):
            await audit.record_request({"path": "/"})
            await trio.sleep(PAUSE_SECONDS / 4)
        await audit.record_request({"path": "/"})
        nursery.cancel_scope.cancel()
    assert written[0] == (0, 1)
    assert sum(count for _, count in written) == 41
    assert len(written) <= 12


KEY = "a-key-that-nobody-logs"
LIMITS = Limits(max_body_bytes=100, max_head_bytes=400, head_seconds=5, body_stall_seconds=5)
BODY = b"what-nobody-logs"


def post(*lines, body=b"", path=CHAT, key=KEY):
    head = (f"POST {path} HTTP/1.1", "Host: r", f"Authorization: Bearer {key}", *lines)
    return "\r\n".join((*head, "", "")).encode() + body


UNREAD = {
    "a long body": (post("Content-Length: 101", body=BODY), 413, "body_too_large", CHAT),
    "a slow body": (post("Content-Length: 99", body=BODY), 408, "request_too_slow", CHAT),
    "a malformed chunk": (post("Transfer-Encoding: chunked", body=BODY), 400, "malformed_request", CHAT),
    "an expectation": (post("Content-Length: 9", "Expect: a"), 417, "malformed_request", CHAT),
    "a long body elsewhere": (post("Content-Length: 101", path="/v1/responses/resp_1"), 413, "body_too_large", "other"),
    "a long head": (post("X: " + "x" * 500), 431, "headers_too_large", None),
    "a slow head": (b"POST / HTTP/1.1\r\n", 408, "request_too_slow", None),
    "a malformed head": (b"GET / FTP/1.1\r\n\r\n", 400, "malformed_request", None),
    "a stranger's probe": (b"GET /healthz HTTP/1.1\r\nHost: r\r\nExpect: a\r\n\r\n", 417, "malformed_request", None),
}


def counted(lab, outcome):
    labels = {"rule": "none", "backend": "none", "classification": "none", "outcome": outcome}
    return lab.metric("llmkube_router_requests_total", **labels) or 0


async def unread(name, tmp_path):
    """An unreadable request is counted once; its line has path, team and outcome, and no secret."""
    sent, status, outcome, path = UNREAD[name]
    (tmp_path / "team").write_text(KEY)
    config = config_of(local("a"), auth=Auth(keys_folder=str(tmp_path)))
    async with open_lab(config, limits=LIMITS, a=answer()) as lab:
        connection = await lab.front.connect("r", 80)
        await connection.send_all(sent)
        received = b""
        with trio.move_on_after(30):
            while some := await connection.receive_some():
                received += some
        assert int(received.split()[1]) == status
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == outcome
        assert counted(lab, outcome) == 1
        await trio.sleep(1)
        lines = [(line["path"], line["team"], line["status"], line["outcome"]) for line in lab.audit]
        assert lines == ([] if path is None else [(path, "team", status, outcome)])
        assert not any(word in b"".join(lab.lines) for word in (KEY.encode(), BODY, b"resp_1"))
        assert all(line["requestID"].encode() in received for line in lab.audit)


MUTANTS = {
    "they are not counted": (RouterMetrics, "count_refused", lambda self, outcome: None, "a long head"),
    "no line": (handler, "principal_of", lambda lines, peer, clients: None, "a long body"),
    "strangers have a line": (
        handler,
        "principal_of",
        lambda lines, peer, clients: Principal(tenant=peer),
        "a stranger's probe",
    ),
    "paths are written": (handler, "ROUTES", (*ROUTES, "/v1/responses/resp_1"), "a long body elsewhere"),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_what_cannot_be_read(name, tmp_path, autojump_clock):
    """It is counted, and logged if the client is authenticated."""
    await unread(name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("bug", MUTANTS)
async def test_a_deliberate_bug_is_caught(bug, tmp_path, autojump_clock, monkeypatch):
    """The case fails with it."""
    place, attribute, mutant, name = MUTANTS[bug]
    monkeypatch.setattr(place, attribute, mutant)
    is_caught = False
    try:
        await unread(name, tmp_path)
    except* AssertionError:
        is_caught = True
    assert is_caught


async def test_a_flood_of_strangers_writes_nothing(tmp_path, autojump_clock):
    """Without a valid key, no request is logged, and a metric counts each."""
    (tmp_path / "team").write_text(KEY)
    config = config_of(local("a"), auth=Auth(keys_folder=str(tmp_path)))
    async with open_lab(config, limits=LIMITS, a=answer()) as lab:
        for _ in range(200):
            for sent in (post("Content-Length: 101", key="wrong"), post("X: " + "x" * 500), b"GET / FTP/1.1\r\n\r\n"):
                connection = await lab.front.connect("r", 80)
                await connection.send_all(sent)
                await connection.receive_some()
                await connection.aclose()
        await trio.sleep(1)
        assert [counted(lab, each) for each in ("unauthorized", "headers_too_large", "malformed_request")] == [200] * 3
        assert lab.audit == []
