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
from llmkube.apiserver.server import open_memory_api_server
from llmkube.apiserver.storage.revisions import Store
from llmkube.apiserver.storage.write_ahead_log import StorageError

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
    server = ApiServer(Store(), durable=disk, utcnow=utcnow, rng=random.Random(0))
    await server.ensure_namespaces()
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,
        trio.open_nursery() as nursery,
    ):
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
    server = ApiServer(Store(), durable=disk, utcnow=utcnow, rng=random.Random(0))
    await server.ensure_namespaces()
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,
    ):
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


async def test_housekeeping_goes_on_after_a_restart(autojump_clock):
    """A deletion that a crash interrupted is finished by the next server on the same store."""
    store = Store()
    server = ApiServer(store, utcnow=utcnow, rng=random.Random(0))  # without its housekeeping: it dies first
    await server.ensure_namespaces()
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver") as http,
    ):
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
        ("GET", "/nope", 404),
        ("GET", "/api/v1/nopes", 404),
        ("GET", "/api/v1/namespaces/default/services/a/scale", 404),
        ("GET", "/apis/inference.example.com/v1", 404),
        ("POST", CONFIG_MAPS + "/a", 405),
        ("PUT", CONFIG_MAPS, 405),
        ("OPTIONS", CONFIG_MAPS, 405),
        ("POST", "/version", 405),
        ("DELETE", "/api/v1/configmaps", 405),
        ("GET", CONFIG_MAPS + "?limit=x", 400),
        ("GET", CONFIG_MAPS + "?resourceVersion=x", 400),
        ("GET", CONFIG_MAPS + "?resourceVersionMatch=Exact", 422),
        ("GET", CONFIG_MAPS + "?resourceVersion=999", 504),
    ],
)
async def test_wrong_requests_have_the_right_code(method, path, code):
    """What is not there is 404, what cannot be done there is 405, what makes no sense is 400 or 422."""
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
