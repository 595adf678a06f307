"""`llmkube convert`."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
import yaml

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import apply_defaults, prune, validate
from llmkube.base.errors import UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.first_api import convert, is_old
from llmkube.programs.options import HELP, guarded, paths


@click.command("convert", context_settings=HELP)
@click.option(
    "-f",
    "--filename",
    "names",
    multiple=True,
    required=True,
    metavar="FILE",
    shell_complete=paths,
    help="A file, a folder, or - for stdin.",
)
@guarded
def convert_manifests(names: tuple[str, ...]) -> None:
    """Print manifests of llmkube.io/v1alpha1 as Models and InferenceServices of today.

    What cannot be carried over is named on standard error. Other objects are printed as they are.

    For a cluster: llmkube convert -f old.yaml | kubectl apply -f -
    """
    printed: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for manifest in load_manifests(names, sys.stdin.read):
        if not is_old(manifest.body):
            printed.append(manifest.body)
            continue
        try:
            found = convert(manifest.body)
        except UserError as error:
            problems.append(f"{manifest.where}: {error}")
            continue
        objects = (found.model, found.service)
        printed += objects
        for sentence in (*found.remarks, *(each for body in objects for each in _refusals(body))):
            click.echo(f"{manifest.where}: {sentence}", err=True)
    if printed:
        click.echo(yaml.safe_dump_all(printed, sort_keys=False, explicit_start=True).rstrip("\n"))
    if problems:
        raise UserError("\n".join(problems))


def _refusals(body: Mapping[str, Any]) -> Iterator[str]:
    """Say what an API server will have against an object; an old value may be out of today's bounds."""
    crd = next(crd for crd in all_crds() if crd["spec"]["names"]["kind"] == body["kind"])
    schema = Schema.parse(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    _, unknown = prune({"spec": body["spec"]}, schema)
    for path in unknown:
        yield f"{path}: is no field of the {body['kind']}; remove it"
    for error in validate(apply_defaults(body, schema), None, schema):
        yield f"the {body['kind']} will be refused: {error}"
