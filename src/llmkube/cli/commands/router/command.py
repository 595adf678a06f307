"""`llmkube router`, which runs a router alone, and `llmkube router explain`, which explains the route of a request."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click

from llmkube.base import json_text
from llmkube.base.errors import UserError
from llmkube.cli.commands.router.routing_file import RoutingFile, load_routing
from llmkube.cli.options import output_option
from llmkube.cli.view import formats
from llmkube.cli.view.output import printable
from llmkube.programs.config import RouterConfig, load
from llmkube.programs.options import HELP, command, guarded, settings_options
from llmkube.router.config.compile_router import ResolvedService
from llmkube.router.config.routing_config import RoutingConfig, Rule
from llmkube.router.policy.decision import Decision, decide, unmet_condition, unmet_requirement, usable_backends
from llmkube.router.policy.permits import Permits, permits_for
from llmkube.router.policy.request_facts import Principal, RequestFacts, facts_of

_KEYS_FOLDER: Final = "/etc/llmkube/keys"


@click.group("router", context_settings=HELP, invoke_without_command=True)
@click.option("-f", "--filename", metavar="FILE", help="File with a ModelRouter or a compiled config.")
@settings_options(RouterConfig)
@click.pass_context
@guarded
def router(ctx: click.Context, /, filename: str | None, **flags: Any) -> None:
    """Run a ModelRouter alone, or explain how it routes a request.

    The router serves one OpenAI-compatible API in front of local engines and external providers, with the rules of a
    ModelRouter. Give the addresses of its InferenceServices with --service, and its keys with --keys-dir.
    """
    if ctx.invoked_subcommand is not None:
        return
    if filename is None:
        raise click.UsageError("-f FILE is missing: specify a file with a ModelRouter or a compiled config", ctx)
    from llmkube.cli.commands.router.serve import serve_router  # noqa: PLC0415 - explain does not need it

    serve_router(filename, load("router", RouterConfig, flags))


@attrs.frozen(kw_only=True)
class Explanation:
    """The explanation of a decision.

    Attributes:
        facts: Facts of the request, one line each.
        rules: The outcome of each rule.
        left_out: The reason for each backend that gets neither the request nor a copy.
    """

    facts: tuple[str, ...]
    rules: Mapping[str, str]
    left_out: Mapping[str, str]


def explain(
    config: RoutingConfig,
    facts: RequestFacts,
    permits: Permits,
    decision: Decision,
    first_byte_seconds: Mapping[str, float],
) -> Explanation:
    """Explain a decision of `decide` from the arguments of the call."""
    rules: dict[str, str] = {}
    decided = not permits.model_allowed
    for rule in config.rules:
        rules[rule.name] = "not evaluated" if decided else _outcome(rule, facts, permits, decision, first_byte_seconds)
        decided = decided or rule is decision.rule
    used = {permit.backend.name for permit in (*decision.order, *decision.shadows)}
    left_out = {
        name: permits.refused.get(name) or _unused(name, decision, permits, first_byte_seconds)
        for name in config.backends
        if name not in used
    }
    return Explanation(facts=tuple(_fact_lines(facts)), rules=rules, left_out=left_out)


def _fact_lines(facts: RequestFacts) -> Iterator[str]:
    yield f"model {facts.model or 'none'}"
    for label, values in (("class", facts.classes), ("region", facts.regions), ("needs", facts.capabilities)):
        yield f"{label} {', '.join(sorted(values)) or 'none'}"
    yield f"complexity {facts.complexity or 'none'}"
    yield f"team {facts.principal.team or 'none'}"


def _outcome(
    rule: Rule, facts: RequestFacts, permits: Permits, decision: Decision, measured: Mapping[str, float]
) -> str:
    """Return the outcome of a rule that was evaluated."""
    if rule is decision.rule:
        return "applies" if decision.order else "applies and refuses the request: it fails closed"
    if unmatched := unmet_condition(rule.match, facts):
        return f"does not match: {unmatched}"
    if usable_backends(rule, permits, measured):
        return "matches but is skipped: its primary backend cannot be used, and a shadow backend never answers"
    return "matches but is skipped: none of its backends can be used"


def _unused(name: str, decision: Decision, permits: Permits, first_byte_seconds: Mapping[str, float]) -> str:
    """Return why a backend that the request may reach is not tried."""
    rule = decision.rule
    if rule is None:
        return "permitted, but no rule and no default route selects it"
    if name not in rule.backends:
        return f"permitted, but not a backend of rule {rule.name}"
    if unmet := unmet_requirement(rule.match, permits.allowed[name], first_byte_seconds):
        return f"permitted, but does not meet a requirement of rule {rule.name}: {unmet}"
    return f"permitted, but only a shadow backend of rule {rule.name}"


@command("explain", router)
@click.option(
    "-f",
    "--filename",
    "name",
    required=True,
    metavar="FILE",
    help="File with a ModelRouter or a compiled config, or - for standard input.",
)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Header of the request; repeatable."
)
@click.option("--model", default=None, metavar="MODEL", help="Model of the request.")
@click.option("--body", default=None, metavar="FILE", help="File with the JSON body; --model replaces its model.")
@click.option("--team", default="", metavar="TEAM", help="Team of the client, as its key or token would give it.")
@click.option(
    "--measured", multiple=True, metavar="BACKEND=SECONDS", help="Measured time to the first byte; repeatable."
)
@click.option("--load", "loads", multiple=True, metavar="BACKEND=COUNT", help="Requests in flight; repeatable.")
@click.option(
    "--pick",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Random number for strategy weighted.",
)
@output_option("json", "yaml")
def explain_request(
    *,
    name: str,
    headers: tuple[str, ...],
    model: str | None,
    body: str | None,
    team: str,
    measured: tuple[str, ...],
    loads: tuple[str, ...],
    pick: float,
    form: str,
) -> None:
    """Explain how a request is routed, without sending it.

    Prints the rule that applies, the backends in order, and why others are left out. Every InferenceService is assumed
    to exist and to be ready.
    """
    file = load_routing(name, _assume_available, keys_folder=_KEYS_FOLDER)
    config = file.config
    for option, given in (("--measured", measured), ("--load", loads)):
        _check_names(option, given, config.backends)
    request = _body(body)
    if model is not None:
        request = {**(request or {}), "model": model}
    facts = facts_of(config, _head_lines(headers), request, Principal(team=team))
    permits = permits_for(config, facts)
    first_byte = dict(_numbers("--measured", measured))
    load = {backend: int(count) for backend, count in _numbers("--load", loads)}
    decision = decide(config, facts, permits, first_byte_seconds=first_byte, pick=pick, load=load)
    explanation = explain(config, facts, permits, decision, first_byte)
    if form:
        click.echo(formats.dump(_as_data(decision, explanation, file), form))
    else:
        click.echo(printable("\n".join(_report(decision, explanation, file))))


def _assume_available(namespace: str, service: str) -> ResolvedService:
    return ResolvedService(base_url=f"http://{service}.{namespace}.svc.cluster.local:8080/v1")


# -- options ----------------------------------------------------------------------------------------------------------


def _head_lines(given: tuple[str, ...]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for number, each in enumerate(given, 1):
        name, colon, value = each.partition(":")
        if not colon or not name.strip():  # the text may be a key, so the message does not quote it
            raise UserError(f"number {number} is not a header; write 'NAME: VALUE'", field="--header")
        key = name.strip().lower()
        lines[key] = f"{lines[key]}, {value.strip()}" if key in lines else value.strip()
    return lines


def _body(name: str | None) -> Mapping[str, Any] | None:
    if name is None:
        return None
    try:
        value = json_text.loads(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    except OSError as exc:
        raise UserError(f"{name} cannot be read: {exc.strerror}", field="--body") from exc
    except (ValueError, RecursionError) as exc:
        raise UserError(f"{name} is not JSON: {exc}; specify the body of a request", field="--body") from exc
    if not isinstance(value, Mapping):
        raise UserError(f"{name} is not a JSON object; specify the body of a request", field="--body")
    return value


def _numbers(option: str, given: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for each in given:
        name, _, number = each.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            raise UserError(f"{each!r} has no number of 0 or more; write BACKEND=NUMBER", field=option)
        yield name, value


def _check_names(option: str, given: tuple[str, ...], backends: Mapping[str, Any]) -> None:
    for each in given:
        name = each.partition("=")[0]
        if name not in backends:
            raise UserError(f"{name!r} is not a backend; use one of {', '.join(backends)}", field=option)


# -- output -----------------------------------------------------------------------------------------------------------


def _report(decision: Decision, explanation: Explanation, file: RoutingFile) -> Iterator[str]:
    yield f"Router {file.config.name}"
    yield "Request"
    yield from (f"  {fact}" for fact in explanation.facts)
    yield "Rules"
    yield from (f"  {rank}. {name}: {why}" for rank, (name, why) in enumerate(explanation.rules.items(), 1))
    if not explanation.rules:
        yield "  none"
    if decision.order:
        yield f"Decided by {decision.why}"
    else:
        yield f"Refused ({decision.reason}): {decision.why}"
    for rank, permit in enumerate(decision.order, 1):
        backend = permit.backend
        limit = f"{decision.first_byte_seconds[backend.name]:g} s for the first byte"
        yield f"  {rank}. {backend.name} ({'local' if backend.local else 'cloud'}): {backend.base_url}, {limit}"
    yield from (f"  copy to {permit.backend.name}" for permit in decision.shadows)
    if explanation.left_out:
        yield "Left out"
        yield from (f"  {name}: {why}" for name, why in explanation.left_out.items())
    yield from (f"Warning: {warning}" for warning in file.warnings)
    yield from (f"Without effect: {path}" for path in file.not_honoured)


def _as_data(decision: Decision, explanation: Explanation, file: RoutingFile) -> dict[str, Any]:
    return {
        "router": file.config.name,
        "request": list(explanation.facts),
        "rules": [{"name": name, "outcome": why} for name, why in explanation.rules.items()],
        "rule": decision.rule.name if decision.rule else None,
        "why": decision.why,
        "reason": decision.reason or None,
        "order": [permit.backend.name for permit in decision.order],
        "shadows": [permit.backend.name for permit in decision.shadows],
        "firstByteSeconds": dict(decision.first_byte_seconds),
        "leftOut": dict(explanation.left_out),
        "warnings": list(file.warnings),
        "notHonoured": list(file.not_honoured),
    }
