"""`llmkube top`: what the engines do now: tokens per second, requests, memory; live on a terminal, once in a pipe.

An engine is asked in the way that this machine has to it: one of this machine at its own port with the key that its
agent keeps, a pod through the API server, another host's at its address, where that answers without a key.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import trio
from prometheus_client.parser import text_string_to_metric_families

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers
from llmkube.base.mailbox import Mailbox
from llmkube.base.tables import read_table
from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.cli.commands.services.footprint import bytes_of, local_engine
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import Cluster, Where, answering, run_against, state_dirs
from llmkube.cli.view import output
from llmkube.cli.view.live_view import is_terminal, show_in_place, watch_quietly
from llmkube.cli.view.locations import Engine, Host, find_all_engines, find_hosts
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.port_forward import connect_to_pod
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import host_id, service_name
from llmkube.programs.host_name import host_name_in
from llmkube.programs.options import NumberRange, command

COLUMNS: Final = ("NAME", "HOST", "TOKENS/S", "PROMPT/S", "RUNNING", "WAITING", "MEMORY")
HOST_COLUMNS: Final = ("HOST", "SERVES", "SERVICES", "BUDGET", "FREE")
ENGINE_SECONDS: Final = 2.0
"""How long one engine may take to say what it does."""

GENERATED: Final = "generated"
PROMPT: Final = "prompt"
RUNNING: Final = "running"
WAITING: Final = "waiting"
NAMES: Final[Mapping[str, str]] = {
    name: figure for engine in read_table(__package__, "engine_metrics").values() for figure, name in engine.items()
}
"""Which sample of which engine says what; several series of one name are added up."""


@attrs.frozen
class Work:
    """One look at an engine.

    Attributes:
        at: When, in seconds of any clock that only goes forward.
        figures: By the words of this module; what the engine does not say is missing.
    """

    at: float
    figures: Mapping[str, float]


@attrs.frozen
class Pace:
    """What an engine did between two looks; None where it does not say.

    Attributes:
        generated: Tokens per second that it made.
        prompt: Tokens per second that it read.
        running: Requests that it works on now.
        waiting: Requests that wait for it now.
    """

    generated: float | None = None
    prompt: float | None = None
    running: int | None = None
    waiting: int | None = None


@command("top")
@click.option("--interval", type=NumberRange(min=0.1), default=2.0, help="Seconds between two looks. Default: 2.")
@click.option("--once", is_flag=True, help="Print one table and end, also on a terminal.")
@cluster_options(all_namespaces=True)
def top(*, interval: float, once: bool, where: Where) -> None:
    """Show what the engines do: tokens per second, requests, memory, by service and by host.

    Rates are those between two looks. What an engine does not tell this machine reads <none>: run it on its host.
    """
    folders = state_dirs(where, None)

    async def action(cluster: Cluster) -> None:
        look = _Look(cluster, None if where.all_namespaces else cluster.namespace, folders)
        with answering():
            await look.take()
        if once or not is_terminal():
            await trio.sleep(interval)
            with answering():
                await look.take()
            click.echo(look.text(output.line_width()))
            return

        async def text() -> str:
            if trio.current_time() - look.taken_at >= interval:
                with answering():
                    await look.take()
            return look.text(output.line_width())

        await show_in_place(Mailbox(None), text)

    watch_quietly()
    run_against(where, action)


@attrs.frozen
class _Place:
    """One engine of a service, and how it is asked."""

    key: Key
    engine: Engine
    api_key: str = attrs.field(default="", repr=False)
    pid: int = 0

    @property
    def host(self) -> str:
        """Where it runs: a host, or a pod."""
        return self.engine.host or (self.engine.pod.name if self.engine.pod is not None else "")


@attrs.define(eq=False)
class _Look:
    """What was seen at the last two looks."""

    cluster: Cluster
    namespace: str | None
    folders: Sequence[Path]
    taken_at: float = 0.0
    _rows: Sequence[tuple[str, ...]] = ()
    _hosts: Sequence[Host] | None = None
    _work: dict[_Place, Work] = attrs.field(factory=dict)

    async def take(self) -> None:
        """Ask the API server for services and addresses, and each engine for what it does."""
        services = (await self.cluster.client.list(InferenceService, namespace=self.namespace)).items
        engines = await find_all_engines(self.cluster, self.namespace)
        self._hosts = await find_hosts(self.cluster, utcnow())
        places: list[_Place] = []
        for service in services:
            behind = engines.get(Key(service.key.namespace, service_name(service.key.name)), ())
            places += await trio.to_thread.run_sync(self._places, service, behind)
        seen: dict[_Place, tuple[Pace, int]] = {}
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(self._ask, place, seen)
        self._work = {place: work for place, work in self._work.items() if place in seen}
        self._rows = [self._row(place, *seen[place]) for place in sorted(seen, key=lambda each: (each.key, each.host))]
        self.taken_at = trio.current_time()

    def text(self, width: int | None) -> str:
        """Return both tables."""
        if not self._rows:
            where = "any namespace" if self.namespace is None else self.namespace
            services = f"No engine runs for an InferenceService in {where}."
        else:
            columns = (*(("NAMESPACE",) if self.namespace is None else ()), *COLUMNS)
            services = output.table(columns, self._rows, width=width)
        if not self._hosts:
            return services
        return f"{services}\n\n{output.table(HOST_COLUMNS, map(_host_row, self._hosts), width=width)}"

    def _places(self, service: InferenceService, engines: Sequence[Engine]) -> list[_Place]:
        key = service.key
        found = [_Place(key, each) for each in engines if each.ready]
        record = local_engine(self.folders, key)
        if record is None:
            return found
        own = host_id(host_name_in(self.folders[0]) or "")
        here = Engine(own or "this machine", record.host, record.port, ready=True)
        mine = _Place(key, here, api_key=record.api_key, pid=record.pid)
        return [mine, *(each for each in found if each.host != own)]

    async def _ask(self, place: _Place, seen: dict[_Place, tuple[Pace, int]]) -> None:
        used = await trio.to_thread.run_sync(bytes_of, place.pid) if place.pid else 0
        pace = Pace()
        connect: Connect = dial
        if place.engine.pod is not None:
            connect = partial(_to_pod, self.cluster, place.engine.pod)
        headers = Headers.of({"Authorization": f"Bearer {place.api_key}"} if place.api_key else {})
        with trio.move_on_after(ENGINE_SECONDS):
            try:
                async with open_http_client(connect) as http:
                    answer = await http.request("GET", f"http://{place.engine.netloc}/metrics", headers=headers)
                if answer.status == 200:
                    now = read_work(answer.body.decode("utf-8", "replace"), trio.current_time())
                    pace = pace_of(self._work.get(place), now)
                    self._work[place] = now
            except (HttpError, LLMKubeError, OSError, ValueError):
                pass  # it says nothing to us: the row has what the objects say
        seen[place] = (pace, used)

    def _row(self, place: _Place, pace: Pace, used: int) -> tuple[str, ...]:
        return (
            *((place.key.namespace,) if self.namespace is None else ()),
            place.key.name,
            place.host,
            _figure(pace.generated),
            _figure(pace.prompt),
            "" if pace.running is None else str(pace.running),
            "" if pace.waiting is None else str(pace.waiting),
            format_bytes(used) if used else "",
        )


async def _to_pod(cluster: Cluster, pod: Key, _host: str, port: int) -> trio.abc.Stream:
    return await connect_to_pod(cluster.client, pod, port)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _host_row(host: Host) -> tuple[str, ...]:
    memory = ("" if each is None else format_bytes(each) for each in (host.budget_bytes, host.free_bytes))
    return (host.name, ",".join(sorted(host.accelerators)), host.services, *memory)


def read_work(text: str, at: float) -> Work:
    """Read the answer of /metrics.

    Raises:
        ValueError: It is none.
    """
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (word := NAMES.get(sample.name)) is not None:
                figures[word] = figures.get(word, 0.0) + sample.value
    return Work(at, figures)


def pace_of(before: Work | None, now: Work) -> Pace:
    """Return what happened between two looks; without an earlier one, or after a restart, no rate is known."""
    return Pace(
        generated=_rate(before, now, GENERATED),
        prompt=_rate(before, now, PROMPT),
        running=_whole(now.figures.get(RUNNING)),
        waiting=_whole(now.figures.get(WAITING)),
    )


def _rate(before: Work | None, now: Work, word: str) -> float | None:
    if before is None or word not in now.figures or word not in before.figures or now.at <= before.at:
        return None
    grown = now.figures[word] - before.figures[word]
    return grown / (now.at - before.at) if grown >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
