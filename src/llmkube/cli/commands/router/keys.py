"""`llmkube keys`: keys for clients. Their digests are stored in a Secret, which routers and gateways read.

A key is printed once, when it is issued, and stored nowhere.
"""

import base64
import datetime
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.times import utcnow
from llmkube.base.units import parse_duration
from llmkube.cli.object_names import find
from llmkube.cli.options import cluster_options, output_option
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, run_against
from llmkube.cli.view import formats, output
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.errors import AlreadyExistsError, ConflictError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, command
from llmkube.programs.router_host.secret_files import key_texts
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.issued_keys import ISSUED_IN, NAME, IssuedKey, parse_key_file, parse_key_line, shown_time

FIELD_MANAGER: Final = "llmkube-keys"
RETRY_SECONDS: Final = 0.1
"""Pause after a conflict with another writer of the Secret."""

Texts = dict[str, str]
"""Content of each team's entry."""


@click.group("keys", context_settings=HELP)
def keys() -> None:
    """Issue, list and revoke keys for the clients of routers and gateways."""


_secret_option: Final = click.option(
    "--secret", metavar="NAME", default=ISSUED_IN, show_default=True, help="Secret of the keys."
)


@command("issue", keys)
@click.option("--for", "name", metavar="NAME", required=True, help="Holder of the key: a person or a program.")
@click.option("--team", default="clients", show_default=True, help="Team of the holder, for budgets and policy.")
@click.option("--models", metavar="A,B", help="Models that the key may use; * for any text. Default: every model.")
@click.option("--until", metavar="DATE|DURATION", help="Last day (UTC), or time until expiry. Default: no expiry.")
@_secret_option
@cluster_options()
def issue(*, name: str, team: str, models: str | None, until: str | None, secret: str, where: ClusterFlags) -> None:
    """Create a key, print it once on standard output, and store its digest in a Secret.

    ModelRouters read the Secret that spec.policy.auth.keysSecretRef names; `llmkube up --listen` reads llmkube-keys in
    the namespace default.
    """
    for field, value in (("--for", name), ("--team", team)):
        if not NAME.fullmatch(value):
            raise UserError(f"{value!r} is not a name; use up to 63 letters, digits, dots, _ and -", field=field)
    key = f"llmk_{secrets.token_urlsafe(32)}"
    patterns = () if models is None else tuple(models.replace(" ", "").split(","))
    expiry = math.inf if until is None else expiry_of(until, utcnow())
    record = IssuedKey(digest=digest_of_key(key), name=name, models=patterns, until=expiry)
    try:
        parse_key_line(record.line)
    except ValueError as exc:
        raise UserError(f"--{exc}") from None

    def add(texts: Texts) -> None:
        if any(one.name == name and utcnow().timestamp() < one.until for _, one in _keys_in(texts)):
            raise CommandError(f"{name} has a key; revoke it first, or issue one for another name, such as {name}-2")
        _remove(texts, name)  # an expired one
        texts[team] = f"{texts.get(team, '').rstrip()}\n{record.line}\n".lstrip()

    run_against(where, lambda cluster: _edit(cluster, secret, add), changes=True, seconds=ANSWER_SECONDS)
    click.echo(key)
    allowed, expires = ", ".join(patterns) or "every model", _shown(record)
    text = f"{name} of team {team} may use {allowed} {f'until {expires}' if expires else 'without expiry'}."
    click.echo(output.wrapped(f"This key is not shown again. {text}", err=True), err=True)


@command("list", keys)
@_secret_option
@cluster_options()
@output_option("json", "yaml")
def list_keys(*, secret: str, where: ClusterFlags, form: str) -> None:
    """List the holders of keys, with their models and expiry; keys themselves are not stored."""

    async def action(cluster: Cluster) -> Texts:
        return key_texts(await find(cluster.client, Secret, Key(cluster.namespace, secret)))

    now = utcnow().timestamp()
    rows = [_as_data(team, each, now) for team, each in _keys_in(run_against(where, action, seconds=ANSWER_SECONDS))]
    if form:
        click.echo(formats.dump(rows, form))
    elif rows:
        cells = [[one["for"], one["team"], ",".join(one["models"]) or "*", one["until"], one["state"]] for one in rows]
        click.echo(output.table(("FOR", "TEAM", "MODELS", "UNTIL", "STATE"), cells, width=output.line_width()))
    else:
        click.echo(f"Secret {secret} has no keys.", err=True)


@command("revoke", keys)
@click.argument("name")
@_secret_option
@cluster_options()
def revoke(*, name: str, secret: str, where: ClusterFlags) -> None:
    """Revoke the keys of a holder.

    New requests are refused as soon as the readers of the Secret have read it again: after about a second in `llmkube
    up`, and after the kubelet's next sync (a minute or so) in pods. Answers under way are completed.
    """

    def remove(texts: Texts) -> None:
        if not _remove(texts, name):
            raise CommandError(f"{name} has no key in Secret {secret}; see `llmkube keys list`", ExitCode.NOT_FOUND)

    run_against(where, lambda cluster: _edit(cluster, secret, remove), changes=True, seconds=ANSWER_SECONDS)
    click.echo(f"The key for {name} is revoked.")


def expiry_of(text: str, now: datetime.datetime) -> float:
    """Return the expiry for a date, whose day is included, or a duration, in seconds since 1970.

    Raises:
        UserError: It is neither, or has passed.
    """
    try:
        day = datetime.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=datetime.UTC)
        expiry = (day + datetime.timedelta(days=1)).timestamp()
    except (ValueError, OverflowError):
        if text.isdigit():
            raise UserError(f"{text!r} has no unit; write 30d or 2027-01-31", field="--until") from None
        expiry = float(int(now.timestamp() + parse_duration(text, field="--until")))
    if not now.timestamp() < expiry < _MAX_TIME:
        raise UserError(f"{text} is not a time in the future; write 30d or 2027-01-31", field="--until")
    return expiry


_MAX_TIME: Final = 253370764800  # the start of the year 9999


def _remove(texts: Texts, name: str) -> bool:
    """Remove the keys of a holder; return whether there was one."""
    held = {team: text for team, text in texts.items() if f"for={name}" in text.split()}
    for team, text in held.items():
        texts[team] = "".join(one for one in text.splitlines(keepends=True) if f"for={name}" not in one.split())
    return bool(held)


async def _edit(cluster: Cluster, name: str, change: Callable[[Texts], None]) -> None:
    """Change the entries of a Secret, again if it was changed meanwhile, until the caller's deadline."""
    while True:
        try:
            return await _edit_once(cluster, name, change)
        except (ConflictError, AlreadyExistsError):
            await trio.sleep(RETRY_SECONDS)


async def _edit_once(cluster: Cluster, name: str, change: Callable[[Texts], None]) -> None:
    secret = await find(cluster.client, Secret, Key(cluster.namespace, name))
    before, texts = key_texts(secret), key_texts(secret)
    change(texts)
    changes: Any = {team: _encoded(text) for team, text in texts.items() if text != before.get(team)}
    if secret is None:
        new = Secret(metadata=ObjectMeta(name=name, namespace=cluster.namespace), data=changes)
        await cluster.client.create(new, field_manager=FIELD_MANAGER)
    else:
        patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": changes}
        await cluster.client.patch(Secret, secret.key, patch, field_manager=FIELD_MANAGER)


def _encoded(text: str) -> Any:
    return base64.b64encode(text.encode()).decode() if text else None  # null removes the entry


def _keys_in(texts: Mapping[str, str]) -> list[tuple[str, IssuedKey]]:
    return [(team, one) for team, text in sorted(texts.items()) for _, one in parse_key_file(text)]


def _as_data(team: str, key: IssuedKey, now: float) -> dict[str, Any]:
    state = "expired" if now >= key.until else "invalid" if key.problem else "valid" if key.name else "plain key"
    return {"for": key.name, "team": team, "models": list(key.models), "until": _shown(key), "state": state}


def _shown(key: IssuedKey) -> str:
    return "" if math.isinf(key.until) else shown_time(key.until)
