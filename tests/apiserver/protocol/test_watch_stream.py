"""Watches under virtual time: bookmarks, lag, the end of a kind; over the handler mounted in memory."""

import json
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import trio

from contracts.lab import widget
from contracts.widgets import CRDS, WIDGETS, widget_crd
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.http.message import Headers, Request

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class Recorder:
    """An exchange that keeps what is sent; `gate` holds the reader back."""

    def __init__(self, method, target, body=b"", headers=()):
        self.request = Request(method, target, Headers(headers), body)
        self.events = []
        self.response = None
        self.gate = trio.Event()
        self.gate.set()

    async def respond(self, response):
        self.response = response
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def stream(self, status, headers):
        async def send(chunk):
            self.events.append(json.loads(chunk))
            await trio.lowlevel.checkpoint()
            await self.gate.wait()

        yield send


@asynccontextmanager
async def open_server(store=None):
    server = ApiServer(store or Store(), utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC), rng=random.Random(0))
    await server.ensure_namespaces()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run_housekeeping)
        yield server
        nursery.cancel_scope.cancel()


async def ask(server, method, path, manifest=None):
    exchange = Recorder(method, path, json.dumps(manifest).encode() if manifest is not None else b"")
    await server.handle(exchange)
    return exchange.response.status, json.loads(exchange.response.body)


async def add(server, name):
    status, made = await ask(server, "POST", CONFIG_MAPS, {"metadata": {"name": name}})
    assert status == 201
    return made


def types(exchange):
    return [event["type"] for event in exchange.events]


async def test_an_idle_watch_receives_bookmarks(autojump_clock):
    """Bookmarks come about each minute and at the end, and their versions never go backwards."""
    async with open_server() as server:
        target = f"{CONFIG_MAPS}?watch=1&resourceVersion={server.store.revision}&allowWatchBookmarks=true"
        exchange = Recorder("GET", f"{target}&timeoutSeconds=300")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, exchange)
            for number in range(3):
                await trio.sleep(70)
                await ask(server, "POST", "/api/v1/namespaces", {"metadata": {"name": f"n{number}"}})
        assert set(types(exchange)) == {"BOOKMARK"}
        assert 4 <= len(exchange.events) <= 6
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in exchange.events]
        assert versions == sorted(versions)
        assert versions[-1] == server.store.revision
        assert exchange.events[0]["object"]["kind"] == "ConfigMap"


async def test_bookmarks_come_only_to_those_who_asked(autojump_clock):
    """A watch without allowWatchBookmarks hears of changes alone."""
    async with open_server() as server:
        exchange = Recorder("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion=1&timeoutSeconds=300")
        await server.handle(exchange)
        assert exchange.events == []


async def test_a_watch_that_lags_too_far_has_to_list_again(autojump_clock):
    """A reader that sleeps while the log moves past it gets 410 Expired and the end, not a gap."""
    async with open_server(Store(window=5)) as server:
        exchange = Recorder("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion={server.store.revision}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, exchange)
            await trio.testing.wait_all_tasks_blocked()
            exchange.gate = trio.Event()
            for number in range(10):
                await add(server, f"c{number}")
            exchange.gate.set()
        assert types(exchange) == ["ADDED", "ERROR"]
        status = exchange.events[-1]["object"]
        assert (status["code"], status["reason"]) == (410, "Expired")
        assert status["message"].startswith("too old resource version: ")


async def test_a_version_from_another_life_is_expired(autojump_clock):
    """A client with a newer version than the server (whose database was recreated) has to list again."""
    async with open_server() as server:
        exchange = Recorder("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion=1000")
        await server.handle(exchange)
        assert [(event["type"], event["object"]["code"]) for event in exchange.events] == [("ERROR", 410)]


async def test_a_watch_ends_with_its_kind(autojump_clock):
    """Deleting the CRD deletes its objects, tells the watch of each, and ends it."""
    async with open_server() as server:
        await ask(server, "POST", CRDS, widget_crd())
        await ask(server, "POST", f"{WIDGETS}/namespaces/default/widgets", widget("a"))
        exchange = Recorder("GET", f"{WIDGETS}/widgets?watch=1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, exchange)
            await trio.testing.wait_all_tasks_blocked()
            _, crd = await ask(server, "DELETE", f"{CRDS}/{widget_crd()['metadata']['name']}")
            assert crd["status"]["conditions"][-1]["type"] == "Terminating"
        assert types(exchange) == ["ADDED", "DELETED"]
        exchange = Recorder("GET", f"{WIDGETS}/widgets")
        await server.handle(exchange)
        assert exchange.response.status == 404


async def test_a_table_watch_defines_its_columns_once(autojump_clock):
    """`kubectl get -w` gets the header with the first event only."""
    async with open_server() as server:
        accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]
        await add(server, "a")
        await add(server, "b")
        exchange = Recorder("GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1", headers=accept)
        await server.handle(exchange)
        tables = [event["object"] for event in exchange.events]
        assert [bool(table["columnDefinitions"]) for table in tables] == [True, False]
        assert [table["rows"][0]["cells"][0] for table in tables] == ["a", "b"]


@pytest.mark.parametrize("seed", range(5))
async def test_watchers_see_what_readers_see(autojump_clock, seed):
    """Whatever is written, a watch's events replayed over the list it began with give the present list."""
    rng = random.Random(seed)
    async with open_server() as server:
        await add(server, "start")
        _, listed = await ask(server, "GET", CONFIG_MAPS)
        seen = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed["items"]}
        version = listed["metadata"]["resourceVersion"]
        exchange = Recorder("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=5")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, exchange)
            for _ in range(60):
                name = rng.choice("abc")
                path = f"{CONFIG_MAPS}/{name}"
                data = {"metadata": {"name": name}, "data": {"k": str(rng.random())}}
                method = rng.choice(["POST", "PUT", "DELETE"])
                await ask(server, method, CONFIG_MAPS if method == "POST" else path, data if method != "DELETE" else {})
        for event in exchange.events:
            metadata = event["object"]["metadata"]
            if event["type"] == "DELETED":
                del seen[metadata["name"]]
            else:
                assert (metadata["name"] in seen) is (event["type"] == "MODIFIED")
                seen[metadata["name"]] = metadata["resourceVersion"]
        _, listed = await ask(server, "GET", CONFIG_MAPS)
        assert seen == {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed["items"]}
