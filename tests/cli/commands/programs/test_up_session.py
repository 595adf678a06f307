import io
import json
import re
import shlex
from functools import partial

import attrs
import pytest
import trio
from rich.console import Console

from cli.cli_objects import service
from cli.memory_cluster import NOW, open_demo, write_status
from llmkube.base.http.message import Response
from llmkube.cli.commands.programs.up_session import FirstSteps, next_steps, prepare_session, summary, times
from llmkube.cli.view.progress import Stopwatch
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, ExitCode, errors_as_messages
from llmkube.programs.one_machine import Addresses, UpSession
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.capacity import MemoryView

GIB = 1 << 30
PLACE = Addresses(
    "https://127.0.0.1:7443", "/home/ann/my state/kubeconfig", "http://127.0.0.1:8080", "http://127.0.0.1:9090"
)
DEMO = Key("default", "demo")
FIRST_LINES = "models      demo\nstop        Ctrl-C, or `llmkube up stop`\n"
ACCEPTED = ("Accepted", "True", "Accepted", "")


class Gateway:
    """A gateway that answers every question."""

    async def request(self, method, url, *, headers, body):
        return Response.json(200, {"choices": [{"message": {"content": f"to {json.loads(body)['model']}: yes"}}]})


class World:
    """A cluster with the demo's objects, an `up` session on it, and a writer of statuses."""

    def __init__(self, client, caches):
        self.client = client
        self.progress = io.StringIO()
        session = UpSession(PLACE, caches, Gateway(), lambda: NOW, trio.current_time() - 2)
        self.session = FirstSteps(session, Console(file=self.progress), {"cpu"})

    async def report(self, *what, **status):
        await write_status(self.client, *what, **status)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def world():
    async with open_demo() as (client, caches):
        yield World(client, caches)


async def refusal(world, **before):
    """Ask a question that fails; return the error message."""
    with pytest.raises(CommandError) as refused, errors_as_messages():  # a nursery raises groups
        await world.session.answer(DEMO, "What?", **before)
    assert refused.value.exit_code is ExitCode.FAILED
    return refused.value.message


async def test_a_question_is_answered_step_by_step(autojump_clock, world, capsys):
    """Completed steps are shown, then the answer, both tables and the times are printed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.session.answer, DEMO, "What?")
        await trio.sleep(1)
        await world.report(Model, ("Fetched", "True", "Fetched", ""), size="933.8 KiB")
        await trio.sleep(2)
        loading = ("Loaded", "False", "Loading", "the engine is loading")
        await world.report(InferenceService, ACCEPTED, loading, phase="Creating")
        await trio.sleep(2)
        loaded = ("Loaded", "True", "Loaded", "loaded in 4 s")
        await world.report(InferenceService, ACCEPTED, loaded, phase="Ready", readyReplicas=1)
    progress = world.progress.getvalue().splitlines()
    assert progress == [
        "fetch   waiting for the controller to process it",
        "fetch   done in 1.00 s (933.8 KiB)",
        "load    waiting for the agent to process it",
        "load    the engine is loading",
        "load    done in 4.00 s",
        "ready   done in 0 ms",
        "answer  What?",
        "answer  done in 0 ms",
    ]
    answer, models, services, laps = capsys.readouterr().out.strip().split("\n\n")
    assert answer == "> What?\nto default/demo: yes"
    assert "933.8 KiB" in models
    assert "1/1" in services
    assert laps.splitlines()[1].split() == ["start", "2.00", "s"]
    assert laps.splitlines()[-1].split() == ["total", "7.00", "s"]  # U10: since the program was started


async def test_a_failure_ends_the_wait(autojump_clock, world):
    """A permanent failure ends the wait at once with its reason and the engine's output."""
    await world.report(InferenceService, ("Loaded", "False", "CrashLoopBackOff", "2 failures\nerror: no memory"))
    failure, _, what_to_do = (await refusal(world)).rpartition("\n")
    assert failure.endswith("cannot be served: CrashLoopBackOff: 2 failures\nerror: no memory")
    assert what_to_do == "What to do: `llmkube logs demo` shows the engine's log"


async def test_earlier_failure_does_not_end_the_wait(autojump_clock, world):
    """A failure from before the agent's start gets time to clear."""
    await world.report(InferenceService, ("Loaded", "False", "CrashLoopBackOff", "2 failures"))
    old = world.session.health_of(DEMO)
    assert old.failing
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.session.answer, DEMO, "What?", before=old))
        await trio.sleep(3)
        await world.report(Model, ("Fetched", "True", "Fetched", ""))
        await world.report(InferenceService, ACCEPTED, ("Loaded", "True", "Loaded", ""), phase="Ready")


async def test_earlier_failure_that_persists_ends_the_wait(autojump_clock, world):
    await world.report(InferenceService, ("Accepted", "False", "Invalid", "spec.extraArgs: no"))
    old = world.session.health_of(DEMO)
    began = trio.current_time()
    await refusal(world, before=old)
    assert trio.current_time() - began == 5.0


async def test_a_deleted_service_ends_the_wait(autojump_clock, world):
    """Deleting the service during the wait is reported at once."""
    async with trio.open_nursery() as nursery:

        async def answer():
            assert await refusal(world) == "InferenceService default/demo was deleted"

        nursery.start_soon(answer)
        await trio.sleep(1)
        await world.client.delete(InferenceService, DEMO)


async def test_staying_reports_every_change_of_phase(autojump_clock, world, capsys):
    """Without a question models and how to stop are printed, then one line per change until the session ends."""
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.session.report_changes, {}, None)
            await trio.sleep(1)
            await world.report(InferenceService, ("Available", "False", "Fetching", "copying"), phase="Pending")
            await trio.sleep(1)
            await world.report(InferenceService, phase="Ready")
            await trio.sleep(1)
            await world.client.delete(InferenceService, DEMO)
    out = capsys.readouterr().out
    assert out.startswith(FIRST_LINES)
    lines = [line[10:] for line in out.removeprefix(FIRST_LINES).splitlines() if line]
    assert lines == [
        "default/demo: New",
        "default/demo: Pending (Fetching): copying",
        "default/demo: Ready",
        "default/demo: deleted",
    ]


async def test_what_an_earlier_run_reported_is_not_repeated(autojump_clock, world, capsys):
    """After a crash the objects still have the phase Ready, and nothing runs yet."""
    await world.report(InferenceService, phase="Ready")
    stay = await prepare_session(
        world.session.session, (), console=world.session.console, accelerators=(), question=None, timeout_seconds=1.0
    )
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay, None)
            await trio.sleep(1)
            assert "Ready" not in capsys.readouterr().out
            await world.report(InferenceService, ("Available", "False", "Loading", "it loads"), phase="Creating")
            await world.report(InferenceService, phase="Ready")
    assert "default/demo: Ready" in capsys.readouterr().out


def test_each_thing_has_a_line():
    """The addresses can be copied into a client, the path into a shell; many models are shortened."""
    assert [line.split(maxsplit=1) for line in PLACE.lines.replace("API server", "API").splitlines()] == [
        ["API", "https://127.0.0.1:7443"],
        ["kubeconfig", "/home/ann/my state/kubeconfig"],
        ["page", "http://127.0.0.1:8080/"],
        ["gateway", "http://127.0.0.1:8080/v1"],
        ["probes", "http://127.0.0.1:9090"],
    ]
    closed = attrs.evolve(PLACE, routers_only=True)
    assert "\ngateway     http://127.0.0.1:8080/routers/NAMESPACE/NAME/v1\n" in closed.lines
    assert summary((), None).startswith("models      none yet; deploy one with `llmkube run")
    sample = Sample(64 * GIB, 40 * GIB, Level.NORMAL)
    memory = MemoryView(Level.NORMAL, sample, Budget(64 * GIB, 48 * GIB), 30 * GIB, (), (), {}, {})
    many = [service(name=f"model-{number:02}") for number in range(99)]
    models, free, _ = summary(many, memory).splitlines()
    assert re.fullmatch(r"models +model-00, model-01, .* …", models)
    assert len(models) < 80
    assert free == "memory      30.0 GiB free of 48.0 GiB for models"


def test_the_times_add_up():
    """The table has a row per step and their sum."""
    watch = Stopwatch(0.0, {"fetch": 1.0, "answer": 2.5})
    assert times(watch).splitlines() == ["STEP    TIME", "fetch   1.00 s", "answer  2.50 s", "total   3.50 s"]


def test_the_next_commands_can_be_pasted(monkeypatch):
    """Three commands are printed, with this program's path if it is not on PATH."""
    monkeypatch.setattr("sys.argv", ["/a b/.venv/bin/llmkube"])
    lines = next_steps("demo", "builtin://demo", 'What is "it"?').splitlines()
    assert [shlex.split(line) for line in lines[1:]] == [
        ["/a b/.venv/bin/llmkube", "up", "start"],
        ["/a b/.venv/bin/llmkube", "deploy", "demo", "--source", "builtin://demo"],
        ["/a b/.venv/bin/llmkube", "chat", "demo", 'What is "it"?'],
    ]
