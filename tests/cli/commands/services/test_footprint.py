import os

import trio

from llmkube.cli.commands.services.footprint import memory_of
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.nouns.desired import Desired, Launch
from llmkube.supervisor.nouns.journal import EngineRecord, Entry, FileJournal
from llmkube.weights.store.blobs import WeightsFile

CHAT = Key("ns", "chat")


def entry(folder, started):
    service = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
    model = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": "/x.gguf"}})
    launch = Launch(LaunchPlan((), (), "llamacpp", "chat"), WeightsFile(folder / "x.gguf", 10, None, "x"))
    return Entry(Desired(service, model), launch, EngineRecord("c", "127.0.0.1", 1, pid=os.getpid(), started=started))


async def test_status_finds_the_memory_of_an_engine_that_runs_here(tmp_path):
    """The memory of a journalled process is told in words; one that has ended, or is another's, has none."""
    kept = FileJournal(tmp_path / "journal", trio.CapacityLimiter(1))
    await kept.write(entry(tmp_path, start_of(os.getpid())))
    assert memory_of([tmp_path / "elsewhere", tmp_path], CHAT).endswith("iB in use on this machine")
    assert memory_of([tmp_path], Key("ns", "other")) == ""
    await kept.write(entry(tmp_path, "boot:another"))
    assert memory_of([tmp_path], CHAT) == ""
