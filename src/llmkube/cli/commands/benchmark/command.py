"""`llmkube benchmark` and `llmkube benchmark compare`."""

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio

from llmkube import __version__
from llmkube.base.http.client import open_http_client
from llmkube.base.http.dial import Connect, TlsDialer, dial
from llmkube.base.http.message import Headers, netloc
from llmkube.base.http.outbound import trusted_context
from llmkube.base.units import format_duration
from llmkube.cli.commands.benchmark.load import Load, Prompts, Target, calibrate, run_load
from llmkube.cli.commands.benchmark.results import FORMAT, METRICS, PERCENTILES, TIMES, Change, compare, label_of
from llmkube.cli.commands.inference.chat import read_key_file
from llmkube.cli.commands.inference.conversation import with_connect_timeout
from llmkube.cli.commands.inference.launch import find_served
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import ANSWER_SECONDS, ClusterFlags, run_against
from llmkube.cli.view.output import line_width, printable, table, wrapped
from llmkube.cli.view.svg import Bar, chart
from llmkube.programs.failures import CommandError
from llmkube.programs.options import HELP, NumberRange, command, guarded, with_options
from llmkube.weights.urls import BadUrlError, WebUrl, parse_url

KEY_VARIABLE: Final = "LLMKUBE_BENCHMARK_KEY"
_BUSY_SHARE: Final = 0.8
_LATE_SECONDS: Final = 0.02


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers of one type, separated by commas."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            found = value if isinstance(value, tuple) else tuple(self.kind(each) for each in value.split(","))
        except ValueError:
            found = ()
        if not found or not all(0 < each < 1e7 for each in found):
            self.fail(f"{value!r} is not a list of numbers above 0, such as 1,4,16", param, ctx)
        return found


_COUNT, _FROM_ZERO, _FILE = click.IntRange(1), click.IntRange(0), click.Path(path_type=Path)
_WRITTEN: Final = click.File("w", encoding="utf-8", lazy=False, atomic=True)  # opened before the measurement
_OPTIONS: Final[tuple[tuple[str, Any, Any, str, str], ...]] = (
    ("--url", str, None, "URL", "Address with OpenAI's API. Default: the gateway of the running `llmkube up`."),
    ("--key-file", _FILE, None, "FILE", f"File with the API key to send. Default: the variable {KEY_VARIABLE}."),
    ("--concurrency", _Numbers(int), None, "N,…", "Closed loop: so many requests at a time.  [default: 1]"),
    ("--rate", _Numbers(float), None, "N,…", "Open loop: so many requests arrive per second."),
    ("--requests", _COUNT, 32, "N", "Requests of each load.  [default: 32]"),
    ("--seconds", NumberRange(min=0), 0.0, "N", "Start requests for N seconds instead."),
    ("--prompt-tokens", _COUNT, 256, "N", "Length of prompts.  [default: 256]"),
    ("--answer-tokens", _COUNT, 64, "N", "Longest answer.  [default: 64]"),
    ("--sweep", _Numbers(int), None, "N,…", "Lengths of prompts, one load for each."),
    ("--shared-prefix", _FROM_ZERO, 0, "N", "Tokens at the start that all prompts share. Default: 0, no cache helps."),
    ("--seed", _FROM_ZERO, 0, "N", "Seed of arrivals and words.  [default: 0]"),
    ("--timeout", NumberRange(min=1), 600.0, "SECONDS", "Longest time of a request.  [default: 600]"),
    ("--out", _WRITTEN, None, "FILE", "Write the figures as JSON."),
    ("--svg", _WRITTEN, None, "FILE", "Write a chart."),
)


@click.group("benchmark", context_settings=HELP, invoke_without_command=True)
@click.option("--model", metavar="NAME", shell_complete=services, help="Model to ask. Default: the only one that runs.")
@with_options(
    *(
        click.option(name, type=kind, default=value, metavar=word, help=text)
        for name, kind, value, word, text in _OPTIONS
    )
)
@click.option("--ignore-eos", is_flag=True, help="Make every answer as long as --answer-tokens (llama.cpp, vLLM).")
@cluster_options()
@click.pass_context
@guarded
def benchmark(ctx: click.Context, /, *, url: str | None, model: str | None, where: ClusterFlags, **flags: Any) -> None:
    """Measure a model's speed under load: time to the first token, between tokens, tokens per second, errors.

    Answers are streamed. Two short requests precede the measurement: they load the model, and show how many tokens a
    word has. Exits with 1 if no request of a load succeeded.
    """
    if ctx.invoked_subcommand is not None:
        return
    if flags["concurrency"] and flags["rate"]:
        raise click.UsageError("--concurrency is a closed loop and --rate an open one; choose one")
    if url is None:
        find = functools.partial(find_served, namespace=where.namespace, wanted=model)
        served = run_against(where, find, seconds=ANSWER_SECONDS)
        url, model = served.url, served.model
    elif model is None:
        raise click.UsageError("--url needs --model, the model to ask")
    try:
        address, user_info = parse_url(url)
    except BadUrlError as error:
        raise click.UsageError(f"--url: {error}; write http://HOST:PORT or https://HOST") from error
    if user_info is not None:
        raise click.UsageError("--url has a user or a password; pass a key with --key-file")
    key = read_key_file(flags["key_file"], "--key-file") if flags["key_file"] else os.environ.get(KEY_VARIABLE, "")
    name = "rate" if flags["rate"] else "concurrency"
    kinds = [{name: each} for each in flags[name] or (1,)]
    sizes = flags["sweep"] or (flags["prompt_tokens"],)
    loads = [Load(size, flags["requests"], seconds=flags["seconds"], **kind) for size in sizes for kind in kinds]
    prompts = Prompts(model, flags["answer_tokens"], flags["shared_prefix"], flags["ignore_eos"], flags["seed"])
    run = trio.run(_run, address, key, prompts, loads, flags["timeout"])
    for name, text in (("out", json.dumps(run, indent=1)), ("svg", as_svg(run))):
        if flags[name]:
            flags[name].write(text)
    click.echo("\n".join(as_lines(run)))
    if not all(each["succeeded"] for each in run["loads"]):
        sys.exit(1)


@command("compare", benchmark)
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--limit", type=NumberRange(min=1), default=1.1, metavar="FACTOR",
              help="Exit with 1 if a median or a p95 is worse by more than this factor.  [default: 1.1]")  # fmt: skip
def compare_runs(*, before: Path, after: Path, limit: float) -> None:
    """Compare two files that --out has written: AFTER by BEFORE, with 95 % intervals.

    A figure is worse if its ratio is beyond --limit and its interval does not contain 1.
    """
    changes = list(compare(_read(before), _read(after), limit))
    if not changes:
        raise CommandError(f"{before} and {after} have no load in common; measure both with the same options")
    columns = ("LOAD", "METRIC", "BEFORE", "AFTER", "RATIO", "95 %", "")
    click.echo(table(columns, map(_row, changes), width=line_width()))
    if worse := sum(each.is_worse for each in changes):
        raise CommandError(f"{worse} of {len(changes)} figures are worse by more than {limit:g}")


def _read(path: Path) -> Any:
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} was not written by `llmkube benchmark --out` of this version ({error!r})"
        ) from error
    return found


async def _run(url: WebUrl, key: str, prompts: Prompts, loads: Sequence[Load], limit: float) -> dict[str, Any]:
    connect: Connect = with_connect_timeout(dial)
    if url.scheme == "https":
        connect = TlsDialer(await trio.to_thread.run_sync(trusted_context), connect=connect)
    headers = Headers.of({"Host": url.netloc, "Content-Type": "application/json"})
    headers = headers.with_("Authorization", f"Bearer {key}") if key else headers
    kept = max(load.concurrency or 64 for load in loads)
    async with open_http_client(connect, max_idle_per_origin=kept, max_idle=kept) as http:
        path = f"{url.path.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        address = f"http://{netloc((url.host, url.port))}{path}"  # TLS is below the client
        target = Target(http, address, headers, limit)
        prompts = await calibrate(target, prompts)
        found = []
        for load in loads:
            found.append(await run_load(target, prompts, load))
            click.echo(f"{label_of(found[-1])}: {format_duration(found[-1]['seconds'])}", err=True)
    facts = {"answerTokens": prompts.answer_tokens, "sharedPrefix": prompts.shared_tokens, "seed": prompts.seed}
    measured = {"tokensPerWord": prompts.tokens_per_word, "run": prompts.run, "version": __version__}
    return {"format": FORMAT, "url": str(url), "model": prompts.model, **facts, **measured, "loads": found}


def as_lines(run: Mapping[str, Any]) -> list[str]:
    """Return the figures of a run as lines of text."""
    lines = [printable(f"{run['model']} at {run['url']}, answers of at most {run['answerTokens']} tokens")]
    for point in run["loads"]:
        rate, prompt = point["answerTokensPerSecond"], point["meanPromptTokens"]
        tokens = f"{prompt:.0f}+{point['meanAnswerTokens']:.0f} tokens each (counted by {point['tokensCountedBy']})"
        lines += ["", f"{label_of(point)}: {point['succeeded']} of {point['requests']} succeeded, {tokens}"]
        lines.append(f"  together {rate:.1f} tokens/s, {point['requestsPerSecond']:.2f} requests/s")
        known = [name for name in METRICS if point[name]]
        rows = [(METRICS[name], *(_show(name, point[name][f"p{each}"]) for each in PERCENTILES)) for name in known]
        if rows:
            lines += [f"  {line}" for line in table(("", *(f"p{each}" for each in PERCENTILES)), rows).split("\n")]
        for kind, error in point["errors"].items():
            lines.append(wrapped(f"  {error['count']} of these: {kind}: {error['example']}"))
        if point["client"]["cpuShare"] > _BUSY_SHARE or point["client"]["lateP99"] > _LATE_SECONDS:
            late, share = format_duration(point["client"]["lateP99"]), point["client"]["cpuShare"]
            lines.append(
                f"  Note: this program was busy ({share:.0%} of a core, requests up to {late} late): use less load."
            )
    return lines


def _show(metric: str, value: float) -> str:
    return f"{value:.1f}" if metric == "tokensPerSecond" else format_duration(value)


def _row(each: Change) -> tuple[str, ...]:
    values = [_show(each.metric, value) for value in (each.before, each.after)]
    ratio, name = f"{each.ratio:.2f}", f"{METRICS[each.metric]} p{each.percent}"
    return each.load, name, *values, ratio, f"{each.low:.2f}-{each.high:.2f}", "worse" if each.is_worse else " "


def as_svg(run: Mapping[str, Any]) -> str:
    """Return the figures of a run as a chart."""
    rates = [(label_of(each), each["answerTokensPerSecond"]) for each in run["loads"]]
    bars = [Bar(label, [("", rate)], f"{rate:.1f} tokens/s") for label, rate in rates]
    sections = [("Tokens per second of all answers", bars)]
    for name in TIMES:
        bars = [_bar_of_times(label_of(each), each[name]) for each in run["loads"] if each[name]]
        sections.append((f"Time: {METRICS[name]}, p50 and p95", bars))
    return chart(f"{run['model']} at {run['url']}", sections)


def _bar_of_times(label: str, found: Mapping[str, float]) -> Bar:
    median, slow = found["p50"], found["p95"]
    text = f"{format_duration(median)}, {format_duration(slow)}"
    return Bar(label, [("p50", median), ("p95", slow - median)], text)
