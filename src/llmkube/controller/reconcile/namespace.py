"""Create the namespace of the Leases, without which every renewal of a host lease would be a 404."""

import random
from typing import Final, Never

import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError
from llmkube.k8s.builtins import Namespace
from llmkube.k8s.client import Client
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key

PERMISSIONS: Final = (Permission(Namespace, frozenset({"get", "create"}), place="system"),)

POLL_SECONDS: Final = 600.0
"""Interval between checks that the namespace still exists; it is rarely deleted."""

CALL_SECONDS: Final = 15.0
RETRY: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)

log = structlog.get_logger()


async def run_namespace_keeper(client: Client, name: str, rng: random.Random, *, confined: bool = False) -> Never:
    """Create a namespace whenever it is missing, until cancelled; errors are only logged.

    A controller without that right logs this once, and keeps checking at a slow pace: an administrator may create the
    namespace by hand, or grant the right later. A controller that is confined to one namespace never has the right, so
    it logs no warning.
    """
    failures = 0
    warned = False
    while True:
        try:
            with trio.fail_after(CALL_SECONDS):
                await _ensure(client, name)
        except ForbiddenError as error:
            if not warned:
                log_event = log.info if confined else log.warning
                log_event("lease namespace not created: no permission", namespace=name, error=str(error))
            warned, failures = True, 0
        except (LLMKubeError, trio.TooSlowError) as error:
            failures += 1
            log.info("lease namespace not checked", namespace=name, error=str(error) or "no answer")
        else:
            failures = 0
        await trio.sleep(RETRY.delay(failures, rng) if failures else POLL_SECONDS)


async def _ensure(client: Client, name: str) -> None:
    try:
        await client.get(Namespace, Key("", name))
    except NotFoundError:
        try:
            await client.create(Namespace(metadata=ObjectMeta(name=name)))
        except AlreadyExistsError:
            return
        log.info("namespace created", namespace=name)
