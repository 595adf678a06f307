"""A journal entry of a service with an engine."""

from pathlib import Path

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import LaunchPlan, Placeholder, TemplateText
from llmkube.supervisor.values.desired import Desired, Launch
from llmkube.supervisor.values.journal import EngineRecord, Entry
from llmkube.weights.store.blobs import WeightsFile

CHAT = Key("ns", "chat")
PLAN = LaunchPlan(
    (Placeholder.PROGRAM, "--model", Placeholder.MODEL, "--port", Placeholder.PORT, "{port}", TemplateText("{port}")),
    (("A", "1"),),
    "llamacpp",
    "chat",
    engine="own",
    program="/opt/own",
    ready_pattern="ready",
    memory_bytes=1,
)
WEIGHTS = WeightsFile(Path("/store/x.gguf"), 10, None, "x")
ENGINE = EngineRecord("cookie", "127.0.0.1", 4000, 7, 42, "boot:1")


def entry(engine=ENGINE, accelerator="metal"):
    service = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m", "future": {"field": 1}}}
    model = {
        "metadata": {"name": "m", "namespace": "ns"},
        "spec": {"source": "/x.gguf", "hardware": {"accelerator": accelerator}},
    }
    desired = Desired(decode(InferenceService, service), decode(Model, model))
    return Entry(desired, Launch(PLAN, WEIGHTS), engine)
