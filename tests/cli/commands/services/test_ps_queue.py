"""`llmkube queue`: who waits for what others have."""

import os

import attrs
import trio

from cli.cli_objects import condition
from llmkube.cli.commands.services.footprint import memory_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.values.journal import FileJournal
from supervisor.values.entries import CHAT, ENGINE, entry


def service(name, priority, **status):
    async def write(client):
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"modelRef": "demo", "priority": priority}}
        await client.apply(InferenceService, body, field_manager="test")
        body = {"metadata": body["metadata"], "status": status}
        await client.apply(InferenceService, body, field_manager="test", subresource="status")

    return write


async def three(client):
    await service("second", "high", phase="WaitingForGPU", queuePosition=2, waitingFor="2 of nvidia.com/gpu")(client)
    await service("first", "low", phase="WaitingForGPU", queuePosition=1, waitingFor="1 of nvidia.com/gpu")(client)
    short = [condition("Loaded", False, "InsufficientMemory", "x") | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    await service("mac", "batch", phase="Creating", conditions=short)(client)


def test_the_line_for_gpus_comes_first_and_in_its_order(run):
    """Places in the line decide; what waits for memory has none, and says what it waits for."""
    done = run("queue", prepare=three)
    head, *rows = done.output.splitlines()
    assert head.split() == ["NAME", "QUEUE", "WAITING", "FOR", "PRIORITY", "SINCE"]
    assert [row.split()[:2] for row in rows] == [["first", "1"], ["second", "2"], ["mac", "<none>"]]
    assert rows[2].split()[2:4] == ["memory", "batch"]


def test_nothing_waits(run):
    """A service that only loads is no one that waits for others."""
    assert run("queue").output == "Nothing waits in default.\n"
    assert run("queue", "-A").output == "Nothing waits in any namespace.\n"


async def test_status_finds_the_memory_of_an_engine_that_runs_here(tmp_path):
    """The memory of a journalled process is told in words; one that has ended, or is another's, has none."""
    kept = FileJournal(tmp_path / "journal", trio.CapacityLimiter(1))
    await kept.write(entry(attrs.evolve(ENGINE, pid=os.getpid(), started=start_of(os.getpid()))))
    assert memory_of([tmp_path / "elsewhere", tmp_path], CHAT).endswith("iB in use on this machine")
    assert memory_of([tmp_path], Key("ns", "other")) == ""
    await kept.write(entry(attrs.evolve(ENGINE, pid=os.getpid(), started="boot:another")))
    assert memory_of([tmp_path], CHAT) == ""
