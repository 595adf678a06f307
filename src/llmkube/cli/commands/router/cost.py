"""`llmkube cost`: tokens, energy and dollars by team, model or host, from metrics; `cost.toml` has the series."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, Final

import click
import httpx
from prometheus_client.parser import text_string_to_metric_families

from llmkube.base.package_data import read_table
from llmkube.base.units import parse_duration
from llmkube.cli.options import output_option
from llmkube.cli.target_cluster import ClusterFlags, own_up_dir
from llmkube.cli.view import formats, output
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command
from llmkube.programs.state_location import read_addresses

COLUMNS: Final = ("prompt", "completion", "cached", "joules", "dollars", "per_million")
"""The last one is dollars per million tokens of prompts and completions."""

RUNNING: Final = "llmkube_metal_agent_engine_info"
"""The series of an agent, or of `llmkube up`, that names the services on its host."""

UNKNOWN: Final = "unknown"
"""Row of the series without the label."""

JOULES_PER_KWH: Final = 3.6e6
SECONDS: Final = 10.0
"""Timeout of a request."""

Sample = tuple[str, Mapping[str, str], float]
"""A series' name, its labels and its value."""


@command("cost")
@click.option("--by", "axis", type=click.Choice(("team", "model", "host")), default="model", show_default=True)
@click.option("--prometheus", metavar="URL", help="Ask this Prometheus, for a period.")
@click.option("--since", default="30d", show_default=True, metavar="DURATION", help="Period, with --prometheus.")
@click.option("--metrics", metavar="URL", multiple=True, help="Default: the running `llmkube up`. Repeatable.")
@click.option("--gateway", metavar="URL", help="For its engines. Default: the running `llmkube up`.")
@click.option("--price-per-kwh", "price", type=click.FloatRange(min=0), metavar="USD", help="Price of measured energy.")
@output_option("json", "yaml")
def cost(
    *,
    axis: str,
    prometheus: str | None,
    since: str,
    metrics: tuple[str, ...],
    gateway: str | None,
    price: float | None,
    form: str,
) -> None:
    """Show tokens, joules and dollars by team, model or host; what no program has counted is empty.

    Without --prometheus, the figures are totals since the start of each program: of those at --metrics (`llmkube up`,
    agents, routers) and of the engines behind the gateway of `llmkube up`. Dollars are charged at the prices of
    ModelRouters, and for energy at --price-per-kwh; per_million is dollars per million tokens. By team, energy is
    unknown; by host, dollars are those of energy.
    """
    period = f"[{parse_duration(since, field='--since'):.0f}s]"
    up = own_up_dir(ClusterFlags())
    lines = [line.split() for line in read_addresses(up).splitlines()] if up is not None else []
    own = {"probes": "http://127.0.0.1:9090", "page": "http://127.0.0.1:8080", **{each[0]: each[-1] for each in lines}}
    metrics, gateway = metrics or (f"{own['probes']}/metrics",), (gateway or own["page"]).rstrip("/")
    rows: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    with httpx.Client(timeout=SECONDS) as http:
        found = [] if prometheus else [*_totals(http, metrics)]
        if not prometheus and axis != "team":
            running = [at for name, at, _ in found if name == RUNNING]
            forms = ("{name}", "{namespace}/{name}")
            found += _engines(http, gateway, {form.format_map(at): at for at in running for form in forms})
        for one in read_table(__package__, "cost")["series"]:
            series, row = one["name"], one["rows"].get(axis)
            if row is None:
                continue
            labels = [name for _, name, *_ in Formatter().parse(row + one["columns"][0]) if name]
            query = f"sum by ({', '.join(labels)}) (increase({series}{period}))"
            samples = _query(http, prometheus, query) if prometheus else (each for each in found if each[0] == series)
            for _, names, value in samples:
                for column in one["columns"]:
                    name = row.format_map(defaultdict(str, names)).lstrip("/") or UNKNOWN
                    rows[name][column.format_map(names)] += value
    for one in rows.values():
        if price is not None and "joules" in one:
            one["dollars"] += one["joules"] / JOULES_PER_KWH * price
        if "dollars" in one and (tokens := one.get("prompt", 0.0) + one.get("completion", 0.0)):
            one["per_million"] = one["dollars"] / tokens * 1e6
    table = [{axis: name, **{each: one.get(each) for each in COLUMNS}} for name, one in sorted(rows.items())]
    if form:
        click.echo(formats.dump(table, form))
    else:
        cells = [[str(one[axis]), *(_shown(one[each], each) for each in COLUMNS)] for one in table]
        click.echo(output.table((axis.upper(), *map(str.upper, COLUMNS)), cells, width=output.line_width()))


def _get(http: httpx.Client, url: str, **params: str) -> httpx.Response:
    try:
        return http.get(url, params=params or None).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        fix = "--metrics and --gateway name other addresses; `llmkube up status` shows its own"
        raise CommandError(f"{url} cannot be read: {exc}; {fix}") from exc


def _query(http: httpx.Client, prometheus: str, query: str) -> Iterator[Sample]:
    for one in _get(http, f"{prometheus.rstrip('/')}/api/v1/query", query=query).json()["data"]["result"]:
        yield "", one["metric"], float(one["value"][1])


def _totals(http: httpx.Client, urls: tuple[str, ...], **labels: str) -> Iterator[Sample]:
    for url in urls:
        instance = labels or {"instance": httpx.URL(url).netloc.decode()}
        for family in text_string_to_metric_families(_get(http, url).text):
            yield from ((one.name, {**one.labels, **instance}, one.value) for one in family.samples)


def _engines(http: httpx.Client, gateway: str, running: Mapping[str, Mapping[str, str]]) -> Iterator[Sample]:
    for one in _get(http, f"{gateway}/v1/models").json()["data"]:
        if "meta" in one and "parent" not in one:  # a running engine, by its own name
            namespace, _, service = one["id"].rpartition("/")  # the namespace is left out where the name is unique
            at = running.get(one["id"], {"namespace": namespace, "name": service})
            labels = {"namespace": at["namespace"], "service": at["name"], "node": at.get("instance", "")}
            yield from _totals(http, (f"{gateway}/metrics?model={one['id']}",), **labels)


def _shown(value: Any, column: str) -> str:
    return "" if value is None else f"{value:.4f}" if column in COLUMNS[-2:] else f"{value:.0f}"
