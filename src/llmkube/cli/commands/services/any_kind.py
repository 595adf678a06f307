"""`llmkube apply`, `get` and `delete` of objects of any kind that the API server serves, as kubectl does it.

Facts: kubectl's texts and exit codes as of 1.32; Kubernetes API concepts, "Receiving resources as Tables".
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.cli.object_names import KINDS
from llmkube.cli.options import cluster_options, manifests_option, output_option, watch_option
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view import formats, output
from llmkube.k8s.errors import ApiError, NotFoundError, TransportError, error_from_status
from llmkube.k8s.request import JSON, TABLE, make_request
from llmkube.k8s.resource import Resource
from llmkube.k8s.watch import MAX_LINE_BYTES
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command
from llmkube.programs.server_side_apply import Applier, ApplyResult, Manifest, ServedKinds

FIELD_MANAGER: Final = "kubectl"
"""That of `kubectl apply --server-side`: either program may apply the same file."""

_DATA: Final = frozenset({"json", "yaml"})


class KubectlError(CommandError):
    """A failure in kubectl's words, which need no prefix."""

    def show(self, file: Any = None) -> None:
        """Print the message."""
        click.echo(output.wrapped(self.format_message(), err=True), file=file, err=True)


@command("apply")
@manifests_option("files", "Manifests: a file, a folder, or - for standard input. Repeatable.", required=True)
@click.option(
    "--dry-run",
    type=click.Choice(("server",)),
    is_flag=False,
    flag_value="server",
    help="Have the API server check the objects, and change nothing.",
)
@click.option("--force-conflicts", is_flag=True, help="Take over fields of other field managers.")
@cluster_options()
def apply(*, files: tuple[str, ...], dry_run: str | None, force_conflicts: bool, where: ClusterFlags) -> None:
    """Create or change the objects in files, of any kind, as `kubectl apply --server-side` does.

    All files are read before the first object is written. If one object is refused, the others are still applied; the
    exit code is then 1.
    """
    manifests = _load(files, where)

    def report(result: ApplyResult) -> None:
        if result.error is not None:
            click.echo(output.wrapped(f"{result.manifest.where}: {_refusal(result.error)}", err=True), err=True)
        elif result.resource is not None:
            click.echo(
                f"{_title(result.resource, result.key.name)} {result.change}{' (server dry run)' * bool(dry_run)}"
            )

    async def action(cluster: Cluster) -> Sequence[ApplyResult]:
        applier = Applier(cluster.client, cluster.namespace, FIELD_MANAGER, force_conflicts, dry_run is not None)
        with answer_deadline():
            return await applier.apply_all(manifests, report)

    if any(result.error for result in run_against(where, action, changes=not dry_run)):
        sys.exit(1)


@command("get")
@click.argument("words", metavar="KIND [NAME...]", nargs=-1, required=True)
@click.option("-l", "--selector", default="", help="Label selector, such as app=chat.")
@cluster_options(all_namespaces=True)
@output_option(*formats.FORMATS)
@watch_option
def get(*, words: tuple[str, ...], selector: str, where: ClusterFlags, form: str, watch: bool) -> None:
    """Show objects of any kind in the API server's own table, or as data, as `kubectl get` does.

    KIND is models, mdl, isvc, modelrouters, secrets, leases.coordination.k8s.io, or several separated by commas; an
    object is also KIND/NAME.
    """
    pairs = _parse(words)
    if watch and len(pairs) > 1:
        raise click.UsageError("--watch shows one kind, or one object")
    if pairs[0][1] and (selector or where.all_namespaces):
        raise click.UsageError("--selector and --all-namespaces exclude the name of an object")

    async def action(cluster: Cluster) -> None:
        with answer_deadline():
            try:
                wanted = await _find_kinds(cluster, pairs, selector, everywhere=where.all_namespaces)
                answers = [await each.read(cluster, form) for each in wanted]
            except NotFoundError as exc:
                raise KubectlError(_refusal(exc)) from exc
        if form in _DATA:
            items = [item for each, answer in zip(wanted, answers, strict=True) for item in each.items(answer)]
            is_one = len(wanted) == 1 and wanted[0].name
            click.echo(formats.dump(items[0] if is_one else _LIST | {"items": items}, form))
        else:
            several = len(wanted) > 1
            texts = [each.text(answer, form, several=several) for each, answer in zip(wanted, answers, strict=True)]
            if text := ("\n" if form == "name" else "\n\n").join(filter(None, texts)):
                click.echo(text)
            elif form != "name":
                place = "" if where.all_namespaces else f" in {cluster.namespace} namespace"
                click.echo(f"No resources found{place}.", err=True)
        if watch:
            await wanted[0].follow(cluster, form, answers[0])

    run_against(where, action)


_LIST: Final = {"apiVersion": "v1", "kind": "List"}


def delete_objects(names: Sequence[str], files: Sequence[str], where: ClusterFlags, *, ignore_missing: bool) -> None:
    """Delete objects that are named as KIND/NAME, and those in files.

    Raises:
        KubectlError: An object could not be deleted; the others have been.
    """
    manifests, pairs = _load(files, where), _parse(names) if names else []

    async def action(cluster: Cluster) -> list[str]:
        kinds, problems = ServedKinds(cluster.client), []
        with answer_deadline():
            wanted = [(each.resource, each.name, "") for each in await _find_kinds(cluster, pairs)]
            for body in (each.body for each in manifests):
                try:
                    wanted.append((await kinds.of(body), body["metadata"]["name"], body["metadata"].get("namespace")))
                except UserError as exc:
                    problems.append(_refusal(exc))
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
    """Objects to show: one, or all of a kind that match a selector."""

    resource: Resource
    namespace: str | None
    name: str = ""
    selector: str = ""

    async def read(self, cluster: Cluster, form: str) -> Any:
        path = self.resource.path(self.namespace, self.name)
        return await cluster.client.get_json(path, params={"labelSelector": self.selector}, accept=_accept(form))

    def items(self, answer: Any) -> list[Any]:
        """Return the objects of a response that is not a table."""
        return [_shown(self.resource, item) for item in ([answer] if self.name else answer.get("items") or [])]

    def text(self, table: Any, form: str, *, several: bool = False, headings: bool = True) -> str:
        """Return a Table for people, empty without rows; with `several` kinds, names include theirs."""
        rows = table.get("rows") or []
        metadata = [row["object"]["metadata"] for row in rows]
        titles = [_title(self.resource, each["name"]) for each in metadata]
        if form == "name" or not rows:
            return "\n".join(titles)
        columns = [each for each in enumerate(table["columnDefinitions"]) if form == "wide" or not each[1]["priority"]]
        heads = [column["name"].upper() for _, column in columns]
        cells = [[_cell(row["cells"][index]) for index, _ in columns] for row in rows]
        if several:
            cells = [[title, *row[1:]] for title, row in zip(titles, cells, strict=True)]
        if self.namespace is None and self.resource.namespaced:
            heads = ["NAMESPACE", *heads]
            cells = [[each["namespace"], *row] for each, row in zip(metadata, cells, strict=True)]
        text = output.table(heads, cells, width=output.line_width())
        return text if headings else text.partition("\n")[2]

    async def follow(self, cluster: Cluster, form: str, answer: Any) -> None:
        """Print each change until Ctrl-C."""
        columns, version = answer.get("columnDefinitions"), answer["metadata"]["resourceVersion"]
        while True:  # the API server ends a watch from time to time
            params = {"watch": "1", "resourceVersion": version, "labelSelector": self.selector}
            params |= {"fieldSelector": f"metadata.name={self.name}"} if self.name else {}
            request = make_request("GET", self.resource.path(self.namespace), params=params, accept=_accept(form))
            async with cluster.client.open_text(request) as chunks:
                rest = b""
                async for chunk in chunks:
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:
                        raise TransportError(f"{request.call}: a line of more than {MAX_LINE_BYTES} bytes")
                    for event in map(json.loads, lines):
                        found = event["object"]
                        if event["type"] == "ERROR":
                            raise error_from_status(found)
                        version = found["metadata"]["resourceVersion"]
                        if form in _DATA:
                            shown = formats.dump(_shown(self.resource, found), form)
                            click.echo(f"---\n{shown}" if form == "yaml" else shown)
                        else:
                            columns = found["columnDefinitions"] or columns
                            click.echo(self.text(found | {"columnDefinitions": columns}, form, headings=False))


def _parse(words: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `KIND[,KIND...]`, `KIND NAME...` and `KIND/NAME...` into kinds with names; "" stands for all names.

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


async def _find_kinds(
    cluster: Cluster, pairs: Sequence[tuple[str, str]], selector: str = "", *, everywhere: bool = False
) -> list[_Query]:
    kinds, queries = ServedKinds(cluster.client), []
    for word, name in pairs:
        known = KINDS.get(word.lower())
        resource = known.RESOURCE if known is not None else await kinds.find(word.lower())
        if resource is None:
            raise KubectlError(f'error: the server doesn\'t have a resource type "{word}"')
        namespace = None if everywhere or not resource.namespaced else cluster.namespace
        queries.append(_Query(resource, namespace, name, selector))
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


def _accept(form: str) -> str:
    return JSON if form in _DATA else TABLE


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _shown(resource: Resource, item: Any) -> Any:
    """Return an object with its kind, which lists leave out, and without managed fields."""
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return resource.type_meta | item | {"metadata": metadata}
