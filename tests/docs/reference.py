"""Write what pages have from code: docs/reference/cli.md, config.md, metrics.md, reasons.md, and a table of engines.md.

Commands come from the parser, keys of `config.toml` from the classes of settings, metrics from the collectors, reasons
from `k8s/wire/reasons.py`. `make reference` runs this module.
"""

import datetime
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from prometheus_client import CollectorRegistry

from llmkube.base.loop_watchdog import LoopWatchdog
from llmkube.base.settings import Setting, settings_of
from llmkube.cli.main import ALIASES, SUBJECTS, cli
from llmkube.controller.metrics import Durations, FleetCollector, ReconcileMetrics
from llmkube.k8s.crd.pairing import RUNTIMES
from llmkube.k8s.wire import reasons
from llmkube.k8s.wire.reasons import Reason
from llmkube.programs.config import TABLES
from llmkube.router.dispatch.circuits import BackendStats
from llmkube.router.health.health_state import CacheUse
from llmkube.router.proxy.metrics import RouterMetrics
from llmkube.router.proxy.router import BackendGauges
from llmkube.router.traces import Traces
from llmkube.router.turns import Turns
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.metrics import agent_registry, power_families
from llmkube.supervisor.power.meter import PowerView
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.host_credential import HostCredential

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
ENGINES = REFERENCE / "engines.md"
_WIDTH = 100
_ENGINES = re.compile(r"(?<=\| keys \|\n\|---\|---\|---\|---\|---\|\n)(?:\|.*\n)+")

CLI_HEAD = """\
# Commands

The output of `--help` for each command, generated from the parser by `make reference`. Exit codes: 0 done, 1 failed,
2 wrong usage, 3 not found, 4 timed out, 130 Ctrl-C, 141 closed pipe. The keys of `config.toml`
are in [config.md](config.md).
"""

CONFIG_HEAD = """\
# config.toml

Every key of `config.toml` in the state directory (`~/.local/share/llmkube`; on a Mac `~/Library/Application
Support/llmkube`), generated from the settings classes by `make reference`. A key is set in the table of its
program, or above all tables for every program that has it. A flag (`--api-port`) overrides the environment
(`LLMKUBE_API_PORT`), which overrides the file, which overrides the default. An unknown key or a wrong value is refused
with its file and its name.

```toml
log_level = "info"        # for every program

[up]
gateway_port = 8081
allow_local_sources = ["/srv/models"]
```
"""

METRICS_HEAD = """\
# Metrics

Every metric of LLMKube's own, generated from the collectors by `make reference`. In addition, the agent, `llmkube up`
and the controller export the process metrics of Prometheus' client (`process_*`, `python_*`). Engines have metrics of
their own. [helm.md](../guides/helm.md#monitoring) describes scraping, dashboards and alerts.

## Cost

`llmkube cost --by team|model|host` adds up tokens, energy and dollars. Figures that no program has are empty in the
table, and null with `-o json`.

```console not run: it needs a Prometheus, or a running llmkube up
$ llmkube cost --by team --prometheus http://prometheus:9090 --since 30d
$ llmkube cost --by model                 # without Prometheus: totals since the start of each program
```

* **By team**: requests through ModelRouters and the front door of a cluster. The default route of `llmkube up` does
  not read answers, so its requests have no team.
* **By model**: a row for each backend of a router (tokens as reported, dollars at its `costPerMillionTokens`), and
  one for each service (tokens as counted by its engine, from all clients, and the energy that its host's agent has
  measured). A request through a router to a service of ours is in both rows, so do not add them.
* **By host**: the tokens of the engines on it, and the energy of each agent's host with `--power-enabled` or
  `--apple-power-enabled` ([power.md](../guides/power.md)). In Prometheus the host of tokens is the label `node`, set by
  LLMKube's monitors: the node's name for pods, the address for engines of agents. That of energy is `instance`; to have
  both in one row, give the target of the agent that address as `instance`. Without Prometheus, an engine is assigned to
  the program in `--metrics` that runs it, otherwise to `unknown`. Tokens of ModelRouters are not counted by host.
* `per_million`: dollars per million tokens of a row, at the prices of ModelRouters and for energy at `--price-per-kwh`.
* Without `--prometheus`, `--metrics URL` (repeatable) names the programs to read: by default the probe port of
  `llmkube up`; an agent's or a router's is another. `--gateway` is the address of `llmkube up`'s gateway, whose
  engines are read: one for each service.
* Cached tokens are part of the prompt. llama.cpp and routers report them; vLLM's, SGLang's and TGI's are not shown.

## Metrics

A counter's name ends in `_total`; a histogram has the series `_bucket`, `_sum` and `_count`.

| metric | type | labels | meaning | exported by |
|---|---|---|---|---|
"""

REASONS_HEAD = """\
# Conditions and reasons

Every `reason` of LLMKube's conditions, generated from `k8s/wire/reasons.py` by `make reference`, by condition type.
Reasons of the kubelet and the scheduler for pods are passed on unchanged. For fixes for the common ones, see
[troubleshooting.md](../guides/troubleshooting.md).

| meaning | what to do |
|---|---|
"""


def pages() -> dict[Path, str]:
    """Return the pages as the code wants them."""
    return {
        REFERENCE / "cli.md": CLI_HEAD + "".join(_commands()),
        REFERENCE / "config.md": CONFIG_HEAD + "".join(_tables()),
        REFERENCE / "metrics.md": METRICS_HEAD + "".join(_metrics()),
        REFERENCE / "reasons.md": REASONS_HEAD + "".join(_reasons()),
        ENGINES: _ENGINES.sub(lambda _: "".join(_engines()), ENGINES.read_text("utf-8")),
    }


def _engines() -> Iterator[str]:
    """Yield a row of the table for each runtime of hosts."""
    for runtime in HOST_RUNTIMES.values():
        facts = RUNTIMES[runtime.name]
        where = "every host"
        if facts.hardware:
            where = "Macs; with `accelerator: cpu` also Linux" if "cpu" in facts.hardware else "Macs (`metal`)"
        named = f", `{runtime.program.setting} PATH`" if runtime.program.setting else ""
        program = f"`{runtime.program.command}`{named}" if runtime.program.command else "that of `[engines.NAME]`"
        yield _row(
            (
                ", ".join(f"`{name}`" for name in (runtime.name, *runtime.other_names)),
                program,
                ", ".join(f"`{each}`" for each in facts.hosts),
                where,
                f"checked by {runtime.keys_checked_by}",
            )
        )


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command of the program with its subcommands behind it, by the words that call it."""
    root = click.Context(cli, info_name="llmkube", terminal_width=_WIDTH, max_content_width=_WIDTH)
    for subject in SUBJECTS.values():
        for name in subject:
            yield from _below(cli, name, root)


def _below(group: click.Group, name: str, parent: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH)
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _below(command, each, context)


def _commands() -> Iterator[str]:
    subjects = {name: subject for subject, group in SUBJECTS.items() for name in group}
    shown = ""
    for path, command, context in commands():
        subject = subjects[path.split()[1]]
        if subject != shown:
            shown = subject
            yield f"\n## {subject}\n"
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        yield f"\n### {path}\n\n```text\n{text}\n```\n"
    yield "\n## Other names\n\n| command | the same as |\n|---|---|\n"
    yield from (_row((f"`llmkube {alias}`", f"`llmkube {name}`")) for alias, name in ALIASES.items())


def _tables() -> Iterator[str]:
    for table, kind in TABLES.items():
        yield f"\n## [{table}]\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
        for each in settings_of(kind):
            if each.in_file and not each.removed:
                row = (f"`{each.name}`", _type(each), _default(table, each), _allowed(each), each.help)
                yield _row(row)


def _type(each: Setting) -> str:
    kinds = {str: "text", Path: "path", int: "whole number", float: "number", bool: "true or false", Mapping: "table"}
    return kinds.get(each.type, "list of texts")


def _default(table: str, each: Setting) -> str:
    if each.type is Mapping:
        return ""
    if (table, each.name) == ("up", "accelerator"):
        return 'detected; on a Mac `["cpu", "metal"]`'
    match each.default:
        case None | "" | ():
            return ""
        case bool() as value:
            return f"`{str(value).lower()}`"
        case tuple() as values:
            return f"`{json.dumps(values)}`"
        case str() as value:
            return f'`"{value}"`'
        case value:
            return f"`{value}`"


def _allowed(each: Setting) -> str:
    if each.choices:
        return ", ".join(f"`{choice}`" for choice in each.choices)
    bounds = [f"{word} {bound}" for word, bound in (("from", each.minimum), ("to", each.maximum)) if bound is not None]
    return " ".join(bounds)


class _NothingServed:
    """A host without services: its families are there, and no series."""

    def services(self) -> dict[Any, Any]:
        return {}

    def get(self, key: Any) -> None:
        """Return no object."""

    def values(self) -> tuple[()]:
        return ()


def router_gauges(use: CacheUse | None = None) -> BackendGauges:
    """Return the gauges of a router `r` with one backend `b`, whose engine says how full its KV cache is."""
    config = SimpleNamespace(backends={"b": SimpleNamespace(local=True, base_url="", model="")}, engines={})
    router = SimpleNamespace(
        live=SimpleNamespace(routing=SimpleNamespace(config=config), problem=""),
        calls=SimpleNamespace(turns=Turns(), stats=BackendStats()),
        listed_fields=SimpleNamespace(metrics=SimpleNamespace(router="r")),
        unavailable_reason=lambda _: "",
        budgets=list,
    )
    return BackendGauges(router, lambda _: use)


def families() -> Iterator[tuple[Any, str]]:
    """Yield each family of every collector, with its labels in `_labelnames`, and the programs that export it."""
    agent, controller = "agent, `up`", "controller, `up`"
    nothing, registry = _NothingServed(), CollectorRegistry()
    memory = MemoryView(Level.NORMAL, Sample(1 << 36, 1 << 35, Level.NORMAL), host_budget(1 << 36), 0, (), (), {}, {})
    power = PowerView(dict.fromkeys(("combined", "cpu", "gpu", "ane"), 0.0), {"cpu": 0.0})
    credential, cordon = HostCredential(expires_at=0.0), Cordon(datetime.datetime.now(datetime.UTC))
    of_agent = agent_registry(
        nothing.services, dict, lambda: memory, lambda: power, lambda: credential, cordon=lambda: cordon
    )
    for family in of_agent.collect():
        if family.name.startswith("llmkube_"):
            by = "agent" if re.search("_power_|_energy_|_per_token", family.name) else agent
            yield family, "agent on a Mac" if "_apple_" in family.name else by
    for family in list(power_families(lambda: PowerView(source="rapl")))[:2]:
        yield family, "agent on Linux"
    yield from ((family, controller) for family in FleetCollector(nothing, nothing, nothing, nothing, {}, {}).collect())
    work, durations, watchdog = ReconcileMetrics(registry), Durations(registry), LoopWatchdog()
    for metric in (work.total, work.duration_seconds, durations.download_seconds, durations.ready_seconds):
        yield metric, controller
    for metric in (watchdog.lag, watchdog.stalls):
        yield metric, "all programs"
    traces = Traces(lambda *_: True, lambda *_: True, lambda: datetime.datetime.now(datetime.UTC), random.Random(1))
    yield from ((family, "router, `up`, with traces") for family in traces.collect())
    of_router = RouterMetrics(registry, "ns/name")
    of_routers = [*vars(of_router).values(), *vars(of_router.genai).values()]
    for metric in (*(each for each in of_routers if hasattr(each, "collect")), *router_gauges().collect()):
        yield metric, "router, `up`"


def _metrics() -> Iterator[str]:
    for metric, by in families():
        (family,) = metric.collect() if hasattr(metric, "collect") else (metric,)
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        names = ("version",) if family.type == "info" else metric._labelnames
        labels = ", ".join(f"`{label}`" for label in names)
        yield _row((f"`{name}`", family.type, labels, family.documentation, by))


def _reasons() -> Iterator[str]:
    source = Path(reasons.__file__).read_text(encoding="utf-8")
    for name, text in re.findall(r'^    ([A-Z]+) = enum\.auto\(\)\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL):
        yield _row((_word(name), text))
    body = source.partition("class Reason(")[2]
    for line in body.splitlines():
        if heading := re.fullmatch(r"    # (.*)", line):
            yield f"\n## {_capital(heading[1])}\n\n| reason | meaning |\n|---|---|\n"
        elif member := re.fullmatch(r"    ([A-Z_]+) = .*", line):
            reason = Reason[member[1]]
            yield _row((f"`{reason.value}`", _word(reason.meaning.name)))


def _capital(text: str) -> str:
    return re.sub(r" \(docs/.*\)", "", text[:1].upper() + text[1:])


def _word(name: str) -> str:
    return name.lower()


def _row(cells: tuple[str, ...]) -> str:
    shown = " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells)
    return f"| {shown} |\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(text.split())} words\n")
