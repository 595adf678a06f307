"""`llmkube apply`, `get` and `delete` of objects of any kind that the API server serves, as kubectl does it.

Facts: kubectl's texts and exit codes as of 1.32; Kubernetes API concepts, "Receiving resources as Tables".
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.cli.object_names import KINDS
from llmkube.cli.options import cluster_options, manifests_option, output_option
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view import formats, output
from llmkube.k8s.errors import ApiError, NotFoundError, TransportError
from llmkube.k8s.request import TABLE
from llmkube.k8s.resource import Resource
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command
from llmkube.programs.server_side_apply import Applier, ApplyResult, Manifest, ServedKinds

FIELD_MANAGER: Final = "kubectl"
"""That of `kubectl apply --server-side`: either program may apply the same file."""

_DATA: Final = frozenset({"json", "yaml"})
_INCLUDED: Final = {form: {"includeObject": "Object"} for form in _DATA}


class KubectlError(CommandError):
    """A failure in kubectl's words, which need no prefix."""

    def show(self, file: Any = None) -> None:
        """Print the message."""
        click.echo(output.wrapped(self.format_message(), err=True), file=file, err=True)


@command("apply")
@manifests_option("files", "Manifests: a file, a folder, or - for standard input. Repeatable.", required=True)
@click.option("--dry-run", is_flag=True, help="Have the API server check the objects, and change nothing.")
@click.option("--force-conflicts", is_flag=True, help="Take over fields of other field managers.")
@cluster_options()
def apply(*, files: tuple[str, ...], dry_run: bool, force_conflicts: bool, where: ClusterFlags) -> None:
    """Create or change the objects in files, of any kind, as `kubectl apply --server-side` does.

    All files are read before the first object is written. If one object is refused, the others are still applied; the
    exit code is then 1.
    """
    if not (manifests := _load(files, where)):
        raise KubectlError("error: no objects passed to apply")

    def report(result: ApplyResult) -> None:
        if result.error is not None:
            click.echo(output.wrapped(f"{result.manifest.where}: {_refusal(result.error)}", err=True), err=True)
        elif result.resource is not None:
            click.echo(f"{_title(result.resource, result.key.name)} {result.change}{' (server dry run)' * dry_run}")

    async def action(cluster: Cluster) -> Sequence[ApplyResult]:
        applier = Applier(cluster.client, cluster.namespace, FIELD_MANAGER, force_conflicts, dry_run)
        with answer_deadline():
            return await applier.apply_all(manifests, report)

    if any(result.error for result in run_against(where, action, changes=not dry_run)):
        sys.exit(1)


@command("get")
@click.argument("words", metavar="KIND [NAME...]", nargs=-1, required=True)
@cluster_options(all_namespaces=True)
@output_option(*formats.FORMATS)
def get(*, words: tuple[str, ...], where: ClusterFlags, form: str) -> None:
    """Show objects of any kind in the API server's own table, or as data, as `kubectl get` does.

    KIND is models, mdl, isvc, modelrouters, secrets, leases.coordination.k8s.io, or several separated by commas; an
    object is also KIND/NAME.
    """
    pairs = _parse(words)
    if pairs[0][1] and where.all_namespaces:
        raise click.UsageError("--all-namespaces and the name of an object exclude each other")

    async def action(cluster: Cluster) -> None:
        with answer_deadline():
            try:
                wanted = await _find_kinds(cluster, pairs, everywhere=where.all_namespaces)
                tables = [await each.read(cluster, form) for each in wanted]
            except NotFoundError as exc:
                raise KubectlError(_refusal(exc)) from exc
        if form in _DATA:
            items = [item for table in tables for item in _objects(table)]
            is_one = len(wanted) == 1 and wanted[0].name
            click.echo(formats.dump(items[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": items}, form))
        else:
            several = len(wanted) > 1
            texts = [each.text(table, form, several=several) for each, table in zip(wanted, tables, strict=True)]
            if text := ("\n" if form == "name" else "\n\n").join(filter(None, texts)):
                click.echo(text)
            elif form != "name":
                place = "" if where.all_namespaces else f" in {cluster.namespace} namespace"
                click.echo(f"No resources found{place}.", err=True)

    run_against(where, action)


def delete_objects(names: Sequence[str], files: Sequence[str], where: ClusterFlags, *, ignore_missing: bool) -> None:
    """Delete objects that are named as KIND/NAME, and those in files.

    Raises:
        KubectlError: An object could not be deleted; the others have been.
    """
    manifests, pairs = _load(files, where), _parse(names) if names else []

    async def action(cluster: Cluster) -> list[str]:
        kinds, problems = ServedKinds(cluster.client), list[str]()
        with answer_deadline():
            wanted = [(each.resource, each.name, "") for each in await _find_kinds(cluster, pairs)]
            for resource, data in [(await kinds.of(each.body), each.body["metadata"]) for each in manifests]:
                wanted += [(resource, data["name"], data.get("namespace"))]
            for resource, name, namespace in wanted:
                path = resource.path((namespace or cluster.namespace) if resource.namespaced else None, name)
                try:
                    await cluster.client.request_json("DELETE", path)
                    click.echo(f'{_title(resource)} "{name}" deleted')
                except TransportError:
                    raise
                except ApiError as exc:
                    problems += [] if ignore_missing and isinstance(exc, NotFoundError) else [_refusal(exc)]
        return problems

    if problems := run_against(where, action, changes=True):
        raise KubectlError("\n".join(problems))


@attrs.frozen
class _Query:
    """Objects to show: one, or all of a kind."""

    resource: Resource
    namespace: str | None
    name: str = ""

    async def read(self, cluster: Cluster, form: str) -> Any:
        """Return the Table of the objects; for data, its rows have them whole."""
        path = self.resource.path(self.namespace, self.name)
        return await cluster.client.get_json(path, params=_INCLUDED.get(form), accept=TABLE)

    def text(self, table: Any, form: str, *, several: bool = False) -> str:
        """Return a Table for people, empty without rows; with `several` kinds, names include theirs."""
        rows = table.get("rows") or []
        metadata = [row["object"]["metadata"] for row in rows]
        titles = [_title(self.resource, each["name"]) for each in metadata]
        if form == "name" or not rows:
            return "\n".join(titles)
        columns = [each for each in enumerate(table["columnDefinitions"]) if form == "wide" or not each[1]["priority"]]
        heads = [column["name"].upper() for _, column in columns]
        cells = [["" if (cell := row["cells"][index]) is None else str(cell) for index, _ in columns] for row in rows]
        if several:
            cells = [[title, *row[1:]] for title, row in zip(titles, cells, strict=True)]
        if self.namespace is None and self.resource.namespaced:
            heads = ["NAMESPACE", *heads]
            cells = [[each["namespace"], *row] for each, row in zip(metadata, cells, strict=True)]
        return output.table(heads, cells, width=output.line_width())


def _parse(words: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `KIND[,KIND...]`, `KIND NAME...` and `KIND/NAME...` into kinds with names; "" means all names.

    Raises:
        click.UsageError: The forms are mixed, or a name is empty.
    """
    first, *names = words
    if "/" not in first:
        return [(first, name) for name in names] or [(word, "") for word in first.split(",")]
    pairs = [(kind, name) for kind, _, name in (word.partition("/") for word in words)]
    if not all(name for _, name in pairs):
        raise click.UsageError("name objects as KIND NAME..., or each one as KIND/NAME")
    return pairs


async def _find_kinds(cluster: Cluster, pairs: Sequence[tuple[str, str]], *, everywhere: bool = False) -> list[_Query]:
    kinds, queries = ServedKinds(cluster.client), []
    for word, name in pairs:
        known = KINDS.get(word.lower())
        resource = known.RESOURCE if known is not None else await kinds.find(word.lower())
        if resource is None:
            raise KubectlError(f'error: the server doesn\'t have a resource type "{word}"')
        namespace = None if everywhere or not resource.namespaced else cluster.namespace
        queries.append(_Query(resource, namespace, name))
    return queries


def _load(files: Sequence[str], where: ClusterFlags) -> tuple[Manifest, ...]:
    """Read manifests.

    Raises:
        UserError: One is invalid, or names another namespace than -n does.
    """
    manifests = load_manifests(files, sys.stdin.read)
    for each in manifests:
        named = each.body["metadata"].get("namespace")
        if where.namespace and named and named != where.namespace:
            problem = f"metadata.namespace is {named}, and --namespace is {where.namespace}; leave one out"
            raise UserError(f"{each.where}: {problem}")
    return manifests


def _refusal(error: LLMKubeError) -> str:
    """Return an error as kubectl prints it."""
    reason = error.reason if isinstance(error, ApiError) and error.status else ""
    text = f"Error from server ({reason}): {error}" if reason else f"error: {error}"
    if reason == "Conflict" and "Apply failed" in text:
        text += "\nLeave these fields out, or take them over with --force-conflicts."
    return text


def _title(resource: Resource, name: str = "") -> str:
    kind = f"{resource.singular}.{resource.group}" if resource.group else resource.singular
    return f"{kind}/{name}" if name else kind


def _objects(table: Any) -> list[Any]:
    """Return the objects in a Table, without managed fields."""
    found = [row["object"] for row in table.get("rows") or []]
    return [
        each | {"metadata": {name: value for name, value in each["metadata"].items() if name != "managedFields"}}
        for each in found
    ]
