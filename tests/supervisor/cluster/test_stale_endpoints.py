"""Slices that an earlier agent on this host has left are deleted; those of running services stay."""

import random
from pathlib import Path
from types import SimpleNamespace

import trio

from llmkube.base.errors import WorldError
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.stale_endpoints import delete_stale_endpoints
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.slot import Slot
from llmkube.supervisor.service.endpoint_objects import slice_manifest

SETTINGS = AgentSettings("mac", Path("/s"), Path("/s/store"), "llama-server")


def slice_of(name):
    metadata = {"name": name, "namespace": "ns", "uid": "1"}
    service = decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "m"}})
    return decode(EndpointSlice, slice_manifest(service, "mac", "192.0.2.1", 8080, ready=True))


class Server:
    """A client that lists three slices, at the second attempt."""

    def __init__(self):
        self.asked = 0
        self.slices = [slice_of("chat"), slice_of("gone"), slice_of("said")]

    async def list(self, kind, *, namespace, label_selector):
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if self.asked == 1:
            raise WorldError("away")
        return SimpleNamespace(items=self.slices)


async def test_only_the_slice_of_no_service_is_deleted(autojump_clock):
    """A service that runs publishes its own slice, and so does one that this agent writes to already."""
    server, applier = Server(), Applier(random.Random(0))
    slots = {one.key.name: Slot(EndpointSlice, one.key) for one in server.slices}
    said = slots[server.slices[2].key.name]
    applier.apply_nowait(said, {"said": 1})
    await delete_stale_endpoints(server, SETTINGS, applier, {Key("ns", "chat")})
    assert server.asked == 2
    assert [applier.has(slot) for slot in slots.values()] == [False, True, True]
    assert applier._records[said].wanted.manifest == {"said": 1}
