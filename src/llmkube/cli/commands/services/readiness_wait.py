"""Wait until a service is ready, on hosts and in pods, with progress, a timeout and an explanation of failures."""

import contextlib
import shlex
from collections.abc import Collection, Iterator

import attrs
import click
import trio

from llmkube.base.times import utcnow
from llmkube.cli.local_files import cause_of
from llmkube.cli.target_cluster import Cluster
from llmkube.cli.view.advice import explain
from llmkube.cli.view.describe import next_retry
from llmkube.cli.view.live_view import summarize_outages
from llmkube.cli.view.output import printable
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT
from llmkube.k8s.wire.service_health import Health, service_health
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.programs.failures import CommandError, ExitCode, program_name
from llmkube.programs.program import open_service_nursery


@attrs.define(eq=False)
class InterruptNote:
    """The message at Ctrl-C about what continues without the command; empty if nothing does."""

    note: str = ""


@contextlib.contextmanager
def print_on_interrupt() -> Iterator[InterruptNote]:
    """Print the note that the block has set if Ctrl-C ends it; watches in it report each outage in one line."""
    summarize_outages()
    interrupt = InterruptNote()
    try:
        yield interrupt
    except* KeyboardInterrupt:
        if interrupt.note:
            click.echo(f"\n{interrupt.note}", err=True)
        raise


async def wait_until_ready(
    cluster: Cluster, key: Key, seconds: float, *, written: Collection[str] = (), edited: bool = False
) -> InferenceService:
    """Show the progress of a service until it is ready, or stopped by its spec, and return it.

    Args:
        cluster: The cluster.
        key: The service.
        seconds: Timeout.
        written: Kinds of the objects that this command has just created or changed. A failure that concerns another
            object may be outdated, and is only reported if it lasts.
        edited: Whether the service already ran. If so, Ready describes the previous engine at first.

    Raises:
        CommandError: The service has failed for a cause that waiting does not fix, or the timeout has expired.
    """
    # Imported here: `status` uses other functions of this module.
    from llmkube.cli.view.progress_line import open_console, open_display  # noqa: PLC0415
    from llmkube.cli.view.readiness import Readiness  # noqa: PLC0415
    from llmkube.programs.informer import open_object_caches  # noqa: PLC0415

    async with open_object_caches(cluster.client, namespace=key.namespace) as caches:
        while key not in caches.services:  # applied, but not in the cache yet
            await caches.changed.wait_newer(caches.changed.version)
        with open_display(open_console(stderr=True)) as display:
            readiness = Readiness(
                caches=caches,
                key=key,
                assess=service_health,
                display=display,
                detail=_detail,
                may_be_stale=lambda health: health.faulty_kind not in written,
                changed=edited,
                loads=True,
                applied=bool(written),
            )
            async with open_service_nursery() as nursery:
                nursery.start_soon(display.run)
                with trio.move_on_after(seconds) as waiting:
                    health = await readiness.wait()
        if waiting.cancelled_caught:
            raise CommandError(
                f"InferenceService {key} is not Ready after {seconds:g} s: {printable(readiness.last)}\n"
                f"The start continues without this command; watch it with `{typed_command('status', key)} --watch`",
                ExitCode.TIMED_OUT,
            )
        service = caches.services.get(key)
        if health.failing:
            model = caches.model_of(service) if service is not None else None
            cause = await trio.to_thread.run_sync(cause_of, cluster, model, health.reason)
            raise CommandError(explain(key, attrs.evolve(health, message=cause or health.message)))
    assert service is not None, "it has just been assessed"
    return service


def is_stopped(service: InferenceService) -> bool:
    """Whether the spec stops the service."""
    return service.spec.suspend or service.spec.replicas == 0


def load_request(service: InferenceService, model: Model | None) -> dict[str, str]:
    """Return the annotation with which hosts load a model, or retry at once what has failed; empty if neither helps."""
    health = service_health(service, model)
    helps = service.status.phase in {"Idle", "Failed"} or health.failing or health.recovering
    return {LOAD_REQUESTED_AT: micro_timestamp(utcnow())} if service.status.activation and helps else {}


def typed_command(verb: str, key: Key) -> str:
    """Return the command line for a service: `llmkube status chat -n team`."""
    return f"{shlex.quote(program_name())} {verb} {key.name}" + (
        "" if key.namespace == "default" else f" -n {key.namespace}"
    )


def _detail(health: Health) -> str:
    return ", ".join(filter(None, [health.headline, next_retry(health, utcnow())]))
