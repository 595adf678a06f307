"""`llmkube restart`: the engine of a service starts anew, beside the one that serves where memory holds both."""

from typing import Any

import click

from llmkube.base.times import utcnow
from llmkube.cli.commands.services.arrival import arrive, command, is_stopped, told_on_interrupt
from llmkube.cli.complete import services
from llmkube.cli.object_names import existing_service
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import Cluster, Where, answering, run_against
from llmkube.cli.view.live_view import watch_quietly
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import RESTARTED_AT
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.programs.failures import CommandError
from llmkube.programs.options import HELP, NumberRange, guarded

FIELD_MANAGER = "llmkube-restart"


@click.command("restart", context_settings=HELP)
@click.argument("name", shell_complete=services)
@click.option("--wait/--no-wait", default=True, help="Stay until the new engine serves. Default: wait.")
@click.option("--timeout", type=NumberRange(min=0), default=600.0, help="Seconds to --wait. Default: 600.")
@cluster_options()
@guarded
def restart(*, name: str, wait: bool, timeout: float, where: Where) -> None:
    """Start the engine of an InferenceService anew, on hosts and in pods.

    Writes the time into spec.podAnnotations, as `kubectl rollout restart` does for a Deployment. Requests go on being
    answered where there is room for both engines.
    """

    async def action(cluster: Cluster) -> None:
        key = Key(cluster.namespace, name)
        with answering():
            found = await existing_service(cluster.client, key)
            if is_stopped(found):
                raise CommandError(f"InferenceService {key} is stopped; `{command('scale', key)} 1` starts it")
            now = micro_timestamp(utcnow())
            body: dict[str, Any] = {"spec": {"podAnnotations": {RESTARTED_AT: now}}}
            await cluster.client.patch(InferenceService, key, body, field_manager=FIELD_MANAGER)
        if wait:
            leaving.note = f"The restart goes on without this command: `{command('status', key)} --watch` shows how"
            await arrive(cluster, key, timeout, written={InferenceService.RESOURCE.kind}, edited=True)
        click.echo(f"InferenceService {key} {'was restarted' if wait else 'restarts'}")

    watch_quietly()
    with told_on_interrupt() as leaving:
        run_against(where, action, changes=True)
