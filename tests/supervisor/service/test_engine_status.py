"""The engine's model status: 200 and 503 are results, and nothing else is; and the build that has the model.

The cause of an engine's exit comes from its progress, its exit status and its last lines.
"""

import signal

import attrs
import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.process.exits import LLAMA_RULES
from llmkube.supervisor.engine.health import Engine, bearer
from llmkube.supervisor.service.engine_status import EngineStatus, Leader, Outcome, failure_of, watch_model
from llmkube.supervisor.values.lifecycle import Exit, Failure
from llmkube.supervisor.values.ports import Shutdown
from supervisor.service.known import LOADED, LOADING

SUCCESSOR = attrs.evolve(LOADED, pid=43, port=4712)


class Manager:
    """A recorder of the snapshots that are written."""

    def __init__(self):
        self.views = []
        self.waits = 0

    def update(self, change, view, **_):
        self.views.append(view)

    async def wait_endpoint_applied(self):
        self.waits += 1

    class settings:  # noqa: N801 - an attribute of the real one
        withdraw_seconds = 2.0


class Allocation:
    """Memory that is not short."""

    urgent = False


def new_engines():
    """The status of two engines of one service, of which the first leads."""
    manager, leader = Manager(), Leader()
    old, new = EngineStatus(manager, leader), EngineStatus(manager, leader)
    old.lead()
    return manager, old, new


def test_only_the_engine_that_leads_is_reported():
    """Changes of the other one are written when it takes over."""
    manager, old, new = new_engines()
    old.set_view(LOADED)
    new.set_view(LOADING)
    assert manager.views == [LOADED]
    new.lead()
    old.set_reason(Reason.STOPPING)
    assert manager.views == [LOADED, LOADING]


async def left(outcome, *, keep=False, leads=True):
    """Exit `withdrawn` with this outcome; return the snapshots written, and whether the API server was waited for."""
    manager, old, new = new_engines()
    old.set_view(LOADED)
    if not leads:
        new.lead()
    manager.views.clear()
    async with old.withdrawn(outcome, Allocation(), Shutdown(keep)):
        pass
    return [view.reason for view in manager.views], manager.waits


async def test_a_published_endpoint_is_withdrawn_on_exit():
    """And the API server is waited for."""
    assert await left(Outcome(published=True)) == ([Reason.STOPPING], 1)


async def test_an_unpublished_endpoint_is_not_withdrawn():
    """An engine that never served has nothing to withdraw."""
    assert await left(Outcome()) == ([], 0)


async def test_an_engine_that_stays_keeps_its_endpoint():
    """The next agent serves with it."""
    assert await left(Outcome(published=True), keep=True) == ([], 0)


async def test_an_engine_that_was_replaced_has_nothing_to_withdraw():
    """The endpoint is its successor's."""
    assert await left(Outcome(published=True), leads=False) == ([], 0)


def test_the_build_that_serves_is_reported_once():
    """With the one before it; also of one that has lost its model in the meantime and serves again."""
    manager, old, _ = new_engines()
    old.set_view(attrs.evolve(LOADED, engine="ollama", build="1"))
    for state, build in [("loaded", "1"), ("loaded", "2"), ("loaded", "2"), ("lost", ""), ("loaded", "3")]:
        old.set_model(state, build)
    reported = [(view.reason, view.build, view.message.partition("; ")[2]) for view in manager.views[1:]]
    assert reported == [
        (Reason.LOADED, "2", "ollama is now 2 (was 1)"),
        (Reason.LOADING, "2", "its model was unloaded and is being loaded again"),
        (Reason.LOADED, "3", "ollama is now 3 (was 2)"),
    ]


def test_another_build_resolves_no_other_problem():
    """An engine that does not listen stays so for its clients; when it answers again, it is in the newer build."""
    manager, old, _ = new_engines()
    old.set_view(attrs.evolve(LOADED, engine="ollama", build="1"))
    old.set_answering(False)
    old.set_model("loaded", "2")
    assert manager.views[-1].reason == Reason.NOT_ANSWERING
    old.set_answering(True)
    assert (manager.views[-1].reason, manager.views[-1].build) == (Reason.LOADED, "2")


KEY = "CanaryKey"


def engine(http, runtime="ollama"):
    return Engine(http, "http://127.0.0.1:1", LaunchPlan((), (), runtime, "chat"), bearer(KEY))


@pytest.mark.parametrize(
    ("status", "delay_seconds", "state"),
    [(200, 0, "loaded"), (503, 0, "lost"), (404, 0, "unknown"), (500, 0, "unknown"), (503, 60, "unknown")],
)
async def test_each_tick_reports_the_model_state(autojump_clock, status, delay_seconds, state):
    """A late response says nothing about the model: a busy machine is late."""
    listener, reported = MemoryListener(), []

    async def answer(exchange):
        await trio.sleep(delay_seconds)
        await exchange.respond(Response.json(status, {}))

    async with open_http_client(listener.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, answer, [listener])
        with trio.move_on_after(21):
            await watch_model(engine(http), lambda *words: reported.append(words), 5.0)
        nursery.cancel_scope.cancel()
    assert set(reported) == {(state, "")}
    assert len(reported) == (4 if not delay_seconds else 2)


@pytest.mark.parametrize(
    ("runtime", "props", "build"),
    [
        ("ollama", Response.json(200, {"build_info": "0.18.0"}), "0.18.0"),
        ("omlx", Response.json(200, {"build_info": "0.6.4"}), "0.6.4"),
        ("llamacpp", Response.json(200, {"build_info": "b1"}), ""),  # it is its program: nothing can change
        ("ollama", Response.json(200, {"build_info": "v" * 1000}), "v" * 100),
        ("ollama", Response.json(200, {"build_info": ["0.18.0"]}), ""),
        ("ollama", Response.json(200, []), ""),
        ("ollama", Response.json(404, {}), ""),  # of an earlier release
    ],
)
async def test_the_build_that_has_the_model_is_queried_with_the_key(autojump_clock, runtime, props, build):
    """Of engines whose program others may upgrade; an invalid build is none."""
    listener, reported = MemoryListener(), []

    async def answer(exchange):
        if exchange.request.path == "/props":
            assert exchange.request.headers.get("authorization") == f"Bearer {KEY}"
        await exchange.respond(props if exchange.request.path == "/props" else Response.json(200, {}))

    async with open_http_client(listener.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, answer, [listener])
        with trio.move_on_after(6):
            await watch_model(engine(http, runtime), lambda *words: reported.append(words), 5.0)
        nursery.cancel_scope.cancel()
    assert reported == [("loaded", build)]


async def test_the_model_of_an_exited_engine_is_unknown(autojump_clock):
    """Its exit is noticed elsewhere."""
    reported = []

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "refused")

    async with open_http_client(refuse) as http:
        with trio.move_on_after(6):
            await watch_model(engine(http), lambda *words: reported.append(words), 5.0)
    assert reported == [("unknown", "")]


TAKEN = "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 4711"
HUNG = Failure(Reason.HUNG, "the engine hangs: no answer for 60 s")
KILLED = Exit(-signal.SIGKILL)


@pytest.mark.parametrize(
    ("outcome", "lines", "reason", "begins", "seconds"),
    [
        (Outcome(exit=Exit(3)), [], Reason.ENGINE_EXITED, "the engine exited while loading: exit code 3", 0),
        (Outcome(exit=Exit(0), ready_at=40.0), [], Reason.ENGINE_EXITED, "the engine exited while serving: exit", 60),
        (Outcome(exit=Exit(1)), [TAKEN], Reason.PORT_TAKEN, "the engine exited while loading: exit code 1: another", 0),
        (Outcome(exit=Exit(1), ready_at=99.5), [TAKEN], Reason.ENGINE_EXITED, "the engine exited while serving: ", 0.5),
        (
            Outcome(failure=HUNG, ready_at=10.0),
            ["slot 0"],
            Reason.HUNG,
            f"{HUNG.message}\nslot 0",
            90,
        ),
        (Outcome(failure=HUNG), [], Reason.HUNG, HUNG.message, 0),
        (
            Outcome(failure=HUNG, exit=Exit(2)),
            [],
            Reason.ENGINE_EXITED,
            "the engine exited while loading: exit code 2",
            0,
        ),
    ],
)
def test_the_cause_of_an_exit_is_reported(outcome, lines, reason, begins, seconds):
    """An exit precedes the reason of the stop; a taken port applies only to an engine that loads."""
    reported = failure_of(outcome, lines, rules=LLAMA_RULES, now=100.0, memory_kills=0, memory_short=False)
    assert (reported.reason, reported.ready_seconds) == (reason, seconds)
    assert reported.message.startswith(begins)


def test_its_last_log_lines_are_appended():
    """Each of the engine's lines is a line of the message, after the sentence about the exit."""
    reported = failure_of(
        Outcome(exit=Exit(7)), ["one", "two"], rules=LLAMA_RULES, now=0.0, memory_kills=0, memory_short=False
    )
    assert reported.message.splitlines()[1:] == ["one", "two"]


@pytest.mark.parametrize(
    ("kills", "short", "why"),
    [
        (0, False, "LLMKube did not send it"),
        (1, False, "the kernel killed a process for lack of memory"),
        (0, True, "memory was short"),
    ],
)
def test_a_lack_of_memory_is_reported(kills, short, why):
    """A SIGKILL is attributed to memory if the kernel counted a kill, or the host was short at the last sample."""
    reported = failure_of(
        Outcome(exit=KILLED, ready_at=1.0), [], rules=LLAMA_RULES, now=2.0, memory_kills=kills, memory_short=short
    )
    assert reported.message.startswith(f"the engine exited while serving: killed by SIGKILL: {why}")
