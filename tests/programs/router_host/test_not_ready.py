"""A ModelRouter of `up` whose only service is not ready: the client's response, its latency and the router's status."""

import json
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from lengths import sample_rows
from llmkube.base.http.server import run_server
from llmkube.k8s.resource import Key
from llmkube.programs.one_machine import AgentDirectory
from programs.router_host.test_router_host import CHAT, KEY, SEEN, open_host, patient_clock
from router.proxy.test_default_route import Engine, View

__all__ = ["patient_clock"]  # a fixture that pytest looks up here

CLOSED = {"name": "closed", "route": {"backends": ["chat"]}, "match": {}, "failClosed": True}
READY = View()
PATIENT = ["Pending", "Fetching", "Loading", "Restarting", "NotAnswering", "EngineExited"]
STOPPED = ["ScaledToZero", "Invalid", "ExceedsMemory", "EngineNotFound", "SourceNotFound", "PortTaken"]
FAILED = ["CrashLoopBackOff", "Hung", "InsufficientMemory", "Evicted", "FetchFailed"]


def unready(reason):
    return View(ready=False, reason=reason, message="it does not answer")


@attrs.define
class Agent:
    """The agent's state of the service; None for a service that it does not serve, as on a cordoned host."""

    view: View | None
    version: int = 0

    def publish(self, view):
        self.view, self.version = view, self.version + 1

    def services(self):
        return {} if self.view is None else {Key("ml", "chat"): self.view}


@asynccontextmanager
async def open_router(tmp_path, view, **spec):
    """Run a router over the real directory; yield it, and the agent's state."""
    agent, engine = Agent(view), Engine()
    directory = AgentDirectory(agent.services, lambda: agent.version)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.handle, [engine.listener])
        async with open_host(tmp_path, directory=directory, connect=engine.listener.connect) as host:
            await host.apply(**spec)
            yield host, agent
        nursery.cancel_scope.cancel()


async def ask(host):
    """Return a response, and the seconds that it took."""
    began_at = trio.current_time()
    answer = await host.ask()
    return answer, trio.current_time() - began_at


@pytest.mark.parametrize("rules", [[], [CLOSED]])
@pytest.mark.parametrize("reason", sample_rows([*STOPPED, *FAILED]))
async def test_a_stopped_failed_or_refused_service_is_503_at_once(patient_clock, tmp_path, reason, rules):
    """The response and the router's status have the reason; a service that then loads is waited for."""
    probed = {**CHAT, "healthCheck": {"path": "/health", "intervalSeconds": 1}}
    async with open_router(tmp_path, unready(reason), rules=rules, backends=[probed]) as (host, agent):
        for _ in range(6):
            response, seconds = await ask(host)
            error = json.loads(response.body)["error"]
            assert response.status == 503
            assert seconds < 1
            assert f"chat: not_ready ({reason})" in error["message"]
            assert error["code"] == ("fail_closed_runtime" if rules else "no_backend_available")
            assert (response.headers.get("x-should-retry") == "false") == (reason in STOPPED)
            assert (response.headers.get("retry-after") is None) == (reason in STOPPED)
            await trio.sleep(1)
        (backend,) = (await host.status()).backends
        assert (backend.healthy, backend.message) == (False, f"InferenceService ml/chat is not ready ({reason})")
        assert host.host.find(KEY).ready()[0] is False
        agent.publish(unready("Loading"))
        async with trio.open_nursery() as nursery:

            async def expect_200():
                assert (await ask(host))[0].status == 200

            nursery.start_soon(expect_200)
            await trio.sleep(SEEN)
            assert (await host.status()).backends[0].healthy is True
            agent.publish(READY)


@pytest.mark.parametrize("reason", sample_rows(PATIENT))
async def test_a_loading_service_is_waited_for(patient_clock, tmp_path, reason):
    """So is a service whose engine has just exited: the next one starts."""
    async with open_router(tmp_path, unready(reason)) as (host, agent), trio.open_nursery() as nursery:

        async def become_ready():
            await trio.sleep(30)
            agent.publish(READY)

        nursery.start_soon(become_ready)
        response, seconds = await ask(host)
        assert response.status == 200
        assert seconds >= 30


async def test_a_stop_during_the_wait_ends_it_within_a_second(patient_clock, tmp_path):
    """The response has the new reason."""
    async with open_router(tmp_path, unready("Loading")) as (host, agent), trio.open_nursery() as nursery:

        async def stop():
            await trio.sleep(10)
            agent.publish(unready("ScaledToZero"))

        nursery.start_soon(stop)
        response, seconds = await ask(host)
        assert response.status == 503
        assert seconds <= 12
        assert b"not_ready (ScaledToZero)" in response.body


async def test_a_service_that_this_host_does_not_serve_is_503(patient_clock, tmp_path):
    """As on a cordoned host; not the gateway's 404 with the names of other models."""
    async with open_router(tmp_path, None) as (host, _):
        response, seconds = await ask(host)
        assert (response.status, seconds < 1) == (503, True)
        assert b"no model" not in response.body
        (backend,) = (await host.status()).backends
        assert (backend.healthy, backend.message) == (False, "InferenceService ml/chat is not served here")
