"""This host's Lease: as long as it is renewed, the controller believes what the host says."""

import datetime
from collections.abc import Callable
from typing import Any

import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.names import ACCELERATORS_ANNOTATION, HOST_LABEL, host_id
from llmkube.k8s.resource import Key
from llmkube.supervisor.settings import AgentSettings

log = structlog.get_logger(__name__)

EXPIRES_AFTER_RENEWALS = 4
"""A Lease outlives this many missed renewals: one lost packet is not a dead Mac."""


def lease_manifest(settings: AgentSettings, now: datetime.datetime) -> dict[str, Any]:
    """Return the Lease that says that this host is alive and which accelerators it serves."""
    host = host_id(settings.host_name)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": host,
            "namespace": settings.lease_namespace,
            "labels": {HOST_LABEL: host},
            "annotations": {ACCELERATORS_ANNOTATION: ",".join(sorted(settings.accelerators))},
        },
        "spec": {
            "holderIdentity": settings.host_name,
            "leaseDurationSeconds": round(settings.lease_renew_seconds * EXPIRES_AFTER_RENEWALS),
            "renewTime": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


async def withdraw_presence(client: Client, settings: AgentSettings) -> None:
    """Delete the Lease, so that nobody has to wait for its expiry; best effort, the deadline is the caller's."""
    try:
        await client.delete(Lease, Key(settings.lease_namespace, host_id(settings.host_name)))
    except LLMKubeError as error:
        log.info("lease not deleted; it will expire", host=settings.host_name, error=str(error))


async def run_presence(client: Client, settings: AgentSettings, utcnow: Callable[[], datetime.datetime]) -> None:
    """Never return: renew the Lease; a failed renewal is only missed, since the next one is never far."""
    while True:
        try:
            with trio.fail_after(settings.lease_renew_seconds):
                await client.apply(Lease, lease_manifest(settings, utcnow()), field_manager=settings.field_manager)
        except (LLMKubeError, trio.TooSlowError) as error:
            log.warning("lease not renewed", host=settings.host_name, error=str(error) or "no answer")
        await trio.sleep(settings.lease_renew_seconds)
