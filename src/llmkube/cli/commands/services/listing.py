"""`llmkube list`: Models, InferenceServices and ModelRouters as tables or as data, once or with --watch."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from llmkube.base.times import utcnow
from llmkube.cli.host_warnings import warn_of_old_output
from llmkube.cli.object_names import KINDS, parse_kind
from llmkube.cli.options import cluster_options, output_option, watch_option
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, answer_deadline, run_against, state_dirs
from llmkube.cli.view import formats, output
from llmkube.cli.view.live_view import Changes, RowLog, append_lines, is_terminal, show_in_place, summarize_outages
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key, Object
from llmkube.programs.options import command

if TYPE_CHECKING:  # only --watch needs it
    from llmkube.programs.informer import ObjectCaches

Objects = Mapping[type[Any], Sequence[Any]]


@attrs.frozen
class TableLayout:
    """The table of one kind; the functions for services also get the Model."""

    columns: tuple[str, ...]
    row: Callable[..., tuple[str, ...]]
    wide_columns: tuple[str, ...] = ()
    wide_cells: Callable[..., tuple[str, ...]] = lambda *_: ()


_LAYOUTS = {
    Model: TableLayout(output.MODEL_COLUMNS, output.model_row, output.MODEL_WIDE_COLUMNS, output.model_wide_cells),
    InferenceService: TableLayout(
        output.SERVICE_COLUMNS, output.service_row, output.SERVICE_WIDE_COLUMNS, output.service_wide_cells
    ),
    ModelRouter: TableLayout(output.ROUTER_COLUMNS, output.router_row),
    ModelPool: TableLayout(output.POOL_COLUMNS, output.pool_row),
    GPUQuota: TableLayout(output.QUOTA_COLUMNS, output.quota_row),
}


def _kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in sorted(KINDS) if word.startswith(incomplete)]


@command("list")
@click.argument("kind", required=False, shell_complete=_kinds)
@cluster_options(all_namespaces=True)
@output_option(*formats.FORMATS)
@watch_option
def list_objects(*, kind: str | None, where: ClusterFlags, form: str, watch: bool) -> None:
    """List Models, InferenceServices and ModelRouters, or one KIND, such as models (mdl) or gpuquotas (gq)."""
    kinds = (Model, InferenceService, ModelRouter) if kind is None else (parse_kind(kind),)
    warn_of_old_output(state_dirs(where))

    def page_of(cluster: Cluster) -> _Page:
        return _Page(kinds, None if where.all_namespaces else cluster.namespace, form)

    async def once(cluster: Cluster) -> str:
        page = page_of(cluster)
        return page.text(await page.fetch(cluster))

    async def run_watch(cluster: Cluster) -> None:
        from llmkube.programs.informer import open_object_caches  # noqa: PLC0415 - see above

        page = page_of(cluster)
        with answer_deadline():
            served = await page.fetch(cluster)  # an unreachable server is an error now, and an outage later
        page = attrs.evolve(page, kinds=tuple(kind for kind in kinds if kind in served))
        async with open_object_caches(cluster.client, namespace=page.namespace, kinds=page.kinds) as caches:
            if form in {"", "wide"} and is_terminal():

                async def text() -> str:  # noqa: ASYNC124 - same signature as in `status`, which sends requests
                    return page.text(page.cached(caches))

                await show_in_place(caches.changed, text)
            log = page.log()

            async def updates() -> Sequence[str]:  # noqa: ASYNC124 - see above
                return log.updates(page.cached(caches), utcnow())

            await append_lines(caches.changed, updates)

    if watch:
        summarize_outages()
        run_against(where, run_watch)
    else:
        text = run_against(where, once, seconds=ANSWER_SECONDS)
        click.echo(text, nl=bool(text))


@attrs.frozen
class _Page:
    """The kinds, namespace and format of a list."""

    kinds: tuple[type[Any], ...]
    namespace: str | None
    form: str

    async def fetch(self, cluster: Cluster) -> Objects:
        """Read the listed kinds, and Models, which are needed to assess the health of services.

        A list of all kinds leaves out ModelRouters that the cluster does not serve, or that the user may not read.
        """
        found: dict[type[Any], Sequence[Any]] = {}
        wanted: list[type[Any]] = [Model, *(kind for kind in self.kinds if kind is not Model)]
        for kind in wanted:
            try:
                found[kind] = (await cluster.client.list(kind, namespace=self.namespace)).items
            except (ForbiddenError, NotFoundError):
                if kind in self.kinds and (kind is not ModelRouter or len(self.kinds) == 1):
                    raise
        return found

    def cached(self, caches: "ObjectCaches") -> Objects:
        kinds: set[type[Any]] = {Model, *self.kinds}
        return {kind: caches.of(kind).values() for kind in kinds}

    def text(self, objects: Objects) -> str:
        if self.form not in {"", "wide"}:
            return formats.render_all(
                [each for kind in self.kinds for each in _sorted(objects.get(kind, ()))], self.form
            )
        shown = [kind for kind in self.kinds if objects.get(kind)]
        if not shown:
            names = " and no ".join(f"{kind.RESOURCE.kind}s" for kind in self.kinds[:2])
            return f"No {names} in {'any namespace' if self.namespace is None else self.namespace}."
        now = utcnow()
        return "\n\n".join(self._table(kind, self.rows(kind, objects, now).values()) for kind in shown)

    def _table(self, kind: type[Any], rows: Iterable[tuple[str, ...]]) -> str:
        columns, extra, width = self.columns(kind), self._extra(kind), output.line_width()
        if not extra:
            return output.table(columns, rows, width=width)
        return output.wide_table(columns[: -len(extra)], extra, rows, width)

    def _extra(self, kind: type[Any]) -> tuple[str, ...]:
        return _LAYOUTS[kind].wide_columns if self.form == "wide" else ()

    def columns(self, kind: type[Any]) -> tuple[str, ...]:
        return (*(("NAMESPACE",) if self.namespace is None else ()), *_LAYOUTS[kind].columns, *self._extra(kind))

    def rows(self, kind: type[Any], objects: Objects, now: datetime.datetime) -> dict[str, tuple[str, ...]]:
        form = _LAYOUTS[kind]
        models = {each.key: each for each in objects.get(Model, ())}

        rows = {}
        for each in _sorted(objects[kind]):
            model = (models.get(Key(each.key.namespace, each.spec.model_ref)),) if kind is InferenceService else ()
            place = (each.key.namespace,) if self.namespace is None else ()
            wide = form.wide_cells(each, *model) if self.form == "wide" else ()
            rows[str(each.key)] = (*place, *form.row(each, *model, now), *wide)
        return rows

    def log(self) -> "_TableLog | _ObjectLog":
        if self.form in {"", "wide"}:
            return _TableLog(self, {kind: RowLog(self.columns(kind)) for kind in self.kinds})
        return _ObjectLog(self.form, self.kinds)


@attrs.define(eq=False)
class _TableLog:
    """Appends changed rows; when the kind changes, its headings are printed first."""

    page: _Page
    logs: Mapping[type[Any], RowLog]
    _last: type[Any] | None = None

    def updates(self, objects: Objects, now: datetime.datetime) -> list[str]:
        lines: list[str] = []
        for kind, log in self.logs.items():
            new_lines = log.updates(self.page.rows(kind, objects, now))
            if new_lines and self._last not in {None, kind}:
                heading = log.heading()
                lines += ["", *([] if new_lines[0] == heading else [heading])]
            if new_lines:
                self._last = kind
            lines += new_lines
        return lines


@attrs.define(eq=False)
class _ObjectLog:
    """Appends each object, as data, when it is new or has changed."""

    form: str
    kinds: tuple[type[Any], ...]
    _changes: Changes[tuple[type[Any], Key], str] = attrs.field(factory=Changes)

    def updates(self, objects: Objects, now: datetime.datetime) -> list[str]:
        cached = {(kind, each.key): each for kind in self.kinds for each in _sorted(objects[kind])}
        changed, _ = self._changes.since({name: each.metadata.resource_version for name, each in cached.items()})
        return [formats.render_next(cached[name], self.form) for name in changed]


def _sorted(objects: Sequence[Object]) -> list[Any]:
    return sorted(objects, key=lambda each: each.key)
