"""`llmkube migrate --check`."""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from llmkube.cli.commands.tools.files import load_manifests
from llmkube.cli.commands.tools.migration import KINDS_OF_THEIRS, REFUSED, Finding, findings
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import Cluster, Where, answering, run_against
from llmkube.cli.view.output import printable
from llmkube.k8s.crd.meta import GROUP, VERSION
from llmkube.k8s.errors import NotFoundError
from llmkube.programs.failures import CommandError
from llmkube.programs.options import HELP, guarded

_KINDS: Final = ("Model", "InferenceService", "ModelRouter", *KINDS_OF_THEIRS)


@click.command("migrate", context_settings=HELP)
@click.option("--check", is_flag=True, help="Say what will change, and change nothing.")
@click.option(
    "-f", "--filename", "names", multiple=True, metavar="FILE", help="A file or a folder instead of the cluster, or -."
)
@cluster_options(all_namespaces=True)
@guarded
def migrate(*, check: bool, names: tuple[str, ...], where: Where) -> None:
    """Say what will be otherwise for objects that the Go implementation of LLMKube serves now.

    Reads the cluster, or files, and writes nothing. For each object it says what is refused here, what changes
    (context, slots, names, image, priority), and how it stays as it is. Exit code 1: something is refused.

    The migration itself is to install the chart and the agents in place of the others; docs/from-llmkube-go.md.
    """
    if not check:
        raise click.UsageError(
            "give --check: there is nothing else to run before the chart and the agents are installed"
        )
    if names:
        bodies: Sequence[Mapping[str, Any]] = [one.body for one in load_manifests(names, sys.stdin.read)]
    else:
        bodies = run_against(where, lambda cluster: _read(cluster, everywhere=where.all_namespaces))
    found = list(findings(bodies))
    click.echo("\n".join(_report(bodies, found)))
    if any(one.what == REFUSED for one in found):
        raise CommandError("what is refused above will not be served until it is edited or allowed")


async def _read(cluster: Cluster, *, everywhere: bool) -> list[Mapping[str, Any]]:
    place = "" if everywhere else f"/namespaces/{cluster.namespace}"
    bodies: list[Mapping[str, Any]] = []
    for kind in _KINDS:
        with answering():
            try:
                listing = await cluster.client.request_json("GET", f"/apis/{GROUP}/{VERSION}{place}/{kind.lower()}s")
            except NotFoundError:
                continue  # that kind is not installed
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}
        bodies += [{**head, **item} for item in listing.get("items", ())]
    return bodies


def _report(bodies: Sequence[Mapping[str, Any]], found: Sequence[Finding]) -> Iterator[str]:
    if not bodies:
        yield "No objects of LLMKube are here."
        return
    for subject, group in itertools.groupby(found, key=lambda one: one.subject):
        yield printable(subject)
        for one in group:
            yield f"  {one.what}: {printable(one.says)}"
            if one.keep:
                yield f"    to keep it: {one.keep}"
    yield f"{len(bodies)} objects, {len(found)} findings. Nothing was changed."
