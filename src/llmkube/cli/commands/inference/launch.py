"""`llmkube launch`: start a client that uses a model of the running `llmkube up`."""

import os
import shutil
import sys
from textwrap import TextWrapper

import click
import orjson

from llmkube.base.http.client import open_http_client
from llmkube.cli.commands.inference.clients import CLIENTS, INDENT, OTHERS, Served
from llmkube.cli.commands.inference.conversation import gateway_route
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, run_against
from llmkube.cli.view.output import line_width
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command


@command("launch")
@click.argument("client", required=False, metavar="[CLIENT]", type=click.Choice(list(CLIENTS)))
@click.argument("args", metavar="[-- ARGS...]", nargs=-1)
@click.option("--model", metavar="NAME", shell_complete=services, help="Model to use. Default: the only one that runs.")
@cluster_options()
def launch(*, client: str | None, args: tuple[str, ...], model: str | None, where: ClusterFlags) -> None:
    """Start CLIENT with a model of the running `llmkube up`; ARGS are the client's own.

    CLIENT is claude, codex, opencode, qwen or copilot. It gets variables and flags for this run; its
    configuration files are not changed. Without CLIENT, prints what to set in clients without a command line.
    """
    program = shutil.which(client) if client else None
    if client and not program:
        raise CommandError(f"{client} is not installed: PATH has no such program; run `{CLIENTS[client].install}`")
    served = run_against(where, lambda cluster: find_served(cluster, where.namespace, model), seconds=ANSWER_SECONDS)
    if not client or not program:
        width = line_width() or sys.maxsize
        wrapped = TextWrapper(width, subsequent_indent=INDENT, break_on_hyphens=False, break_long_words=False)
        for line in OTHERS.format(url=served.url, model=served.model).splitlines():
            click.echo(wrapped.fill(line))
        return
    settings = CLIENTS[client].settings(served)
    variables = {name: value for name, value in {**os.environ, **settings.variables}.items() if value is not None}
    # The process becomes the client, so that the terminal, its signals and the exit code are the client's.
    os.execve(program, [program, *settings.flags, *args], variables)  # noqa: S606 - no shell


async def find_served(cluster: Cluster, namespace: str | None, wanted: str | None) -> Served:
    """Return the model to use, which is in the namespace if there is one.

    Raises:
        CommandError: No `llmkube up` or no such model runs; the message has the fix.
    """
    found = (await cluster.client.list(InferenceService, namespace=namespace)).items
    route = next(filter(None, map(gateway_route, found)), None)
    if route is None:
        state = "has no InferenceService" if not found else "is not the one of a `llmkube up`"
        fix = "start `llmkube up`, then deploy a model: `llmkube deploy NAME`"
        raise CommandError(f"no model is served: the API server {cluster.server} {state}; {fix}")
    async with open_http_client() as client:
        answer = await client.request("GET", f"{route.url}/v1/models")
    if answer.status != 200:
        fix = "start `llmkube up` without --gateway-serves routers"
        raise CommandError(f"{route.name} lists no models: status {answer.status}; {fix}")
    own = {name for service in found for name in (service.key.name, str(service.key))}
    listed = [model for model in orjson.loads(answer.body)["data"] if "completion" in model.get("capabilities", ())]
    models = {model["id"]: model for model in listed if namespace is None or model["id"] in own}
    ids = {wanted, f"{namespace}/{wanted}"} if wanted else own
    chosen = sorted(models.keys() & ids)
    if len(chosen) != 1:
        if not models:
            raise CommandError("no chat model runs; `llmkube list` shows the cause")
        subject, running = f"model {wanted} not found" if wanted else "no single model", ", ".join(sorted(models))
        raise CommandError(f"{subject}; chat models that run: {running}; choose one with --model NAME")
    model = models[chosen[0]]
    images = "image" in model.get("architecture", {}).get("input_modalities", ())
    return Served(route.url, chosen[0], model.get("meta", {}).get("n_ctx") or 0, images)
