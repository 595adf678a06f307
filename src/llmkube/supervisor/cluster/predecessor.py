"""The Go implementation's agent leaves a Service, a slice and Endpoints behind: the first is adopted, the others go.

Facts: it marks all three with the labels below and gives them no owner. The slice and the Endpoints have the Service's
name, the Service two annotations. What has another label, or an owner, belongs to another program and is left alone.
"""

from typing import Any, Final

import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.client import Client
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import PREDECESSOR, PREDECESSOR_LABEL, PREDECESSOR_SERVICE_LABEL, SERVICE_NAME_LABEL

log = structlog.get_logger(__name__)

_PREFIX: Final = PREDECESSOR_LABEL.partition("/")[0] + "/"


def is_predecessors(metadata: ObjectMeta) -> bool:
    """Whether an object is one that the Go implementation's agent has left."""
    return metadata.labels.get(PREDECESSOR_LABEL) == PREDECESSOR and not metadata.owner_references


async def adopt_service(client: Client, stands: Service, manifest: dict[str, Any], *, field_manager: str) -> None:
    """Make an earlier agent's Service ours: our labels, owner and ports take the place of its labels and annotations.

    Its address stays. A merge patch, because an apply would leave what another manager has set.

    Raises:
        ConflictError: It has changed meanwhile.
        ApiError: The API server could not or would not.
    """
    ours, theirs = manifest["metadata"], stands.metadata
    labels = {**{name: None for name in theirs.labels if name.startswith(_PREFIX)}, **ours["labels"]}
    annotations = {name: None for name in theirs.annotations if name.startswith(_PREFIX)}
    patch = {
        "metadata": {
            "resourceVersion": theirs.resource_version,
            "labels": labels,
            "ownerReferences": ours["ownerReferences"],
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {"ports": manifest["spec"]["ports"]},
    }
    await client.patch(Service, stands.key, patch, field_manager=field_manager)
    log.info("took over the Service of the agent that was here before", service=str(stands.key))


async def clear_endpoints(client: Client, namespace: str, service: str) -> None:
    """Delete what an earlier agent says of where a service is, now that this agent's own word stands.

    Raises:
        WorldError: The API server could not; to be tried again.
    """
    try:
        selector = f"{PREDECESSOR_LABEL}={PREDECESSOR},{SERVICE_NAME_LABEL}={service}"
        slices = await client.list(EndpointSlice, namespace=namespace, label_selector=selector)
        for one in slices.items:
            if is_predecessors(one.metadata):
                await _delete(client, EndpointSlice, one.metadata)
        try:
            classic = await client.get(Endpoints, Key(namespace, service))
        except NotFoundError:
            return
        if is_predecessors(classic.metadata):  # Kubernetes has mirrored it into a slice, which goes with it
            await _delete(client, Endpoints, classic.metadata)
    except UserError as error:
        # This agent's slice stands in any case; only an administrator can let it remove the other one.
        log.warning("could not delete what an earlier agent has published", service=service, error=str(error))


async def _delete(client: Client, kind: type[Endpoints] | type[EndpointSlice], metadata: ObjectMeta) -> None:
    await trio.lowlevel.checkpoint()
    try:
        await client.delete(kind, Key(metadata.namespace, metadata.name), uid=metadata.uid)
    except NotFoundError:
        return
    log.info("deleted what an earlier agent has published", kind=kind.RESOURCE.kind, name=metadata.name)


def names_service(metadata: ObjectMeta, name: str) -> bool:
    """Whether an earlier agent's object is of the InferenceService of this name."""
    return metadata.labels.get(PREDECESSOR_SERVICE_LABEL) == name
