"""`llmkube keys`: keys for clients. Their digests are stored in a Secret, which routers and gateways read.

A key is printed once, when it is issued; no one can read it again.
"""

import base64
import datetime
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from llmkube.base.errors import UserError
from llmkube.base.times import utcnow
from llmkube.base.units import parse_duration
from llmkube.cli.options import cluster_options, output_option
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, run_against
from llmkube.cli.view import formats, output
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, Decorator, command
from llmkube.programs.router_host.secret_files import decoded_entries
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.issued_keys import ISSUED_IN, NAME, IssuedKey, parse_key_file, shown_time
from llmkube.router.config.routing_config import pattern_problem

COLUMNS: Final = ("FOR", "TEAM", "MODELS", "UNTIL", "STATE")
FIELD_MANAGER: Final = "llmkube-keys"
DEFAULT_TEAM: Final = "clients"
_ATTEMPTS: Final = 5

Texts = dict[str, str]
"""Content of each team's entry."""


@click.group("keys", context_settings=HELP)
def keys() -> None:
    """Issue, list and revoke keys for the clients of routers and gateways."""


def _secret_option() -> Decorator:
    return click.option("--secret", metavar="NAME", default=ISSUED_IN, show_default=True, help="Secret of the keys.")


@command("issue", keys)
@click.option("--for", "name", metavar="NAME", required=True, help="Holder of the key: a person or a program.")
@click.option("--team", default=DEFAULT_TEAM, show_default=True, help="Team of the holder, for budgets and policy.")
@click.option("--models", metavar="A,B", help="Models that the key may use; * for any text. Default: every model.")
@click.option("--until", metavar="DATE|DURATION", help="Last day (UTC), or time until expiry. Default: no expiry.")
@_secret_option()
@cluster_options()
def issue(*, name: str, team: str, models: str | None, until: str | None, secret: str, where: ClusterFlags) -> None:
    """Create a key, print it once on standard output, and store its digest in a Secret.

    ModelRouters read the Secret that spec.policy.auth.keysSecretRef names; `llmkube up --listen` reads llmkube-keys in
    the namespace default.
    """
    for field, value in (("--for", name), ("--team", team)):
        if not NAME.fullmatch(value) or (field == "--team" and "@" in value):
            raise UserError(f"{value!r} is not a name; use up to 63 letters, digits, dots, _ and -", field=field)
    key = f"llmk_{secrets.token_urlsafe(32)}"
    expiry = {} if until is None else {"until": expiry_of(until, utcnow())}
    record = IssuedKey(digest=digest_of_key(key), name=name, models=_patterns(models), **expiry)

    def add(texts: Texts) -> None:
        if any(one is not None and one.name == name for _, one in _keys_in(texts)):
            raise CommandError(f"{name} has a key; revoke it first, or issue one for another name, such as {name}-2")
        texts[team] = f"{texts.get(team, '').rstrip()}\n{record.line}\n".lstrip()

    async def action(cluster: Cluster) -> str:
        place = Key(cluster.namespace, secret)
        await _edit(cluster, place, add)
        routers = (await cluster.client.list(ModelRouter, namespace=cluster.namespace)).items
        readers = [f"ModelRouter {each.metadata.name}" for each in routers if _secret_of(each) == secret]
        if cluster.up_dir is not None and place == Key("default", ISSUED_IN):
            readers.append("llmkube up --listen")
        return (
            ", ".join(readers) or f"nothing yet: a ModelRouter does with spec.policy.auth.keysSecretRef.name: {secret}"
        )

    readers = run_against(where, action, changes=True, seconds=ANSWER_SECONDS)
    click.echo(key)
    text = f"This key is not shown again. {_sentence(team, record)}\nSecret {secret} is read by: {readers}"
    click.echo(output.wrapped(text, err=True), err=True)


@command("list", keys)
@_secret_option()
@cluster_options()
@output_option("json", "yaml")
def list_keys(*, secret: str, where: ClusterFlags, form: str) -> None:
    """List the holders of keys, with their models and expiry; keys themselves are not stored."""

    async def action(cluster: Cluster) -> Texts:
        found = await _read(cluster, Key(cluster.namespace, secret))
        return _texts(found) if found is not None else {}

    now = utcnow().timestamp()
    rows = [_as_data(team, each, now) for team, each in _keys_in(run_against(where, action, seconds=ANSWER_SECONDS))]
    if form:
        click.echo(formats.dump(rows, form))
    elif rows:
        cells = [[one["for"], one["team"], ",".join(one["models"]) or "*", one["until"], one["state"]] for one in rows]
        click.echo(output.table(COLUMNS, cells, width=output.line_width()))
    else:
        click.echo(f"Secret {secret} has no keys.", err=True)


@command("revoke", keys)
@click.argument("name")
@_secret_option()
@cluster_options()
def revoke(*, name: str, secret: str, where: ClusterFlags) -> None:
    """Revoke the keys of a holder.

    New requests are refused as soon as the readers of the Secret have read it again: after about a second in `llmkube
    up`, and after the kubelet's next sync (a minute or so) in pods. Answers under way are completed.
    """

    def remove(texts: Texts) -> None:
        held = {team: text for team, text in texts.items() if f"for={name}" in text.split()}
        if not held:
            raise CommandError(f"{name} has no key in Secret {secret}; see `llmkube keys list`", ExitCode.NOT_FOUND)
        for team, text in held.items():
            texts[team] = "".join(one for one in text.splitlines(keepends=True) if f"for={name}" not in one.split())

    async def action(cluster: Cluster) -> None:
        await _edit(cluster, Key(cluster.namespace, secret), remove)

    run_against(where, action, changes=True, seconds=ANSWER_SECONDS)
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


def _patterns(text: str | None) -> tuple[str, ...]:
    patterns = tuple(each.strip() for each in text.split(",")) if text is not None else ()
    for each in patterns:
        if problem := pattern_problem(each):
            raise UserError(f"{each!r}: {problem}", field="--models")
    return patterns


async def _edit(cluster: Cluster, place: Key, change: Callable[[Texts], None]) -> None:
    """Change the entries of a Secret, again from its newest version if somebody else has changed it meanwhile."""
    for attempt in range(1, _ATTEMPTS + 1):
        secret = await _read(cluster, place)
        before = _texts(secret) if secret is not None else {}
        texts = dict(before)
        change(texts)
        changes = {team: _encoded(text) for team, text in texts.items() if text != before.get(team)}
        try:
            if secret is None:
                new = Secret(metadata=ObjectMeta(name=place.name, namespace=place.namespace), data=changes)
                await cluster.client.create(new, field_manager=FIELD_MANAGER)
            else:
                patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": changes}
                await cluster.client.patch(Secret, place, patch, field_manager=FIELD_MANAGER)
        except (ConflictError, AlreadyExistsError):
            if attempt == _ATTEMPTS:
                raise
        else:
            return


async def _read(cluster: Cluster, place: Key) -> Secret | None:
    try:
        return await cluster.client.get(Secret, place)
    except NotFoundError:
        return None


def _texts(secret: Secret) -> Texts:
    return {team: value.decode("ascii", "replace") for team, value in decoded_entries(secret).items()}


def _encoded(text: str) -> Any:
    return base64.b64encode(text.encode()).decode() if text else None  # null removes the entry


def _keys_in(texts: Mapping[str, str]) -> list[tuple[str, IssuedKey | None]]:
    """Return each key with its team, None for a line that is invalid."""
    parsed = [(team, one) for team, text in sorted(texts.items()) for _, one in parse_key_file(text)]
    return [(team, None if isinstance(one, ValueError) else one) for team, one in parsed]


def _as_data(team: str, key: IssuedKey | None, now: float) -> dict[str, Any]:
    if key is None:
        return {"for": "", "team": team, "models": [], "until": "", "state": "invalid"}
    state = "expired" if now >= key.until else "valid" if key.name else "plain key"
    shown = shown_time(key.until) if key.until < _MAX_TIME else ""
    return {"for": key.name, "team": team, "models": list(key.models), "until": shown, "state": state}


def _sentence(team: str, key: IssuedKey) -> str:
    data = _as_data(team, key, 0.0)
    models = ", ".join(data["models"]) or "every model"
    return (
        f"{key.name} of team {team} may use {models} {'until ' + data['until'] if data['until'] else 'without expiry'}."
    )


def _secret_of(router: ModelRouter) -> str:
    policy = router.spec.policy
    ref = policy.auth.keys_secret_ref if policy is not None and policy.auth is not None else None
    return ref.name if ref is not None else ""
