"""The client believes API servers only, asks again when that is safe, and leaves deadlines to its callers."""

import errno
import json
import os

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from k8s.scripted import Body, ScriptedServer, config_map, html, listing, ok, status, status_object
from llmkube.k8s import exchange as response_module
from llmkube.k8s import request as build
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Client
from llmkube.k8s.codec import DecodeError
from llmkube.k8s.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Pod

KEY = Key("default", "a")
BUSY = {"Retry-After": "2"}


def busy(code=429):
    return httpx.Response(code, text="Too many requests, please try again later.", headers=BUSY)


async def test_objects_come_back_typed():
    """Every verb decodes the object in the answer, with its unknown fields and resourceVersion."""
    answer = {**config_map("a", 5, x="1"), "immutable": True}
    server = ScriptedServer(*[ok(answer)] * 4)
    client = server.client()
    obj = await client.get(ConfigMap, KEY)
    assert (obj.key, obj.metadata.resource_version, dict(obj.data)) == (KEY, "5", {"x": "1"})
    assert await client.create(obj, field_manager="me") == obj
    assert await client.patch(ConfigMap, KEY, {"data": {"x": None}}) == obj
    assert await client.apply(ConfigMap, {"metadata": {"name": "a", "namespace": "default"}}, field_manager="me") == obj
    assert server.verbs == ["list", "POST", "PATCH", "PATCH"]
    assert json.loads(server.calls[1].body)["immutable"] is True
    assert server.calls[2].path.endswith("/namespaces/default/configmaps/a")
    assert [call.headers.get("content-type") for call in server.calls] == [
        None,
        "application/json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ]


async def test_delete_accepts_a_status_and_an_object():
    """A deletion is acknowledged with a Status or with the object that still waits for its finalizers."""
    server = ScriptedServer(
        ok({"kind": "Status", "status": "Success"}), ok(config_map("a", 5)), status(404, "NotFound")
    )
    client = server.client()
    await client.delete(ConfigMap, KEY)
    await client.delete(ConfigMap, KEY, uid="u")
    with pytest.raises(NotFoundError):
        await client.delete(ConfigMap, KEY)


async def test_a_wrong_servers_answer_deletes_nothing():
    """A deletion that is answered with `{}`, as captive portals do, is a failure that is worth another try."""
    with pytest.raises(TransportError, match="expected a ConfigMap or a Status"):
        await ScriptedServer(ok({})).client().delete(ConfigMap, KEY)


async def test_a_list_follows_its_pages():
    """A list of three pages is one Listing, at the resourceVersion of the collection."""
    server = ScriptedServer(
        listing(9, config_map("a", 1), token="t1"),
        listing(9, config_map("b", 2), token="t2"),
        listing(9, config_map("c", 3)),
    )
    found = await server.client().list(ConfigMap, namespace="default", label_selector="x=y", field_selector="p=q")
    assert [obj.metadata.name for obj in found.items] == ["a", "b", "c"]
    assert found.resource_version == "9"
    assert [call.params.get("continue") for call in server.calls] == [None, "t1", "t2"]
    for call in server.calls:
        assert (call.params["limit"], call.params["labelSelector"], call.params["fieldSelector"]) == (
            "500",
            "x=y",
            "p=q",
        )
        assert "resourceVersion" not in call.params


async def test_a_forgotten_page_token_starts_the_list_again_in_one_piece():
    """After 410 in the middle of the pages nothing of the first attempt is returned."""
    server = ScriptedServer(
        listing(9, config_map("a", 1), token="t1"), status(410, "Expired"), listing(12, config_map("b", 11))
    )
    found = await server.client().list(ConfigMap)
    assert [obj.metadata.name for obj in found.items] == ["b"]
    assert found.resource_version == "12"
    assert "limit" not in server.calls[-1].params
    with pytest.raises(GoneError):
        await ScriptedServer(status(410, "Gone"), status(410, "Gone")).client().list(ConfigMap)


async def test_a_failure_between_pages_fails_the_list():
    """A page that cannot be fetched makes the list an error, never a shorter list."""
    server = ScriptedServer(listing(9, config_map("a", 1), token="t1"), html())
    with pytest.raises(TransportError):
        await server.client().list(ConfigMap)


@pytest.mark.parametrize(
    "answer",
    [
        html(200),
        html(404),
        html(503),
        httpx.Response(302, headers={"location": "http://portal"}),
        httpx.Response(200, content=b"", headers={"content-type": "application/json"}),
        httpx.Response(200, content=b'{"kind": "ConfigMapLi', headers={"content-type": "application/json"}),
        httpx.Response(200, content=b"[" * 100_000, headers={"content-type": "application/json"}),
        ok({}),
        ok([]),
        ok(None),
        ok({"kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": []}),
        ok({"kind": "ConfigMapList", "metadata": {}, "items": []}),
        ok({"kind": "ConfigMapList", "items": []}),
        ok({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}}),
        ok({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": {"a": 1}}),
        ok({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {}}]}),
        ok({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": ["a"]}),
        httpx.Response(200, text=listing(1).text, headers={"content-type": "text/plain"}),
    ],
)
async def test_what_is_no_list_is_never_an_empty_list(answer):
    """A page, a redirect, nothing, half a list, another kind or a list without a version is an error of the world."""
    with pytest.raises((TransportError, ServerError)):
        await ScriptedServer(answer).client().list(ConfigMap)


async def test_a_go_null_is_an_empty_list():
    """A list whose items are null is a list without items."""
    answer = ok({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": None})
    assert (await ScriptedServer(answer).client().list(ConfigMap)).items == ()


async def test_a_server_that_repeats_its_page_is_not_followed_for_ever():
    """The same continue token twice in a row is an error."""
    server = ScriptedServer(*[listing(9, config_map("a", 1), token="t1")] * 3)
    with pytest.raises(TransportError, match="twice"):
        await server.client().list(ConfigMap)


async def test_an_object_of_another_kind_is_not_decoded():
    """A 200 with a Status or another kind in it is an error."""
    for body in (status_object(404, "NotFound"), {**config_map("a", 1), "kind": "Secret"}):
        with pytest.raises(TransportError, match="expected a ConfigMap"):
            await ScriptedServer(ok(body)).client().get(ConfigMap, KEY)


async def test_a_malformed_object_names_its_field():
    """An object that does not fit its class is a DecodeError with the path."""
    with pytest.raises(DecodeError, match="data"):
        await ScriptedServer(ok({**config_map("a", 1), "data": 7})).client().get(ConfigMap, KEY)


async def test_a_429_is_waited_out(autojump_clock):
    """Every verb waits as long as a 429 says and asks again, three times at most."""
    start = trio.current_time()
    server = ScriptedServer(busy(), busy(), ok(config_map("a", 1)))
    await server.client().patch(ConfigMap, KEY, {})
    assert [call.at - start for call in server.calls] == [pytest.approx(t) for t in (0, 2, 4)]
    server = ScriptedServer(*[busy()] * 9)
    with pytest.raises(TooManyRequestsError):
        await server.client().get(ConfigMap, KEY)
    assert len(server.calls) == 4


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([httpx.Response(429, text="no")], 1),  # it does not say when
        ([httpx.Response(429, headers={"Retry-After": "3600"})], 1),  # too long to wait here
        ([status(500, "InternalError")], 1),
        ([status(403, "Forbidden")], 1),
        ([httpx.ConnectError("refused")], 1),
        ([busy(503), busy(503), ok(config_map("a", 1))], 3),
        ([httpx.RemoteProtocolError("disconnected"), ok(config_map("a", 1))], 2),
        ([httpx.ReadError("reset"), httpx.ReadError("reset")], 2),
    ],
)
async def test_reads_are_repeated_when_that_helps(answers, calls, autojump_clock):
    """A GET is sent again after a dropped connection (once) and after a 5xx that says when; otherwise not."""
    server = ScriptedServer(*answers)
    try:
        await server.client().get(ConfigMap, KEY)
    except (TooManyRequestsError, ServerError, ForbiddenError, TransportError):
        assert not isinstance(answers[-1], httpx.Response) or answers[-1].status_code != 200
    assert len(server.calls) == calls


@pytest.mark.parametrize("answer", [busy(503), httpx.ReadError("reset"), status(409, "Conflict")])
async def test_writes_are_not_repeated_when_they_may_have_happened(answer):
    """After a dropped connection or a 5xx a write is the caller's to repeat."""
    server = ScriptedServer(answer)
    with pytest.raises((ServerError, TransportError, ConflictError)):
        await server.client().patch(ConfigMap, KEY, {})
    assert len(server.calls) == 1


async def test_deadlines_belong_to_the_caller(autojump_clock):
    """A server that never answers is waited for until the caller's own deadline, and not a moment less."""
    start = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        with trio.fail_after(12_345):
            await ScriptedServer().client().get(ConfigMap, KEY)
    assert trio.current_time() - start == pytest.approx(12_345)


async def test_an_endless_body_is_cut_off(monkeypatch):
    """An answer above the cap is an error, and its connection is closed."""
    monkeypatch.setattr(response_module, "MAX_BODY_BYTES", 1000)
    answer = httpx.Response(200, stream=Body([b"x" * 100] * 50), headers={"content-type": "application/json"})
    with pytest.raises(TransportError, match="larger"):
        await ScriptedServer(answer).client().get(ConfigMap, KEY)
    assert answer.is_closed


async def test_a_body_that_breaks_off_is_an_error():
    """Half an answer is a TransportError, even when that half is whole JSON."""
    whole = json.dumps(config_map("a", 1)).encode()
    answers = [
        httpx.Response(
            200, stream=Body([whole, httpx.ReadError("reset")]), headers={"content-type": "application/json"}
        )
        for _ in range(2)
    ]
    with pytest.raises(TransportError, match="broke"):
        await ScriptedServer(*answers).client().get(ConfigMap, KEY)


async def test_connection_errors_name_the_cause():
    """A refused connection names the port and the system's message."""
    async with httpx.AsyncClient(base_url="http://127.0.0.1:1", trust_env=False) as http:
        with pytest.raises(TransportError, match=r"GET /version.*[Cc]onnect"):
            await Client(http).get_json("/version")


@pytest.mark.parametrize(("platform", "code", "has_hint"), [
    ("darwin", errno.EHOSTUNREACH, True), ("linux", errno.EHOSTUNREACH, False), ("darwin", errno.ECONNREFUSED, False),
])  # fmt: skip
async def test_a_mac_without_a_route_may_lack_a_permission(monkeypatch, platform, code, has_hint):
    """Where macOS may have cut an agent off from the network around it, the error says where that is allowed."""
    monkeypatch.setattr(response_module.sys, "platform", platform)
    refused = httpx.ConnectError("all attempts failed")
    refused.__cause__ = ExceptionGroup("tried", [OSError(code, os.strerror(code))])
    with pytest.raises(TransportError, match=os.strerror(code)) as caught:
        await ScriptedServer(refused).client().get_json("/version")
    assert ("Local Network" in str(caught.value)) is has_hint


async def test_any_request_can_be_sent():
    """The escape hatch sends method, path, parameters and body as they are, and returns the answer's JSON."""
    server = ScriptedServer(ok({"kind": "Anything"}))
    answer = await server.client().request_json("POST", "/apis/x/v1/things", params={"dryRun": "All"}, body={"a": 1})
    assert answer == {"kind": "Anything"}
    (call,) = server.calls
    assert (call.method, call.path, call.params, call.body) == (
        "POST",
        "/apis/x/v1/things",
        {"dryRun": "All"},
        b'{"a":1}',
    )


async def test_a_base_path_of_the_server_is_kept():
    """A server behind a path (a cluster manager's proxy) gets that path before every request's own."""
    server = ScriptedServer(ok(config_map("a", 1)))
    async with httpx.AsyncClient(transport=server, base_url="https://rancher/k8s/clusters/c-1") as http:
        await Client(http).get(ConfigMap, KEY)
    assert server.calls[0].path == "/k8s/clusters/c-1/api/v1/namespaces/default/configmaps/a"


LOG = build.connect(Pod.RESOURCE, Key("default", "chat-0"), "log", container="engine", follow="true", tailLines="")


async def test_a_text_is_read_as_it_comes():
    """Pieces arrive before the answer ends, and leaving the block early lets go of the connection."""
    answer = httpx.Response(200, stream=Body([b"one\n", b"two\n", None]), headers={"content-type": "text/plain"})
    server, got = ScriptedServer(answer), []
    async with server.client().open_text(LOG) as chunks:
        async for chunk in chunks:
            got.append(chunk)
            if len(got) == 2:
                break
    assert (got, answer.is_closed) == ([b"one\n", b"two\n"], True)
    [call] = server.calls
    assert (call.path, call.params) == (
        "/api/v1/namespaces/default/pods/chat-0/log",
        {"container": "engine", "follow": "true"},
    )


async def test_a_text_that_is_refused_is_an_error():
    """A refusal is what it is for every other call."""
    with pytest.raises(ForbiddenError):
        async with ScriptedServer(httpx.Response(403, json=status_object(403, "Forbidden"))).client().open_text(LOG):
            pass


async def test_a_text_that_breaks_off_is_no_end():
    """A connection that breaks is a TransportError, in the reader's own loop."""
    broken = httpx.Response(200, stream=Body([b"one\n", httpx.ReadError("reset")]))

    async def read():
        async with ScriptedServer(broken).client().open_text(LOG) as chunks:
            return [chunk async for chunk in chunks]

    with pytest.raises(TransportError, match="reset"):
        await read()
