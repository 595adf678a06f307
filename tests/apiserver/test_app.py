"""The app's own promises: order of commit and show, cancellation, housekeeping after a crash, no crash on any body."""

import json
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.widgets import CRDS, WIDGETS, widget_crd
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.apiserver.storage.write_ahead_log import StorageError
from llmkube.apiserver.values.json_text import MAX_DEPTH
from memory_api_server import open_memory_api_server

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def utcnow():
    return datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def open_http(**more):
    async with (
        open_memory_api_server(utcnow=utcnow, rng=random.Random(0), **more) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver") as http,
    ):
        yield http, memory.server


@asynccontextmanager
async def open_client(server):
    await server.ensure_namespaces()
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,
    ):
        yield http


class SlowDisk:
    """A durable port that takes a second and remembers; `full` makes it refuse."""

    def __init__(self):
        self.committed = []
        self.full = False

    async def commit(self, changes):
        if self.full:
            raise StorageError("disk full")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):  # as a thread that is waited for
            await trio.sleep(1)
        self.committed += changes


async def test_a_write_is_shown_after_it_is_durable(autojump_clock):
    """Readers see nothing before the commit has returned; a full disk is a 500 that changes nothing."""
    disk = SlowDisk()
    server = ApiServer(Store(), persist=disk.commit, utcnow=utcnow, rng=random.Random(0))
    async with open_client(server) as http, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: http.post(CONFIG_MAPS, json={"metadata": {"name": "a"}}))
        await trio.sleep(0.5)
        assert (await http.get(f"{CONFIG_MAPS}/a")).status_code == 404
        await trio.sleep(1)
        assert (await http.get(f"{CONFIG_MAPS}/a")).status_code == 200
        disk.full = True
        answer = await http.post(CONFIG_MAPS, json={"metadata": {"name": "b"}})
        assert (answer.status_code, answer.json()["reason"]) == (500, "InternalError")
        assert (await http.get(f"{CONFIG_MAPS}/b")).status_code == 404
        disk.full = False
        made = (await http.post(CONFIG_MAPS, json={"metadata": {"name": "c"}})).json()
        assert int(made["metadata"]["resourceVersion"]) == server.store.revision == disk.committed[-1].revision


async def test_a_cancelled_write_that_was_committed_is_shown(autojump_clock):
    """A client that leaves during the commit leaves memory and disk in agreement."""
    disk = SlowDisk()
    server = ApiServer(Store(), persist=disk.commit, utcnow=utcnow, rng=random.Random(0))
    async with open_client(server) as http:
        with trio.move_on_after(0.5):
            await http.post(CONFIG_MAPS, json={"metadata": {"name": "a"}})
        await trio.sleep(2)
        assert (await http.get(f"{CONFIG_MAPS}/a")).status_code == 200
        assert disk.committed[-1].revision == server.store.revision


async def test_writers_at_once_lose_nothing(autojump_clock):
    """Of many writers with the same old version exactly one wins each round, and the counter ends at the sum."""
    async with open_http() as (http, _):
        await http.post(CONFIG_MAPS, json={"metadata": {"name": "a"}, "data": {"n": "0"}})

        async def count():
            while True:
                current = (await http.get(f"{CONFIG_MAPS}/a")).json()
                current["data"]["n"] = str(int(current["data"]["n"]) + 1)
                if (await http.put(f"{CONFIG_MAPS}/a", json=current)).status_code == 200:
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(count)
        assert (await http.get(f"{CONFIG_MAPS}/a")).json()["data"]["n"] == "20"


async def test_housekeeping_continues_after_a_restart(autojump_clock):
    """A deletion that a crash interrupted is finished by the next server on the same store."""
    store = Store()
    server = ApiServer(store, utcnow=utcnow, rng=random.Random(0))  # without its housekeeping: it dies first
    async with open_client(server) as http:
        await http.post("/api/v1/namespaces", json={"metadata": {"name": "doomed"}})
        await http.post("/api/v1/namespaces/doomed/configmaps", json={"metadata": {"name": "a"}})
        await http.delete("/api/v1/namespaces/doomed")
        assert (await http.get("/api/v1/namespaces/doomed")).json()["status"]["phase"] == "Terminating"
    async with open_http(store=store) as (http, _):
        await trio.sleep(1)
        assert (await http.get("/api/v1/namespaces/doomed/configmaps/a")).status_code == 404
        assert (await http.get("/api/v1/namespaces/doomed")).status_code == 404


async def test_ensure_creates_updates_and_then_does_nothing():
    """The server's own objects are brought to their manifests, and the same manifests again write nothing."""
    async with open_http() as (http, server):
        await server.ensure([widget_crd()])
        revision = server.store.revision
        await server.ensure([widget_crd()])
        assert server.store.revision == revision
        changed = widget_crd()
        changed["spec"]["names"]["shortNames"] = ["wdg"]
        await server.ensure([changed])
        entries = (await http.get(WIDGETS)).json()["resources"]
        assert entries[0]["shortNames"] == ["wdg"]


async def test_a_crd_is_established_and_served_at_once():
    """The answer to the CRD's creation says Established, and its kind can be used at once."""
    async with open_http() as (http, _):
        made = (await http.post(CRDS, json=widget_crd())).json()
        conditions = {condition["type"]: condition["status"] for condition in made["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
        assert (await http.get(f"{WIDGETS}/widgets")).json()["items"] == []


async def test_large_bodies_are_refused():
    """A body over 3 MiB is 413 with a Status."""
    async with open_http() as (http, _):
        answer = await http.post(CONFIG_MAPS, content=b" " * (3 * 1024 * 1024 + 1))
        assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/namespaces/default/services/a/scale", 404),
        ("GET", "/apis/inference.example.com/v1", 404),
        ("OPTIONS", CONFIG_MAPS, 405),
        ("DELETE", "/api/v1/configmaps", 405),
        ("GET", CONFIG_MAPS + "?resourceVersion=999", 504),
    ],
)
async def test_wrong_requests_have_the_right_code(method, path, code):
    """An unknown path is 404 and an unsupported method 405; the recorded script has many more."""
    async with open_http() as (http, _):
        assert (await http.request(method, path)).status_code == code


FIELDS = (
    *("metadata", "spec", "status", "name", "labels", "finalizers", "ownerReferences", "managedFields", "uid"),
    *("ports", "data", "type", "versions", "names", "group", "schema", "addresses", "endpoints", "clusterIP"),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS) | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


async def test_s13_half_a_character_is_echoed_as_a_whole_one():
    """A lone surrogate, which no UTF-8 can hold, is stored and answered as U+FFFD, as kube-apiserver does."""
    async with open_http() as (http, _):
        body = rb'{"metadata":{"name":"a"},"data":{"k":"\ud800 and \ud83d\ude00"}}'
        made = await http.post(CONFIG_MAPS, content=body)
        assert (made.status_code, made.json()["data"]["k"]) == (201, "\ufffd and \U0001f600")
        refused = await http.post(CONFIG_MAPS, content=rb'{"metadata":{"name":"\ud800"}}')
        assert (refused.status_code, refused.json()["reason"]) == (422, "Invalid")


async def test_s13_a_directive_that_is_a_list_is_refused():
    """`$patch: [..]` in a strategic merge patch is refused with a Status."""
    async with open_http() as (http, _):
        await http.post(CONFIG_MAPS, json={"metadata": {"name": "a"}, "data": {"k": "v"}})
        headers = {"content-type": "application/strategic-merge-patch+json"}
        answer = await http.patch(f"{CONFIG_MAPS}/a", json={"data": {"$patch": ["delete"]}}, headers=headers)
        assert answer.json()["message"].startswith("unknown patch type: ['delete'] in map:")


@pytest.mark.parametrize("wrong", [{"apiVersion": -1}, {"kind": []}, {"apiVersion": {}, "kind": 7}])
async def test_s13_an_apply_whose_type_is_no_text_is_refused(wrong):
    """A number or a list as the type of an object does not match the type of the path."""
    async with open_http() as (http, _):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, **wrong}
        headers = {"content-type": "application/apply-patch+yaml"}
        answer = await http.patch(f"{CONFIG_MAPS}/a?fieldManager=m", json=body, headers=headers)
        assert (answer.status_code, answer.json()["message"][:20]) == (400, "invalid object type:")


@pytest.mark.parametrize("levels", [MAX_DEPTH - 20, 480, 5_000, 50_000])
async def test_s13_deep_bodies_are_taken_or_refused_by_the_bound(levels):
    """Lists in lists up to the bound are stored by every kind of write; beyond it the answer names the bound."""
    crd, things = widget_crd(), f"{WIDGETS}/namespaces/default/widgets"
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["deep"] = {"x-kubernetes-preserve-unknown-fields": True}
    async with open_http() as (http, server):
        await server.ensure([crd])
        kind = '"apiVersion":"check.llmkube.dev/v1","kind":"Widget"'
        deep = "[" * levels + "]" * levels
        objects = '{"a":' * levels + "1" + "}" * levels
        for inside in (deep, objects):
            await http.post(things, content=f'{{{kind},"metadata":{{"name":"w"}},"spec":{{"size":1}}}}')
            body = f'{{{kind},"metadata":{{"name":"w"}},"spec":{{"size":1,"deep":{inside}}}}}'
            answers = [await http.post(things, content=body), await http.put(f"{things}/w", content=body)]
            for media in ("merge-patch+json", "apply-patch+yaml"):
                url, headers = f"{things}/w?fieldManager=m", {"content-type": f"application/{media}"}
                answers.append(await http.patch(url, content=body, headers=headers))
            for answer in answers:
                if levels > MAX_DEPTH:
                    assert (answer.status_code, str(MAX_DEPTH) in answer.json()["message"]) == (400, True), answer.text[
                        :400
                    ]
                else:
                    assert answer.status_code in {200, 409, 422}, answer.text[:300]
            stored = (await http.get(f"{things}/w")).json()
            assert ("deep" in stored["spec"]) is (levels <= MAX_DEPTH)
            assert (await http.delete(f"{things}/w")).status_code == 200


async def test_a_patch_that_digs_deeper_than_a_body_may_is_refused():
    """Copies of an object into itself reach the bound step by step, and no further."""
    async with open_http() as (http, server):
        crd = widget_crd()
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] = True
        await server.ensure([crd])
        things = f"{WIDGETS}/namespaces/default/widgets"
        body = {"apiVersion": "check.llmkube.dev/v1", "kind": "Widget", "metadata": {"name": "w"}}
        await http.post(things, json={**body, "spec": {"size": 1, "x": {}}})
        headers = {"content-type": "application/json-patch+json"}
        operations = [{"op": "copy", "from": "/spec/x", "path": "/spec/x" + "/x" * 2**step} for step in range(9)]
        answer = await http.patch(f"{things}/w", json=operations, headers=headers)
        assert (answer.status_code, "kind" in answer.json()) == (422, True)
        digging = [{"op": "copy", "from": "/spec", "path": "/spec/x/y"} for _ in range(3)]
        codes = {(await http.patch(f"{things}/w", json=digging, headers=headers)).status_code for _ in range(12)}
        assert codes <= {200, 400, 413, 422}
        assert 200 in codes


async def test_a_list_holds_the_bytes_that_a_get_answers():
    """Items of a custom kind's list are byte for byte what a GET answers; a built-in kind's lack their type."""
    async with open_http() as (http, server):
        await server.ensure([widget_crd()])
        things = f"{WIDGETS}/namespaces/default/widgets"
        for number in range(300):  # several pieces
            body = {"apiVersion": "check.llmkube.dev/v1", "kind": "Widget", "metadata": {"name": f"w{number:03}"}}
            await http.post(things, json={**body, "spec": {"size": 1 + number % 10}})
            await http.post(CONFIG_MAPS, json={"metadata": {"name": f"w{number:03}"}, "data": {"k": "ü" * number}})
        listed = (await http.get(things)).content
        for path, opening in ((things, b""), (CONFIG_MAPS, b'"apiVersion":"v1","kind":"ConfigMap",')):
            listed, one = (await http.get(path)).content, (await http.get(f"{path}/w007")).content
            assert b"," + one.strip().replace(opening, b"") + b"," in listed
            assert [item["metadata"]["name"] for item in json.loads(listed)["items"]] == [
                f"w{n:03}" for n in range(300)
            ]
            for number in (0, 299):
                found = json.loads((await http.get(f"{path}/w{number:03}")).content)
                item = json.loads(listed)["items"][number]
                assert {**found, **item} == found


async def test_a_page_shows_one_moment_while_others_write():
    """Writes between the slices of a list are not in it: the items are those of its resourceVersion."""
    async with open_http() as (http, _server):
        for number in range(1200):
            await http.post(CONFIG_MAPS, json={"metadata": {"name": f"m{number:04}"}})
        answers = []

        async def list_all() -> None:
            answers.append((await http.get(CONFIG_MAPS)).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_all)
            for number in range(20):
                await http.delete(f"{CONFIG_MAPS}/m{1199 - number:04}")
                await http.post(CONFIG_MAPS, json={"metadata": {"name": f"a{number:04}"}})
        revision = answers[0]["metadata"]["resourceVersion"]
        exact = await http.get(f"{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact")
        assert exact.json()["items"] == answers[0]["items"]
        assert len(answers[0]["items"]) >= 1199


TARGETS = [
    CONFIG_MAPS,
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/endpoints",
    "/api/v1/namespaces",
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    CRDS,
    f"{WIDGETS}/namespaces/default/widgets",
]


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(TARGETS),
    st.sampled_from(["POST", "PUT", "MERGE", "JSON", "APPLY"]),
    st.dictionaries(st.sampled_from(["metadata", "spec", "data", "addressType", "endpoints"]), JSON_VALUES),
)
def test_no_body_crashes_the_server(target, verb, body):
    """Whatever JSON is sent, the answer is a success or a Status with a 4xx code."""

    async def send():
        async with open_http() as (http, server):
            await server.ensure([widget_crd()])
            before = await http.post(target, json={"metadata": {"name": "x"}, "spec": {"size": 1}})
            name = "x" if before.status_code == 201 else "default"
            types = {"MERGE": "merge-patch+json", "JSON": "json-patch+json", "APPLY": "apply-patch+yaml"}
            if verb == "POST":
                answer = await http.post(target, content=json.dumps(body))
            elif verb == "PUT":
                answer = await http.put(f"{target}/{name}", content=json.dumps(body))
            else:
                operations = [{"op": "add", "path": f"/{field}", "value": value} for field, value in body.items()]
                content = json.dumps(operations if verb == "JSON" else body)
                headers = {"content-type": f"application/{types[verb]}"}
                answer = await http.patch(f"{target}/{name}?fieldManager=m", content=content, headers=headers)
            assert answer.json()["kind"], answer.text  # a Status, even where kube-apiserver has an error of its own
            assert answer.status_code < 400 or answer.json()["kind"] == "Status"

    trio.run(send)
