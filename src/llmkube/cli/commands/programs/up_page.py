"""Commands of the page of `llmkube up`: those of `catalog list`, `fit` and `deploy`. Imported on first use."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.cli.catalog.entries import entries, find
from llmkube.cli.commands.models import catalog
from llmkube.cli.commands.models.fit import as_data, as_lines, assess, demand_for, read_local, titled_shape
from llmkube.cli.commands.models.inspect import remote_facts
from llmkube.cli.commands.services.deploy import DeployRequest, apply_all, deploy, manifests_of, read_request
from llmkube.cli.target_cluster import Cluster, answer_deadline
from llmkube.k8s.client import Client
from llmkube.programs.config import HostConfig
from llmkube.supervisor.memory.budget import Budget
from llmkube.weights.formats.shape import Shape

NAMESPACE: Final = "default"


def list_models() -> list[dict[str, Any]]:
    """Return the models of the catalog."""
    return [
        {"name": each.name, "title": each.title, "sizeBytes": each.size_bytes, "context": catalog.context_of(each)}
        for each in entries().values()
    ]


async def fit(wanted: Mapping[str, Any], budget: Budget, config: HostConfig) -> dict[str, Any]:
    """Return what a deployment needs and whether it fits the budget, as data and as the lines of `llmkube fit`.

    Raises:
        LLMKubeError: The deployment is invalid, or its file cannot be read.
    """
    try:
        request = _request(wanted)
        title, shape = await _shape(request, config)
    except click.ClickException as exc:
        raise UserError(exc.format_message()) from exc
    demand = demand_for(shape, request.value_at("spec.contextSize"), 1, "f16", on_device=sys.platform == "darwin")
    verdict = assess(title, shape, demand, budget)
    return as_data(verdict) | {"lines": as_lines(verdict)}


async def deploy_model(wanted: Mapping[str, Any], client: Client, state_dir: Path) -> str:
    """Apply the objects of a deployment; return which of them were changed.

    Raises:
        LLMKubeError: The deployment is invalid, or was refused.
    """
    cluster = Cluster(client, NAMESPACE, up_dir=state_dir)
    try:
        request = _request(wanted)
        with answer_deadline():
            applied = await apply_all(cluster, request, await manifests_of(cluster, request))
    except click.ClickException as exc:
        raise UserError(exc.format_message()) from exc
    except trio.TooSlowError as exc:
        raise LLMKubeError("the API server did not answer; retry") from exc
    return ", ".join(f"{each.kind} {each.key} {each.change}" for each in applied)


def _request(wanted: Mapping[str, Any]) -> DeployRequest:
    """Return a deployment as if it were typed: `{"service": NAME, "source": SOURCE, "contextSize": 8192}`."""
    flags = {"--source": wanted.get("source"), "--context-size": wanted.get("contextSize")}
    arguments = [f"{flag}={value}" for flag, value in flags.items() if value]
    with deploy.make_context("deploy", [*arguments, "--", wanted["service"]]) as context:
        return read_request(wanted["service"], context.params, Path.home())


async def _shape(request: DeployRequest, config: HostConfig) -> tuple[str, Shape]:
    entry = find(request.name)
    if entry is not None and request.source == entry.source:
        return f"{entry.name}: {entry.title}", catalog.shape_of(entry)
    found = await trio.to_thread.run_sync(read_local, request.source, Path.home())
    if isinstance(found, tuple):
        return found
    return titled_shape(request.source, await remote_facts(found, config))
