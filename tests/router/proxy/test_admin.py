"""The operator's view of a router: state of each backend, and the end of a pod."""

import json
from contextlib import asynccontextmanager

import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.base.http.server import run_server
from llmkube.router.proxy.admin import MAX_DRAIN_SECONDS, SETTLE_SECONDS, admin_filter, admin_handler
from router.proxy.router_lab import SSE, answer, chunk, config_of, local, open_lab, piece, saying


@asynccontextmanager
async def open_admin(lab):
    """Serve the lab's admin port, and yield a function that sends requests."""
    listener = MemoryListener()

    async def ask(path, host="10.9.0.1:9090", **headers):
        async with open_http_client(listener.connect) as client:
            lines = Headers.of({"Host": host, **headers})
            return await client.request("GET", f"http://admin{path}", headers=lines)

    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda *, task_status: run_server(
                admin_handler(lab.router, lab.registry), [listener], judge=admin_filter, task_status=task_status
            )
        )
        yield ask
        nursery.cancel_scope.cancel()


async def test_each_backend_is_reported(autojump_clock):
    """The answer has each backend's state and reason, and no address."""
    gone = local("gone", missing="there is no InferenceService gone", base_url="")
    async with (
        open_lab(config_of(local("a"), local("b"), gone), {"a": None}, b=answer()) as lab,
        open_admin(lab) as ask,
    ):
        for _ in range(5):
            await lab.ask()
        backends = json.loads((await ask("/backends")).body)["backends"]
        assert backends == [
            {"name": "a", "healthy": False, "message": "circuit open after failures; retried automatically"},
            {"name": "b", "healthy": True, "message": ""},
            {"name": "gone", "healthy": False, "message": "there is no InferenceService gone"},
        ]
        assert (await ask("/readyz")).status == 200


async def test_a_pod_may_end_once_its_last_answer_is_out(autojump_clock):
    """The pod waits until the cluster's proxies know, and until the answer is complete."""
    slow = saying(answer()[:-1], answer()[-1:], seconds=40)
    async with open_lab(config_of(local("a")), a=slow) as lab, open_admin(lab) as ask, trio.open_nursery() as nursery:
        start = trio.current_time()
        idle = await ask("/drained")
        assert (json.loads(idle.body), trio.current_time() - start) == ({"requests": 0}, SETTLE_SECONDS)
        nursery.start_soon(lab.ask)
        await trio.sleep(1)
        start = trio.current_time()
        await ask("/drained")
        assert 38 < trio.current_time() - start < 41


async def test_a_pod_ends_although_an_answer_does_not(autojump_clock):
    """After five minutes of a healthy stream, the kubelet proceeds."""
    endless = saying(SSE, *[chunk(piece("word "))] * 100, seconds=30)
    async with (
        open_lab(config_of(local("a")), a=endless) as lab,
        open_admin(lab) as ask,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lab.read)
        await trio.sleep(1)
        start = trio.current_time()
        assert json.loads((await ask("/drained")).body) == {"requests": 1}
        assert trio.current_time() - start == SETTLE_SECONDS + MAX_DRAIN_SECONDS
        nursery.cancel_scope.cancel()


async def test_a_page_may_read_nothing(autojump_clock):
    """A foreign page is refused, and one that uses DNS rebinding by its Host header."""
    async with open_lab(config_of(local("a")), a=answer()) as lab, open_admin(lab) as ask:
        assert (await ask("/backends", Origin="https://evil.example")).status == 403


async def test_a_crowd_that_waits_for_the_end_keeps_no_probe_out(autojump_clock):
    """A neighbour with many requests for `/drained` would else take every connection from the kubelet."""
    endless = saying(SSE, *[chunk(piece("word "))] * 100, seconds=30)
    async with (
        open_lab(config_of(local("a")), a=endless) as lab,
        open_admin(lab) as ask,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lab.read)
        for _ in range(30):
            nursery.start_soon(ask, "/drained")
        await trio.sleep(10)
        assert (await ask("/healthz")).status == 200
        assert (await ask("/drained")).status == 429
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9090", 200),
        ("[::1]:9090", 200),
        ("LocalHost:9090", 200),
        ("localhost.", 200),
        ("router-router-proxy.ml.svc:9090", 200),
        ("router-router-proxy.ml.svc.cluster.local", 200),
        ("mac-mini.local", 200),
        ("8.8.8.8", 403),
        ("evil.example:9090", 403),
        ("localhost.evil.example", 403),
        ("localhost@evil.example", 403),
        ("router.svc.evil.example", 403),
        ("a.svc/@evil.example", 403),
        ("0x7f.evil.example", 403),
        ("[::1].evil.example", 403),
        ("", 403),
        ("127.0.0.1.evil.example", 403),
        ("evilsvc", 200),  # without a dot: not a name of the internet
        ("evil.cluster.local.example", 403),
        ("evil.example@127.0.0.1", 403),
        ("evil.example#localhost", 403),
        ("127.0.0.1/evil", 403),
        ("localhost:9090, evil.example", 403),
        ("localhost:", 403),
        ("[::1", 403),
        ("0x7f.1", 403),
    ],
)
async def test_the_operators_port_is_asked_by_its_own_names(host, status, autojump_clock):
    """This applies to each path; a rebound name and an ambiguous Host header are refused."""
    async with open_lab(config_of(local("a")), a=answer()) as lab, open_admin(lab) as ask:
        for path in ("/backends", "/metrics", "/healthz"):
            assert (await ask(path, host=host)).status == status
        assert (await ask("/backends")).status == 200
