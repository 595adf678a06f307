"""`llmkube top`: tokens per second, requests and memory of the engines; live on a terminal, once in a pipe.

Metrics are read from each engine: on this machine from its port with the key in the agent's journal, in a pod through
the API server, and on another host from its address, which only works without a key.
"""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio
from prometheus_client.parser import text_string_to_metric_families

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers
from llmkube.base.package_data import read_table
from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.cli.commands.services.footprint import bytes_of, local_engine
from llmkube.cli.commands.services.logs import logs
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against, state_dirs
from llmkube.cli.view import output
from llmkube.cli.view.live_view import DOWN, UP, is_terminal, show_screen, summarize_outages
from llmkube.cli.view.locations import Engine, Host, find_all_engines, find_hosts
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.port_forward import connect_to_pod
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import host_id, service_name
from llmkube.programs.host_name import stored_host_name
from llmkube.programs.options import NumberRange, command

COLUMNS: Final = ("NAME", "HOST", "TOKENS/S", "PROMPT/S", "RUNNING", "WAITING", "MEMORY")
HOST_COLUMNS: Final = ("HOST", "SERVES", "SERVICES", "BUDGET", "FREE")
ENGINE_SECONDS: Final = 2.0
"""Timeout for the metrics of one engine."""

GENERATED: Final = "generated"
PROMPT: Final = "prompt"
RUNNING: Final = "running"
WAITING: Final = "waiting"
KEYS: Final = "q quit  ↑↓ select  l logs  sort by  n name  t tokens/s  r running  m memory"
NAMES: Final[Mapping[str, str]] = {
    name: figure for engine in read_table(__package__, "engine_metrics").values() for figure, name in engine.items()
}
"""The figure for each sample name, for all engines; the series of a name are summed."""


@attrs.frozen
class EngineSample:
    """Metrics of an engine at one time.

    Attributes:
        at: Time of the sample, in seconds of a monotonic clock.
        figures: By the names of this module; without those that the engine does not report.
    """

    at: float
    figures: Mapping[str, float]


@attrs.frozen
class EngineLoad:
    """Load of an engine between two samples; None for what it does not report.

    Attributes:
        generated: Generated tokens per second.
        prompt: Prompt tokens per second.
        running: Requests in progress.
        waiting: Queued requests.
    """

    generated: float | None = None
    prompt: float | None = None
    running: int | None = None
    waiting: int | None = None


@command("top")
@click.option("--interval", type=NumberRange(min=0.1), default=2.0, help="Seconds between updates. Default: 2.")
@click.option("--once", is_flag=True, help="Print one table and exit, even on a terminal.")
@cluster_options(all_namespaces=True)
@click.pass_context
def top(context: click.Context, /, *, interval: float, once: bool, where: ClusterFlags) -> None:
    """Show tokens per second, requests and memory of the engines, by service and by host.

    On a terminal, q quits, l prints the logs of the selected engine, and the last line lists the other keys. Rates are
    averages between two updates. Figures that this machine cannot read are shown as <none>; run the command
    on the engine's host to see them.
    """
    folders = state_dirs(where, None)

    async def action(cluster: Cluster) -> tuple[int, Key | None]:
        monitor = _Monitor(cluster, None if where.all_namespaces else cluster.namespace, folders)

        async def take() -> None:
            with answer_deadline():
                await monitor.take()

        await take()
        if once or not (is_terminal() and sys.stdin.isatty()):
            await trio.sleep(interval)
            await take()
            click.echo(monitor.text(output.line_width()))
            return 0, None
        ended_by = await show_screen(take, interval, lambda: monitor.screen(output.line_width()), monitor.press)
        return ended_by, monitor.logs_of

    summarize_outages()
    ended_by, key = run_against(where, action)
    if ended_by:
        signal.raise_signal(ended_by)
    if key is not None:
        there = attrs.asdict(attrs.evolve(where, namespace=key.namespace))
        context.invoke(logs, name=key.name, follow=True, lines=20, **there)


@attrs.frozen
class _Target:
    """An engine of a service, and the access to its metrics."""

    key: Key
    engine: Engine
    api_key: str = attrs.field(default="", repr=False)
    pid: int = 0

    @property
    def host(self) -> str:
        """The host or the pod that it runs on."""
        return self.engine.host or (self.engine.pod.name if self.engine.pod is not None else "")


_Row = tuple[_Target, EngineLoad, int]
"""An engine, its load, and its memory in bytes."""


def _by_name(row: _Row) -> tuple[Key, str]:
    return row[0].key, row[0].host


SORT_KEYS: Final[Mapping[str, Callable[[_Row], Any]]] = {
    "n": _by_name,
    "t": lambda row: -(row[1].generated or 0),
    "r": lambda row: -(row[1].running or 0),
    "m": lambda row: -row[2],
}


@attrs.define(eq=False)
class _Monitor:
    """The last sample of each engine, the tables made from the last two, and the row that is selected.

    Attributes:
        logs_of: The service whose logs were asked for.
    """

    cluster: Cluster
    namespace: str | None
    folders: Sequence[Path]
    logs_of: Key | None = None
    _rows: Sequence[_Row] = ()
    _order: Callable[[_Row], Any] = attrs.field(default=_by_name)
    _selected: _Target | None = None
    _hosts: Sequence[Host] | None = None
    _samples: dict[_Target, EngineSample] = attrs.field(factory=dict)

    async def take(self) -> None:
        """Take a sample: services and addresses from the API server, and metrics from each engine."""
        services = (await self.cluster.client.list(InferenceService, namespace=self.namespace)).items
        engines = await find_all_engines(self.cluster, self.namespace)
        self._hosts = await find_hosts(self.cluster, utcnow())
        targets: list[_Target] = []
        for service in services:
            addresses = engines.get(Key(service.key.namespace, service_name(service.key.name)), ())
            targets += await trio.to_thread.run_sync(self._targets, service, addresses)
        new: dict[_Target, tuple[EngineLoad, int]] = {}
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(self._query, target, new)
        self._samples = {target: sample for target, sample in self._samples.items() if target in new}
        self._rows = [(target, *found) for target, found in new.items()]

    def text(self, width: int | None) -> str:
        """Return both tables."""
        if not self._rows:
            where = "any namespace" if self.namespace is None else self.namespace
            services = f"No engine is running in {where}."
        else:
            columns = (*(("NAMESPACE",) if self.namespace is None else ()), *COLUMNS)
            services = output.table(columns, [self._row(*row) for row in self._sorted()], width=width)
        if not self._hosts:
            return services
        return f"{services}\n\n{output.table(HOST_COLUMNS, map(_host_row, self._hosts), width=width)}"

    def screen(self, width: int | None) -> str:
        """Return both tables with the selected row marked, and the keys."""
        head, *lines = self.text(width and width - 2).splitlines()
        chosen = self._chosen()
        marked = [f"{'> ' if number == chosen else '  '}{line}" for number, line in enumerate(lines)]
        return "\n".join([f"  {head}", *marked, "", KEYS])

    def press(self, key: str) -> bool:
        """Handle a key; return whether it ends the display."""
        rows, chosen = self._sorted(), self._chosen()
        if key in {UP, "k", DOWN, "j"} and rows:
            step = -1 if key in {UP, "k"} else 1
            self._selected = rows[min(max(chosen + step, 0), len(rows) - 1)][0]
        elif key in SORT_KEYS:
            self._order = SORT_KEYS[key]
        elif key == "l" and rows:
            self.logs_of = rows[chosen][0].key
            return True
        return key == "q"

    def _sorted(self) -> list[_Row]:
        return sorted(sorted(self._rows, key=_by_name), key=self._order)

    def _chosen(self) -> int:
        """Return the number of the selected row: the first, if its engine is gone."""
        return next((number for number, row in enumerate(self._sorted()) if row[0] == self._selected), 0)

    def _targets(self, service: InferenceService, engines: Sequence[Engine]) -> list[_Target]:
        key = service.key
        found = [_Target(key, each) for each in engines if each.ready]
        record = local_engine(self.folders, key)
        if record is None:
            return found
        own = host_id(stored_host_name(self.folders[0]) or "")
        here = Engine(own or "this machine", record.host, record.port, ready=True)
        local = _Target(key, here, api_key=record.api_key, pid=record.pid)
        return [local, *(each for each in found if each.host != own)]

    async def _query(self, target: _Target, new: dict[_Target, tuple[EngineLoad, int]]) -> None:
        used = await trio.to_thread.run_sync(bytes_of, target.pid) if target.pid else 0
        load = EngineLoad()
        connect: Connect = dial
        if target.engine.pod is not None:
            connect = partial(_to_pod, self.cluster, target.engine.pod)
        headers = Headers.of({"Authorization": f"Bearer {target.api_key}"} if target.api_key else {})
        with trio.move_on_after(ENGINE_SECONDS):
            try:
                async with open_http_client(connect) as http:
                    answer = await http.request("GET", f"http://{target.engine.netloc}/metrics", headers=headers)
                if answer.status == 200:
                    now = parse_metrics(answer.body.decode("utf-8", "replace"), trio.current_time())
                    load = load_between(self._samples.get(target), now)
                    self._samples[target] = now
            except (HttpError, LLMKubeError, OSError, ValueError):
                pass  # the row shows only what is known from the API server
        new[target] = (load, used)

    def _row(self, target: _Target, load: EngineLoad, used: int) -> tuple[str, ...]:
        return (
            *((target.key.namespace,) if self.namespace is None else ()),
            target.key.name,
            target.host,
            _figure(load.generated),
            _figure(load.prompt),
            "" if load.running is None else str(load.running),
            "" if load.waiting is None else str(load.waiting),
            format_bytes(used) if used else "",
        )


async def _to_pod(cluster: Cluster, pod: Key, _host: str, port: int) -> trio.abc.Stream:
    return await connect_to_pod(cluster.client, pod, port)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _host_row(host: Host) -> tuple[str, ...]:
    memory = ("" if each is None else format_bytes(each) for each in (host.budget_bytes, host.free_bytes))
    return (host.name, ",".join(sorted(host.accelerators)), host.services, *memory)


def parse_metrics(text: str, at: float) -> EngineSample:
    """Parse the answer of /metrics.

    Raises:
        ValueError: The text is not in Prometheus' format.
    """
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (figure := NAMES.get(sample.name)) is not None:
                figures[figure] = figures.get(figure, 0.0) + sample.value
    return EngineSample(at, figures)


def load_between(before: EngineSample | None, now: EngineSample) -> EngineLoad:
    """Return the load between two samples; rates are None without an earlier sample, and after a restart."""
    return EngineLoad(
        generated=_rate(before, now, GENERATED),
        prompt=_rate(before, now, PROMPT),
        running=_rounded(now.figures.get(RUNNING)),
        waiting=_rounded(now.figures.get(WAITING)),
    )


def _rate(before: EngineSample | None, now: EngineSample, figure: str) -> float | None:
    if before is None or figure not in now.figures or figure not in before.figures or now.at <= before.at:
        return None
    growth = now.figures[figure] - before.figures[figure]
    return growth / (now.at - before.at) if growth >= 0 else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
