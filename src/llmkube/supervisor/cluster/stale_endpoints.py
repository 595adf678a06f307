"""At its start an agent takes back what an earlier one has published of services that do not run here any more.

The journal tells what runs; it may be lost, and the slices are then the only trace. Until this is done, a cluster sends
requests to ports without a listener, so it is the first write to the API server.
"""

from collections.abc import Container

import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key, controller_key
from llmkube.k8s.wire.names import HOST_LABEL, host_id
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.slot import Slot

log = structlog.get_logger(__name__)

LIST_SECONDS = 15.0
RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0)


async def delete_stale_endpoints(
    client: Client, settings: AgentSettings, applier: Applier, running: Container[Key]
) -> None:
    """Take back the slices of this host that belong to no service that it looks after; return once that is told.

    Of the services in `running` their own status managers write.
    """
    failures = 0
    ours = f"{HOST_LABEL}={host_id(settings.host_name)}"
    while True:
        try:
            with trio.fail_after(LIST_SECONDS):
                slices = (await client.list(EndpointSlice, namespace=settings.namespace, label_selector=ours)).items
            break
        except (LLMKubeError, trio.TooSlowError) as error:
            failures += 1
            log.info("slices not listed; will be repeated", error=str(error) or "no answer")
            await trio.sleep(RETRY.delay(failures, applier.rng))
    for piece in slices:
        slot = Slot(EndpointSlice, piece.key)
        if controller_key(piece, InferenceService.RESOURCE.kind) not in running and not applier.has(slot):
            log.info("endpoint of an earlier agent withdrawn", slice=str(piece.key))
            applier.delete_nowait(slot, followed=True)
