"""Facts of one service for the tests of this folder."""

from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
import trio.testing

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.values.desired import Desired
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile

LOADED = ServiceView(Reason.LOADED, "loaded in 3.0 s", "192.0.2.1", 4711, 42, "chat")
LOADING = attrs.evolve(LOADED, reason=Reason.LOADING, message="the engine is loading the model")
WEIGHTS = WeightsFile(Path("/store/m.gguf"), 1000, None, "")
HEADER = GGUFFacts("llama", 3, 5, 1000)


def desired(uid="s1", generation=1, model_uid="m1", source="builtin://demo"):
    """The desired state of one service and its Model."""
    metadata = {"name": "chat", "namespace": "ns", "uid": uid, "generation": generation}
    service = decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "m"}})
    metadata = {"name": "m", "namespace": "ns", "uid": model_uid, "generation": 1}
    return Desired(service, decode(Model, {"metadata": metadata, "spec": {"source": source}}))


def new_facts():
    """The facts of a service at its start, on a reachable host."""
    return Facts(desired(), "mac", HostAddress("192.0.2.1", "192.0.2.1", "given"))


class Door:
    """A door that is not there, and accepts its agent once it is open."""

    is_left = True

    def __init__(self):
        self.is_open, self.stream = trio.Event(), None

    @asynccontextmanager
    async def running(self, shutdown):
        yield

    async def connect(self):
        await self.is_open.wait()
        ours, self.stream = trio.testing.memory_stream_pair()
        return ours
